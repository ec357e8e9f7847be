"""``_SUCCESS``: states that a directory is complete, and for which generations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.errors import CommitLogCorruptError, ObjectNotFoundError, PreconditionFailedError
from tieredstore.pipelines.log.entries import read_json

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

SUCCESS: Final = "_SUCCESS"
"""The name that Hadoop's tools look for."""
_MOST_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Statement:
    """One generation's statement about a directory; ``commit`` is the number of its entry."""

    pipeline: str
    generation: int
    files: int
    records: int
    commit: int


@dataclass(frozen=True, slots=True)
class _Stored(Statement):
    """The stored object: the latest statement, and those of other generations beside it."""

    beside: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Success:
    """A directory's ``_SUCCESS``. Each generation has its own statement, the latest first."""

    etag: str | None
    size: int
    statements: tuple[Statement, ...]


def read_success(store: ObjectStore, path: str) -> Success | None:
    """Return the ``_SUCCESS`` of a path; without statements if another tool wrote it, None if there is none."""
    key = f"{path}/{SUCCESS}"
    try:
        info = store.head(key)
        data = store.get_small(key, _MOST_BYTES)
    except ObjectNotFoundError:
        return None
    try:
        stored = read_json(_Stored, data or b"", key)
    except CommitLogCorruptError:
        return Success(info.etag, info.size, ())
    first = Statement(stored.pipeline, stored.generation, stored.files, stored.records, stored.commit)
    return Success(info.etag, info.size, (first, *stored.beside))


def change_success(
    store: ObjectStore,
    path: str,
    statement: Statement | None,
    is_ours: Callable[[Statement], bool],
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Replace the statements that are ``is_ours``; without a new one, delete them, and the object with the last. Other
    generations' statements stay. Return True if anything changed.

    ``check`` runs between the read and the conditional write: if it finds no newer driver, nothing newer is
    overwritten, however long this process sleeps in between. No store deletes conditionally, so a process that
    sleeps inside the delete request itself is not stopped by it.
    """
    key = f"{path}/{SUCCESS}"
    for attempt in range(_ATTEMPTS):
        before = read_success(store, path)
        said = () if before is None else before.statements
        after = [*([] if statement is None else [statement]), *(one for one in said if not is_ours(one))]
        if list(said) == after and (before is not None or not after):
            return False
        check()
        try:
            if not after:
                # Stores have no conditional delete; no driver marks a directory complete while its files are to be
                # deleted.
                store.delete([key])
            elif before is None:
                store.put(key, _content(after), if_absent=True)
            else:
                store.replace(key, _content(after), before.etag or "")
        except PreconditionFailedError:
            # Another generation was faster.
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            break
    return True


def _content(statements: Sequence[Statement]) -> bytes:
    first, *rest = map(asdict, statements)
    return json.dumps({**first, "beside": rest} if rest else first).encode()
