"""Sections of a segment's log: their possible bounds, and a read that proves that nothing was left out.

An entry of the offset index has the **last** offset of one append and its position. It proves two things: the log
before the next entry reaches that offset at least, and a batch begins exactly at its position. No index says where the
batch of an exact offset begins. Where index entries are far apart, the headers of batches serve instead.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import pyarrow as pa

from tieredstore.catalog.log_sections import LogSection, SectionEnd, offset_index_of
from tieredstore.errors import BatchCorruptError, DataLossError, IndexesCorruptError
from tieredstore.kafka.batches import HEADER_SIZE, BatchHeader, walk_batch_headers
from tieredstore.kafka.indexes import AbortedTransaction, OffsetIndex
from tieredstore.kafka.records import RecordDecoder
from tieredstore.kafka.records.decoder import OnCorrupt
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.records.report import LostOffsets

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Span
    from tieredstore.records.settings import ReadSettings
    from tieredstore.remote.fetch.stream import SegmentStream
    from tieredstore.remote.source import NextSegment, SegmentSource

_logger: Final = logging.getLogger(__name__)

_READ_SIZE: Final = 64 * 1024
_SPACING: Final = 4096
"""The distance of a broker's index entries: more section ends would only take memory."""

Look: TypeAlias = Callable[[Iterable[memoryview]], Iterator[memoryview]]
"""An observer of the bytes of a log on their way to the decoder."""

Ends: TypeAlias = tuple[SectionEnd, SectionEnd]
"""Both ends of one section."""


class SectionEnds(Protocol):
    """The places of a log where sections may begin and end, in order, including the log's own ends."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> SectionEnd: ...


class IndexedEnds:
    """Section ends from an offset index, made on access, because an index may be large."""

    def __init__(self, segment: RemoteLogSegmentMetadata, index: OffsetIndex) -> None:
        self._index = index
        self._first = start_of(segment)
        low = index[-1].offset + 1 if len(index) else segment.start_offset
        self._last = SectionEnd(segment.segment_size_in_bytes, low, segment.end_offset + 1)
        # An entry at the log's first byte adds no end.
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
    """Return the log's first byte as a section end. Compaction may have removed its first batches."""
    return SectionEnd(0, segment.start_offset, segment.end_offset)


def end_of(segment: RemoteLogSegmentMetadata) -> SectionEnd:
    """Return the log's end, about which nothing more is known. Compaction may have removed its last batches."""
    return SectionEnd(segment.segment_size_in_bytes, segment.start_offset, segment.end_offset + 1)


def around(ends: SectionEnds, start: int, stop: int) -> Ends:
    """Return the closest two ends that hold all records with offsets from ``start`` up to ``stop``."""
    # One before the batch that may hold `start`: the preceding batch proves where a batch's offsets begin.
    first = bisect_left(ends, start, lo=1, key=lambda end: end.high) - 1
    # Only ends after the first one: a window within one batch still needs two.
    last = bisect_left(ends, stop, lo=first + 1, hi=len(ends) - 1, key=lambda end: end.low)
    return ends[first], ends[last]


def find_oversized(ends: SectionEnds, begin: SectionEnd, end: SectionEnd, max_bytes: int) -> Iterator[Ends]:
    """Yield the neighbours from ``begin`` to ``end`` that are further than ``max_bytes`` apart."""
    at = begin
    while at.position < end.position:
        following = _last_upto(ends, at.position + max_bytes)
        # No end is within reach, so the next one is further away than max_bytes.
        if following.position <= at.position:
            following = _first_after(ends, at.position)
            yield at, following
        at = following


def divide(ends: SectionEnds, begin: SectionEnd, end: SectionEnd, max_bytes: int, chunk_bytes: int) -> Iterator[Ends]:
    """Yield sections from ``begin`` to ``end`` of near-equal sizes, at most ``max_bytes`` where batches allow it.

    They begin at or right after chunks of ``chunk_bytes``, if their sizes then differ from an equal part by less than
    half: a chunk that is split is decompressed twice.
    """
    at = begin
    # Equal parts, not full ones and a small rest: tasks should take about the same time.
    while (left := end.position - at.position) > max_bytes:
        share = -(-left // -(-left // max_bytes))
        following = _at_chunk(ends, at.position, share, max_bytes, chunk_bytes) or _nearest(
            ends, at.position, at.position + share, at.position + max_bytes
        )
        if following.position >= end.position:
            break
        yield at, following
        at = following
    if at.position < end.position:
        yield at, end


def _at_chunk(ends: SectionEnds, position: int, share: int, max_bytes: int, chunk_bytes: int) -> SectionEnd | None:
    """Return the first end in a chunk: of the two chunks around an equal part's end, the nearer one that fits."""
    even = position + share
    before = even // chunk_bytes * chunk_bytes
    for start in sorted((before, before + chunk_bytes), key=lambda start: abs(start - even)):
        end = _first_after(ends, start - 1)
        if start - position > share // 2 and end.position <= position + max_bytes:
            return end
    return None


def _nearest(ends: SectionEnds, position: int, even: int, limit: int) -> SectionEnd:
    """Return the first end at or after ``even``, if ``limit`` allows it; else the last one before; else the first
    after ``limit``.
    """
    after = _first_after(ends, even - 1)
    if after.position <= limit:
        return after
    before = _last_upto(ends, even)
    return before if before.position > position else after


def _first_after(ends: SectionEnds, position: int) -> SectionEnd:
    after = bisect_right(ends, position, key=lambda end: end.position)
    return ends[min(after, len(ends) - 1)]


def _last_upto(ends: SectionEnds, position: int) -> SectionEnd:
    return ends[bisect_right(ends, position, key=lambda end: end.position) - 1]


def load_section_ends(source: SegmentSource, span: Span, max_bytes: int, *, on_corrupt: OnCorrupt) -> SectionEnds:
    """Load the ends of a segment's log that ``max_bytes`` requires around the span's offsets.

    At most two requests for the index. Where two of its entries are further than ``max_bytes`` apart, also requests for
    the chunks with the batch headers between them. Raise IndexesCorruptError if index and log contradict each other,
    and BatchCorruptError for invalid headers, unless damage is to be left out: the log is then not cut there.
    """
    ends = IndexedEnds(span.segment, offset_index_of(source, span.segment))
    walked: dict[int, SectionEnd] = {}
    for run in _runs(find_oversized(ends, *around(ends, span.start, span.stop), max_bytes)):
        for place in _walk(source, span.segment, run, min(_SPACING, max_bytes // 4), on_corrupt):
            # Two adjacent sections each know something of the end between them.
            known = walked.get(place.position, place)
            low, high = max(known.low, place.low), min(known.high, place.high)
            walked[place.position] = SectionEnd(place.position, low, high)
    # The usual case: the index suffices, and ends are made on access.
    if not walked:
        return ends
    of_index = (ends[number] for number in range(len(ends)))
    every = {place.position: place for place in of_index} | walked
    return [every[position] for position in sorted(every)]


def _runs(sections: Iterable[Ends]) -> Iterator[list[Ends]]:
    """Yield adjacent sections together, so that each chunk is requested once."""
    run: list[Ends] = []
    for section in sections:
        if run and run[-1][1] != section[0]:
            yield run
            run = []
        run.append(section)
    if run:
        yield run


def _walk(
    source: SegmentSource,
    segment: RemoteLogSegmentMetadata,
    run: Sequence[Ends],
    spacing: int,
    on_corrupt: OnCorrupt,
) -> list[SectionEnd]:
    """Return the ends of adjacent sections and those between them, with the offsets of the batches."""
    ends: list[SectionEnd] = []
    start, stop = run[0][0].position, run[-1][1].position
    try:
        with source.fetch_log_segment(segment, start, stop - 1) as stream:
            window = _Headers(stream, start).window
            for begin, end in run:
                headers = walk_batch_headers(window, end.position, begin.position)
                ends += _between(segment, headers, (begin, end), spacing)
    except BatchCorruptError as error:
        if on_corrupt == "fail":
            raise BatchCorruptError(f"{segment}: {error}") from error
    return ends


def _between(
    segment: RemoteLogSegmentMetadata, headers: Iterator[BatchHeader], section: Ends, spacing: int
) -> Iterator[SectionEnd]:
    begin, end = section
    next_offset, kept = begin.low, begin.position
    for header in headers:
        if header.position == begin.position:
            _expect(segment, begin, header.base_offset)
        # A batch without an end of its own joins the section before it, which then stays below twice the spacing.
        if header.position == begin.position or header.position - kept + header.size_in_bytes >= 2 * spacing:
            yield SectionEnd(header.position, next_offset, header.base_offset)
            kept = header.position
        next_offset = header.last_offset + 1
    _expect(segment, end, next_offset)
    yield SectionEnd(end.position, next_offset, end.high)


def _expect(segment: RemoteLogSegmentMetadata, place: SectionEnd, offset: int) -> None:
    if not place.low <= offset <= place.high:
        raise IndexesCorruptError(
            f"the offset index of {segment} leads to byte {place.position} for the offsets {place.low} to "
            f"{place.high}, and the record batches have offset {offset} there"
        )


class _Headers:
    """A log read header by header. Chunks wholly inside a batch are skipped."""

    def __init__(self, stream: SegmentStream, begin: int) -> None:
        self._stream = stream
        self._begin = begin
        self._start = begin
        self._bytes = b""

    def window(self, position: int) -> memoryview:
        """Return the bytes from ``position`` on: at least a header, unless the log ends before."""
        end = self._start + len(self._bytes)
        if position + HEADER_SIZE > end:
            kept = self._bytes[position - self._start :]
            # Seeking leaves whole chunks between two headers unread.
            if position > end:
                self._stream.seek(position - self._begin)
            self._start, self._bytes = position, kept + self._stream.read(_READ_SIZE)
        return memoryview(self._bytes)[position - self._start :]


@dataclass(frozen=True, slots=True)
class SectionReader:
    """Reads sections of the segments that ``source`` has."""

    source: SegmentSource
    settings: ReadSettings

    def section_of(self, span: Span) -> LogSection:
        """Return the section with all records of the span, and few more: index entries are about 4 KiB apart.

        At most two requests, none for a whole segment. Raise IndexesCorruptError if the offset index does not fit the
        log.
        """
        segment = span.segment
        if span.start <= segment.start_offset and span.stop > segment.end_offset:
            ends = start_of(segment), end_of(segment)
        else:
            ends = around(IndexedEnds(segment, offset_index_of(self.source, segment)), span.start, span.stop)
        return LogSection(segment, *ends, span.start, span.stop)

    def read(
        self,
        section: LogSection,
        decoder: RecordDecoder,
        aborted: Iterable[AbortedTransaction] = (),
        next_segment: NextSegment | None = None,
        look: Look = iter,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a section; errors name the segment.

        Exhausting it proves that no batch of the section was skipped. Raise IndexesCorruptError if the log contradicts
        what is known of the section's ends, BatchCorruptError if its batches do not follow each other.
        """
        settings = self.settings
        with section.open(
            self.source, settings.piece_bytes, next_segment, decode_ahead=settings.decode_ahead
        ) as buffers:
            records = decoder.decode(
                look(buffers),
                start_offset=section.start_offset,
                # An end's offsets are only the index's claim: leave no record out because of it, and check it below.
                stop_offset=None if section.is_read_to_its_end else section.stop_offset,
                end_offset=section.segment.end_offset + 1,
                aborted=aborted,
                position=section.begin.position,
            )
            try:
                yield from records
            except BatchCorruptError as error:
                raise BatchCorruptError(f"{section.segment}: {error}") from error
            # A damaged batch that was left out may have been the last one; then the end is unknown.
            if len(section.byte_range):
                buffers.check_end(decoder, is_whole=not decoder.skipped)

    def check_reached(self, section: LogSection, decoder: RecordDecoder) -> LostOffsets | None:
        """Return the wanted offsets beyond the end of the log that the segment claims to hold.

        They are logged, or raise DataLossError by the settings. Not for a segment with a successor: compaction removed
        the missing ones. Without a successor only the manifest claims that such offsets exist, and a reader that
        continues after them would skip new records.
        """
        segment = section.segment
        goes_on = section.end.position < segment.segment_size_in_bytes or decoder.stopped_at is not None
        reached = max(decoder.offset_reached, section.start_offset)
        # A damaged batch that was left out may have been the last one. A log without bytes may be fully compacted.
        if goes_on or decoder.skipped or not len(section.byte_range) or reached >= section.stop_offset:
            return None
        lost = LostOffsets(segment.topic_id_partition, reached, section.stop_offset)
        sentence = (
            f"{segment} is said to hold offsets up to {segment.end_offset}, and its log ends at offset {reached - 1}: "
            f"offsets {lost.start} to {lost.stop - 1} are lost, or its manifest is damaged"
        )
        if self.settings.on_data_loss == "fail":
            raise DataLossError(f"{sentence}; {self.settings.accept_loss} to go on")
        _logger.warning("%s", sentence)
        return lost
