"""A stored log, chunk by chunk: batch headers and checksums without holding a batch, and past what is damaged."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import crc32c

from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader
from tieredstore.kafka.end_markers import MARKER_BYTES

if TYPE_CHECKING:
    from tieredstore.remote.fetch.stream import SegmentStream

_VIEW_SIZE: Final = HEADER_SIZE + MARKER_BYTES


class LogWalk:
    """The bytes of a log from some position on, forward only but for a :meth:`jump`. For one thread.

    Errors are those of the stream: SegmentCorrupt for a chunk that does not open, which begins at :attr:`end`.
    """

    def __init__(self, stream: SegmentStream, size: int) -> None:
        self._stream = stream
        self._size = size
        self.jump(0)

    @property
    def end(self) -> int:
        """Behind the last byte that was loaded."""
        return self._begin + len(self._chunk)

    def jump(self, position: int) -> None:
        """Go on at another position."""
        self._stream.seek(position)
        self._chunks = self._stream.chunks()
        self._begin, self._chunk = position, memoryview(b"")
        self._tail = b""

    def skip_to(self, position: int) -> None:
        """Load, and so open, all up to a position."""
        while self.end < position:
            self._load(b"")

    def view(self, position: int) -> memoryview:
        """At least the bytes of a batch's header and of the marker in it, if the log has so many: a ``LogView``."""
        first = position - self._begin
        if first >= 0 and first + _VIEW_SIZE <= len(self._chunk):
            return self._chunk[first:]
        wanted = min(position + _VIEW_SIZE, self._size)
        self.skip_to(position)
        while self.end < wanted:
            self._load(self._kept_from(position))
        if position >= self._begin:
            return self._chunk[position - self._begin :]
        return memoryview(self._kept_from(position, _VIEW_SIZE))

    def loaded(self, position: int) -> memoryview:
        """The bytes from a position on as far as they lie in one piece without loading more; maybe none."""
        first = position - self._begin
        return self._chunk[first:] if first >= 0 else self._chunk[:0]

    def checksum(self, header: BatchHeader) -> int:
        """The checksum that the bytes have of the batch that was viewed last."""
        crc = crc32c.crc32c if header.magic == 2 else zlib.crc32
        position = header.position + (21 if header.magic == 2 else 16)
        stop, value = header.position + header.size_in_bytes, 0
        while position < stop:
            piece = self._piece(position, stop)
            value = crc(piece, value)
            position += len(piece)
        return value

    def _piece(self, start: int, stop: int) -> memoryview:
        """Some of the bytes ``start`` up to ``stop``, one at least, valid until more is loaded."""
        if start < self._begin:
            return memoryview(self._tail_from(start))[: stop - start]
        self.skip_to(start + 1)
        return self._chunk[start - self._begin : stop - self._begin]

    def _kept_from(self, position: int, size: int | None = None) -> bytes:
        """The bytes from ``position`` that are loaded, ``size`` of them at most."""
        kept = self._tail_from(position) if position < self._begin else b""
        first = max(position - self._begin, 0)
        more = None if size is None else first + max(size - len(kept), 0)
        return kept + bytes(self._chunk[first:more])

    def _tail_from(self, position: int) -> bytes:
        """The bytes from ``position`` up to the loaded chunk."""
        first = len(self._tail) - (self._begin - position)
        # An answer of no bytes, or of others, would be taken for the log's.
        if first < 0:
            raise AssertionError(f"byte {position} of the log was passed: {len(self._tail)} bytes are kept")
        return self._tail[first:]

    def _load(self, tail: bytes) -> None:
        """The next chunk in place of this one, of which ``tail`` is kept."""
        end = self.end
        # Before the next one is asked for: this one is gone then.
        self._tail = tail
        self._begin, self._chunk = end, memoryview(b"")
        self._chunk = next(self._chunks)
