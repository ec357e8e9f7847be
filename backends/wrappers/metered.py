"""A store whose calls are counted and timed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TypeVar

from tieredstore import metrics
from tieredstore.backends.base import AbandonedWrite, Body, Buffer, DelegatingStore, ObjectInfo, ObjectStore, Prepared
from tieredstore.backends.contract.bodies import open_body
from tieredstore.errors import TieredStoreError

Listed = TypeVar("Listed")
Result = TypeVar("Result")


class MeteredStore(DelegatingStore):
    """Passes every call on, and counts it (see ``tieredstore.metrics``) under the label ``kind``.

    Without one it is the scheme of the store's URL, which for a cloud's store at an endpoint is only ``http``.
    """

    def __init__(self, inner: ObjectStore, kind: str | None = None) -> None:
        super().__init__(inner)
        self._kind = inner.identity.partition(":")[0] if kind is None else kind

    def __reduce__(self) -> tuple[Callable[..., MeteredStore], tuple[ObjectStore, str]]:
        return MeteredStore, (self.inner, self._kind)

    def __repr__(self) -> str:
        return f"MeteredStore({self.inner!r})"

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """One object up; the time that its body takes to come is not the store's."""
        self._sent("put", body, lambda taken: self.inner.put(key, taken, if_absent=if_absent))

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """As ``put``, each try."""
        self._sent("put", body, lambda _: self.inner.put_once(key, body, mark))

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """As ``put``, for the bytes; ``publish`` moves none."""
        return self._sent("prepare", body, lambda taken: self.inner.prepare(key, taken, staging_prefix=staging_prefix))

    def publish(self, prepared: Prepared) -> None:
        """One call."""
        with metrics.store_call(self._kind, "publish"):
            self.inner.publish(prepared)

    def _sent(self, operation: str, body: Body, send: Callable[[Body], Result]) -> Result:
        if isinstance(body, bytes | bytearray | memoryview):
            # As it is: stores send a buffer without a copy.
            size = memoryview(body).nbytes
            with metrics.store_call(self._kind, operation):
                result = send(body)
        else:
            result, size = self._sent_stream(operation, body, send)
        metrics.count_objects(self._kind, "up", 1, size)
        return result

    def _sent_stream(self, operation: str, body: Body, send: Callable[[Body], Result]) -> tuple[Result, int]:
        size = 0

        def counted(parts: Iterator[memoryview]) -> Generator[memoryview, None, None]:
            nonlocal size
            while True:
                asked = perf_counter()
                try:
                    part = next(parts, None)
                finally:
                    call.elsewhere_s += perf_counter() - asked
                if part is None:
                    return
                size += len(part)
                yield part

        with metrics.store_call(self._kind, operation) as call, open_body(body) as parts:
            result = send(counted(parts))
        return result, size

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """One object down; an empty range is no call."""
        if start == stop:
            return self.inner.get(key, start, stop)
        with metrics.store_call(self._kind, "get"):
            data = self.inner.get(key, start, stop)
        metrics.count_objects(self._kind, "down", 1, len(data))
        return data

    def get_small(self, key: str, most: int) -> bytes | None:
        """One object down, unless it is too large."""
        with metrics.store_call(self._kind, "get"):
            data = self.inner.get_small(key, most)
        if data is not None:
            metrics.count_objects(self._kind, "down", 1, len(data))
        return data

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """One call for what the store within takes in one, and so many objects down."""
        if self.small_batch == 1:
            return ObjectStore.get_small_batch(self, keys, most)
        with metrics.store_call(self._kind, "get"):
            answers = self.inner.get_small_batch(keys, most)
        for error in answers:
            if isinstance(error, TieredStoreError):
                metrics.count_error(self._kind, "get", error)
        sizes = [len(data) for data in answers if isinstance(data, bytes)]
        metrics.count_objects(self._kind, "down", len(sizes), sum(sizes))
        return answers

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """One object down; an empty buffer is no call."""
        size = memoryview(buffer).nbytes
        if not size:
            self.inner.get_into(key, start, buffer)
            return
        with metrics.store_call(self._kind, "get"):
            self.inner.get_into(key, start, buffer)
        metrics.count_objects(self._kind, "down", 1, size)

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """One object down."""
        with metrics.store_call(self._kind, "get"):
            self.inner.get_whole(key, buffer)
        metrics.count_objects(self._kind, "down", 1, memoryview(buffer).nbytes)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """One call, begun when its first object is asked for; the time between its objects is not the store's."""
        return self._listed(partial(self.inner.list, prefix, start_after))

    def _listed(self, begin: Callable[[], Iterator[Listed]]) -> Iterator[Listed]:
        with metrics.store_call(self._kind, "list") as call:
            for listed in begin():
                passed_on = perf_counter()
                try:
                    yield listed
                finally:
                    call.elsewhere_s += perf_counter() - passed_on

    def delete(self, keys: Iterable[str]) -> None:
        """One call; its keys count as deleted if it succeeds, present or not."""
        deleted = 0

        def counted() -> Generator[str, None, None]:
            nonlocal deleted
            for key in keys:
                deleted += 1
                yield key

        with metrics.store_call(self._kind, "delete"):
            self.inner.delete(counted())
        metrics.count_objects(self._kind, "deleted", deleted)

    def head(self, key: str) -> ObjectInfo:
        """One call."""
        with metrics.store_call(self._kind, "head"):
            return self.inner.head(key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """One object up."""
        with metrics.store_call(self._kind, "replace"):
            new_etag = self.inner.replace(key, body, etag)
        metrics.count_objects(self._kind, "up", 1, memoryview(body).nbytes)
        return new_etag

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """A ``list``, as of objects."""
        writes = super().abandoned_writes(prefix)
        return None if writes is None else self._listed(lambda: writes)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """A ``delete``; no object counts as deleted."""
        with metrics.store_call(self._kind, "delete"):
            return self.inner.discard(write)

    def now_ms(self) -> int | None:
        """A ``list``, as the clouds' stores ask for it."""
        with metrics.store_call(self._kind, "list"):
            return super().now_ms()
