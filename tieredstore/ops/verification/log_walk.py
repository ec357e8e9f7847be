"""A stored log, chunk by chunk: batch headers and checksums without holding a batch, and past what is damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import crc32c

from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader

if TYPE_CHECKING:
    from tieredstore.remote.stream import SegmentStream


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
        """At least the bytes of a batch's header from a position on, if the log has so many: a ``LogView``."""
        first = position - self._begin
        if first >= 0 and first + HEADER_SIZE <= len(self._chunk):
            return self._chunk[first:]
        wanted = min(position + HEADER_SIZE, self._size)
        self.skip_to(position)
        while self.end < wanted:
            self._load(self._kept_from(position))
        if position >= self._begin:
            return self._chunk[position - self._begin :]
        return memoryview(self._kept_from(position, HEADER_SIZE))

    def loaded(self, position: int) -> memoryview:
        """The bytes from a position on as far as they lie in one piece without loading more; maybe none."""
        first = position - self._begin
        return self._chunk[first:] if first >= 0 else self._chunk[:0]

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes ``start`` up to ``stop``, each piece valid until the next is asked for."""
        self.skip_to(start + 1 if start < stop else start)
        if start < self._begin:
            kept = memoryview(self._tail)[start - self._begin :][: stop - start]
            yield kept
            start += len(kept)
        while start < stop:
            self.skip_to(start + 1)
            piece = self._chunk[start - self._begin : stop - self._begin]
            yield piece
            start += len(piece)

    def checksum(self, header: BatchHeader) -> int:
        """The checksum that the batch's bytes have."""
        crc = crc32c.crc32c if header.magic == 2 else zlib.crc32
        start = header.position + (21 if header.magic == 2 else 16) - self._begin
        stop = header.position + header.size_in_bytes - self._begin
        # Most batches lie within a chunk, and there may be thousands in it.
        if start >= 0 and stop <= len(self._chunk):
            return crc(self._chunk[start:stop])
        value = 0
        for piece in self.pieces(start + self._begin, stop + self._begin):
            value = crc(piece, value)
        return value

    def _kept_from(self, position: int, size: int | None = None) -> bytes:
        """The bytes from ``position`` that are loaded, ``size`` of them at most."""
        kept = self._tail[position - self._begin :] if position < self._begin else b""
        first = max(position - self._begin, 0)
        more = None if size is None else first + max(size - len(kept), 0)
        return kept + bytes(self._chunk[first:more])

    def _load(self, tail: bytes) -> None:
        """The next chunk in place of this one, of which ``tail`` is kept."""
        end = self.end
        # Before the next one is asked for: this one is gone then.
        self._tail = tail
        self._begin, self._chunk = end, memoryview(b"")
        self._chunk = next(self._chunks)
