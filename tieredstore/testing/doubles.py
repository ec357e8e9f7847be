"""Stores that wrap another one to count what is asked of it, or to answer as slowly as a distant one."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator

from tieredstore.backends.base import AbandonedWrite, Body, Buffer, ObjectInfo, ObjectStore, Prepared
from tieredstore.backends.contract.bodies import open_body
from tieredstore.testing.delegating import DelegatingObjectStore, Operation, OperationName


class CountingStore(DelegatingObjectStore):
    """Counts requests and bytes, failed calls included. Safe from several threads.

    A request is one call of the contract; an empty range is none, and a listing is one when its first object is asked
    for. ``bytes_up`` are the bytes taken from bodies, ``bytes_down`` those that reached the caller.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything counted so far."""
        with self._lock:
            self.operations: list[Operation] = []
            self.requests: Counter[OperationName] = Counter()
            self.bytes_up = 0
            self.bytes_down = 0

    def keys_of(self, name: OperationName) -> list[str]:
        """The keys of all operations of one name, in the order of the calls."""
        with self._lock:
            return [key for operation in self.operations if operation.name == name for key in operation.keys]

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """One request."""
        self._count("put", key)
        with open_body(body) as parts:
            super().put(key, self._counted(parts), if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """One request, none for an empty range."""
        if start != stop:
            self._count("get", key)
        data = super().get(key, start, stop)
        self._add(down=len(data))
        return data

    def get_small(self, key: str, most: int) -> bytes | None:
        """One request, a ``get``."""
        self._count("get", key)
        data = super().get_small(key, most)
        self._add(down=len(data or b""))
        return data

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """One request, none for an empty buffer."""
        size = memoryview(buffer).nbytes
        if size:
            self._count("get_into", key)
        super().get_into(key, start, buffer)
        self._add(down=size)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """One request, however many pages."""
        self._count("list", prefix)
        yield from super().list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """One request, however many keys."""
        named = tuple(keys)
        self._count("delete", *named)
        super().delete(named)

    def head(self, key: str) -> ObjectInfo:
        """One request."""
        self._count("head", key)
        return super().head(key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """One request."""
        self._count("replace", key)
        self._add(up=memoryview(body).nbytes)
        return super().replace(key, body, etag)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """One request."""
        self._count("prepare", key)
        with open_body(body) as parts:
            return super().prepare(key, self._counted(parts), staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """One request."""
        self._count("publish", prepared.key)
        super().publish(prepared)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """One request, however many pages."""
        self._count("abandoned_writes", prefix)
        yield from super().abandoned_writes(prefix)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """One request."""
        self._count("discard", write.key)
        return super().discard(write)

    def now_ms(self) -> int | None:
        """One request."""
        self._count("now_ms")
        return super().now_ms()

    def _count(self, name: OperationName, *keys: str) -> None:
        with self._lock:
            self.operations.append(Operation(len(self.operations), name, keys))
            self.requests[name] += 1

    def _add(self, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.bytes_up += up
            self.bytes_down += down

    def _counted(self, parts: Iterator[memoryview]) -> Generator[memoryview]:
        for part in parts:
            self._add(up=len(part))
            yield part


class LatencyStore(DelegatingObjectStore):
    """Answers after ``request_s`` seconds and moves at most ``bytes_per_s`` in each call, by calling ``sleep``.

    The bodies of ``put`` wait buffer by buffer, downloads once for all their bytes; an empty range waits for nothing.
    Calls on several threads do not slow each other down. A test that must not wait gives a ``sleep`` that only notes.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        request_s: float = 0.0,
        bytes_per_s: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._request_s, self._bytes_per_s, self._sleep = request_s, bytes_per_s, sleep

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Waits for the request, then for each buffer."""
        with open_body(body) as parts:
            self._wait()
            super().put(key, self._slowed(parts), if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Waits for the request, then for the bytes that came."""
        if start != stop:
            self._wait()
        data = super().get(key, start, stop)
        self._move(len(data))
        return data

    def get_small(self, key: str, most: int) -> bytes | None:
        """Waits for the request, then for the bytes that came."""
        self._wait()
        data = super().get_small(key, most)
        self._move(len(data or b""))
        return data

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Waits for the request, then for the bytes that came."""
        size = memoryview(buffer).nbytes
        if size:
            self._wait()
        super().get_into(key, start, buffer)
        self._move(size)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Waits once, however many pages."""
        self._wait()
        yield from super().list(prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """Waits once, however many keys."""
        self._wait()
        super().delete(keys)

    def head(self, key: str) -> ObjectInfo:
        """Waits for the request."""
        self._wait()
        return super().head(key)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """Waits for the request and the bytes."""
        self._wait()
        self._move(memoryview(body).nbytes)
        return super().replace(key, body, etag)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Waits for the request, then for each buffer."""
        with open_body(body) as parts:
            self._wait()
            return super().prepare(key, self._slowed(parts), staging_prefix=staging_prefix)

    def publish(self, prepared: Prepared) -> None:
        """Waits for the request."""
        self._wait()
        super().publish(prepared)

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite]:
        """Waits once, however many pages."""
        self._wait()
        yield from super().abandoned_writes(prefix)

    def discard(self, write: AbandonedWrite | Prepared) -> bool:
        """Waits for the request."""
        self._wait()
        return super().discard(write)

    def now_ms(self) -> int | None:
        """Waits for the request."""
        self._wait()
        return super().now_ms()

    def _wait(self) -> None:
        if self._request_s:
            self._sleep(self._request_s)

    def _move(self, count: int) -> None:
        if count and self._bytes_per_s is not None:
            self._sleep(count / self._bytes_per_s)

    def _slowed(self, parts: Iterator[memoryview]) -> Generator[memoryview]:
        for part in parts:
            self._move(len(part))
            yield part
