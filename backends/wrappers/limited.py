"""A store that moves at most so many bytes a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tieredstore.backends.base import Body, Buffer, DelegatingStore, ObjectStore, Prepared
from tieredstore.backends.contract.bodies import open_body
from tieredstore.backends.wrappers.rate_limit import TokenBucket, limited
from tieredstore.errors import TieredStoreError

Result = TypeVar("Result")

_buckets: Final[dict[tuple[str, int], TokenBucket]] = {}


def shared_bucket(direction: str, bytes_per_s: int | None) -> TokenBucket | None:
    """The process's one bucket for a direction and a limit: all transfers together keep to it. None for no limit."""
    if bytes_per_s is None:
        return None
    return _buckets.setdefault((direction, bytes_per_s), TokenBucket(bytes_per_s))


class LimitedStore(DelegatingStore):
    """Passes every call on when the buckets let its bytes pass: ``up`` for writes, ``down`` for reads.

    A byte counts once, also where the store within sends it again, and also if the call fails in the end. Listings,
    deletes and heads are not limited. Unpickled it takes the buckets of its new process.
    """

    def __init__(self, inner: ObjectStore, up: TokenBucket | None = None, down: TokenBucket | None = None) -> None:
        super().__init__(inner)
        self._up = up
        self._down = down

    def __reduce__(self) -> tuple[Callable[..., LimitedStore], tuple[ObjectStore, int | None, int | None]]:
        up = None if self._up is None else self._up.bytes_per_s
        down = None if self._down is None else self._down.bytes_per_s
        return _restored, (self.inner, up, down)

    def __repr__(self) -> str:
        return f"LimitedStore({self.inner!r})"

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """The body flows at the limit's rate."""
        self._sent(body, lambda taken: self.inner.put(key, taken, if_absent=if_absent))

    def put_once(self, key: str, body: Buffer, mark: str) -> None:
        """As ``put``, each try; the whole body is waited for first."""
        if self._up is not None:
            self._up.take(memoryview(body).nbytes)
        self.inner.put_once(key, body, mark)

    def prepare(self, key: str, body: Body, *, staging_prefix: str) -> Prepared:
        """As ``put``."""
        return self._sent(body, lambda taken: self.inner.prepare(key, taken, staging_prefix=staging_prefix))

    def _sent(self, body: Body, send: Callable[[Body], Result]) -> Result:
        bucket = self._up
        if bucket is None:
            return send(body)
        if isinstance(body, bytes | bytearray | memoryview) and memoryview(body).nbytes <= bucket.bytes_per_s:
            # As it is: stores send a buffer without a copy.
            bucket.take(memoryview(body).nbytes)
            return send(body)
        # Opened here too: a store that refuses before it takes anything does not begin, nor end, the limited body.
        with open_body(body) as parts:
            return send(limited(parts, bucket))

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Waits before the request where the range says how much comes, else for what came."""
        if stop is not None:
            self._take(self._down, stop - start)
            return self.inner.get(key, start, stop)
        data = self.inner.get(key, start)
        self._take(self._down, len(data))
        return data

    def get_small(self, key: str, most: int) -> bytes | None:
        """Waits for what came."""
        data = self.inner.get_small(key, most)
        self._take(self._down, len(data or b""))
        return data

    def get_small_batch(self, keys: Sequence[str], most: int) -> list[bytes | TieredStoreError | None]:
        """Waits for what came."""
        if self.small_batch == 1:
            return ObjectStore.get_small_batch(self, keys, most)
        answers = self.inner.get_small_batch(keys, most)
        self._take(self._down, sum(len(data) for data in answers if isinstance(data, bytes)))
        return answers

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        """Waits before the request."""
        self._take(self._down, memoryview(buffer).nbytes)
        self.inner.get_into(key, start, buffer)

    def get_whole(self, key: str, buffer: bytearray | memoryview) -> None:
        """Waits before the request."""
        self._take(self._down, memoryview(buffer).nbytes)
        self.inner.get_whole(key, buffer)

    def replace(self, key: str, body: Buffer, etag: str) -> str:
        """Waits before the request."""
        self._take(self._up, memoryview(body).nbytes)
        return self.inner.replace(key, body, etag)

    @staticmethod
    def _take(bucket: TokenBucket | None, count: int) -> None:
        if bucket is not None and count > 0:
            bucket.take(count)


def _restored(inner: ObjectStore, up: int | None, down: int | None) -> LimitedStore:
    return LimitedStore(inner, shared_bucket("up", up), shared_bucket("down", down))
