"""Where a segment's log may be cut: at the starts of batches, with what is known of the offsets around each.

An entry of the offset index has the **last** offset of what was appended at its position, so that it tells of two
places: the log before the next entry reaches to that offset at least, and a batch that begins there or before stands
at its own position. Where batches of an exact offset begin, no index says.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tieredstore.kafka.indexes import OffsetIndex
from tieredstore.model import RemoteLogSegmentMetadata


@dataclass(frozen=True, slots=True)
class SectionEnd:
    """A place between two batches of a log, or one of its ends.

    The batches before byte ``position`` end before offset ``high`` and have an offset ``low - 1``; the one that stands
    there begins at ``low`` or later and at ``high`` or before.
    """

    position: int
    low: int
    high: int


Section: TypeAlias = tuple[SectionEnd, SectionEnd]
"""What lies between two borders of one log."""


class SectionEnds(Protocol):
    """The borders of a log in order, its two ends among them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> SectionEnd: ...


class IndexedEnds:
    """The borders that an offset index tells of. They are made when they are asked for: an index may be large."""

    def __init__(self, segment: RemoteLogSegmentMetadata, index: OffsetIndex) -> None:
        self._index = index
        self._first = start_of(segment)
        low = index[-1].offset + 1 if len(index) else segment.start_offset
        self._last = SectionEnd(segment.segment_size_in_bytes, low, segment.end_offset + 1)
        # An entry at the log's first byte is no further border.
        self._skipped = int(len(index) > 0 and index[0].position == 0)

    def __len__(self) -> int:
        return len(self._index) - self._skipped + 2

    def __getitem__(self, index: int, /) -> SectionEnd:
        number = index if index >= 0 else len(self) + index
        if number == 0:
            return self._first
        if number == len(self) - 1:
            return self._last
        entry = number - 1 + self._skipped
        before = self._index[entry - 1].offset if entry else self._first.low
        return SectionEnd(self._index[entry].position, before + 1, self._index[entry].offset)


def start_of(segment: RemoteLogSegmentMetadata) -> SectionEnd:
    """The log's first byte. Compaction may have taken any of its first batches."""
    return SectionEnd(0, segment.start_offset, segment.end_offset)


def end_of(segment: RemoteLogSegmentMetadata) -> SectionEnd:
    """The log's end, of which nothing more is known. Compaction may have taken any of its last batches."""
    return SectionEnd(segment.segment_size_in_bytes, segment.start_offset, segment.end_offset + 1)


def around(borders: SectionEnds, start: int, stop: int) -> Section:
    """The two borders closest to each other that hold all records with offsets from ``start`` up to ``stop``."""
    # One before the batch that may hold `start`: where a batch begins to count is proven by the one that it follows.
    first = bisect_left(borders, start, lo=1, key=lambda border: border.high) - 1
    # The borders behind the first one only: a window within one batch still needs two.
    last = bisect_left(borders, stop, lo=first + 1, hi=len(borders) - 1, key=lambda border: border.low)
    return borders[first], borders[last]


def oversized(borders: SectionEnds, begin: SectionEnd, end: SectionEnd, max_bytes: int) -> Iterator[Section]:
    """The neighbours among the borders from ``begin`` to ``end`` that lie further than ``max_bytes`` apart."""
    at = begin
    while at.position < end.position:
        following = _last_upto(borders, at.position + max_bytes)
        # No border lies within reach, so that the next one is further away than max_bytes.
        if following.position <= at.position:
            following = _first_after(borders, at.position)
            yield at, following
        at = following


def cut(
    borders: SectionEnds, begin: SectionEnd, end: SectionEnd, max_bytes: int, chunk_bytes: int
) -> Iterator[Section]:
    """Pieces from ``begin`` to ``end`` of near-equal sizes, each of ``max_bytes`` at most wherever borders allow it.

    They begin where chunks of ``chunk_bytes`` do, or right behind that, where this leaves their sizes within half of
    an equal part: a chunk that is cut in the middle is decompressed twice.
    """
    at = begin
    # Even pieces, not full ones and a small rest: tasks should take about the same time.
    while (left := end.position - at.position) > max_bytes:
        share = -(-left // -(-left // max_bytes))
        following = _at_chunk(borders, at.position, share, max_bytes, chunk_bytes) or _nearest(
            borders, at.position, at.position + share, at.position + max_bytes
        )
        if following.position >= end.position:
            break
        yield at, following
        at = following
    if at.position < end.position:
        yield at, end


def _at_chunk(borders: SectionEnds, position: int, share: int, max_bytes: int, chunk_bytes: int) -> SectionEnd | None:
    """The first border in a chunk, of the two chunks that begin around an equal part's end the nearer one that fits."""
    even = position + share
    before = even // chunk_bytes * chunk_bytes
    for start in sorted((before, before + chunk_bytes), key=lambda start: abs(start - even)):
        border = _first_after(borders, start - 1)
        if start - position > share // 2 and border.position <= position + max_bytes:
            return border
    return None


def _nearest(borders: SectionEnds, position: int, even: int, limit: int) -> SectionEnd:
    """The first border at ``even`` or behind, or else the last one before, or behind ``limit`` if there is none."""
    after = _first_after(borders, even - 1)
    if after.position <= limit:
        return after
    before = _last_upto(borders, even)
    return before if before.position > position else after


def _first_after(borders: SectionEnds, position: int) -> SectionEnd:
    after = bisect_right(borders, position, key=lambda border: border.position)
    return borders[min(after, len(borders) - 1)]


def _last_upto(borders: SectionEnds, position: int) -> SectionEnd:
    return borders[bisect_right(borders, position, key=lambda border: border.position) - 1]
