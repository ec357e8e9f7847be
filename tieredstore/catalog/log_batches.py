"""The batches of a stored log, read forward from a position without holding the log."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from tieredstore.errors import BatchCorrupt
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, walk_batch_headers
from tieredstore.model import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_PIECE_SIZE: Final = 64 * 1024


@contextmanager
def open_log(source: SegmentSource, segment: RemoteLogSegmentMetadata, position: int) -> Generator[LogBatches]:
    """The batches of ``segment`` from byte ``position``, which must be a batch border.

    One request for the manifest, and one for each chunk that is reached.
    """
    if not 0 <= position <= segment.segment_size_in_bytes:
        size = segment.segment_size_in_bytes
        raise BatchCorrupt(f"the offset index of {segment} points to byte {position} of {size}")
    if position == segment.segment_size_in_bytes:
        yield LogBatches(io.BytesIO(), position, position, segment)
        return
    with source.fetch_log_segment(segment, position) as stream:
        yield LogBatches(stream, position, segment.segment_size_in_bytes, segment)


class ByteStream(Protocol):
    """Bytes that follow each other."""

    def read(self, size: int, /) -> bytes | None:
        """About ``size`` bytes, one at least; none at the end."""
        ...


class LogBatches:
    """Walks over a log from ``position`` to ``size``; ``stream`` stands at ``position``. For one thread."""

    def __init__(
        self,
        stream: ByteStream,
        position: int,
        size: int,
        segment: RemoteLogSegmentMetadata | None = None,
    ) -> None:
        """Errors name the ``segment``."""
        self._stream = stream
        self._segment = segment
        self._begin = position
        self._size = size
        self._start = position
        self._piece = b""

    def headers(self) -> Iterator[BatchHeader]:
        """The headers of the batches; BatchCorrupt for what is none, see ``walk_batch_headers``."""
        try:
            yield from walk_batch_headers(self._view, self._size, self._begin)
        except BatchCorrupt as error:
            raise error if self._segment is None else BatchCorrupt(f"{self._segment}: {error}") from error

    def _view(self, position: int) -> memoryview:
        self._reach(position, min(HEADER_SIZE, self._size - position))
        return memoryview(self._piece)[position - self._start :]

    def _reach(self, position: int, size: int) -> None:
        """Have ``size`` bytes from ``position`` in the piece, which only moves forward."""
        while position + size > self._start + len(self._piece):
            kept = self._piece[max(position - self._start, 0) :]
            end = self._start + len(self._piece)
            more = self._stream.read(max(_PIECE_SIZE, size - len(kept)) if position <= end else _PIECE_SIZE)
            if not more:
                raise BatchCorrupt(f"the log ended at byte {end} and should have {self._size}")
            self._start, self._piece = end - len(kept), kept + more
