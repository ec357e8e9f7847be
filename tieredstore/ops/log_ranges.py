"""Reads ranges of a stored log in pieces. Each chunk is decoded once."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.stored import StoredSegment
from tieredstore.model import ByteRange
from tieredstore.transform.chunks import fresh_memory

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_CHUNKS_AT_ONCE: Final = 8
_BUFFER_SIZE: Final = 64 << 20
_LEAST_READ: Final = 1 << 20


def range_of_slice(bounds: slice, size: int) -> ByteRange:
    """Return the byte range that a Python slice selects from ``size`` bytes."""
    start, stop, _ = bounds.indices(size)
    return ByteRange(start, max(start, stop))


def read_sizes(inside: ByteRange, chunk_size: int) -> Iterator[int]:
    """Yield the size of each read. A read ends at a chunk boundary or at the end of the range.

    Reads end at chunk boundaries so that no chunk is decoded twice. A read has at most 64 MiB, or one chunk if that is
    larger.
    """
    step = _step(chunk_size)
    position = inside.start
    while position < inside.stop:
        stop = min(inside.stop, position - position % chunk_size + step)
        yield stop - position
        position = stop


def read_range(source: SegmentSource, segment: StoredSegment, inside: ByteRange) -> Generator[memoryview]:
    """Yield the bytes ``inside`` of the segment's log. Each piece is valid until the next one is requested.

    Close the generator if you stop early.
    """
    if not inside:
        return
    chunk_size = segment.manifest.chunk_index.original_chunk_size
    # A damaged manifest may claim 2 GiB that do not exist. Pages of this buffer take no memory until they are written.
    buffer = fresh_memory(min(len(inside), _step(chunk_size)))
    with contextlib.closing(source.fetch_log_segment(segment.metadata, inside.start, inside.stop - 1)) as stream:
        for size in read_sizes(inside, chunk_size):
            stream.readinto(buffer[:size])
            yield buffer[:size]


def _step(chunk_size: int) -> int:
    chunks = max(_CHUNKS_AT_ONCE, _LEAST_READ // chunk_size)  # combine small chunks into larger reads
    return chunk_size * max(1, min(chunks, _BUFFER_SIZE // chunk_size))
