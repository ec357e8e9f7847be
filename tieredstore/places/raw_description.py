"""Describes a raw segment (a segment in Pinterest's layout) for its manifest. It reads only the ends of the segment's
files.

This module is separate from ``raw_store``, because it needs neither stores nor object keys. The caller passes a
function that reads the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, walk_batch_headers
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.kafka.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, read_offset_index, read_time_index
from tieredstore.places.raw_keys import INDEX, LOG, TIME_INDEX, RawSegment

_Entry = TypeVar("_Entry")

_PIECE: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class RawDescription:
    """Facts about a raw segment. ``end_offset`` is the last offset of the last batch. If an index does not fit the log,
    readers ignore it."""

    end_offset: int
    max_timestamp_ms: int
    leader_epochs: LeaderEpochs
    index_fits: bool
    time_index_fits: bool


def describe_raw(segment: RawSegment, read: Callable[[str, int, int], bytes]) -> RawDescription:
    """Describe a segment by four small reads or, if an index is not usable, by reading all batch headers.

    ``read(ending, start, stop)`` reads a file of the segment. Raise BatchCorruptError for a damaged log.
    """
    return _Description(segment, read).make()


class _Description:
    def __init__(self, segment: RawSegment, read: Callable[[str, int, int], bytes]) -> None:
        self._segment, self._read = segment, read
        self._base = segment.base_offset
        self._size = segment.log_size
        self._piece, self._piece_at = b"", 0

    def make(self) -> RawDescription:
        first = next(self._headers(0), None)
        if first is None or first.base_offset < self._base:
            raise BatchCorruptError(
                f"the log of base offset {self._base} begins with no batch, or with a batch before this offset"
            )
        entry = self._last_entry(INDEX, OFFSET_ENTRY_SIZE, read_offset_index)
        end = None if entry is None else self._end_from(entry.offset, entry.position)
        index_fits = end is not None or self._segment.files[INDEX].size == 0
        time_entry = self._last_entry(TIME_INDEX, TIME_ENTRY_SIZE, read_time_index)
        # If one of the indexes is not usable, read all batch headers of the log.
        if end is None or time_entry is None:
            last, timestamp = self._walk_from(0)
        else:
            last, timestamp = end
        time_index_fits = time_entry is not None and self._base <= time_entry.offset <= last.last_offset
        if time_entry is not None and not time_index_fits:
            last, timestamp = self._walk_from(0)
        elif time_entry is not None:
            timestamp = max(timestamp, time_entry.timestamp)
        epochs = self._epochs(first, last, index_fits)
        is_unused = self._segment.files[TIME_INDEX].size == 0
        return RawDescription(last.last_offset, timestamp, epochs, index_fits, time_index_fits or is_unused)

    def _last_entry(
        self, ending: str, entry_size: int, parse: Callable[[bytes, int], Sequence[_Entry]]
    ) -> _Entry | None:
        """Return the last entry of an index; None if the index has no entry, or is damaged."""
        size = self._segment.files[ending].size
        if size == 0 or size % entry_size:
            return None
        raw = self._read(ending, size - entry_size, size)
        if not any(raw):  # the entry is zeros, because Kafka had not yet trimmed the preallocated file
            raw = self._read(ending, 0, size)
        try:
            entries = parse(raw, self._base)
        except BatchCorruptError:
            return None
        return entries[-1] if entries else None

    def _end_from(self, offset: int, position: int) -> tuple[BatchHeader, int] | None:
        """Return the last batch, and the greatest timestamp from ``position`` on; None if ``offset`` and ``position``
        do not fit the log.
        """
        if not 0 <= position < self._size:
            return None
        try:
            first = next(self._headers(position), None)
            last, timestamp = self._walk_from(position)
        except BatchCorruptError:
            return None
        fits = first is not None and self._base <= first.base_offset <= offset <= last.last_offset
        return (last, timestamp) if fits else None

    def _walk_from(self, position: int) -> tuple[BatchHeader, int]:
        last: BatchHeader | None = None
        timestamp = -1
        for header in self._headers(position):
            last, timestamp = header, max(timestamp, header.max_timestamp)
        if last is None:
            raise BatchCorruptError(f"the log of base offset {self._base} has no batch from byte {position} on")
        return last, timestamp

    def _headers(self, position: int) -> Iterator[BatchHeader]:
        return walk_batch_headers(self._view, self._size, position)

    def _view(self, position: int) -> memoryview:
        """Return bytes from ``position`` on, at least as many as a batch header has."""
        at = position - self._piece_at
        if not 0 <= at <= len(self._piece) - min(HEADER_SIZE, self._size - position):
            self._piece_at, at = position, 0
            self._piece = self._read(LOG, position, min(self._size, position + _PIECE))
        return memoryview(self._piece)[at:]

    def _epochs(self, first: BatchHeader, last: BatchHeader, index_fits: bool) -> LeaderEpochs:
        """Return the leader epochs of the batches; () if the batches have none."""
        if first.partition_leader_epoch < 0 or last.partition_leader_epoch < 0:
            return ()
        epochs = [(first.partition_leader_epoch, self._base)]
        if first.partition_leader_epoch == last.partition_leader_epoch:
            return tuple(epochs)
        positions = [0]
        if index_fits and self._segment.files[INDEX].size:
            entries = read_offset_index(self._read(INDEX, 0, self._segment.files[INDEX].size), self._base)
            positions += [entry.position for entry in entries if entry.position]
        while epochs[-1][0] < last.partition_leader_epoch:
            # Find the next epoch's first batch. Epochs only grow, so bisection finds the two index entries around it.
            number = bisect_right(positions, epochs[-1][0], key=self._epoch_at)
            following = next(
                header for header in self._headers(positions[max(0, number - 1)])
                if header.partition_leader_epoch > epochs[-1][0]
            )  # fmt: skip
            epochs.append((following.partition_leader_epoch, following.base_offset))
        return tuple(epochs)

    def _epoch_at(self, position: int) -> int:
        header = next(self._headers(position), None)
        return -1 if header is None else header.partition_leader_epoch
