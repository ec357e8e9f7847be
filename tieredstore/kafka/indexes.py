"""Readers of a segment's ``.index``, ``.timeindex`` and ``.txnindex`` files.

All integers are big-endian. The files have no header, only entries::

    .index      int32 offset - base offset, int32 position                                       8 bytes
    .timeindex  int64 timestamp, int32 offset - base offset                                     12 bytes
    .txnindex   int16 version 0, int64 producer id, first, last and last stable offset          34 bytes

While the broker writes a segment its ``.index`` and ``.timeindex`` are preallocated, so that zeros follow the last
entry; it trims them when it closes the segment. An entry of zeros can be real only as the first one (timestamp 0 at
the base offset): it counts where it is the whole file or others follow it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, overload

from tieredstore.errors import BatchCorrupt

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_TXN_ENTRY: Final = struct.Struct(">hqqqq")

OFFSET_ENTRY_SIZE: Final = _OFFSET_ENTRY.size
TIME_ENTRY_SIZE: Final = _TIME_ENTRY.size
TXN_ENTRY_SIZE: Final = _TXN_ENTRY.size


@dataclass(frozen=True, slots=True)
class OffsetIndexEntry:
    """A batch whose **last** record has ``offset`` begins at byte ``position`` of the log."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimeIndexEntry:
    """``timestamp`` (ms) is the greatest up to ``offset`` of the segment."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction; ``last_offset`` (inclusive) is that of its abort marker.

    ``last_stable_offset`` is that of the partition when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class OffsetIndex(Sequence[OffsetIndexEntry]):
    """The entries of an ``.index`` file, both columns strictly increasing; look-ups by bisection."""

    def __init__(self, base_offset: int, offsets: Sequence[int], positions: Sequence[int]) -> None:
        self.base_offset = base_offset
        self._offsets = offsets
        self._positions = positions

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> OffsetIndexEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[OffsetIndexEntry]: ...
    def __getitem__(self, index: int | slice) -> OffsetIndexEntry | list[OffsetIndexEntry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return OffsetIndexEntry(self.base_offset + self._offsets[index], self._positions[index])

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Offset and position of each entry, for who goes through all of a large index."""
        base_offset = self.base_offset
        return (
            (base_offset + offset, position) for offset, position in zip(self._offsets, self._positions, strict=True)
        )

    def position_for_offset(self, offset: int) -> int:
        """Where to begin reading to meet ``offset``: the batch of the last entry at or before it, else byte 0."""
        # An entry names the last offset of its batch, so the batch that holds `offset` is the one of the last entry
        # at or before it, or follows that one: reading from there never starts too late.
        at_or_before = bisect_right(self._offsets, offset - self.base_offset)
        return self._positions[at_or_before - 1] if at_or_before else 0


class TimeIndex(Sequence[TimeIndexEntry]):
    """The entries of a ``.timeindex`` file, timestamps strictly increasing; look-ups by bisection."""

    def __init__(self, base_offset: int, timestamps: Sequence[int], offsets: Sequence[int]) -> None:
        self.base_offset = base_offset
        self._timestamps = timestamps
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._timestamps)

    @overload
    def __getitem__(self, index: int) -> TimeIndexEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[TimeIndexEntry]: ...
    def __getitem__(self, index: int | slice) -> TimeIndexEntry | list[TimeIndexEntry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return TimeIndexEntry(self._timestamps[index], self.base_offset + self._offsets[index])

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Timestamp and offset of each entry, likewise."""
        base_offset = self.base_offset
        return (
            (timestamp, base_offset + offset) for timestamp, offset in zip(self._timestamps, self._offsets, strict=True)
        )

    def offset_for_timestamp(self, timestamp: int) -> int:
        """An offset that no record of ``timestamp`` or later precedes: begin there and read on to the first such."""
        # bisect_right, not left: the entry of exactly `timestamp` names the offset that first reached it.
        at_or_before = bisect_right(self._timestamps, timestamp)
        return self.base_offset + (self._offsets[at_or_before - 1] if at_or_before else 0)


def read_offset_index(raw: bytes, base_offset: int) -> OffsetIndex:
    """Parse an ``.index`` file; BatchCorrupt for a size or order that Kafka never writes."""
    offsets: list[int] = []
    positions: list[int] = []
    last = (-1, -1)
    for number, (offset, position) in enumerate(_entries(raw, _OFFSET_ENTRY, "offset index")):
        if offset <= last[0] or position <= last[1]:
            raise BatchCorrupt(f"entry {number} of the offset index, {(offset, position)}, does not increase on {last}")
        last = (offset, position)
        offsets.append(offset)
        positions.append(position)
    return OffsetIndex(base_offset, offsets, positions)


def read_time_index(raw: bytes, base_offset: int) -> TimeIndex:
    """Parse a ``.timeindex`` file; BatchCorrupt for a size or order that Kafka never writes."""
    timestamps: list[int] = []
    offsets: list[int] = []
    last = (-1, 0)
    for number, (timestamp, offset) in enumerate(_entries(raw, _TIME_ENTRY, "time index")):
        # Equal offsets pass: Kafka's writer, too, refuses only an offset below the last one.
        if timestamp <= last[0] or offset < last[1]:
            raise BatchCorrupt(f"entry {number} of the time index, {(timestamp, offset)}, does not increase on {last}")
        last = (timestamp, offset)
        timestamps.append(timestamp)
        offsets.append(offset)
    return TimeIndex(base_offset, timestamps, offsets)


def read_txn_index(raw: bytes, base_offset: int) -> tuple[AbortedTransaction, ...]:
    """Parse a ``.txnindex`` file, in the order of the abort markers; BatchCorrupt for what Kafka never writes."""
    transactions: list[AbortedTransaction] = []
    last = base_offset - 1
    for number, (version, *fields) in enumerate(_entries(raw, _TXN_ENTRY, "transaction index")):
        entry = AbortedTransaction(*fields)
        if version != 0:
            raise BatchCorrupt(f"entry {number} of the transaction index has the unknown version {version}")
        # Ordered by their markers, not by their beginnings: a long transaction may be aborted after shorter ones that
        # began later.
        if min(fields) < 0 or entry.first_offset > entry.last_offset or entry.last_offset <= last:
            raise BatchCorrupt(f"entry {number} of the transaction index contradicts itself or the one before: {entry}")
        last = entry.last_offset
        transactions.append(entry)
    return tuple(transactions)


def is_trimmed(raw: bytes, entry_size: int) -> bool:
    """Whether an index file ends with an entry, not with the zeros of a segment that is being written."""
    return len(raw) <= entry_size or any(raw[-entry_size:])


def _entries(raw: bytes, layout: struct.Struct, name: str) -> Iterator[tuple[int, ...]]:
    if len(raw) % layout.size:
        raise BatchCorrupt(f"the {name} has {len(raw)} bytes, not a multiple of {layout.size}")
    # Rounded up to whole entries, since the last real one may itself end in zero bytes.
    used = -(-len(raw.rstrip(b"\0")) // layout.size) * layout.size
    return layout.iter_unpack(raw if len(raw) == layout.size else raw[:used])
