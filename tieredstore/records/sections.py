"""A section of one segment's log, read with the proof that nothing of it was left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tieredstore.catalog.log_sections import LogExtent, offset_index_of
from tieredstore.errors import BatchCorrupt
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records import RecordDecoder
from tieredstore.model import ByteRange, RemoteLogSegmentMetadata
from tieredstore.records.borders import IndexedEnds, SectionEnd, around, end_of, start_of
from tieredstore.records.report import LostOffsets

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Span
    from tieredstore.remote.source import NextSegment, SegmentSource

Look: TypeAlias = Callable[[Iterable[memoryview]], Iterator[memoryview]]
"""Somebody who looks at the pieces of a log on their way to the decoder."""


@dataclass(frozen=True, slots=True)
class LogSection:
    """What lies between two borders of a segment's log; wanted are offsets in ``[start_offset, stop_offset)``."""

    segment: RemoteLogSegmentMetadata
    begin: SectionEnd
    end: SectionEnd
    start_offset: int
    stop_offset: int

    @property
    def extent(self) -> ByteRange:
        """The bytes of the log, both ends borders of batches."""
        return ByteRange(self.begin.position, self.end.position)

    @property
    def is_read_to_its_end(self) -> bool:
        """Whether all batches of the extent may have records to give."""
        return self.stop_offset >= self.end.high


def section_of_span(source: SegmentSource, span: Span) -> LogSection:
    """The section that holds all records of the span, and few more: index entries lie about 4 KiB apart.

    Two requests at most, none for a whole segment. IndexesCorrupt if the offset index does not fit the log.
    """
    segment = span.segment
    if span.start <= segment.start_offset and span.stop > segment.end_offset:
        borders = start_of(segment), end_of(segment)
    else:
        borders = around(IndexedEnds(segment, offset_index_of(source, segment)), span.start, span.stop)
    return LogSection(segment, *borders, span.start, span.stop)


def read_section(
    source: SegmentSource,
    section: LogSection,
    decoder: RecordDecoder,
    *,
    piece_bytes: int,
    aborted: Iterable[AbortedTransaction] = (),
    next_segment: NextSegment | None = None,
    look: Look = iter,
    decode_ahead: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The records of a section; errors name the segment.

    Whoever exhausts it knows that no batch of the section was passed over: IndexesCorrupt where the log does not have
    what is known of the section's ends, BatchCorrupt where its batches do not follow each other.
    """
    log = LogExtent(section.segment, section.extent, section.begin.high, section.begin.low)
    with log.opened(source, piece_bytes, next_segment, decode_ahead=decode_ahead) as pieces:
        records = decoder.decode(
            look(pieces),
            start_offset=section.start_offset,
            # A border's offsets are the index's word, so that nothing is left out for them: they are checked.
            stop_offset=None if section.is_read_to_its_end else section.stop_offset,
            end_offset=section.segment.end_offset + 1,
            aborted=aborted,
            position=section.begin.position,
        )
        try:
            yield from records
        except BatchCorrupt as error:
            raise BatchCorrupt(f"{section.segment}: {error}") from error
        # A damaged batch that is left out may have been the last one: the end is not known then.
        if len(section.extent):
            pieces.check_end(decoder, section.end.low, section.end.high, is_whole=not decoder.skipped)


def unreached(section: LogSection, decoder: RecordDecoder) -> LostOffsets | None:
    """Which of the offsets wanted lie behind the end of the log, though the segment is said to hold them.

    Where the next segment begins at the end that is said, compaction took what is missing. Where none does, nobody but
    the manifest says that there were such offsets, and whoever went on behind them would skip what comes.
    """
    goes_on = section.end.position < section.segment.segment_size_in_bytes or decoder.stopped_at is not None
    reached = max(decoder.offset_reached, section.start_offset)
    # A damaged batch that was left out may have been the last one. A log without bytes may have been compacted wholly.
    if goes_on or decoder.skipped or not len(section.extent) or reached >= section.stop_offset:
        return None
    return LostOffsets(section.segment.topic_id_partition, reached, section.stop_offset)


def lost_behind_end(lost: LostOffsets, section: LogSection) -> str:
    """What to say of these."""
    return (
        f"{section.segment} is said to hold offsets up to {section.segment.end_offset}, and its log ends at offset "
        f"{lost.start - 1}: offsets {lost.start} to {lost.stop - 1} are lost, or its manifest is damaged"
    )
