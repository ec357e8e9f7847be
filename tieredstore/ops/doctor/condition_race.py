"""Whether a store's conditional writes are conditional: tried, also by several writers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import PreconditionFailed, StoreError
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool

_WRITERS: Final = 8
_ROUNDS: Final = 3


def racing(store: ObjectStore, place: str) -> Iterator[str]:
    """What does not hold, a sentence each; objects are made below ``place`` and stay there."""
    taken = f"{place}/taken"
    store.put(taken, b"first")
    if _wins(partial(store.put, taken, b"second", if_absent=True)) or store.get(taken) != b"first":
        yield "a write on condition that nothing is there replaced an object"
    etag = _etag(store, taken)
    store.replace(taken, b"third", etag)
    if _wins(partial(store.replace, taken, b"fourth", etag)) or store.get(taken) != b"third":
        yield "a replacement on condition of an older version took place"
    with ThreadPool(_WRITERS, "tieredstore-doctor") as pool:
        for number in range(_ROUNDS):
            key = f"{place}/race-{number}"
            won = _winners(pool, [partial(store.put, key, b"%d" % n, if_absent=True) for n in range(_WRITERS)])
            if won != 1:
                yield f"of {_WRITERS} writers on condition that nothing is there {won} won"
            etag = _etag(store, key)
            won = _winners(pool, [partial(store.replace, key, b"by %d" % n, etag) for n in range(_WRITERS)])
            if won != 1:
                yield f"of {_WRITERS} replacements of one version {won} won"


def _etag(store: ObjectStore, key: str) -> str:
    etag = store.head(key).etag
    if etag is None:
        raise StoreError(f"{store.identity} tells no etag of {key!r}, by which a replacement is made conditional")
    return etag


def _winners(pool: ThreadPool, writes: Sequence[Callable[[], object]]) -> int:
    return sum(in_parallel(pool, _wins, writes, at_once=_WRITERS))


def _wins(write: Callable[[], object]) -> bool:
    try:
        write()
    except PreconditionFailed:
        return False
    return True
