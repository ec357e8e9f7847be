"""Watches running upload attempts, each with a time limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from tieredstore.backends.base import Body, DelegatingStore, ObjectInfo, ObjectStore
from tieredstore.config import Settings
from tieredstore.errors import StoreUnavailableError
from tieredstore.process.forks import ForkSafeLock
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool

_Result = TypeVar("_Result")

_LOOK_S: Final = 0.5

GRACE_S: Final = 120.0
"""Time for an expired attempt to return. It is longer than the timeouts of a single request."""


@dataclass(slots=True)
class Try:
    """One running attempt, and its time limit."""

    what: str
    allowed_s: float
    began_s: float


@dataclass(frozen=True, slots=True)
class TryLimit:
    """The time limit of an attempt, if ``concurrent`` attempts share the bandwidth."""

    timeout_s: float
    concurrent: int

    def time_for(self, settings: Settings, size: int) -> float:
        """Return the time limit in seconds for an upload of ``size`` bytes. If the upload rate is limited, add the time
        that ``concurrent`` parallel uploads of this size need at that rate."""
        rate = settings.upload_rate_limit
        return self.timeout_s + (0 if rate is None else self.concurrent * size / rate)


class Tries:
    """The running attempts. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, grace_s: float = GRACE_S) -> None:
        self._monotonic = monotonic
        self._grace_s = grace_s
        self._lock = ForkSafeLock()
        self._tries: dict[int, Try] = {}

    @contextlib.contextmanager
    def under_way(self, what: str, allowed_s: float) -> Generator[Callable[[int], None]]:
        """Register an attempt while the block runs. The block must call the yielded function whenever its work
        progresses. The function raises StoreUnavailableError after the time limit.
        """
        attempt = Try(what, allowed_s, self._monotonic())
        with self._lock:
            self._tries[id(attempt)] = attempt

        def on_progress(_: int) -> None:
            if self._monotonic() - attempt.began_s > allowed_s:
                raise StoreUnavailableError(
                    f"{what} has taken longer than {allowed_s:g} s (uploader.upload.timeout.ms)"
                )

        try:
            yield on_progress
        finally:
            with self._lock:
                del self._tries[id(attempt)]

    def watch(self, work: Callable[[], _Result]) -> _Result:
        """Run ``work`` in a thread and return its result. If a registered attempt exceeds its time limit and the grace
        period, abandon the thread and raise StoreUnavailableError.
        """
        pool = ThreadPool(1, "tieredstore-uploader-watched")
        future = pool.submit(work)
        try:
            while not is_done(future, _LOOK_S):
                if (lost := self.find_lost()) is not None:
                    raise StoreUnavailableError(f"{lost}: restart to continue from this point")
            return outcome(future)
        finally:
            pool.shutdown(wait=False)

    def find_lost(self) -> str | None:
        """Describe an attempt that has exceeded its time limit and the grace period. Return None if there is no such
        attempt."""
        now_s = self._monotonic()
        with self._lock:
            return next(
                (
                    f"{attempt.what} has not returned for {now_s - attempt.began_s:.0f} s"
                    for attempt in self._tries.values()
                    if now_s - attempt.began_s > attempt.allowed_s + self._grace_s
                ),
                None,
            )


Watch: TypeAlias = Callable[[str, int], AbstractContextManager[object]]
"""A function that returns a context manager with a time limit. Arguments: a description, and the number of bytes to
send."""


class WatchedStore(DelegatingStore):
    """Forwards each call to the store ``inner`` within ``watch``, which limits the call's time. In a listing, the limit
    applies to each object.

    If the body of a write is an iterator, this class sets no limit, because the caller that uploads the segment limits
    the whole upload.
    """

    def __init__(self, inner: ObjectStore, watch: Watch) -> None:
        super().__init__(inner)
        self._watch = watch

    def call(self, verb: str, key: str, request: Callable[[], _Result]) -> _Result:
        """Make the request, with a time limit."""
        with self._waiting(verb, key):
            return request()

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        """Write the object. The time is limited only if the body is a buffer."""
        with self._sending("put", key, body):
            self.inner.put(key, body, if_absent=if_absent)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        """List objects, with a time limit for each object, because the number of objects is unknown."""
        listed = self.inner.list(prefix, start_after)
        while True:
            with self._waiting("list", prefix):
                info = next(listed, None)
            if info is None:
                return
            yield info

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the keys of one segment, with one time limit for all keys."""
        wanted = list(keys)
        with self._waiting("delete", wanted[0] if wanted else ""):
            self.inner.delete(wanted)

    def replace(self, key: str, body: Body, etag: str) -> str:
        """Replace the object. The time is limited only if the body is a buffer."""
        with self._sending("replace", key, body):
            return self.inner.replace(key, body, etag)

    def _sending(self, verb: str, key: str, body: Body) -> AbstractContextManager[object]:
        if isinstance(body, bytes | bytearray | memoryview):
            return self._waiting(verb, key, memoryview(body).nbytes)
        return contextlib.nullcontext()

    def _waiting(self, verb: str, key: str, size: int = 0) -> AbstractContextManager[object]:
        return self._watch(f"{verb} of {repr(key) if key else 'the store'}", size)
