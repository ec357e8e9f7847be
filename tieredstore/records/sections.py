"""Sections (byte ranges) of a segment's log. This module finds where they may begin and end, reads them, and proves
that a read is complete.

An entry of the offset index has the **last** offset of one append, and the position of that append. It proves two
things: a batch begins exactly at that position, and the log before the next entry's position contains that offset. Only
batch headers show where the batch of a given offset begins. So where index entries are far apart, headers are read.
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
    from tieredstore.remote.manager import NextSegment, RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

_READ_SIZE: Final = 64 * 1024
_SPACING: Final = 4096
"""The least distance of section ends in bytes, as in a broker's index. More ends would only cost memory.
"""

Look: TypeAlias = Callable[[Iterable[memoryview]], Iterator[memoryview]]
"""A function that sees the bytes of a log before the decoder, and yields them unchanged."""

Ends: TypeAlias = tuple[SectionEnd, SectionEnd]
"""The two ends of a section."""


class SectionEnds(Protocol):
    """The places in a log where sections may begin and end, in order, including the log's start and end."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> SectionEnd: ...


class IndexedEnds:
    """Section ends from an offset index. Each end is created on access, because an index may be large."""

    def __init__(self, segment: RemoteLogSegmentMetadata, index: OffsetIndex) -> None:
        self._index = index
        self._first = start_of(segment)
        low = index[-1].offset + 1 if len(index) else segment.start_offset
        self._last = SectionEnd(segment.segment_size_in_bytes, low, segment.end_offset + 1)
        # Skip an index entry at the log's first byte, because the log's start is a section end already.
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
    """Return the log's start as a section end. Compaction may have removed the first batches, so the log's first offset
    may be higher than the segment's.
    """
    return SectionEnd(0, segment.start_offset, segment.end_offset)


def end_of(segment: RemoteLogSegmentMetadata) -> SectionEnd:
    """Return the log's end as a section end. Compaction may have removed the last batches, so the log's last offset may
    be lower than the segment's.
    """
    return SectionEnd(segment.segment_size_in_bytes, segment.start_offset, segment.end_offset + 1)


def around(ends: SectionEnds, start: int, stop: int) -> Ends:
    """Return the two closest section ends that enclose all records with offsets from ``start`` up to ``stop``."""
    # Begin one batch early, because only the preceding batch shows where the offsets of the batch with `start` begin.
    first = bisect_left(ends, start, lo=1, key=lambda end: end.high) - 1
    # Search only after the first end, so that the last end comes after it even if the window lies within one batch.
    last = bisect_left(ends, stop, lo=first + 1, hi=len(ends) - 1, key=lambda end: end.low)
    return ends[first], ends[last]


def find_oversized(ends: SectionEnds, begin: SectionEnd, end: SectionEnd, max_bytes: int) -> Iterator[Ends]:
    """Yield the pairs of neighbouring ends, from ``begin`` to ``end``, that are more than ``max_bytes`` apart."""
    at = begin
    while at.position < end.position:
        following = _last_upto(ends, at.position + max_bytes)
        # If no other end lies within max_bytes after `at`, then `at` and the next end are too far apart.
        if following.position <= at.position:
            following = _first_after(ends, at.position)
            yield at, following
        at = following


def divide(ends: SectionEnds, begin: SectionEnd, end: SectionEnd, max_bytes: int, chunk_bytes: int) -> Iterator[Ends]:
    """Yield sections from ``begin`` to ``end`` of nearly equal sizes, at most ``max_bytes`` where batches allow it.

    A chunk (``chunk_bytes``) that two sections share is decompressed twice. So a section should end near the beginning
    of a chunk. Such an end is used only if it leaves the section more than half of the average size.
    """
    at = begin
    # Divide into equal parts, without a small remainder, so that tasks take about the same time.
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
    """Return a section end near the beginning of a chunk of ``chunk_bytes``, for a section that begins at ``position``.
    Return None if the section would be too small or too large.

    ``share`` is the size of the section if all sections have the same size. The two chunk beginnings around the byte
    ``position + share`` are candidates, the closer one first. For each candidate, try the first section end at or
    after the candidate.
    """
    even = position + share
    before = even // chunk_bytes * chunk_bytes
    for start in sorted((before, before + chunk_bytes), key=lambda start: abs(start - even)):
        end = _first_after(ends, start - 1)
        if start - position > share // 2 and end.position <= position + max_bytes:
            return end
    return None


def _nearest(ends: SectionEnds, position: int, even: int, limit: int) -> SectionEnd:
    """Return a section end near ``even``, where the section would end if all sections had the same size.

    Take the first end at or after ``even`` if it is at most ``limit``. Otherwise, take the last end between
    ``position`` and ``even``. If there is none, take the first end after ``limit``.
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


def load_section_ends(
    source: RemoteStorageManager, span: Span, max_bytes: int, *, on_corrupt: OnCorrupt
) -> SectionEnds:
    """Load section ends for the span's offsets. Neighbouring ends are at most ``max_bytes`` apart, unless a batch is
    larger.

    This costs at most two requests for the index. If two index entries are more than ``max_bytes`` apart, the chunks
    with the batch headers between them are read too. Raise IndexesCorruptError if index and log contradict each other,
    and BatchCorruptError for invalid headers. If ``on_corrupt`` says to skip damage, do not raise BatchCorruptError,
    but leave the log undivided at invalid headers.
    """
    ends = IndexedEnds(span.segment, offset_index_of(source, span.segment))
    walked: dict[int, SectionEnd] = {}
    for run in _runs(find_oversized(ends, *around(ends, span.start, span.stop), max_bytes)):
        for place in _walk(source, span.segment, run, min(_SPACING, max_bytes // 4), on_corrupt):
            # Two adjacent sections share an end. The headers of both sections limit the offset at this end, so apply
            # both limits.
            known = walked.get(place.position, place)
            low, high = max(known.low, place.low), min(known.high, place.high)
            walked[place.position] = SectionEnd(place.position, low, high)
    # Usually the offset index is enough, and no headers are read.
    if not walked:
        return ends
    of_index = (ends[number] for number in range(len(ends)))
    every = {place.position: place for place in of_index} | walked
    return [every[position] for position in sorted(every)]


def _runs(sections: Iterable[Ends]) -> Iterator[list[Ends]]:
    """Group adjacent sections into lists, so that a chunk that sections share is requested only once."""
    run: list[Ends] = []
    for section in sections:
        if run and run[-1][1] != section[0]:
            yield run
            run = []
        run.append(section)
    if run:
        yield run


def _walk(
    source: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    run: Sequence[Ends],
    spacing: int,
    on_corrupt: OnCorrupt,
) -> list[SectionEnd]:
    """Read the batch headers of these adjacent sections. Return the sections' ends, and further ends between them."""
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
        # Make an end only about every ``spacing`` bytes. A section takes in further batches while it stays below twice
        # the spacing.
        if header.position == begin.position or header.position - kept + header.size_in_bytes >= 2 * spacing:
            yield SectionEnd(header.position, next_offset, header.base_offset)
            kept = header.position
        next_offset = header.last_offset + 1
    _expect(segment, end, next_offset)
    yield SectionEnd(end.position, next_offset, end.high)


def _expect(segment: RemoteLogSegmentMetadata, place: SectionEnd, offset: int) -> None:
    if not place.low <= offset <= place.high:
        raise IndexesCorruptError(
            f"the offset index of {segment} leads to byte {place.position} for offsets {place.low} to {place.high}, "
            f"but the record batches have offset {offset} there"
        )


class _Headers:
    """Reads the batch headers of a log, without the chunks that lie wholly inside a batch."""

    def __init__(self, stream: SegmentStream, begin: int) -> None:
        self._stream = stream
        self._begin = begin
        self._start = begin
        self._bytes = b""

    def window(self, position: int) -> memoryview:
        """Return the bytes from ``position`` on: at least a whole header, unless the log ends earlier."""
        end = self._start + len(self._bytes)
        if position + HEADER_SIZE > end:
            kept = self._bytes[position - self._start :]
            # Seek to the next header, so that the chunks before it are not fetched.
            if position > end:
                self._stream.seek(position - self._begin)
            self._start, self._bytes = position, kept + self._stream.read(_READ_SIZE)
        return memoryview(self._bytes)[position - self._start :]


@dataclass(frozen=True, slots=True)
class SectionReader:
    """Reads sections of segments from ``source``."""

    source: RemoteStorageManager
    settings: ReadSettings

    def section_of(self, span: Span) -> LogSection:
        """Return the section with all records of the span, and few others, because index entries are about 4 KiB apart.

        A section costs at most two requests, and none if it is a whole segment. Raise IndexesCorruptError if the offset
        index does not match the log.
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
        """Yield the records of a section. Errors name the segment.

        An exhausted iterator has yielded all batches of the section, except damaged batches that the settings say to
        skip.

        Raise IndexesCorruptError if the log contradicts the offsets known at the section's ends. Raise
        BatchCorruptError if the batches do not follow each other.
        """
        settings = self.settings
        with section.open(
            self.source, settings.piece_bytes, next_segment, decode_ahead=settings.decode_ahead
        ) as buffers:
            records = decoder.decode(
                look(buffers),
                start_offset=section.start_offset,
                # Do not stop at the offset that the index gives for the section's end, because a wrong index would drop
                # records. ``check_end`` compares this offset with the log.
                stop_offset=None if section.is_read_to_its_end else section.stop_offset,
                end_offset=section.segment.end_offset + 1,
                aborted=aborted,
                position=section.begin.position,
            )
            try:
                yield from records
            except BatchCorruptError as error:
                raise BatchCorruptError(f"{section.segment}: {error}") from error
            # If the last batch was damaged and skipped, the decoder's position at the end proves nothing. So
            # ``is_whole`` is False if any batch was skipped.
            if len(section.byte_range):
                buffers.check_end(decoder, is_whole=not decoder.skipped)

    def check_reached(self, section: LogSection, decoder: RecordDecoder) -> LostOffsets | None:
        """Return the requested offsets that come after the segment's last record, although its manifest includes them.

        Log the lost offsets or raise DataLossError, as the settings say. Call this only for the last segment of a run.
        If another segment follows, the offsets existed, and compaction has removed their records. After the last
        segment, only the manifest claims that the offsets exist. If the manifest is wrong, a reader that continues
        after these offsets skips new records.
        """
        segment = section.segment
        goes_on = section.end.position < segment.segment_size_in_bytes or decoder.stopped_at is not None
        reached = max(decoder.offset_reached, section.start_offset)
        # Report only a certain loss. After skipped batches it is not certain, because a skipped batch may have had the
        # last offset. Nor is it certain in a log without bytes, because compaction may have removed all batches.
        if goes_on or decoder.skipped or not len(section.byte_range) or reached >= section.stop_offset:
            return None
        lost = LostOffsets(segment.topic_id_partition, reached, section.stop_offset)
        sentence = (
            f"the manifest of {segment} names offsets up to {segment.end_offset}, but its log ends at offset "
            f"{reached - 1}: offsets {lost.start} to {lost.stop - 1} are lost, or the manifest is damaged"
        )
        if self.settings.on_data_loss == "fail":
            raise DataLossError(f"{sentence}; {self.settings.accept_loss} to continue")
        _logger.warning("%s", sentence)
        return lost
