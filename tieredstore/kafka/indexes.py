"""Readers and writers of a segment's ``.index``, ``.timeindex`` and ``.txnindex`` files.

All integers are big-endian. The files have no header, only entries::

    .index      int32 offset - base offset, int32 position                                       8 bytes
    .timeindex  int64 timestamp, int32 offset - base offset                                     12 bytes
    .txnindex   int16 version 0, int64 producer id, first, last and last stable offset          34 bytes

While the broker writes a segment, its ``.index`` and ``.timeindex`` are preallocated: zeros follow the last entry. The
broker cuts the zeros off when it closes the segment. A real entry of only zeros (timestamp 0 at the base offset) can
only be the first. It counts as an entry if it is the whole file, or if other entries follow.
"""

from __future__ import annotations

import struct
import sys
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import le, lt
from typing import Final, TypeAlias, TypeVar, overload

from tieredstore.errors import BatchCorruptError

Column: TypeAlias = "array[int]"
"""One field of all index entries: integers of 32 bits, or of 64 bits for timestamps."""

_Entry = TypeVar("_Entry")

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_TXN_ENTRY: Final = struct.Struct(">hqqqq")

OFFSET_ENTRY_SIZE: Final = _OFFSET_ENTRY.size
TIME_ENTRY_SIZE: Final = _TIME_ENTRY.size
TXN_ENTRY_SIZE: Final = _TXN_ENTRY.size

_INTERVAL: Final = 4096
"""Bytes of log between two index entries: the broker's default ``index.interval.bytes``."""


@dataclass(frozen=True, slots=True)
class OffsetIndexEntry:
    """A batch whose **last** record has ``offset`` begins at byte ``position`` of the log."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimeIndexEntry:
    """``timestamp`` (ms) is the greatest timestamp of the segment's records up to ``offset``."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction. ``last_offset`` (inclusive) is the offset of its abort marker.

    ``last_stable_offset`` is the partition's last stable offset when the abort marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class _Entries(Sequence[_Entry]):
    """A sequence of entries, kept as two columns. An entry object is made on access. Bisection finds entries."""

    def __init__(self, base_offset: int, first: Column, second: Column) -> None:
        self.base_offset = base_offset
        self.columns: Final = first, second
        """The two columns as in the file, with offsets relative to the base offset. They are used to scan a large
        index."""

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, index: int) -> _Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[_Entry]: ...
    def __getitem__(self, index: int | slice) -> _Entry | list[_Entry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._entry(self.columns[0][index], self.columns[1][index])

    @abstractmethod
    def _entry(self, first: int, second: int) -> _Entry:
        """Make the entry from its two fields."""

    def _second_at_or_before(self, first: int) -> int:
        """Return the second field of the last entry whose first field is at most ``first``. Return 0 if there is no
        such entry.
        """
        at_or_before = bisect_right(self.columns[0], first)
        return self.columns[1][at_or_before - 1] if at_or_before else 0


class OffsetIndex(_Entries[OffsetIndexEntry]):
    """The entries of an ``.index`` file: offsets and positions, both strictly increasing."""

    def _entry(self, first: int, second: int) -> OffsetIndexEntry:
        return OffsetIndexEntry(self.base_offset + first, second)

    def position_for_offset(self, offset: int) -> int:
        """Return the byte at which to begin reading for ``offset``: the position of the last entry at or before it,
        else 0.
        """
        # An entry names the last offset of its batch. The last entry at or before `offset` therefore names the batch
        # with `offset`, or an earlier batch. A read from that entry's position never starts too late.
        return self._second_at_or_before(offset - self.base_offset)


class TimeIndex(_Entries[TimeIndexEntry]):
    """The entries of a ``.timeindex`` file: timestamps, strictly increasing, and offsets."""

    def _entry(self, first: int, second: int) -> TimeIndexEntry:
        return TimeIndexEntry(first, self.base_offset + second)

    def offset_for_timestamp(self, timestamp: int) -> int:
        """Return an offset at or before the first record with ``timestamp`` or later. Read from there to find that
        record.
        """
        # An entry with exactly `timestamp` is a correct start too: its offset is the first with this timestamp.
        return self.base_offset + self._second_at_or_before(timestamp)


def read_offset_index(raw: bytes, base_offset: int) -> OffsetIndex:
    """Parse an ``.index`` file. Raise BatchCorruptError for a size or order that Kafka never writes."""
    words = _words(_cut_padding(raw, _OFFSET_ENTRY, "offset index"))
    offsets, positions = words[::2], words[1::2]
    _check_order("offset index", offsets, positions)
    return OffsetIndex(base_offset, offsets, positions)


def read_time_index(raw: bytes, base_offset: int) -> TimeIndex:
    """Parse a ``.timeindex`` file. Raise BatchCorruptError for a size or order that Kafka never writes."""
    used = _cut_padding(raw, _TIME_ENTRY, "time index")
    timestamps = array("q", (timestamp for timestamp, _ in _TIME_ENTRY.iter_unpack(used)))
    offsets = _words(used)[2::3]
    # Equal offsets are valid: Kafka's writer refuses only an offset below the last one.
    _check_order("time index", timestamps, offsets, may_stay=True)
    return TimeIndex(base_offset, timestamps, offsets)


def read_txn_index(raw: bytes, base_offset: int) -> tuple[AbortedTransaction, ...]:
    """Parse a ``.txnindex`` file. Entries are in the order of the abort markers. Raise BatchCorruptError for an entry
    that Kafka never writes.
    """
    transactions: list[AbortedTransaction] = []
    last = base_offset - 1
    for number, (version, *fields) in enumerate(
        _TXN_ENTRY.iter_unpack(_cut_padding(raw, _TXN_ENTRY, "transaction index"))
    ):
        entry = AbortedTransaction(*fields)
        if version != 0:
            raise BatchCorruptError(f"entry {number} of the transaction index has the unknown version {version}")
        # Check the order of the markers, not of the first offsets. A long transaction may abort after a short
        # transaction that began later.
        if min(fields) < 0 or entry.first_offset > entry.last_offset or entry.last_offset <= last:
            raise BatchCorruptError(
                f"entry {number} of the transaction index contradicts itself or the entry before it: {entry}"
            )
        last = entry.last_offset
        transactions.append(entry)
    return tuple(transactions)


def format_txn_index(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return the bytes of a ``.txnindex`` file, as Kafka writes it."""
    return b"".join(
        _TXN_ENTRY.pack(0, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
        for entry in entries
    )


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
            self.offset_index += _OFFSET_ENTRY.pack(last_offset - self.base_offset, position)
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
            self._time_index += _TIME_ENTRY.pack(timestamp, offset - self.base_offset)
            self._last_indexed_time = timestamp


def is_trimmed(raw: bytes, entry_size: int) -> bool:
    """Return True if an index file ends with an entry, False if it ends with preallocated zeros."""
    return len(raw) <= entry_size or any(raw[-entry_size:])


def _words(raw: bytes) -> Column:
    """Return the bytes as numbers of 32 bits."""
    words = array("i", raw)
    if sys.byteorder == "little":
        words.byteswap()
    return words


def _check_order(name: str, first: Column, second: Column, *, may_stay: bool = False) -> None:
    """Raise BatchCorruptError unless both columns begin at 0 or above and increase. With ``may_stay`` the second
    column may repeat a value.
    """
    ordered = le if may_stay else lt
    last = (-1, 0 if may_stay else -1)
    if _increases(first, last[0], lt) and _increases(second, last[1], ordered):
        return
    for number, entry in enumerate(zip(first, second, strict=True)):
        if entry[0] <= last[0] or not ordered(last[1], entry[1]):
            raise BatchCorruptError(
                f"entry {number} of the {name} does not increase: it is {entry}, and {last} comes before it"
            )
        last = entry


def _increases(column: Column, before: int, ordered: Callable[[int, int], bool]) -> bool:
    """Return True if a column begins after ``before`` and is ordered. The check must be fast, because a column may have
    millions of entries.
    """
    return not column or (ordered(before, column[0]) and all(map(ordered, column, islice(column, 1, None))))


def _cut_padding(raw: bytes, layout: struct.Struct, name: str) -> bytes:
    """Return the entries without the zeros after them."""
    if len(raw) % layout.size:
        raise BatchCorruptError(f"the {name} has {len(raw)} bytes, not a multiple of {layout.size}")
    # Round up to whole entries, because the last real entry may itself end in zero bytes.
    used = -(-len(raw.rstrip(b"\0")) // layout.size) * layout.size
    return raw if len(raw) == layout.size else raw[:used]
