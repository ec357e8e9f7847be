"""The wrappers of a store: metrics, and a rate limit in bytes per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from tieredstore.backends.base import AbandonedWrite, Body, Buffer, DelegatingStore, ObjectInfo, ObjectStore, Prepared
from tieredstore.backends.contract.bodies import open_body
from tieredstore.backends.registry import BY_SETTING, store_from_settings
from tieredstore.errors import TieredStoreError
from tieredstore.metrics import counting
from tieredstore.process.forks import ForkSafeLock

if TYPE_CHECKING:
    from tieredstore.config import Settings


def wrap(store: ObjectStore, settings: Settings) -> ObjectStore:
    """Add metrics to ``store``, and rate limits if the settings have any. Metrics do not count the time that a call
    waits for the rate limit.

    The label in metrics is the store's short name in the settings. For a user's own class, the label is the class's
    name.
    """
    name = settings.storage_backend
    metered = MeteredStore(store, name if name in BY_SETTING else type(store).__name__)
    up = shared_bucket("up", settings.upload_rate_limit)
    down = shared_bucket("down", settings.fetch.rate_limit)
    return metered if up is None and down is None else LimitedStore(metered, up, down)


def open_wrapped(settings: Settings) -> ObjectStore:
    """Open the store that the settings name, with all its wrappers."""
    return wrap(store_from_settings(settings), settings)


class TokenBucket:
    """Rate limiter that lets ``bytes_per_s`` bytes per second pass, after a burst of at most one second's worth.
    Thread-safe.

    A caller may take more bytes than are available. The balance then becomes negative, and the caller waits until it is
    zero again. So a take larger than the burst passes too, and later callers wait longer.
    """

    def __init__(
        self,
        bytes_per_s: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = ForkSafeLock()
        self._tokens = float(bytes_per_s)
        self._filled_at_s = monotonic()

    def take(self, count: int) -> None:
        """Wait until ``count`` more bytes may pass."""
        with self._lock:
            now = self._monotonic()
            gained = (now - self._filled_at_s) * self.bytes_per_s
            self._tokens = min(float(self.bytes_per_s), self._tokens + gained) - count
            self._filled_at_s = now
            wait_s = -self._tokens / self.bytes_per_s
        if wait_s > 0:
            self._sleep(wait_s)


def limit_rate(body: Body, bucket: TokenBucket) -> Generator[Buffer, None, None]:
    """Yield the buffers of ``body`` at the bucket's rate; cut buffers longer than the burst."""
    with open_body(body) as buffers:
        for view in buffers:
            for start in range(0, len(view), bucket.bytes_per_s):
                with view[start : start + bucket.bytes_per_s] as piece:
                    bucket.take(len(piece))
                    yield piece


Result = TypeVar("Result")

_buckets: Final[dict[tuple[str, int], TokenBucket]] = {}


def shared_bucket(direction: str, bytes_per_s: int | None) -> TokenBucket | None:
    """Return this process's token bucket for a direction and limit; None if there is no limit."""
    if bytes_per_s is None:
        return None
    return _buckets.setdefault((direction, bytes_per_s), TokenBucket(bytes_per_s))


class LimitedStore(DelegatingStore):
    """Wrapper that limits the bytes per second: the token bucket ``up`` limits writes, ``down`` limits reads.

    A byte counts once, even if the inner store sends it again or the call fails. Listings, deletes and heads are not
    limited. After unpickling, the store uses the token buckets of the new process.
    """

    def __init__(self, inner: ObjectStore, up: TokenBucket | None = None, down: TokenBucket | None = None) -> None:
        super().__init__(inner)
        self._up = up
        self._down = down

    def __reduce__(self) -> tuple[Callable[..., LimitedStore], tuple[ObjectStore, int | None, int | None]]:
        up = None if self._up is None else self._up.bytes_per_s
        down = None if self._down is None else self._down.bytes_per_s
        return _restore, (self.inner, up, down)

    def __repr__(self) -> str:
        return f"LimitedStore({self.inner!r})"

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write the object; take its body no faster than the limit allows."""
        self._send(body, lambda taken: self.inner.put(key, taken, if_absent=if_absent))

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """Wait until the bandwidth limit admits the whole body, then write. Each call counts the body's whole size
        against the limit.
        """
        self._take(self._up, memoryview(body).nbytes)
        self.inner.put_once(key, body, mark)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Prepare the object; take its body no faster than the limit allows."""
        return self._send(body, lambda taken: self.inner.prepare(key, taken, staging_prefix=staging_prefix))

    def _send(self, body: Body, send: Callable[[Body], Result]) -> Result:
        bucket = self._up
        if bucket is None:
            return send(body)
        if isinstance(body, bytes | bytearray | memoryview) and memoryview(body).nbytes <= bucket.bytes_per_s:
            # Pass the buffer on as it is: stores send a buffer without a copy.
            bucket.take(memoryview(body).nbytes)
            return send(body)
        # Open the body here. If a store refuses before reading, the generator below never starts, so it could not close
        # the body.
        with open_body(body) as parts:
            return send(limit_rate(parts, bucket))

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Wait for the bandwidth limit: before the request if the range gives the size, else after the request."""
        if stop is not None:
            self._take(self._down, stop - start)
            return self.inner.get(key, start, stop)
        data = self.inner.get(key, start)
        self._take(self._down, len(data))
        return data

    def get_small(self, key: str, most: int) -> bytes | None:
        """Wait after the request."""
        data = self.inner.get_small(key, most)
        self._take(self._down, len(data or b""))
        return data

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Wait after the request."""
        if self.small_batch == 1:
            return ObjectStore.get_small_batch(self, keys, most)
        answers = self.inner.get_small_batch(keys, most)
        self._take(self._down, sum(len(data) for data in answers if isinstance(data, bytes)))
        return answers

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Wait before the request."""
        self._take(self._down, memoryview(buffer).nbytes)
        self.inner.get_into(key, start, buffer)

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """Wait before the request."""
        self._take(self._down, memoryview(buffer).nbytes)
        self.inner.get_whole(key, buffer)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Replace the object; take its body no faster than the limit allows. If the body is a buffer, wait for all of
        its bytes before the request.
        """
        if not isinstance(body, bytes | bytearray | memoryview):
            return self._send(body, lambda taken: self.inner.replace(key, taken, etag))
        self._take(self._up, memoryview(body).nbytes)
        return self.inner.replace(key, body, etag)

    @staticmethod
    def _take(bucket: TokenBucket | None, count: int) -> None:
        if bucket is not None and count > 0:
            bucket.take(count)


def _restore(inner: ObjectStore, up: int | None, down: int | None) -> LimitedStore:
    return LimitedStore(inner, shared_bucket("up", up), shared_bucket("down", down))


Listed = TypeVar("Listed")

_OPERATIONS: Final = {"get": "get", "head": "head", "publish": "publish", "discard": "delete", "now_ms": "list"}
"""Names of requests in metrics. Cloud stores list an object to learn the time."""


class MeteredStore(DelegatingStore):
    """Wrapper that counts every call (see ``tieredstore.metrics``) under the label ``kind``.

    The default label is the scheme of the store's URL. For a cloud's store at a custom endpoint, this label is only
    ``http`` or ``https``.
    """

    def __init__(self, inner: ObjectStore, kind: str | None = None) -> None:
        super().__init__(inner)
        self._kind = inner.identity.partition(":")[0] if kind is None else kind

    def __reduce__(self) -> tuple[Callable[..., MeteredStore], tuple[ObjectStore, str]]:
        return MeteredStore, (self.inner, self._kind)

    def __repr__(self) -> str:
        return f"MeteredStore({self.inner!r})"

    def call(self, verb: str, key: str, request: Callable[[], Result]) -> Result:  # noqa: ARG002
        """Count one call, unless the request is an administrative question without a metric."""
        operation = _OPERATIONS.get(verb)
        if operation is None:
            return request()
        with counting.store_call(self._kind, operation):
            return request()

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Count one uploaded object. Its duration excludes the time in which the caller produces the body."""
        self._send("put", body, lambda taken: self.inner.put(key, taken, if_absent=if_absent))

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """Count each call as ``put`` does."""
        self._send("put", body, lambda _: self.inner.put_once(key, body, mark))

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """Count the bytes as ``put`` does, because ``publish`` moves no bytes."""
        return self._send("prepare", body, lambda taken: self.inner.prepare(key, taken, staging_prefix=staging_prefix))

    def _send(self, operation: str, body: Body, send: Callable[[Body], Result]) -> Result:
        if isinstance(body, bytes | bytearray | memoryview):
            # Pass the buffer on as it is: stores send a buffer without a copy.
            size = memoryview(body).nbytes
            with counting.store_call(self._kind, operation):
                result = send(body)
        else:
            result, size = self._send_stream(operation, body, send)
        counting.count_objects(self._kind, "up", 1, size)
        return result

    def _send_stream(self, operation: str, body: Body, send: Callable[[Body], Result]) -> tuple[Result, int]:
        size = 0

        def count(parts: Iterator[memoryview]) -> Generator[memoryview, None, None]:
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

        with counting.store_call(self._kind, operation) as call, open_body(body) as parts:
            result = send(count(parts))
        return result, size

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Count one downloaded object; an empty range makes no call."""
        if start == stop:
            return self.inner.get(key, start, stop)
        data = super().get(key, start, stop)
        counting.count_objects(self._kind, "down", 1, len(data))
        return data

    def get_small(self, key: str, most: int) -> bytes | None:
        """Count one downloaded object, unless it is too large."""
        data = super().get_small(key, most)
        if data is not None:
            counting.count_objects(self._kind, "down", 1, len(data))
        return data

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Count one call per batch of the wrapped store, and each downloaded object."""
        if self.small_batch == 1:
            return ObjectStore.get_small_batch(self, keys, most)
        answers = super().get_small_batch(keys, most)
        for error in answers:
            if isinstance(error, TieredStoreError):
                counting.count_error(self._kind, "get", error)
        sizes = [len(data) for data in answers if isinstance(data, bytes)]
        counting.count_objects(self._kind, "down", len(sizes), sum(sizes))
        return answers

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Count one downloaded object; an empty buffer makes no call."""
        size = memoryview(buffer).nbytes
        if not size:
            self.inner.get_into(key, start, buffer)
            return
        super().get_into(key, start, buffer)
        counting.count_objects(self._kind, "down", 1, size)

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """Count one downloaded object."""
        with counting.store_call(self._kind, "get"):
            self.inner.get_whole(key, buffer)
        counting.count_objects(self._kind, "down", 1, memoryview(buffer).nbytes)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Count one ``list`` call, from the first request on; exclude the time that the caller spends between
        objects.
        """
        return self._measure_listing(partial(self.inner.list, prefix, start_after))

    def _measure_listing(self, begin: Callable[[], Iterator[Listed]]) -> Iterator[Listed]:
        with counting.store_call(self._kind, "list") as call:
            for listed in begin():
                passed_on = perf_counter()
                try:
                    yield listed
                finally:
                    call.elsewhere_s += perf_counter() - passed_on

    def delete(self, keys: Iterable[str]) -> None:
        """Count one ``delete`` call. If it succeeds, count all its keys as deleted, present or absent."""
        deleted = 0

        def count() -> Generator[str, None, None]:
            nonlocal deleted
            for key in keys:
                deleted += 1
                yield key

        with counting.store_call(self._kind, "delete"):
            self.inner.delete(count())
        counting.count_objects(self._kind, "deleted", deleted)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Count one uploaded object."""
        return self._send("replace", body, lambda taken: self.inner.replace(key, taken, etag))

    def abandoned_writes(self, prefix: str = "") -> Iterator[AbandonedWrite] | None:
        """Count one ``list`` call."""
        writes = super().abandoned_writes(prefix)
        return None if writes is None else self._measure_listing(lambda: writes)
