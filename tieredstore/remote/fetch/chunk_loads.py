"""Loads of chunks: their division into requests, the running ranged GETs, and the chunks that readers wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Final

from tieredstore.errors import StoreUnavailableError
from tieredstore.format.chunk_index import ChunkIndex
from tieredstore.model import ByteRange, RemoteLogSegmentMetadata
from tieredstore.process.futures import OverdueError, outcome
from tieredstore.remote.fetch.buffers import BufferPool, Destination, Original, StreamBuffers
from tieredstore.remote.fetch.chunk_cache import ChunkKey
from tieredstore.transform.chunks import ChunkDecoder

MAX_CHUNKS_OF_A_RUN: Final = 1024
"""Maximum number of chunks in one request. The limit exists because each chunk costs a few Python objects. With the
plugin's default size, a request of 16 MiB has four chunks.
"""

MAX_CHUNKS_ON_THEIR_WAY: Final = 4 * MAX_CHUNKS_OF_A_RUN
"""A stream with this many scheduled chunks starts no further request."""


def greedy_run(
    first: int,
    limit: int,
    *,
    size_of: Callable[[int], int],
    max_bytes: int,
    is_missing: Callable[[int], bool] = lambda _: True,
) -> range:
    """Return the chunks of one request: ``first``, and adjacent missing chunks before ``limit``.

    The result has at most ``MAX_CHUNKS_OF_A_RUN`` chunks with at most ``max_bytes`` original bytes together. ``first``
    is included even if it alone exceeds ``max_bytes``.
    """
    # Always take the first chunk. A limit below the size of one chunk must not stop the reader.
    total, stop = size_of(first), first + 1
    limit = min(limit, first + MAX_CHUNKS_OF_A_RUN)
    while stop < limit and (total := total + size_of(stop)) <= max_bytes and is_missing(stop):
        stop += 1
    return range(first, stop)


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """Everything needed to read the chunks of one segment. ``layout`` is the digest of the segment's manifest, for
    cache keys."""

    metadata: RemoteLogSegmentMetadata
    log_key: str
    index: ChunkIndex
    positions: Sequence[int]
    decoder: ChunkDecoder
    layout: bytes

    def key(self, store: str, chunk: int) -> ChunkKey:
        """Return a chunk's key in the cache. ``store`` is the store's identity."""
        return ChunkKey(store, self.log_key, chunk, self.layout)


@dataclass(frozen=True, slots=True)
class Job:
    """One request for adjacent chunks of a segment (``run``), or one read of them from the cache, and the memory for
    the chunks.

    Original bytes from ``end`` on need not be decoded. If ``end`` is None, all bytes are needed. With ``by_reader``,
    the thread that waits for a chunk decodes it.
    """

    segment: OpenSegment
    run: range
    buffers: StreamBuffers
    destination: Destination | None = None
    end: int | None = None
    by_reader: bool = False

    def size_to_decode(self, chunk: int) -> int:
        """Return the number of original bytes to decode, from the chunk's beginning."""
        chunk_range = self.segment.index.original_range(chunk)
        # Decoding only a chunk's beginning saves time only if the chunk is compressed.
        if self.end is None or not self.segment.decoder.compressed:
            return len(chunk_range)
        return min(chunk_range.stop, self.end) - chunk_range.start

    def is_direct(self, chunk: int) -> bool:
        """Return True if the chunk is decoded, or fetched, straight into the reader's buffer."""
        return self.fits(self.run if self.segment.decoder.is_identity else range(chunk, chunk + 1))

    def fits(self, run: range) -> bool:
        """Return True if the chunks lie inside the range of the reader's buffer."""
        return self.destination is not None and self.destination.holds(self._original_range(run))

    def memory(self, run: range, pool: BufferPool, size: int) -> AbstractContextManager[memoryview]:
        """Return memory for ``size`` bytes of these chunks: in the reader's buffer if they fit, else from ``pool``."""
        if self.destination is not None and self.destination.holds(log_range := self._original_range(run)):
            return self.destination.lend(log_range)
        return nullcontext(pool.take(size))

    def _original_range(self, run: range) -> ByteRange:
        first = self.segment.index.original_range(run.start)
        return first if len(run) == 1 else ByteRange(first.start, self.segment.index.original_range(run.stop - 1).stop)


@dataclass(frozen=True, slots=True)
class Arrived:
    """Result of a GET: a future for each chunk that is being decoded.

    ``stored`` has the fetched bytes, or is None if they are in several buffers. If ``decode`` is set, no chunk is being
    decoded yet. The reader's thread decodes a chunk when it calls ``decode`` with the chunk's number.
    """

    decoding: list[Future[Original]]
    stored: memoryview | None = None
    decode: Callable[[int], Original] | None = None


class Load:
    """One running GET, and its chunks."""

    def __init__(self, chunks: range, arrived: Future[Arrived]) -> None:
        self.chunks = chunks
        self._arrived = arrived
        self._unread = len(chunks)

    def chunk(self, number: int, timeout_s: float | None) -> Original:
        """Return the original bytes of a chunk. Raise its error, or StoreUnavailableError after the timeout."""
        until = None if timeout_s is None else monotonic() + timeout_s
        try:
            arrived = outcome(self._arrived, timeout_s)
            if arrived.decode is not None:
                return arrived.decode(number)
            decoded = arrived.decoding[number - self.chunks.start]
            return outcome(decoded, None if until is None else max(0.0, until - monotonic()))
        except OverdueError as error:
            raise StoreUnavailableError(
                f"chunk {number} was not loaded within {timeout_s:g} s (fetch.chunk.cache.get.timeout.ms); loading "
                "continues"
            ) from error

    def stored_bytes(self, number: int, positions: Sequence[int]) -> memoryview:
        """Return the stored bytes of a chunk that was already decoded."""
        stored = outcome(self._arrived).stored
        assert stored is not None
        start = positions[self.chunks.start]
        return stored[positions[number] - start : positions[number + 1] - start]

    def finish_one(self, original: Original | None, buffers: StreamBuffers) -> None:
        """Record that the load's only reader has finished a chunk, and give memory without references back to
        ``buffers``.

        ``original`` is None for a chunk in the reader's own buffer.
        """
        self._unread -= 1
        stored = outcome(self._arrived).stored
        if original is not None and (stored is None or original.obj is not stored.obj):
            buffers.originals.give(original)
        if stored is not None and not self._unread:
            buffers.stored.give(stored)

    def cancel(self) -> None:
        """Cancel tasks that have not started. Running tasks continue, and write into memory that nothing reads."""
        self._arrived.cancel()


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One chunk that a stream will need next. ``load`` is loading the chunk, or is None if the chunk is in the cache.

    With ``owned``, the load has no other reader. With ``direct``, the chunk is decoded or fetched straight into the
    reader's buffer. ``cached`` are the chunk's bytes after they were read from the cache.
    """

    chunk: int
    load: Load | None
    owned: bool = False
    direct: bool = False
    cached: Original | None = None

    @property
    def is_unread(self) -> bool:
        """True if the chunk is in the cache and has not been read yet."""
        return self.load is None and self.cached is None
