"""Record batches of a stored log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from tieredstore.errors import BatchCorruptError, SegmentCorruptError
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, check_batch_crc, walk_batch_headers
from tieredstore.kafka.end_markers import MARKER_BYTES, TransactionStep, transaction_steps
from tieredstore.model import RemoteLogSegmentMetadata

_PIECE: Final = 64 << 10
_HEAD: Final = HEADER_SIZE + MARKER_BYTES


class ByteStream(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes | None:
        """Return about ``size`` bytes, at least one; empty at the end."""
        ...


class LogBatches:
    """Walk over a log's batches from ``position`` to ``size``; ``stream`` begins at ``position``. Not thread-safe."""

    def __init__(self, stream: ByteStream, position: int, size: int, segment: RemoteLogSegmentMetadata) -> None:
        """Prepare to walk over ``stream``; errors name the ``segment``."""
        self._stream = stream
        self._segment = segment
        self._begin = position
        self._size = size
        self._start = position
        self._piece = b""

    def headers(self) -> Iterator[BatchHeader]:
        """Yield the batch headers. Raise BatchCorruptError for an invalid header, as ``walk_batch_headers`` does."""
        try:
            yield from walk_batch_headers(self._view, self._size, self._begin)
        except BatchCorruptError as error:
            raise BatchCorruptError(f"{self._segment}: {error}") from error

    def steps(self) -> Iterator[TransactionStep]:
        """Yield the beginnings and ends of transactions. Raise SegmentCorruptError for an invalid batch."""
        try:
            yield from transaction_steps(walk_batch_headers(self._view, self._size, self._begin), self._marker)
        except BatchCorruptError as error:
            raise SegmentCorruptError(f"{self._segment}: {error}") from error

    def _marker(self, header: BatchHeader) -> bytes:
        """Return the first bytes of the records of a control batch. Raise BatchCorruptError if its transaction marker
        is damaged.
        """
        head = self._view(header.position)
        # Every transaction marker is a batch of at most this size, so only the CRCs of small batches are checked.
        if header.size_in_bytes <= _HEAD:
            check_batch_crc(head[: header.size_in_bytes], header)
        return bytes(head[HEADER_SIZE : min(header.size_in_bytes, _HEAD)])

    def _view(self, position: int) -> memoryview:
        """Return the bytes from ``position`` on. They are enough for a batch header and a transaction marker, unless
        the log ends earlier. ``position`` never moves back.
        """
        size = min(_HEAD, self._size - position)
        while position + size > self._start + len(self._piece):
            kept = self._piece[max(position - self._start, 0) :]
            end = self._start + len(self._piece)
            more = self._stream.read(_PIECE)
            if not more:
                raise BatchCorruptError(f"the log ended at byte {end}, but should have {self._size} bytes")
            self._start, self._piece = end - len(kept), kept + more
        return memoryview(self._piece)[position - self._start :]
