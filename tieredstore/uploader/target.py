"""The store that receives the uploads, with the objects built from its settings, and the watch over requests to it.

A reload replaces the whole `Target`. Each request, and each upload of a segment, is an attempt with a time limit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from tieredstore.backends.base import Body, DelegatingStore, ObjectInfo, ObjectStore
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.catalog.watermark import Watermark
from tieredstore.config import Settings
from tieredstore.config.endpoint import EndpointSettings
from tieredstore.errors import ConfigError, StoreUnavailableError
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, Uuid
from tieredstore.ops.listing import QUARANTINE
from tieredstore.process.forks import ForkSafeLock
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote import RemoteStorageManager
from tieredstore.uploader.watermarks import WatermarkStore

_Result = TypeVar("_Result")

_READERS: Final = 8
_STALL_MS: Final = 60_000
_LOOK_S: Final = 0.05
_QUARANTINE_CHUNK: Final = 1 << 20
_LOST_LOOK_S: Final = 0.5

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
            while not is_done(future, _LOST_LOOK_S):
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


@dataclass(slots=True)
class Target:
    """A store of segments: ``manager`` uploads segments, and ``store`` is for all other requests. Both share the
    settings."""

    settings: Settings
    manager: RemoteStorageManager
    store: ObjectStore
    committed: CommittedSegments
    watermarks: WatermarkStore
    pool: ThreadPool

    @classmethod
    def open(cls, settings: Settings, store: ObjectStore | None, tries: Tries, limit: TryLimit) -> Target:
        """Open the settings' store, or use ``store``, which the caller closes. Raise ConfigError if the store has no
        conditional writes.
        """
        if "upload_stall_timeout_ms" not in settings.model_fields_set:
            settings = settings.model_copy(update={"upload_stall_timeout_ms": _STALL_MS})
        with contextlib.ExitStack() as opened:
            manager = opened.enter_context(RemoteStorageManager(settings, store=store))
            if not manager.store.conditional_writes:
                raise ConfigError(
                    f"the store {manager.store.identity} has no conditional writes, which watermarks need: "
                    "choose another store"
                )
            pool = ThreadPool(_READERS, "tieredstore-watermarks")
            opened.pop_all()

        def watch(what: str, size: int) -> AbstractContextManager[object]:
            return tries.under_way(what, limit.time_for(settings, size))

        watched = WatchedStore(manager.store, watch)
        committed = CommittedSegments(watched, settings.key_prefix, rules=manager.manifest_rules)
        watermarks = WatermarkStore(watched, manager.layout, pool, committed, manager.manifest_rules)
        return cls(settings, manager, watched, committed, watermarks, pool)

    def reach(self, watermark: Watermark) -> None:
        """In the raw layout, move the watermark of Pinterest's uploader up to ``watermark``. Call this after reading
        this package's watermark, and before moving it.

        Pinterest's readers know only the watermark of Pinterest's uploader. With this order of calls, that watermark
        never falls behind this package's watermark, even if the process is killed between the two writes.
        """
        segment = watermark.segment
        if segment is None or not self.settings.endpoint.is_raw:
            return
        # Import here, because few buckets are raw.
        from tieredstore.remote.copy.raw_writer import RawSegmentWriter  # noqa: PLC0415

        segment_id = RemoteLogSegmentId(watermark.where, Uuid.parse(segment.id))
        RawSegmentWriter(self.store, self.manager.layout).reach(segment_id, segment.base_offset)

    def quarantine(self, metadata: RemoteLogSegmentMetadata, log: LogSegment) -> str:
        """Store a segment's files unchanged under a separate prefix that readers do not list. Return the prefix.

        The files are stored in the plugin's format with the same encryption, so the same commands read them.
        """
        prefix = f"{self.settings.key_prefix}{QUARANTINE}"
        # Quarantined segments of a raw bucket are stored in the plugin's format too, because the raw layout has no
        # encryption, and no place for damaged segments.
        own = {"key_prefix": prefix, "chunk_size": min(self.settings.chunk_size, _QUARANTINE_CHUNK)}
        settings = self.settings.model_copy(update={**own, "endpoint": EndpointSettings()})
        with RemoteStorageManager(settings, store=self.store) as manager:
            manager.copy_log_segment_data(metadata, log.files)
        return prefix

    def close_later(self, is_used: Callable[[], bool], within_s: float) -> None:
        """Close the target in a thread as soon as it is unused. After ``within_s``, close it in any case."""

        def wait() -> None:
            end_s = time.monotonic() + within_s
            while is_used() and time.monotonic() < end_s:
                time.sleep(_LOOK_S)
            self.close()

        threading.Thread(target=wait, name="tieredstore-uploader-old", daemon=True).start()

    def close(self) -> None:
        """End running work. Close the store unless the caller gave it."""
        self.manager.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
