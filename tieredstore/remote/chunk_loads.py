"""Chunks on their way: what one ranged GET is asked for, and how its chunks are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from time import monotonic

from tieredstore.errors import StoreUnavailable
from tieredstore.format.chunk_index import ChunkIndex
from tieredstore.model import ByteRange, RemoteLogSegmentMetadata
from tieredstore.remote.buffers import Destination, Original, StreamBuffers
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


@dataclass(frozen=True, slots=True)
class Job:
    """One request to make: which chunks of which segment, and into which memory."""

    segment: OpenSegment
    run: range
    buffers: StreamBuffers
    destination: Destination | None = None

    def region(self, run: range) -> memoryview | None:
        """Where the original bytes of these chunks belong in the reader's buffer; None if they do not."""
        if self.destination is None:
            return None
        first, last = (self.segment.index.original_range(chunk) for chunk in (run.start, run.stop - 1))
        return self.destination.region(ByteRange(first.start, last.stop))

    def is_direct(self, chunk: int) -> bool:
        """Whether the chunk ends up in the reader's buffer without a copy."""
        unit = self.run if self.segment.decoder.is_identity else range(chunk, chunk + 1)
        return self.region(unit) is not None


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
