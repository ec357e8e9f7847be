"""Loader of chunks: from the cache, from a load that another reader started, or by a ranged GET."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from tieredstore.errors import (
    AlreadyClosedError,
    CorruptDataError,
    ObjectNotFoundError,
    RangeNotSatisfiableError,
    SegmentCorruptError,
)
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.futures import outcome
from tieredstore.process.lifetime import Lifetime
from tieredstore.remote.fetch.buffers import Destination, Original, StreamBuffers
from tieredstore.remote.fetch.chunk_cache import ChunkCache, ChunkKey
from tieredstore.remote.fetch.chunk_loads import Arrived, Job, Load, OpenSegment, Scheduled, greedy_run

if TYPE_CHECKING:
    from tieredstore.remote.fetch.manifests import Manifests
    from tieredstore.remote.fetch.stream import ReadAhead
    from tieredstore.remote.manager import Pools
    from tieredstore.remote.statistics import Counters, FetchStats

WORTH_A_THREAD: Final = 1 << 20
"""Minimum size of a chunk for which waking another thread saves time. Decoding such a chunk takes four times as long as
waking a thread.
"""

MAX_HELPERS: Final = (os.cpu_count() or 1) - 1
"""Maximum number of threads that one read wakes, besides the reader's own."""

MAX_IDLE_BUFFERS: Final = max(2, min(8, os.cpu_count() or 2))
"""Maximum number of closed streams whose memory is kept for later streams. It is about the number of streams that a
process reads in parallel. In fresh memory, page faults would take a fifth of the time of a read.
"""


class ChunkLoader:
    """Loader of chunks, which returns cached chunks and loads missing chunks. Thread-safe.

    With a cache, readers share loads: a chunk is fetched once, even if several readers wait for it.

    ``read_ahead`` limits the original bytes that readers load beyond their requests. ``timeout_s`` limits the wait for
    one chunk; with None, a read waits as long as the store does. Only :class:`Fetcher` wires these parts together.
    """

    def __init__(
        self,
        manifests: Manifests,
        *,
        pools: Pools,
        cache: ChunkCache | None,
        coalesce_max_bytes: int,
        read_ahead: ReadAhead,
        timeout_s: float | None,
        life: Lifetime,
    ) -> None:
        self._manifests = manifests
        self._life = life
        self._pools = pools
        self.cache = cache
        self._identity = manifests.store.identity  # read once, because it is part of every chunk's key
        self.coalesce_max_bytes = coalesce_max_bytes
        self.read_ahead = read_ahead
        self._timeout_s = timeout_s
        self.counters: Counters[FetchStats] = manifests.counters
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Forget running loads in a forked child, where the parent's loads never end."""
        self._lock = threading.Lock()
        self._running: dict[ChunkKey, Load] = {}
        # The deque needs no lock. With a lock, a thread could block itself, because the garbage collector may close a
        # stream while the same thread holds the lock.
        self._idle_buffers: deque[StreamBuffers] = deque(maxlen=MAX_IDLE_BUFFERS)

    @property
    def is_closed(self) -> bool:
        """True after the manager was closed."""
        return self._life.is_over

    def check_open(self) -> None:
        """Raise AlreadyClosedError if the manager is closed, so that a read fails even if the cache has its bytes."""
        self._life.check()

    def take_buffers(self) -> StreamBuffers:
        """Return memory for a stream, reused from a closed stream if possible."""
        try:
            return self._idle_buffers.pop()
        except IndexError:
            return StreamBuffers(reuse=self.cache is None)

    def give_buffers(self, buffers: StreamBuffers) -> None:
        """Take back the memory of a stream that has no running loads."""
        self._idle_buffers.append(buffers)

    def schedule(self, job: Job, max_bytes: int, *, is_awaited: bool = False) -> list[Scheduled]:
        """Schedule the job's first chunk, and further chunks of the job that the same request fetches.

        With a cache, readers share loads. The job's ``destination``, ``end`` and ``by_reader`` then have no effect. To
        decode the bytes from ``end`` on after all, see :meth:`whole`. With ``is_awaited``, the reader's thread decodes
        a single chunk that it waits for, because waking another thread takes longer.
        """
        segment, first = job.segment, job.run.start
        # Without a cache, the load is for this reader alone, so the reader can reuse the chunk's memory.
        if self.cache is None:
            run = greedy_run(first, job.run.stop, size_of=segment.index.original_size, max_bytes=max_bytes)
            by_reader = job.by_reader or (is_awaited and len(run) == 1 and not segment.decoder.is_identity)
            job = replace(job, run=run, by_reader=by_reader)
            load = Load(run, self._pools.fetch.submit(self._fetch, job))
            return [Scheduled(chunk, load, owned=True, direct=job.is_direct(chunk)) for chunk in run]
        with self._lock:
            # If a chunk is neither being loaded nor cached, start a load that other readers share. A load caches its
            # chunk before it leaves `_running`. Under the lock, a loaded chunk is therefore always in `_running` or in
            # the cache.
            running = self._running.get(segment.key(self._identity, first))
            if running is not None:
                return [Scheduled(first, running)]
            if segment.key(self._identity, first) in self.cache:
                return [Scheduled(first, None)]
            load = self._claim(segment, job.run, max_bytes, job.buffers)
            return [Scheduled(chunk, load) for chunk in load.chunks]

    def read_cached(
        self,
        segment: OpenSegment,
        chunks: Sequence[int],
        buffers: StreamBuffers,
        destination: Destination | None = None,
    ) -> list[Scheduled]:
        """Read chunks that the cache probably has, into ``destination`` if the whole chunk fits there.

        Load a chunk from the store if the cache has evicted it meanwhile. After an error, helper threads may still
        write into the chunks' memory.
        """
        assert self.cache is not None
        job = Job(segment, range(chunks[0], chunks[-1] + 1), buffers, destination)
        originals = self._read_intact(self.cache, job, chunks)
        self.counters.add(chunk_hits=len(originals))
        return [
            Scheduled(chunk, None, direct=job.fits(range(chunk, chunk + 1)), cached=originals[chunk])
            if chunk in originals
            else Scheduled(chunk, self._load_after_all(segment, chunk, buffers))
            for chunk in chunks
        ]

    def _read_intact(self, cache: ChunkCache, job: Job, chunks: Sequence[int]) -> dict[int, Original]:
        """Return the original bytes of those ``chunks`` of the job that are cached and intact, read by this thread and
        helper threads.
        """
        waiting, originals = deque(chunks), dict[int, Original]()

        def take_all() -> None:
            while True:
                self._life.check()
                try:
                    chunk = waiting.popleft()
                except IndexError:
                    return
                original = self._read_one(cache, job, chunk)
                if original is not None:
                    originals[chunk] = original

        helping: list[Future[None]] = []
        try:
            with suppress(AlreadyClosedError):  # if the pool is closed, as in a forked child, the reader works alone
                helpers = range(_helper_count(cache, job.segment, len(chunks)))
                helping.extend(self._pools.transform.submit(take_all) for _ in helpers)
            take_all()
            for help in helping:
                # No chunk is left for a helper that has not begun, so cancel it.
                if not help.cancel():
                    outcome(help)
        finally:
            waiting.clear()
        return originals

    def _read_one(self, cache: ChunkCache, job: Job, chunk: int) -> Original | None:
        segment, spare = job.segment, job.buffers.cached
        key = segment.key(self._identity, chunk)
        with job.memory(range(chunk, chunk + 1), spare, segment.index.original_size(chunk)) as original:
            if not cache.encrypted:
                return original if cache.get_into(key, original) else None
            stored = spare.take(segment.positions[chunk + 1] - segment.positions[chunk])
            try:
                if not cache.get_into(key, stored):
                    return None
                segment.decoder.decode_into(stored, original)
            except CorruptDataError:  # a damaged entry counts as a miss
                return None
            finally:
                spare.give(stored)
        return original

    def original(self, scheduled: Scheduled) -> Original:
        """Return a scheduled chunk's original bytes. Wait for its load if it has one."""
        if scheduled.cached is not None:
            return scheduled.cached
        load = scheduled.load
        assert load is not None
        started = monotonic()
        try:
            return load.chunk(scheduled.chunk, self._timeout_s)
        finally:
            self.counters.add(chunk_misses=1, wait_seconds=monotonic() - started)

    def whole(self, segment: OpenSegment, scheduled: Scheduled, buffers: StreamBuffers) -> Original:
        """Decode all of a chunk that was decoded only in part. Use the bytes already fetched."""
        load, chunk = scheduled.load, scheduled.chunk
        assert load is not None
        assert scheduled.owned
        stored = load.stored_bytes(chunk, segment.positions)
        job = Job(segment, range(chunk, chunk + 1), buffers)
        arrived: Future[Arrived] = Future()
        arrived.set_result(Arrived([self._pools.transform.submit(self._decode, job, chunk, stored)]))
        return Load(job.run, arrived).chunk(chunk, self._timeout_s)

    def _load_after_all(self, segment: OpenSegment, chunk: int, buffers: StreamBuffers) -> Load:
        with self._lock:
            running = self._running.get(segment.key(self._identity, chunk))
            if running is None:
                running = self._claim(segment, range(chunk, chunk + 1), 1, buffers)
            return running

    def _claim(self, segment: OpenSegment, chunks: range, max_bytes: int, buffers: StreamBuffers) -> Load:
        """Start a load that readers share, of the first of the chunks and those that the same request fetches. The
        caller holds the lock.
        """

        def is_missing(chunk: int) -> bool:
            key = segment.key(self._identity, chunk)
            return key not in self._running and (self.cache is None or key not in self.cache)

        size_of = segment.index.original_size
        run = greedy_run(chunks.start, chunks.stop, size_of=size_of, max_bytes=max_bytes, is_missing=is_missing)
        load = Load(run, self._pools.fetch.submit(self._fetch_shared, Job(segment, run, buffers)))
        for chunk in run:
            self._running[segment.key(self._identity, chunk)] = load
        return load

    def _fetch_shared(self, job: Job) -> Arrived:
        try:
            return self._fetch(job)
        except BaseException:
            self._finish(job.segment, job.run)
            raise

    def _finish(self, segment: OpenSegment, run: range) -> None:
        with self._lock:
            for chunk in run:
                self._running.pop(segment.key(self._identity, chunk), None)

    def _fetch(self, job: Job) -> Arrived:
        """Fetch the job's chunks with one GET. The transform pool decodes them."""
        segment, run = job.segment, job.run
        try:
            stored = self._read_stored(job)
        except RangeNotSatisfiableError as error:
            # The object may end within the requested chunks, but contain the first ones. So fetch chunk by chunk.
            if len(run) > 1:
                return self._fetch_one_by_one(job)
            raise self._manifests.why_missing(segment.metadata, segment.log_key, error, SegmentCorruptError) from error
        except ObjectNotFoundError as error:
            raise self._manifests.why_missing(segment.metadata, segment.log_key, error, SegmentCorruptError) from error
        kept = None if segment.decoder.is_identity and job.fits(run) else stored
        decode = partial(self._decode_of, job, stored)
        if job.by_reader:
            return Arrived([], kept, decode)
        return Arrived([self._pools.transform.submit(decode, chunk) for chunk in run], kept)

    def _fetch_one_by_one(self, job: Job) -> Arrived:
        """Fetch each chunk by its own GET. The object ends within the requested chunks, but may contain the first of
        them.
        """
        decoding: list[Future[Original]] = []
        # Copy all chunks or none, because ``Scheduled.direct`` was decided for the whole run.
        copied = job.segment.decoder.is_identity and not job.fits(job.run)
        for chunk in job.run:
            destination = None if copied else job.destination
            # Decode the whole chunk, because its stored bytes are not kept for later.
            alone = replace(job, run=range(chunk, chunk + 1), destination=destination, end=None, by_reader=False)
            try:
                decoding.extend(self._fetch(alone).decoding)
            except SegmentCorruptError as error:
                self._finish(alone.segment, alone.run)
                failed: Future[Original] = Future()
                failed.set_exception(error)
                decoding.append(failed)
        return Arrived(decoding)

    def _read_stored(self, job: Job) -> memoryview:
        """Read the stored bytes of the job's chunks, with one request."""
        self._life.check()
        segment, run = job.segment, job.run
        start, stop = segment.positions[run.start], segment.positions[run.stop]
        buffers, size = job.buffers.stored, stop - start
        memory = job.memory(run, buffers, size) if segment.decoder.is_identity else nullcontext(buffers.take(size))
        with memory as stored:
            self.counters.add(requests=1, bytes_fetched=size)
            self._manifests.store.get_into(segment.log_key, start, stored)
        return stored

    def _decode_of(self, job: Job, stored: memoryview, chunk: int) -> Original:
        """Decode one chunk from the stored bytes of the job's chunks."""
        positions = job.segment.positions
        start = positions[job.run.start]
        return self._decode(job, chunk, stored[positions[chunk] - start : positions[chunk + 1] - start])

    def _decode(self, job: Job, chunk: int, stored: memoryview) -> Original:
        segment = job.segment
        try:
            original = self._original(job, chunk, stored)
        except CorruptDataError as error:
            self.counters.add(chunk_load_failures=1)
            raise SegmentCorruptError(f"chunk {chunk} of {segment.metadata} is damaged: {error}") from error
        else:
            self.counters.add(chunk_loads=1)
            if self.cache is not None:
                self.cache.put(segment.key(self._identity, chunk), stored if self.cache.encrypted else original)
            return original
        finally:
            if self.cache is not None:
                self._finish(segment, range(chunk, chunk + 1))

    @staticmethod
    def _original(job: Job, chunk: int, stored: memoryview) -> Original:
        if job.segment.decoder.is_identity:
            return stored
        size, wanted = job.segment.index.original_size(chunk), job.size_to_decode(chunk)
        # Allocate memory for the whole chunk, although only a part is decoded. Untouched pages cost nothing, and the
        # next chunk can reuse the memory.
        with job.memory(range(chunk, chunk + 1), job.buffers.originals, size) as memory:
            job.segment.decoder.decode_into(stored, memory, wanted)
        return memory[:wanted]


def _helper_count(cache: ChunkCache, segment: OpenSegment, chunks: int) -> int:
    """Return the number of helper threads: 0 if one thread is as fast, otherwise one for each chunk except the first,
    up to ``MAX_HELPERS``.
    """
    is_decoded = cache.encrypted and not segment.decoder.is_identity
    is_worth_threads = is_decoded or cache.is_worth_threads
    if not is_worth_threads or segment.index.original_chunk_size < WORTH_A_THREAD:
        return 0
    return min(MAX_HELPERS, chunks - 1)
