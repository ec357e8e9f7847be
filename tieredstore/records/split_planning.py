"""From a window of offsets to the splits that read it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.catalog.log_sections import offset_since
from tieredstore.errors import ConfigError
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records.log_reading import OnCorrupt
from tieredstore.model import TopicIdPartition
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.records.borders import around, cut, end_of, start_of
from tieredstore.records.partition import checked_losses, runs_of_spans
from tieredstore.records.report import LostOffsets, Undecided
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit, SplitSection
from tieredstore.records.stored_borders import load_section_ends
from tieredstore.records.transactions import Transactions, aborted_in_each

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)
_MAX_SPLITS: Final = 1_000_000
_LEAST_BATCH: Final = 64
"""Bytes: about the least that a batch with a record has."""


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
    is no window, and for bounds that would make more than a million splits; DataLoss by the settings.
    """
    _check(lineage, start, stop, max_split_bytes, max_split_records)
    lost = checked_losses(lineage, start, stop, settings)
    undecided = _first_undecided(source, lineage, start, stop) if settings.isolation == "read_committed" else None
    if undecided is not None:
        _logger.warning("%s", undecided)
    end = _end(lineage, start, stop, undecided)
    bounds = _Bounds(max_split_bytes, max_split_records, since_ms, settings.on_corrupt)
    with ThreadPool(readers, "tieredstore-splits") as pool:
        spans = bounds.checked(lineage.spans_between(start, end))
        job = partial(_parts, source, bounds)
        planned = in_parallel(pool, job, spans, at_once=2 * readers)
        parts = [
            part if lineage.is_followed(part.segment) else replace(part, is_followed=False)
            for of_span in planned
            for part in of_span
        ]
        if settings.isolation == "read_committed" and parts:
            parts = _with_aborted(source, lineage, start, end, parts, pool)
    return SplitPlan(lineage.partition, start, end, tuple(_packed(lineage.partition, parts, bounds)), lost, undecided)


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


def _check(lineage: Lineage, start: int, stop: int, max_bytes: int, max_records: int | None) -> None:
    if not 0 <= start <= stop:
        raise ConfigError(f"there are no offsets from {start} up to {stop} of {lineage.partition}")
    if max_bytes < 1 or (max_records is not None and max_records < 1):
        raise ConfigError(f"a split cannot have {max_bytes} bytes and {max_records} records at most: 1 is the least")


def _first_undecided(source: SegmentSource, lineage: Lineage, start: int, stop: int) -> Undecided | None:
    """The first transaction without outcome that begins before ``stop`` and hides something of the window."""
    for spans in runs_of_spans(lineage, start, stop) if start < stop else ():
        undecided = Transactions(source, spans, start).first_undecided(stop)
        if undecided is not None:
            return undecided
    return None


def _end(lineage: Lineage, start: int, stop: int, undecided: Undecided | None) -> int:
    reached = min(stop, lineage.end_offset)
    return max(start, reached if undecided is None else min(reached, undecided.first_offset))


def _parts(source: SegmentSource, bounds: _Bounds, span: Span) -> list[SplitSection]:
    """The parts of one span, in the order of offsets."""
    segment, start = span.segment, span.start
    if bounds.since_ms is not None:
        start = max(start, offset_since(source, segment, bounds.since_ms))
        if start >= span.stop:
            return []
    rest = Span(segment, start, span.stop)
    if bounds.take_whole(rest):
        return [SplitSection(segment, start_of(segment), end_of(segment), start, span.stop)]
    return list(_cut_parts(source, bounds, rest))


def _cut_parts(source: SegmentSource, bounds: _Bounds, span: Span) -> Iterator[SplitSection]:
    borders = load_section_ends(source, span, bounds.size, on_corrupt=bounds.on_corrupt)
    # In memory: whoever has read the index has read the manifest.
    chunk_bytes = source.fetch_manifest(span.segment).chunk_index.original_chunk_size
    count, offsets = bounds.windows(span), span.stop - span.start
    for number in range(count):
        start, stop = span.start + offsets * number // count, span.start + offsets * (number + 1) // count
        begin, end = around(borders, start, stop)
        for first, last in cut(borders, begin, end, bounds.size, chunk_bytes):
            yield SplitSection(span.segment, first, last, max(start, first.low), min(stop, last.high))


def _with_aborted(
    source: SegmentSource,
    lineage: Lineage,
    start: int,
    stop: int,
    parts: Sequence[SplitSection],
    pool: ThreadPool,
) -> list[SplitSection]:
    """The parts with the aborted transactions whose records they must not give."""
    decided: list[SplitSection] = []
    for spans in runs_of_spans(lineage, start, stop):
        # Asked for together beforehand: one by one, each index would wait for the one before it.
        transactions = Transactions(source, spans, start)
        transactions.know(_looked_up(source, spans, parts, pool))
        for number, span in enumerate(spans):
            while len(decided) < len(parts) and parts[len(decided)].start_offset < span.stop:
                part = parts[len(decided)]
                aborted = transactions.aborted(number, part.start_offset, part.stop_offset)
                decided.append(replace(part, aborted=tuple(aborted)))
    return decided


def _looked_up(
    source: SegmentSource, spans: Sequence[Span], parts: Sequence[SplitSection], pool: ThreadPool
) -> dict[Span, Sequence[AbortedTransaction]]:
    """The transaction indexes of the spans that are read, several asked for at once."""
    first, last = parts[0].start_offset, parts[-1].stop_offset
    read = [span for span in spans if span.start < last and span.stop > first]
    return aborted_in_each(source, read, pool, at_once=2 * READERS)


def _packed(partition: TopicIdPartition, parts: Iterable[SplitSection], bounds: _Bounds) -> Iterator[RecordSplit]:
    taken: list[SplitSection] = []
    size = 0
    for part in parts:
        size += len(part.extent)
        # A part alone is a split however large it is: it could not be cut any further.
        if taken and not bounds.hold(size, part.stop_offset - taken[0].start_offset):
            yield RecordSplit(partition, tuple(taken))
            taken, size = [], len(part.extent)
        taken.append(part)
    if taken:
        yield RecordSplit(partition, tuple(taken))
