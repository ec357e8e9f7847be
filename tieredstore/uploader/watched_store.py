"""A store whose every answer is waited for under the uploader's watch: none may keep a thread for ever, in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from tieredstore.backends.base import Body, Buffer, DelegatingStore, ObjectInfo, ObjectStore
from tieredstore.errors import TieredStoreError

Watch: TypeAlias = Callable[[str, int], AbstractContextManager[object]]
"""Watches over a block: what it waits for, in words, and the bytes that it sends."""


class WatchedStore(DelegatingStore):
    """Passes every call on, each under ``watch``; of a listing each object.

    A body that comes in pieces is not watched: whoever sends a segment watches over all of it.
    """

    def __init__(self, inner: ObjectStore, watch: Watch) -> None:
        super().__init__(inner)
        self._watch = watch

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Watched, if it is a buffer."""
        if not isinstance(body, bytes | bytearray | memoryview):
            self.inner.put(key, body, if_absent=if_absent)
            return
        with self._waiting("put", key, memoryview(body).nbytes):
            self.inner.put(key, body, if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Watched."""
        with self._waiting("get", key):
            return self.inner.get(key, start, stop)

    def get_small(self, key: str, most: int) -> bytes | None:
        """Watched."""
        with self._waiting("get_small", key):
            return self.inner.get_small(key, most)

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Watched as a whole."""
        with self._waiting("get_small", keys[0] if keys else ""):
            return self.inner.get_small_batch(keys, most)

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Watched."""
        with self._waiting("get", key):
            self.inner.get_into(key, start, buffer)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Each object is watched by itself: nobody knows how many there are."""
        listed = self.inner.list(prefix, start_after)
        while True:
            with self._waiting("list", prefix):
                info = next(listed, None)
            if info is None:
                return
            yield info

    def delete(self, keys: Iterable[str]) -> None:
        """Watched as a whole; so the keys of one segment."""
        wanted = list(keys)
        with self._waiting("delete", wanted[0] if wanted else ""):
            self.inner.delete(wanted)

    def head(self, key: str) -> ObjectInfo:
        """Watched."""
        with self._waiting("head", key):
            return self.inner.head(key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """Watched."""
        with self._waiting("replace", key, memoryview(body).nbytes):
            return self.inner.replace(key, body, etag)

    def _waiting(self, verb: str, key: str, size: int = 0) -> AbstractContextManager[object]:
        return self._watch(f"{verb} of {key!r}", size)
