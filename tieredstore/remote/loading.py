"""Chunks come: from the cache, from a load that somebody else started, or by a ranged GET of ours."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final, TypeAlias

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import CorruptData, ObjectNotFound, RangeNotSatisfiable, SegmentCorrupt, StoreUnavailable
from tieredstore.format.chunk_index import ChunkIndex
from tieredstore.model import ByteRange, RemoteLogSegmentMetadata
from tieredstore.remote.chunk_cache import ChunkCache, ChunkKey
from tieredstore.remote.lookups import Manifests
from tieredstore.remote.planning import greedy_run
from tieredstore.remote.pools import Pools
from tieredstore.remote.statistics import FetchCounters
from tieredstore.transform.chunks import ChunkDecoder, fresh_memory

MAX_IDLE_BUFFERS: Final = 2
"""Closed streams whose memory is kept for the next ones: faulting it in anew cost a fifth of a whole read."""

_ROUNDED: Final = 1 << 20

Original: TypeAlias = memoryview
"""The original bytes of one chunk; read only, for whoever holds it."""


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """All that reading the chunks of one segment needs. ``layout`` is of the manifest, for the cache's keys."""

    metadata: RemoteLogSegmentMetadata
    log_key: str
    index: ChunkIndex
    positions: Sequence[int]
    decoder: ChunkDecoder
    layout: bytes


class BufferPool:
    """Memory that one stream uses again and again, since fresh memory costs more to fault in than to decode into.

    With ``reuse`` off every buffer is fresh: what a cache's loads give is shared with other readers. Safe from several
    threads.
    """

    def __init__(self, *, reuse: bool) -> None:
        self._free: list[memoryview] = []
        self._reuse = reuse
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """``size`` bytes, whatever they hold."""
        with self._lock:
            fitting = [memory for memory in self._free if len(memory) >= size]
            if fitting:
                found = min(fitting, key=len)
                self._free = [memory for memory in self._free if memory is not found]
                return found[:size]
            # One that has become too small makes room. Rounded up, the next run of compressed chunks fits too.
            del self._free[:1]
        return fresh_memory(-(-size // _ROUNDED) * _ROUNDED if size > _ROUNDED else size)[:size]

    def give(self, view: memoryview) -> None:
        """Hand memory back that ``take`` gave out and that nobody looks at any more."""
        if self._reuse:
            with self._lock:
                self._free.append(memoryview(view.obj))


class StreamBuffers:
    """A stream's memory: pools of their own for what comes and for what becomes of it, whose sizes differ."""

    def __init__(self, *, reuse: bool) -> None:
        self.stored = BufferPool(reuse=reuse)
        self.originals = BufferPool(reuse=reuse)


@dataclass(frozen=True, slots=True)
class Destination:
    """A reader's own buffer, and which bytes of the log belong into it: chunks inside are decoded straight there."""

    buffer: memoryview
    byte_range: ByteRange

    def place(self, wanted: ByteRange) -> memoryview | None:
        """Where ``wanted`` belongs; None if not all of it does."""
        if wanted.start < self.byte_range.start or wanted.stop > self.byte_range.stop:
            return None
        return self.buffer[wanted.start - self.byte_range.start : wanted.stop - self.byte_range.start]


@dataclass(frozen=True, slots=True)
class Job:
    """One request to make: which chunks of which segment, and into which memory."""

    segment: OpenSegment
    run: range
    buffers: StreamBuffers
    destination: Destination | None = None

    def place(self, run: range) -> memoryview | None:
        """Where the original bytes of these chunks belong in the reader's buffer; None if they do not."""
        if self.destination is None:
            return None
        first, last = (self.segment.index.original_range(chunk) for chunk in (run.start, run.stop - 1))
        return self.destination.place(ByteRange(first.start, last.stop))

    def is_direct(self, chunk: int) -> bool:
        """Whether the chunk ends up in the reader's buffer without a copy."""
        unit = self.run if self.segment.decoder.is_identity else range(chunk, chunk + 1)
        return self.place(unit) is not None


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a GET brought: each chunk being decoded, out of ``stored`` (None where there is no one buffer of it)."""

    decoding: list[Future[Original]]
    stored: memoryview | None = None


class Load:
    """One ranged GET under way, and the chunks that come of it."""

    def __init__(self, chunks: range, arrived: Future[Arrived]) -> None:
        self.chunks = chunks
        self._arrived = arrived
        self._unread = len(chunks)

    def chunk(self, number: int, timeout_s: float | None) -> Original:
        """The original bytes of one of the chunks; raises what went wrong, or StoreUnavailable after the time-out."""
        until = None if timeout_s is None else monotonic() + timeout_s
        try:
            decoded = self._arrived.result(timeout_s).decoding[number - self.chunks.start]
            return decoded.result(None if until is None else max(0.0, until - monotonic()))
        except FutureTimeoutError as error:
            raise StoreUnavailable(
                f"chunk {number} did not come within {timeout_s:g} s (fetch.chunk.cache.get.timeout.ms); it goes on "
                "loading"
            ) from error
        except CancelledError as error:
            raise StoreUnavailable("the remote storage manager was closed while it was read from") from error

    def finish_one(self, original: Original | None, buffers: StreamBuffers) -> None:
        """Its one reader is done with a chunk: memory that nobody looks at any more goes back.

        ``original`` is None for a chunk that lies in the reader's own buffer.
        """
        self._unread -= 1
        stored = self._arrived.result().stored
        if original is not None and (stored is None or original.obj is not stored.obj):
            buffers.originals.give(original)
        if stored is not None and not self._unread:
            buffers.stored.give(stored)

    def cancel(self) -> None:
        """Do not start what has not started; what runs goes on into memory that nobody waits for."""
        self._arrived.cancel()

    def settle(self) -> None:
        """Wait until nothing of it is written any more, well or not."""
        wait([self._arrived])
        if not self._arrived.cancelled() and self._arrived.exception() is None:
            wait(self._arrived.result().decoding)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One chunk that a stream will need next: on its way by ``load``, or, without one, in the cache.

    A ``load`` that is ``owned`` has no other reader; a chunk that is ``direct`` comes into the reader's buffer.
    """

    chunk: int
    load: Load | None
    owned: bool = False
    direct: bool = False


class ChunkLoader:
    """Starts loads and shares them: a chunk is fetched once, however many readers wait for it. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        *,
        pools: Pools,
        cache: ChunkCache | None,
        coalesce_max_bytes: int,
        counters: FetchCounters,
    ) -> None:
        self._store = store
        self._identity = store.identity  # asked for once: it is part of every chunk's key
        self._manifests = manifests
        self._pools = pools
        self.cache = cache
        self.coalesce_max_bytes = coalesce_max_bytes
        self.counters = counters
        self._lock = threading.Lock()
        self._running: dict[ChunkKey, Load] = {}
        # Without a lock: a stream may be closed by the garbage collector, wherever this thread is just then.
        self._idle_buffers: deque[StreamBuffers] = deque(maxlen=MAX_IDLE_BUFFERS)

    def take_buffers(self) -> StreamBuffers:
        """Memory for a stream: what an earlier one left, if there is any."""
        try:
            return self._idle_buffers.pop()
        except IndexError:
            return StreamBuffers(reuse=self.cache is None)

    def give_buffers(self, buffers: StreamBuffers) -> None:
        """Take back the memory of a stream of which nothing is under way any more."""
        self._idle_buffers.append(buffers)

    def schedule(
        self,
        segment: OpenSegment,
        first: int,
        limit: int,
        max_bytes: int,
        buffers: StreamBuffers,
        destination: Destination | None = None,
    ) -> list[Scheduled]:
        """Arrange for chunk ``first``, and for those before ``limit`` that come with the same request.

        With a ``destination`` (which a cache leaves aside: it shares what it loads) chunks inside it come there.
        """
        if self.cache is None:
            run = greedy_run(first, limit, size_of=segment.index.original_size, max_bytes=max_bytes)
            job = Job(segment, run, buffers, destination)
            load = Load(run, self._pools.fetch.submit(self._fetch, job))
            return [Scheduled(chunk, load, owned=True, direct=job.is_direct(chunk)) for chunk in run]
        with self._lock:
            # A load puts its chunk into the cache before it leaves `_running`, so that here, under the lock,
            # a chunk that is in neither is really missing, and claiming it makes everybody else wait for us.
            running = self._running.get(self.key(segment, first))
            if running is not None:
                return [Scheduled(first, running)]
            if self.key(segment, first) in self.cache:
                return [Scheduled(first, None)]
            return self._claim(segment, first, limit, max_bytes, buffers)

    def load_one(self, segment: OpenSegment, chunk: int, buffers: StreamBuffers) -> Scheduled:
        """Load a chunk that the cache was said to hold and does not give."""
        with self._lock:
            running = self._running.get(self.key(segment, chunk))
            if running is not None:
                return Scheduled(chunk, running)
            return self._claim(segment, chunk, chunk + 1, 1, buffers)[0]

    def key(self, segment: OpenSegment, chunk: int) -> ChunkKey:
        """Under which the cache has a chunk."""
        return ChunkKey(self._identity, segment.log_key, chunk, segment.layout)

    def _claim(
        self, segment: OpenSegment, first: int, limit: int, max_bytes: int, buffers: StreamBuffers
    ) -> list[Scheduled]:
        def is_missing(chunk: int) -> bool:
            key = self.key(segment, chunk)
            return key not in self._running and (self.cache is None or key not in self.cache)

        run = greedy_run(first, limit, size_of=segment.index.original_size, max_bytes=max_bytes, is_missing=is_missing)
        load = Load(run, self._pools.fetch.submit(self._fetch_shared, Job(segment, run, buffers)))
        for chunk in run:
            self._running[self.key(segment, chunk)] = load
        return [Scheduled(chunk, load) for chunk in run]

    def _fetch_shared(self, job: Job) -> Arrived:
        try:
            return self._fetch(job)
        except BaseException:
            self._finish(job.segment, job.run)
            raise

    def _finish(self, segment: OpenSegment, run: range) -> None:
        with self._lock:
            for chunk in run:
                self._running.pop(self.key(segment, chunk), None)

    def _fetch(self, job: Job) -> Arrived:
        """One GET for the run; its chunks are decoded by the transform pool."""
        segment, run = job.segment, job.run
        start, stop = segment.positions[run.start], segment.positions[run.stop]
        direct = job.place(run) if segment.decoder.is_identity else None
        stored = job.buffers.stored.take(stop - start) if direct is None else direct
        try:
            self._read_stored(segment, start, stored)
        except RangeNotSatisfiable as error:
            if len(run) > 1:
                return self._fetch_one_by_one(job)
            raise self._manifests.why_missing(segment.metadata, segment.log_key, error, SegmentCorrupt) from error
        except ObjectNotFound as error:
            raise self._manifests.why_missing(segment.metadata, segment.log_key, error, SegmentCorrupt) from error
        decoding: list[Future[Original]] = []
        for chunk in run:
            piece = stored[segment.positions[chunk] - start : segment.positions[chunk + 1] - start]
            decoding.append(self._pools.transform.submit(self._decode, job, chunk, piece))
        return Arrived(decoding, stored if direct is None else None)

    def _fetch_one_by_one(self, job: Job) -> Arrived:
        """The object ends within the run: what lies before its end is still good."""
        found: list[Future[Original]] = []
        # Its readers were told which chunks come into their buffers: that must stay as it is for the run as a whole.
        copied = job.segment.decoder.is_identity and job.place(job.run) is None
        for chunk in job.run:
            one = replace(job, run=range(chunk, chunk + 1), destination=None if copied else job.destination)
            try:
                found.extend(self._fetch(one).decoding)
            except SegmentCorrupt as error:
                self._finish(one.segment, one.run)
                failed: Future[Original] = Future()
                failed.set_exception(error)
                found.append(failed)
        return Arrived(found)

    def _read_stored(self, segment: OpenSegment, position: int, buffer: memoryview) -> None:
        self.counters.add(requests=1, bytes_fetched=len(buffer))
        self._store.get_into(segment.log_key, position, buffer)

    def _decode(self, job: Job, chunk: int, stored: memoryview) -> Original:
        segment = job.segment
        try:
            original = self._original(job, chunk, stored)
        except CorruptData as error:
            self.counters.add(chunk_load_failures=1)
            raise SegmentCorrupt(f"chunk {chunk} of {segment.metadata} is damaged: {error}") from error
        else:
            self.counters.add(chunk_loads=1)
            if self.cache is not None:
                self.cache.put(self.key(segment, chunk), stored if self.cache.encrypted else original)
            return original
        finally:
            if self.cache is not None:
                self._finish(segment, range(chunk, chunk + 1))

    @staticmethod
    def _original(job: Job, chunk: int, stored: memoryview) -> Original:
        if job.segment.decoder.is_identity:
            return stored
        original = job.place(range(chunk, chunk + 1))
        if original is None:
            original = job.buffers.originals.take(job.segment.index.original_size(chunk))
        job.segment.decoder.decode_into(stored, original)
        return original
