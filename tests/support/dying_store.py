"""A process that is killed at one operation of its store: nothing that it does later reaches the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar

from tieredstore.backends.base import AbandonedWrite, Body, Buffer, ObjectInfo, ObjectStore, Prepared
from tieredstore.testing.delegating import DelegatingObjectStore

Result = TypeVar("Result")


class Killed(BaseException):
    """What a killed process never sees."""


class DyingStore(DelegatingObjectStore):
    """Dies ``before`` or ``after`` operation number ``at`` (from 0); None: never. ``count`` is how many there were."""

    def __init__(
        self, inner: ObjectStore, at: int | None = None, moment: Literal["before", "after"] = "before"
    ) -> None:
        super().__init__(inner)
        self.at = at
        self.moment = moment
        self.count = 0
        self.died = threading.Event()
        self._lock = threading.Lock()

    def _do(self, operation: Callable[[], Result]) -> Result:
        with self._lock:
            number, self.count = self.count, self.count + 1
            if self.died.is_set() or (number == self.at and self.moment == "before"):
                self.died.set()
                raise Killed
            is_last = number == self.at
            if is_last:
                self.died.set()
        answer = operation()
        if is_last:
            raise Killed
        return answer

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        self._do(lambda: self.inner.put(key, body, if_absent=if_absent))

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._do(lambda: self.inner.get(key, start, stop))

    def get_small(self, key: str, most: int) -> bytes | None:
        return self._do(lambda: self.inner.get_small(key, most))

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        return iter(self._do(lambda: list(self.inner.list(prefix, start_after))))

    def head(self, key: str) -> ObjectInfo:
        return self._do(lambda: self.inner.head(key))

    def delete(self, keys: Iterable[str]) -> None:
        self._do(lambda: self.inner.delete(keys))

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        return self._do(lambda: self.inner.prepare(key, body, staging_prefix=staging_prefix))

    def publish(self, prepared: Prepared) -> None:
        self._do(lambda: self.inner.publish(prepared))

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        return self._do(lambda: self.inner.discard(write))

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        return self._do(lambda: self.inner.replace(key, body, etag))


class PausedStore(DyingStore):
    """A process that stands still before operation number ``at``, while ``meanwhile`` happens, and goes on then."""

    def __init__(self, inner: ObjectStore, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner)
        self._at, self._meanwhile = at, meanwhile

    def _do(self, operation: Callable[[], Result]) -> Result:
        number, self.count = self.count, self.count + 1
        if number == self._at:
            self._meanwhile()
        return operation()
