"""View of the record batches of a stored log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tieredstore.errors import BatchCorruptError, SegmentCorruptError
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, check_batch_crc, walk_batch_headers
from tieredstore.kafka.end_markers import MARKER_BYTES, TransactionStep, transaction_steps
from tieredstore.model import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.remote.fetch.stream import SegmentStream

_PIECE: Final = 1 << 20
_HEAD: Final = HEADER_SIZE + MARKER_BYTES


class StreamView:
    """Record batches of a segment's log. The stream begins at the log's byte ``start``."""

    def __init__(self, stream: SegmentStream, segment: RemoteLogSegmentMetadata, start: int = 0) -> None:
        self._stream, self._segment, self._start = stream, segment, start
        self._size = segment.segment_size_in_bytes
        self._piece, self._begin = b"", start

    def steps(self) -> Iterator[TransactionStep]:
        """Yield the beginnings and ends of transactions. Raise SegmentCorruptError for an invalid batch."""
        try:
            yield from transaction_steps(walk_batch_headers(self.at, self._size, self._start), self.marker)
        except BatchCorruptError as error:
            raise SegmentCorruptError(f"{self._segment}: {error}") from error

    def at(self, position: int) -> memoryview:
        """Return the bytes from ``position`` on. They are enough for a batch header and a transaction marker, unless
        the log ends earlier.
        """
        needed = min(_HEAD, self._size - position)
        if not self._begin <= position <= self._begin + len(self._piece) - needed:
            self._stream.seek(position - self._start)
            self._begin, self._piece = position, self._stream.read(_PIECE)
        return memoryview(self._piece)[position - self._begin :]

    def marker(self, header: BatchHeader) -> bytes:
        """Return the first bytes of the records of a control batch. Raise BatchCorruptError if its transaction marker
        is damaged.
        """
        head = self.at(header.position)
        # Every transaction marker is a batch of at most this size, so only the CRCs of small batches are checked.
        if header.size_in_bytes <= _HEAD:
            check_batch_crc(head[: header.size_in_bytes], header)
        return bytes(head[HEADER_SIZE : min(header.size_in_bytes, _HEAD)])
