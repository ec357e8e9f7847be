"""A partition's records in splits of about equal bytes: one process plans them, others read them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.catalog.log_sections import LogSection, SectionEnd, offset_since
from tieredstore.errors import ConfigError
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records.decoder import OnCorrupt
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.records.partition import checked_losses, runs_of_spans
from tieredstore.records.report import LostOffsets, SkippedInSegment, Undecided
from tieredstore.records.sections import SectionReader, around, divide, end_of, load_section_ends, start_of
from tieredstore.records.settings import ReadSettings
from tieredstore.records.transactions import Transactions, aborted_in_each

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)
_MAX_SPLITS: Final = 1_000_000
_LEAST_BATCH: Final = 64
"""Bytes: about the least that a batch with a record has."""


@dataclass(frozen=True, slots=True)
class SplitSection(LogSection):
    """The records of a section with offsets in ``[start_offset, stop_offset)``.

    Sections that meet in one log share no record, though their offsets may seem to overlap there by what lies between
    two entries of the offset index: which batch stands at an end is only known once it is read. ``aborted`` are the
    transactions whose records are not to be given. ``is_followed``: another segment begins where this one should end.
    """

    aborted: tuple[AbortedTransaction, ...] = ()
    is_followed: bool = True


@dataclass(frozen=True, slots=True)
class RecordSplit:
    """What one task reads: sections of a log in the order of offsets, at least one. Small, and picklable."""

    partition: TopicIdPartition
    sections: tuple[SplitSection, ...]

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the logs that are read for it."""
        return sum(len(section.byte_range) for section in self.sections)

    @property
    def start_offset(self) -> int:
        """No record has an offset before it."""
        return self.sections[0].start_offset

    @property
    def stop_offset(self) -> int:
        """All records have offsets before it."""
        return self.sections[-1].stop_offset


def read_split(source: SegmentSource, split: RecordSplit, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The records of a split, in record batches without empty ones.

    For each section a request for the manifest, and those for the chunks that hold its bytes; none for an index, and
    none beyond the split. Of ``settings`` the columns and what concerns decoding count: the isolation is the plan's.
    Besides what a record batch itself tells, IndexesCorruptError where the log does not have at the section's ends what
    the plan knows of them. A damaged batch that is left out is logged.
    """
    reader = SectionReader(source, settings)
    # The next one's segment is read ahead before this one has ended.
    followers = (*split.sections[1:], None)
    for section, following in zip(split.sections, followers, strict=True):
        decoder = settings.decoder()
        yield from reader.read(section, decoder, section.aborted, partial(_to_read_ahead, following))
        if not section.is_followed:
            reader.check_reached(section, decoder)
        for batch in decoder.skipped:
            _logger.warning("%s", SkippedInSegment(section.segment, batch))


def _to_read_ahead(section: SplitSection | None) -> RemoteLogSegmentMetadata | None:
    """The segment to go on in before it is asked for: only one that is read from its first byte to its last."""
    if section is None or len(section.byte_range) < section.segment.segment_size_in_bytes:
        return None
    return section.segment if section.is_read_to_its_end else None


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """What reads the offsets ``start`` up to ``stop`` (half-open) of ``partition``.

    ``stop`` is the one asked for, or the log's end if that comes before, or under read_committed the first offset of
    the transaction ``undecided``: where a following read has to begin. ``lost`` are the offsets that no segment holds;
    of a window that ends among them, the next one may begin with some.
    """

    partition: TopicIdPartition
    start: int
    stop: int
    splits: tuple[RecordSplit, ...]
    lost: tuple[LostOffsets, ...] = ()
    undecided: Undecided | None = None


def plan_splits(
    source: SegmentSource,
    lineage: Lineage,
    start: int,
    stop: int,
    settings: ReadSettings,
    *,
    max_split_bytes: int,
    max_split_records: int | None = None,
    since_ms: int | None = None,
    readers: int = READERS,
) -> SplitPlan:
    """Splits of ``max_split_bytes`` of the log at most, wherever it can be cut, that give the window's records once.

    None covers more than ``max_split_records`` offsets. With ``since_ms`` is left out what the segments' greatest
    timestamps and time indexes prove to be earlier; records that are given may still be. Logs are cut at the entries of
    their offset index, and at the headers of batches where it has none for more than ``max_split_bytes``.

    A segment that is read whole by one split costs no request, any other two for its indexes, ``readers`` at once.
    read_committed takes two more for each segment with aborted transactions and for the last one. ConfigError for what
    is no window, and for bounds that would make more than a million splits; DataLossError by the settings. Bounds are
    keywords: a caller names the few that it sets.
    """
    if not 0 <= start <= stop:
        raise ConfigError(f"there are no offsets from {start} up to {stop} of {lineage.partition}")
    if max_split_bytes < 1 or (max_split_records is not None and max_split_records < 1):
        raise ConfigError(
            f"a split cannot have {max_split_bytes} bytes and {max_split_records} records at most: 1 is the least"
        )
    lost = checked_losses(lineage, start, stop, settings)
    is_committed = settings.isolation == "read_committed"
    undecided = _first_undecided(source, lineage, start, stop) if is_committed else None
    if undecided is not None:
        _logger.warning("%s", undecided)
    end = min(stop, lineage.end_offset)
    end = max(start, end if undecided is None else min(end, undecided.first_offset))
    planner = _Planner(source, lineage, _Bounds(max_split_bytes, max_split_records, since_ms, settings.on_corrupt))
    with ThreadPool(readers, "tieredstore-splits") as pool:
        spans = planner.bounds.checked(lineage.spans_between(start, end))
        planned = in_parallel(pool, planner.sections_of, spans, at_once=2 * readers)
        sections = list(itertools.chain.from_iterable(planned))
        if is_committed and sections:
            sections = planner.with_aborted(sections, start, end, pool)
    return SplitPlan(lineage.partition, start, end, tuple(planner.packed(sections)), lost, undecided)


def decided_end(source: SegmentSource, lineage: Lineage, start: int, stop: int) -> int:
    """Where a read_committed read of the window has to end: ``stop``, or before the first undecided transaction.

    Never before ``start``. For each run of segments without a hole, two requests for the last one's producer snapshot.
    """
    undecided = _first_undecided(source, lineage, start, stop)
    return stop if undecided is None else max(start, undecided.first_offset)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What a split may have."""

    size: int
    records: int | None
    since_ms: int | None
    on_corrupt: OnCorrupt

    def checked(self, spans: Sequence[Span]) -> Iterable[Span]:
        """The spans that may have records to give; ConfigError if splits of them would be too many."""
        spans_read = [span for span in spans if span.segment.segment_size_in_bytes and not self._is_earlier(span)]
        splits = sum(self.windows(span) for span in spans_read)
        splits += sum(span.segment.segment_size_in_bytes // max(self.size, _LEAST_BATCH) for span in spans_read)
        if splits > _MAX_SPLITS:
            raise ConfigError(
                f"splits of at most {self.size} bytes and {self.records or 'any number of'} records would be more than "
                f"{_MAX_SPLITS}: allow more bytes or records, or read fewer offsets"
            )
        return spans_read

    def windows(self, span: Span) -> int:
        """How many windows of offsets the span is read by."""
        return 1 if self.records is None else -(-(span.stop - span.start) // self.records)

    def take_whole(self, span: Span) -> bool:
        """Whether one split may read all of the span's segment, and has to."""
        is_whole = span.start <= span.segment.start_offset and span.stop > span.segment.end_offset
        return is_whole and span.segment.segment_size_in_bytes <= self.size and self.windows(span) == 1

    def hold(self, size: int, offsets: int) -> bool:
        """Whether one split may have so many bytes and cover so many offsets."""
        return size <= self.size and (self.records is None or offsets <= self.records)

    def _is_earlier(self, span: Span) -> bool:
        return self.since_ms is not None and 0 <= span.segment.max_timestamp_ms < self.since_ms


def _first_undecided(source: SegmentSource, lineage: Lineage, start: int, stop: int) -> Undecided | None:
    """The first transaction without outcome that begins before ``stop`` and hides something of the window."""
    for spans in runs_of_spans(lineage, start, stop) if start < stop else ():
        undecided = Transactions(source, spans, start).first_undecided(stop)
        if undecided is not None:
            return undecided
    return None


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans the splits of one partition."""

    source: SegmentSource
    lineage: Lineage
    bounds: _Bounds

    def sections_of(self, span: Span) -> list[SplitSection]:
        """The sections of one span, in the order of offsets."""
        segment, start = span.segment, span.start
        if self.bounds.since_ms is not None:
            start = max(start, offset_since(self.source, segment, self.bounds.since_ms))
            if start >= span.stop:
                return []
        left = Span(segment, start, span.stop)
        is_followed = self.lineage.is_followed(segment)
        if self.bounds.take_whole(left):
            ends = start_of(segment), end_of(segment)
            return [SplitSection(segment, *ends, start, span.stop, is_followed=is_followed)]
        return [
            SplitSection(segment, begin, end, max(first, begin.low), min(last, end.high), is_followed=is_followed)
            for begin, end, first, last in self._divide(left)
        ]

    def _divide(self, span: Span) -> Iterator[tuple[SectionEnd, SectionEnd, int, int]]:
        ends = load_section_ends(self.source, span, self.bounds.size, on_corrupt=self.bounds.on_corrupt)
        # In memory: whoever has read the index has read the manifest.
        chunk_bytes = self.source.fetch_manifest(span.segment).chunk_index.original_chunk_size
        count, offsets = self.bounds.windows(span), span.stop - span.start
        for number in range(count):
            start, stop = span.start + offsets * number // count, span.start + offsets * (number + 1) // count
            for begin, end in divide(ends, *around(ends, start, stop), self.bounds.size, chunk_bytes):
                yield begin, end, start, stop

    def with_aborted(
        self, sections: Sequence[SplitSection], start: int, stop: int, pool: ThreadPool
    ) -> list[SplitSection]:
        """The sections with the aborted transactions whose records they must not give."""
        first, last = sections[0].start_offset, sections[-1].stop_offset
        decided: list[SplitSection] = []
        for spans in runs_of_spans(self.lineage, start, stop):
            # Asked for together beforehand: one by one, each index would wait for the one before it.
            transactions = Transactions(self.source, spans, start)
            read = [span for span in spans if span.start < last and span.stop > first]
            transactions.know(aborted_in_each(self.source, read, pool, at_once=2 * READERS))
            for number, span in enumerate(spans):
                while len(decided) < len(sections) and sections[len(decided)].start_offset < span.stop:
                    section = sections[len(decided)]
                    aborted = transactions.aborted(number, section.start_offset, section.stop_offset)
                    decided.append(replace(section, aborted=tuple(aborted)))
        return decided

    def packed(self, sections: Iterable[SplitSection]) -> Iterator[RecordSplit]:
        """The splits, each of as many sections as the bounds allow."""
        taken: list[SplitSection] = []
        size = 0
        for section in sections:
            size += len(section.byte_range)
            # A section alone is a split however large it is: it could not be cut any further.
            if taken and not self.bounds.hold(size, section.stop_offset - taken[0].start_offset):
                yield RecordSplit(self.lineage.partition, tuple(taken))
                taken, size = [], len(section.byte_range)
            taken.append(section)
        if taken:
            yield RecordSplit(self.lineage.partition, tuple(taken))
