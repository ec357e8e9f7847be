"""``_SUCCESS`` objects, each of which marks a directory as complete. The object has the counts of files and records of
each generation (version of the output) that wrote to the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.errors import CommitLogCorruptError, ObjectNotFoundError, PreconditionFailedError
from tieredstore.pipelines.log.entries import read_state
from tieredstore.versions import DIRECTORY_STATEMENT

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

SUCCESS: Final = "_SUCCESS"
"""The name of the marker file that Hadoop tools look for."""
_MOST_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Statement:
    """One generation's statement in a ``_SUCCESS``: its numbers of files and records in the directory. ``commit`` is
    the log entry that marked the directory as complete.
    """

    pipeline: str
    generation: int
    files: int
    records: int
    commit: int

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of files and records."""
        return self.files, self.records


@dataclass(frozen=True, slots=True)
class _Stored(Statement):
    """The JSON of a ``_SUCCESS``: the latest statement, and in ``beside`` the statements of other generations of the
    output."""

    beside: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Success:
    """A directory's ``_SUCCESS``: one statement per generation, the latest first."""

    etag: str | None
    size: int
    statements: tuple[Statement, ...]


def read_success(store: ObjectStore, path: str) -> Success | None:
    """Return the ``_SUCCESS`` of a path, or None if there is none. A ``_SUCCESS`` without statements was written by
    another tool.

    Raise NewerVersionError for statements of a later release.
    """
    key = f"{path}/{SUCCESS}"
    try:
        info = store.head(key)
        data = store.get_small(key, _MOST_BYTES)
    except ObjectNotFoundError:
        return None
    try:
        stored = read_state(DIRECTORY_STATEMENT, _Stored, data, key)
    except CommitLogCorruptError:
        return Success(info.etag, info.size, ())
    first = Statement(stored.pipeline, stored.generation, stored.files, stored.records, stored.commit)
    return Success(info.etag, info.size, (first, *stored.beside))


def change_success(
    store: ObjectStore,
    path: str,
    statement: Callable[[], Statement | None] | Statement | None,
    is_ours: Callable[[Statement], bool],
    check: Callable[[], None] = lambda: None,
    *,
    keeps: bool = False,
) -> bool:
    """Replace the statements for which ``is_ours`` returns True by ``statement``, or delete them if ``statement`` is
    None. Return True if the object has changed.

    Statements of other generations of the output stay. If no statement is left, the object is deleted. With ``keeps``,
    do nothing if there is already a statement with the same counts for which ``is_ours`` returns True.

    ``check``, and ``statement`` if it is a function, are called between the read and the conditional write. ``check``
    raises an error if there is a newer driver. So the write never overwrites a newer statement, even if this process is
    suspended for long. A delete is not protected in this way, because stores have no conditional delete. So call
    ``settle_successes`` after a delete.
    """
    key = f"{path}/{SUCCESS}"
    for attempt in range(_ATTEMPTS):
        before = read_success(store, path)
        new = statement() if callable(statement) else statement
        said = () if before is None else before.statements
        after = [*([] if new is None else [new]), *(one for one in said if not is_ours(one))]
        if list(said) == after and (before is not None or not after):
            return False
        if keeps and new is not None and any(is_ours(one) and one.counts == new.counts for one in said):
            return False
        check()
        try:
            if not after:
                store.delete([key])
            elif before is None:
                store.put(key, _content(after), if_absent=True)
            else:
                store.replace(key, _content(after), before.etag or "")
        except PreconditionFailedError:
            # Repeat the conditional write, because another generation of the output has changed the object.
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            break
    return True


def _content(statements: Sequence[Statement]) -> bytes:
    first, *rest = map(asdict, statements)
    return DIRECTORY_STATEMENT.to_bytes({**first, "beside": rest} if rest else first)
