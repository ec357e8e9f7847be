"""Splits of a partition's records, of about equal size in bytes. One process plans them, and others read them."""

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
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.records.partition import runs_of_spans
from tieredstore.records.report import SkippedInSegment, Undecided
from tieredstore.records.sections import SectionReader, around, divide, end_of, load_section_ends, start_of
from tieredstore.records.settings import ReadSettings
from tieredstore.records.transactions import Transactions, find_aborted_in_each

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)
_MAX_SPLITS: Final = 1_000_000
_LEAST_BATCH: Final = 64
"""The approximate size in bytes of the smallest batch that has a record."""


@dataclass(frozen=True, slots=True)
class SplitSection(LogSection):
    """The records of a section with offsets in ``[start_offset, stop_offset)``.

    Adjacent sections of a log share no record, but their ranges of offsets may overlap, because an index entry limits
    the offset at a section's end only roughly. ``aborted`` are the transactions whose records are left out.
    ``is_followed`` is true if another segment begins where this section's segment ends.
    """

    aborted: tuple[AbortedTransaction, ...] = ()
    is_followed: bool = True


@dataclass(frozen=True, slots=True)
class RecordSplit:
    """The work of one task: one or more sections of a log, in offset order. Small and picklable."""

    partition: TopicIdPartition
    sections: tuple[SplitSection, ...]

    @property
    def size_in_bytes(self) -> int:
        """The number of bytes to read from logs."""
        return sum(len(section.byte_range) for section in self.sections)

    @property
    def start_offset(self) -> int:
        """The smallest offset that a record of the split can have."""
        return self.sections[0].start_offset

    @property
    def stop_offset(self) -> int:
        """The greatest offset that a record of the split can have, plus 1."""
        return self.sections[-1].stop_offset


def read_split(source: RemoteStorageManager, split: RecordSplit, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Yield the records of a split. No record batch is empty.

    A section costs one request for the manifest, and the requests for its chunks. No index and no chunk outside of the
    split is requested. The isolation of ``settings`` is ignored, because a plan for read_committed has already
    recorded the aborted transactions in the split.

    Raise BatchCorruptError for damaged batches; if ``settings`` say to skip them, log them instead. Raise
    IndexesCorruptError if the log contradicts the plan at a section's ends.
    """
    reader = SectionReader(source, settings)
    # ``following`` is the section whose segment is read ahead before this section ends.
    followers = (*split.sections[1:], None)
    for section, following in zip(split.sections, followers, strict=True):
        decoder = settings.decoder()
        yield from reader.read(section, decoder, section.aborted, partial(_to_read_ahead, following))
        if not section.is_followed:
            reader.check_reached(section, decoder)
        for batch in decoder.skipped:
            _logger.warning("%s", SkippedInSegment(section.segment, batch))


def _to_read_ahead(section: SplitSection | None) -> RemoteLogSegmentMetadata | None:
    """Return the section's segment if it is read as a whole, and so can be read ahead; None otherwise."""
    if section is None or len(section.byte_range) < section.segment.segment_size_in_bytes:
        return None
    return section.segment if section.is_read_to_its_end else None


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """Splits that read a window of a partition, up to ``stop`` (exclusive).

    The next read starts at ``stop``, which is the requested end or the log's end, whichever is lower. Under
    read_committed, a transaction without an outcome (``undecided``) ends the plan. Then ``stop`` is the transaction's
    first offset.
    """

    stop: int
    splits: tuple[RecordSplit, ...]
    undecided: Undecided | None = None


def find_decided_end(source: RemoteStorageManager, lineage: Lineage, start: int, stop: int) -> int:
    """Return where a read_committed read of the window ends: at ``stop``, or before a transaction without an outcome.

    The returned offset is at least ``start``. The last producer snapshot of each run (segments without a gap) costs two
    requests.
    """
    undecided = _first_undecided(source, lineage, start, stop)
    return stop if undecided is None else max(start, undecided.first_offset)


def find_stable_end(source: RemoteStorageManager, lineage: Lineage, stop: int) -> int:
    """Return the last stable offset of a log that ends at ``stop``: the start of a transaction that is open there.

    A transaction that is open before a gap may have its outcome in the gap, so only the segments after the last gap
    are asked. But a transaction that is open there may have begun earlier.
    """
    first = max((gap.stop for gap in lineage.gaps if gap.stop <= stop), default=lineage.earliest_offset)
    undecided = _first_undecided(source, lineage, first, stop)
    return stop if undecided is None else max(lineage.earliest_offset, undecided.first_offset)


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """The largest size of a split in bytes and offsets, and the least number of splits. None means no limit.

    With ``since_ms``, the splits leave out segments and parts of segments that have only earlier records, as the
    segment's greatest timestamp or time index shows. Some of the remaining records may still be earlier.
    """

    max_bytes: int
    max_records: int | None = None
    min_splits: int | None = None
    since_ms: int | None = None

    def select(self, spans: Sequence[Span]) -> Iterable[Span]:
        """Leave out spans without requested records. Raise ConfigError if the remaining spans would make too many
        splits."""
        spans_read = [span for span in spans if span.segment.segment_size_in_bytes and not self._is_earlier(span)]
        splits = sum(self.count_windows(span) for span in spans_read)
        splits += sum(span.segment.segment_size_in_bytes // max(self.max_bytes, _LEAST_BATCH) for span in spans_read)
        if splits > _MAX_SPLITS:
            raise ConfigError(
                f"splits of at most {self.max_bytes} bytes and {self.max_records or 'any number of'} records would be "
                f"more than {_MAX_SPLITS}: allow more bytes or records, or read fewer offsets"
            )
        return spans_read

    def count_windows(self, span: Span) -> int:
        """Return the number of ranges of offsets in the span, if each has at most ``max_records`` offsets."""
        return 1 if self.max_records is None else -(-(span.stop - span.start) // self.max_records)

    def take_whole(self, span: Span) -> bool:
        """Return True if the span covers its whole segment and fits into one split."""
        is_whole = span.start <= span.segment.start_offset and span.stop > span.segment.end_offset
        return is_whole and span.segment.segment_size_in_bytes <= self.max_bytes and self.count_windows(span) == 1

    def hold(self, size: int, offsets: int) -> bool:
        """Return True if this many bytes and offsets fit into one split."""
        return size <= self.max_bytes and (self.max_records is None or offsets <= self.max_records)

    def _is_earlier(self, span: Span) -> bool:
        return self.since_ms is not None and 0 <= span.segment.max_timestamp_ms < self.since_ms


def _first_undecided(source: RemoteStorageManager, lineage: Lineage, start: int, stop: int) -> Undecided | None:
    """Return the first transaction without an outcome that begins before ``stop`` and so ends the read early."""
    for spans in runs_of_spans(lineage, start, stop) if start < stop else ():
        undecided = Transactions(source, spans, start).first_undecided(stop)
        if undecided is not None:
            return undecided
    return None


@dataclass(frozen=True, slots=True)
class SplitPlanner:
    """Planner of splits of one partition that together return each record once.

    A split has at most ``max_bytes`` of the log, unless a batch is larger, and covers at most ``max_records`` offsets.
    Logs are divided at entries of their offset index or, where the entries are more than ``max_bytes`` apart, at batch
    headers. The least number of splits has no effect here (see :func:`tieredstore.reading.plan.plan_windows`).

    A segment that one split reads whole costs no request. Any other segment costs two requests for its indexes.
    read_committed costs two more requests for each segment with aborted transactions, and for the last segment. Up to
    ``readers`` requests run in parallel.
    """

    source: RemoteStorageManager
    lineage: Lineage
    settings: ReadSettings
    limits: SplitLimits
    readers: int = READERS

    def plan(self, start: int, stop: int) -> SplitPlan:
        """Plan the splits of the offsets from ``start`` up to ``stop`` (exclusive). Gaps are left out.

        Raise ConfigError for an invalid window, and for limits that would make more than a million splits.
        """
        lineage, limits = self.lineage, self.limits
        if not 0 <= start <= stop:
            raise ConfigError(f"there are no offsets from {start} up to {stop} of {lineage.partition}")
        if limits.max_bytes < 1 or (limits.max_records is not None and limits.max_records < 1):
            raise ConfigError(
                f"a split has at most {limits.max_bytes} bytes and {limits.max_records} records: both must be at least "
                "1"
            )
        is_committed = self.settings.isolation == "read_committed"
        undecided = _first_undecided(self.source, lineage, start, stop) if is_committed else None
        if undecided is not None:
            _logger.warning("%s", undecided)
        end = min(stop, lineage.end_offset)
        end = max(start, end if undecided is None else min(end, undecided.first_offset))
        with ThreadPool(self.readers, "tieredstore-splits") as pool:
            spans = limits.select(lineage.spans_between(start, end))
            planned = in_parallel(pool, self._sections_of, spans, at_once=2 * self.readers)
            sections = list(itertools.chain.from_iterable(planned))
            if is_committed and sections:
                sections = self._with_aborted(sections, start, end, pool)
        return SplitPlan(end, tuple(self._pack(sections)), undecided)

    def _sections_of(self, span: Span) -> list[SplitSection]:
        """Return the sections of a span, in offset order."""
        segment, start = span.segment, span.start
        if self.limits.since_ms is not None:
            start = max(start, offset_since(self.source, segment, self.limits.since_ms))
            if start >= span.stop:
                return []
        left = Span(segment, start, span.stop)
        is_followed = self.lineage.is_followed(segment)
        if self.limits.take_whole(left):
            ends = start_of(segment), end_of(segment)
            return [SplitSection(segment, *ends, start, span.stop, is_followed=is_followed)]
        return [
            SplitSection(segment, begin, end, max(first, begin.low), min(last, end.high), is_followed=is_followed)
            for begin, end, first, last in self._divide(left)
        ]

    def _divide(self, span: Span) -> Iterator[tuple[SectionEnd, SectionEnd, int, int]]:
        ends = load_section_ends(self.source, span, self.limits.max_bytes, on_corrupt=self.settings.on_corrupt)
        # Reading the index has already cached the manifest, so this costs no request.
        chunk_bytes = self.source.fetch_manifest(span.segment).chunk_index.original_chunk_size
        count, offsets = self.limits.count_windows(span), span.stop - span.start
        for number in range(count):
            start, stop = span.start + offsets * number // count, span.start + offsets * (number + 1) // count
            for begin, end in divide(ends, *around(ends, start, stop), self.limits.max_bytes, chunk_bytes):
                yield begin, end, start, stop

    def _with_aborted(
        self, sections: Sequence[SplitSection], start: int, stop: int, pool: ThreadPool
    ) -> list[SplitSection]:
        """Return the sections, each with the aborted transactions whose records a read of the section omits."""
        first, last = sections[0].start_offset, sections[-1].stop_offset
        decided: list[SplitSection] = []
        for spans in runs_of_spans(self.lineage, start, stop):
            # Request all indexes in parallel now. ``find_aborted`` below would request them one after the other.
            transactions = Transactions(self.source, spans, start)
            read = [span for span in spans if span.start < last and span.stop > first]
            transactions.know(find_aborted_in_each(self.source, read, pool, at_once=2 * READERS))
            for number, span in enumerate(spans):
                while len(decided) < len(sections) and sections[len(decided)].start_offset < span.stop:
                    section = sections[len(decided)]
                    aborted = transactions.find_aborted(number, section.start_offset, section.stop_offset)
                    decided.append(replace(section, aborted=tuple(aborted)))
        return decided

    def _pack(self, sections: Iterable[SplitSection]) -> Iterator[RecordSplit]:
        """Combine as many sections into each split as the limits allow."""
        taken: list[SplitSection] = []
        size = 0
        for section in sections:
            size += len(section.byte_range)
            # A section cannot be divided further, so a section that exceeds the limits becomes a split of its own.
            if taken and not self.limits.hold(size, section.stop_offset - taken[0].start_offset):
                yield RecordSplit(self.lineage.partition, tuple(taken))
                taken, size = [], len(section.byte_range)
            taken.append(section)
        if taken:
            yield RecordSplit(self.lineage.partition, tuple(taken))
