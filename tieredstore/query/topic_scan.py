"""Reads a topic by splits: several splits in parallel, and none that the filter excludes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import pyarrow as pa

from tieredstore.limits import MAX_OFFSET
from tieredstore.model import Earliest, Latest
from tieredstore.query.conditions import Condition, PartitionSpan
from tieredstore.query.topic_columns import TopicColumns, topic_schema
from tieredstore.query.topic_read import ReadPlan, TopicRead
from tieredstore.reading.losses import Losses, losses_between
from tieredstore.reading.plan import WindowSplit
from tieredstore.reading.reader import TopicReader
from tieredstore.reading.windows import place_of
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit, SplitLimits

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.omitted_records import LeftOut

_MIB: Final = 1024 * 1024
_LEAST_SPLIT: Final = 2 * _MIB
# The largest split, in bytes: four chunks of 4 MiB, and 1 MiB because the last batch may continue in the next chunk.
_MOST_SPLIT: Final = 17 * _MIB
_SPLITS_A_READER: Final = 4
_MOST_READERS: Final = 8
_FIRST_SEGMENTS: Final = 2
_UNIT_SEGMENTS: Final = 16
"""The number of segments to plan together, so that their requests run in parallel. The first plan has only
``_FIRST_SEGMENTS`` segments, because all readers wait for it.
"""

_Batches: TypeAlias = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class TopicScan:
    """A scan of some windows of a topic, in bucket and broker. The scan yields batches with the columns of ``schema``.

    It yields only records that satisfy ``condition``. ``reading`` decodes all columns that schema and condition need.
    ``readers`` is the number of splits to read in parallel. Splits are so small that readers share the work evenly, and
    that the decoded splits of all readers fit into ``max_bytes``.
    """

    reader: TopicReader
    snapshot: LogSnapshot
    reading: TopicColumns
    schema: pa.Schema
    condition: Condition | None
    readers: int
    max_bytes: int
    windows: Mapping[TopicPartition, list[OffsetWindow]] = field(
        default_factory=dict["TopicPartition", "list[OffsetWindow]"]
    )
    left_out: LeftOut | None = None

    def narrow(self, windows: Mapping[TopicPartition, OffsetWindow]) -> Self:
        """Return a scan of the windows without the parts that the condition excludes."""
        left = {
            where: self._narrow_log(self.snapshot.logs[where], *window) for where, window in sorted(windows.items())
        }
        return replace(self, windows=left)

    def streams(self) -> Iterator[Callable[[], _Batches]]:
        """Yield a function for each split that reads it, in order of partition and offset. Plan splits on demand."""
        windows = self.windows
        total = sum(
            self.snapshot.bytes_between(where, *window) for where, of_log in windows.items() for window in of_log
        )
        most = min(_MOST_SPLIT, self.max_bytes // self.readers)
        size = max(_LEAST_SPLIT, min(most, total // (self.readers * _SPLITS_A_READER)))
        since_ms = None if self.condition is None else self.condition.since_ms()
        limits = SplitLimits(size, since_ms=since_ms)
        for where, of_log in sorted(windows.items()):
            for window in of_log:
                for unit in _units(self.snapshot.logs[where], *window):
                    splits = self.reader.splits(self.snapshot, {where: unit}, limits)
                    yield from (partial(self._read, split) for split in self._choose(splits))

    def _choose(self, splits: list[WindowSplit]) -> list[WindowSplit]:
        if self.condition is None:
            return splits
        spans = [_span_of(split) for split in splits]
        possible = set(self.condition.possible(spans))
        return [split for split, span in zip(splits, spans, strict=True) if span in possible]

    def _read(self, split: WindowSplit) -> _Batches:
        where = split.partition.topic, split.partition.partition
        if self.left_out is not None and isinstance(split, RecordSplit):
            self.left_out.meet(where[1], (entry for section in split.sections for entry in section.aborted))
        # Decode ahead only if there are fewer readers than processors, because otherwise no processor is free for it.
        settings = ReadSettings(self.reading.decoded, decode_ahead=self.readers < len(os.sched_getaffinity(0)))
        wanted = self._filter(split)
        for batch in self.reader.read_split(split, settings):
            rows = wanted(self.reading.convert(batch, where))
            if rows.num_rows:
                yield rows

    def _filter(self, split: WindowSplit) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return a function that selects the wanted rows and columns of the split's batches."""
        names = self.schema.names
        if self.condition is None or self.condition.holds_for_all(_span_of(split)):
            return lambda batch: _select(batch, names)
        condition = self.condition
        return lambda batch: _select(condition.filter(batch), names)

    def _narrow_log(self, log: PartitionLog, start: int, stop: int) -> list[OffsetWindow]:
        if self.condition is None or start >= stop:
            return [(start, stop)] if start < stop else []
        runs: list[list[PartitionSpan]] = []
        for span in self.condition.possible(_spans(log, start, stop)):
            if not runs or runs[-1][-1].stop != span.start:
                runs.append([])
            runs[-1].append(span)
        hulls = [self.condition.hull(run) for run in runs]
        return [(first, last) for first, last in hulls if first < last]


def default_parallelism() -> int:
    """Return the number of processors that this process may use, at most eight."""
    return max(1, min(_MOST_READERS, len(os.sched_getaffinity(0))))


def begin_read(
    reader: TopicReader,
    snapshot: LogSnapshot,
    plan: ReadPlan,
    *,
    owns_reader: bool = True,
    left_out: LeftOut | None = None,
) -> TopicRead:
    """Read the topic by ``plan``. With ``owns_reader``, closing the read closes the reader.

    ``left_out`` receives each window of the read and its aborted transactions, so that it can describe the omitted
    records. If the query fails on data loss, raise DataLossError for lost offsets that the plan requests and its filter
    does not exclude.
    """
    topic = reader.query.topic
    schema = topic_schema(plan.columns, plan.types)
    condition = None if plan.filter is None else Condition(plan.filter, topic_schema(types=plan.types))
    # Decode also the columns that only the filter uses; the read does not return these columns.
    columns = tuple(dict.fromkeys((*plan.columns, *(() if condition is None else condition.columns))))
    numbers = sorted(number for _, number in snapshot.logs)
    starts = Earliest() if plan.start is None else plan.start
    stops = Latest() if plan.stop is None else plan.stop
    lookup = reader.lookup(snapshot)
    windows = lookup.clamp(starts, stops)
    if left_out is not None:
        for where, window in windows.items():
            left_out.begin(snapshot.logs[where], *window)
    scan = TopicScan(
        reader, snapshot, TopicColumns(columns, plan.types, topic, numbers), schema,
        condition, plan.parallelism or default_parallelism(), plan.max_bytes, left_out=left_out,
    ).narrow(windows)  # fmt: skip
    wanted: dict[TopicPartition, OffsetWindow] = {}
    for where, of_log in scan.windows.items():
        stop = windows[where][1]
        if of_log:
            wanted[where] = of_log[0][0], of_log[-1][1]
        # Even if no readable record is wanted, records of an unreadable last segment may be.
        elif condition is None or condition.possible([PartitionSpan(where, stop, MAX_OFFSET)]):
            wanted[where] = stop, stop
    # If the condition shortens a window, do not require offsets outside of the shorter window to be readable.
    begins = {
        where: start if start > windows[where][0] else place_of(starts, where) for where, (start, _) in wanted.items()
    }
    ends = {where: stop if stop < windows[where][1] else place_of(stops, where) for where, (_, stop) in wanted.items()}
    lookup.check_readable(wanted, begins, ends)
    if reader.query.fails_on_loss:
        # Check for data loss here only if it must fail the read. Otherwise, each part of the read logs its losses
        # later.
        Losses(reader.query).accept_missing(
            loss
            for where, of_log in scan.windows.items()
            for window in of_log
            for loss in losses_between(snapshot.logs[where], *window)
        )
    return TopicRead(topic, plan, scan, owned=reader if owns_reader else None)


def _spans(log: PartitionLog, start: int, stop: int) -> Iterator[PartitionSpan]:
    """Yield the window as spans: the segments, and the ranges between and after them. The ranges between segments are
    included so that a filter that selects lost offsets causes an error.
    """
    at = start
    for span in () if log.lineage is None else log.lineage.spans_between(start, min(stop, log.seam)):
        first, last = max(start, span.start), min(stop, log.seam, span.stop)
        if at < first:
            yield PartitionSpan(log.where, at, first)
        latest = span.segment.max_timestamp_ms
        yield PartitionSpan(log.where, first, last, latest if latest >= 0 else None)
        at = last
    if at < stop:
        yield PartitionSpan(log.where, at, stop)


def _units(log: PartitionLog, start: int, stop: int) -> Iterator[OffsetWindow]:
    """Divide the window into ranges of a few segments each. The last range also has the broker's part."""
    stored = () if log.lineage is None else log.lineage.spans_between(start, min(stop, log.seam))
    cuts = [span.start for span in stored[_FIRST_SEGMENTS::_UNIT_SEGMENTS]]
    edges = [start, *cuts, stop]
    return ((first, last) for first, last in itertools.pairwise(edges) if first < last)


def _span_of(split: WindowSplit) -> PartitionSpan:
    where = split.partition.topic, split.partition.partition
    if not isinstance(split, RecordSplit):
        return PartitionSpan(where, split.start, split.stop)
    latest = max(part.segment.max_timestamp_ms for part in split.sections)
    is_known = all(part.segment.max_timestamp_ms >= 0 for part in split.sections)
    return PartitionSpan(where, split.start_offset, split.stop_offset, latest if is_known else None)


def _select(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    return batch if batch.schema.names == names else batch.select(names)
