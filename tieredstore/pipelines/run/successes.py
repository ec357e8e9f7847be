"""``_SUCCESS``: what says that a directory is complete, and of which generations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from tieredstore.errors import ObjectNotFound, PreconditionFailed

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

SUCCESS: Final = "_SUCCESS"
"""The name that Hadoop's tools look for."""
_BESIDE: Final = "beside"
_MOST_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 10

Statement: TypeAlias = dict[str, object]
"""Pipeline, generation, files, records, commit: what one generation says of a directory."""

IsOurs: TypeAlias = Callable[[Statement], bool]


@dataclass(frozen=True, slots=True)
class Success:
    """What stands in a directory. Generations side by side each have a statement of their own, the latest first."""

    etag: str | None
    size: int
    statements: tuple[Statement, ...]


def is_said_by(statement: Statement, pipeline: str, generation: int) -> bool:
    """Whether it is a generation's own."""
    return (statement.get("pipeline"), statement.get("generation")) == (pipeline, generation)


def read_success(store: ObjectStore, path: str) -> Success | None:
    """What stands there; without statements if somebody else wrote it, None if nothing is there."""
    key = f"{path}/{SUCCESS}"
    try:
        info = store.head(key)
        data = store.get_small(key, _MOST_BYTES)
    except ObjectNotFound:
        return None
    return Success(info.etag, info.size, _statements(data or b""))


def say_success(
    store: ObjectStore, path: str, statement: Statement, is_ours: IsOurs, check: Callable[[], None] | None = None
) -> None:
    """Write a statement, in place of those that are ``is_ours``; those of other generations stay beside it.

    ``check`` is called between the look at what stands there and the write on condition of that: if it finds nobody who
    could know better, nothing newer is written over, however long this process sleeps in between.
    """
    _change(store, path, lambda before: [statement, *(one for one in before if not is_ours(one))], check)


def take_back_success(store: ObjectStore, path: str, is_ours: IsOurs, check: Callable[[], None] | None = None) -> bool:
    """Take away what is ``is_ours``, and the object with the last of it; whether there was anything.

    ``check`` as of :func:`say_success`: who is not alone any more takes nothing away. No store deletes on condition, so
    that a process which sleeps in the very request of a delete is not held up by it.
    """
    return _change(store, path, lambda before: [one for one in before if not is_ours(one)], check)


def _change(
    store: ObjectStore,
    path: str,
    change: Callable[[tuple[Statement, ...]], list[Statement]],
    check: Callable[[], None] | None = None,
) -> bool:
    key = f"{path}/{SUCCESS}"
    for attempt in range(_ATTEMPTS):
        before = read_success(store, path)
        after = change(before.statements if before else ())
        if before is not None and list(before.statements) == after:
            return False
        if check is not None:
            check()
        try:
            if after:
                _put(store, key, json.dumps(_content(after)).encode(), before)
            elif before is None or not before.statements:
                return False
            else:
                # A store has no delete under a condition: nobody says a directory complete whose files are to go.
                store.delete([key])
        except PreconditionFailed:
            # Another generation was faster.
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return True
    return False


def _put(store: ObjectStore, key: str, data: bytes, before: Success | None) -> None:
    if before is None:
        store.put(key, data, if_absent=True)
    else:
        store.replace(key, data, before.etag or "")


def _content(statements: list[Statement]) -> Statement:
    first, *rest = statements
    return {**first, _BESIDE: rest} if rest else first


def _statements(data: bytes) -> tuple[Statement, ...]:
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(content, dict) or "generation" not in content:
        return ()
    first: Statement = dict(cast("Statement", content))
    beside: Any = first.pop(_BESIDE, [])
    rest = cast("list[object]", beside) if isinstance(beside, list) else []
    return (first, *(cast("Statement", one) for one in rest if isinstance(one, dict)))
