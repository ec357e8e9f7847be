"""The ``.index`` and ``.timeindex`` of a segment, built batch by batch as a broker builds them.

This module is separate from ``indexes``. Every read of records needs ``indexes``, but few programs need this writer.
"""

from __future__ import annotations

import struct
from typing import Final

_INTERVAL: Final = 4096
"""Bytes of log between two index entries: the broker's default ``index.interval.bytes``."""


class IndexBuilder:
    """Builds the indexes that Kafka 4 writes while it appends batches: about one entry per 4 KiB."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offset_index = bytearray()
        self._time_index = bytearray()
        self._unindexed = 0
        self._latest = (-1, base_offset)
        self._last_indexed_time = -1

    def add(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Add the next batch of the log."""
        if max_timestamp > self._latest[0]:
            self._latest = (max_timestamp, last_offset)
        if self._unindexed > _INTERVAL:
            self.offset_index += struct.pack(">ii", last_offset - self.base_offset, position)
            self._index_time()
            self._unindexed = 0
        self._unindexed += size

    def close(self) -> bytes:
        """Return the whole time index. Closing a segment adds an entry for its greatest timestamp."""
        self._index_time()
        return bytes(self._time_index)

    def _index_time(self) -> None:
        timestamp, offset = self._latest
        if timestamp > self._last_indexed_time:
            self._time_index += struct.pack(">qi", timestamp, offset - self.base_offset)
            self._last_indexed_time = timestamp
