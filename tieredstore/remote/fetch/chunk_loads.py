"""Chunks on their way: what one ranged GET is asked for, and how its chunks are waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic

from tieredstore.errors import StoreUnavailableError
from tieredstore.format.chunk_index import ChunkIndex
from tieredstore.model import ByteRange, RemoteLogSegmentMetadata
from tieredstore.process.futures import OverdueError, outcome
from tieredstore.remote.fetch.buffers import BufferPool, Destination, Original, StreamBuffers
from tieredstore.remote.fetch.chunk_cache import ChunkKey
from tieredstore.transform.chunks import ChunkDecoder


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """All that reading the chunks of one segment needs. ``layout`` is of the manifest, for the cache's keys."""

    metadata: RemoteLogSegmentMetadata
    log_key: str
    index: ChunkIndex
    positions: Sequence[int]
    decoder: ChunkDecoder
    layout: bytes

    def key(self, store: str, chunk: int) -> ChunkKey:
        """Under which a cache has a chunk; ``store`` is the store's identity."""
        return ChunkKey(store, self.log_key, chunk, self.layout)


@dataclass(frozen=True, slots=True)
class Job:
    """One request to make: which chunks of which segment, and into which memory.

    What lies behind ``end`` of the original log nobody asks for, None if all of the last chunk may be wanted. With
    ``by_reader`` whoever waits for a chunk decodes it.
    """

    segment: OpenSegment
    run: range
    buffers: StreamBuffers
    destination: Destination | None = None
    end: int | None = None
    by_reader: bool = False

    def size_to_decode(self, chunk: int) -> int:
        """How many bytes of a chunk are decoded, from its beginning on."""
        chunk_range = self.segment.index.original_range(chunk)
        if self.end is None or not self.segment.decoder.stops_early:
            return len(chunk_range)
        return min(chunk_range.stop, self.end) - chunk_range.start

    def is_direct(self, chunk: int) -> bool:
        """Whether the chunk ends up in the reader's buffer without a copy."""
        return self.fits(self.run if self.segment.decoder.is_identity else range(chunk, chunk + 1))

    def fits(self, run: range) -> bool:
        """Whether the original bytes of these chunks belong into the reader's buffer, all of them."""
        return self.destination is not None and self.destination.holds(self._original_range(run))

    def memory(self, run: range, pool: BufferPool, size: int) -> AbstractContextManager[memoryview]:
        """Where ``size`` bytes of these chunks are to be written: the reader's buffer if they fit, or the pool's."""
        if self.destination is not None and self.fits(run):
            return self.destination.lent(self._original_range(run))
        return nullcontext(pool.take(size))

    def _original_range(self, run: range) -> ByteRange:
        first, last = (self.segment.index.original_range(chunk) for chunk in (run.start, run.stop - 1))
        return ByteRange(first.start, last.stop)


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a GET brought: each chunk being decoded, out of ``stored`` (None where there is no one buffer of it).

    With ``decode``, which is told a chunk's number, none is: each is for its reader to decode.
    """

    decoding: list[Future[Original]]
    stored: memoryview | None = None
    decode: Callable[[int], Original] | None = None


class Load:
    """One ranged GET under way, and the chunks that come of it."""

    def __init__(self, chunks: range, arrived: Future[Arrived]) -> None:
        self.chunks = chunks
        self._arrived = arrived
        self._unread = len(chunks)

    def chunk(self, number: int, timeout_s: float | None) -> Original:
        """The original bytes of one of the chunks; raises what went wrong, or StoreUnavailableError after the
        time-out."""
        until = None if timeout_s is None else monotonic() + timeout_s
        try:
            arrived = outcome(self._arrived, timeout_s)
            if arrived.decode is not None:
                return arrived.decode(number)
            decoded = arrived.decoding[number - self.chunks.start]
            return outcome(decoded, None if until is None else max(0.0, until - monotonic()))
        except OverdueError as error:
            raise StoreUnavailableError(
                f"chunk {number} did not come within {timeout_s:g} s (fetch.chunk.cache.get.timeout.ms); it goes on "
                "loading"
            ) from error

    def stored_bytes(self, number: int, positions: Sequence[int]) -> memoryview:
        """What came of the store for one of the chunks, which has been decoded."""
        stored = outcome(self._arrived).stored
        assert stored is not None
        start = positions[self.chunks.start]
        return stored[positions[number] - start : positions[number + 1] - start]

    def finish_one(self, original: Original | None, buffers: StreamBuffers) -> None:
        """Its one reader is done with a chunk: memory that nobody looks at any more goes back.

        ``original`` is None for a chunk that lies in the reader's own buffer.
        """
        self._unread -= 1
        stored = outcome(self._arrived).stored
        if original is not None and (stored is None or original.obj is not stored.obj):
            buffers.originals.give(original)
        if stored is not None and not self._unread:
            buffers.stored.give(stored)

    def cancel(self) -> None:
        """Do not start what has not started; what runs goes on into memory that nobody waits for."""
        self._arrived.cancel()


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One chunk that a stream will need next: on its way by ``load``, or, without one, in the cache.

    A ``load`` that is ``owned`` has no other reader; a chunk that is ``direct`` comes into the reader's buffer.
    ``cached`` are its bytes once they were read out of the cache.
    """

    chunk: int
    load: Load | None
    owned: bool = False
    direct: bool = False
    cached: Original | None = None

    @property
    def is_unread(self) -> bool:
        """Whether it is in the cache, and nobody has looked yet."""
        return self.load is None and self.cached is None
