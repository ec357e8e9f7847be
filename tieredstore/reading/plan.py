"""Divides windows of offsets into splits for many processes. Applies the loss policy and the limits of a split's
size."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tieredstore.model import TopicPartition
from tieredstore.partitions.log import OffsetWindow, PartitionLog
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.reading.losses import Losses, losses_between
from tieredstore.reading.split_reads import LiveSplit, find_runs
from tieredstore.records.report import LostOffsets
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit, SplitLimits, SplitPlanner

if TYPE_CHECKING:
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

WindowSplit: TypeAlias = RecordSplit | LiveSplit
"""The offsets that one task reads, from the bucket or from the broker. A split is small and picklable."""


class _LogSpan(NamedTuple):
    """A range of offsets of a log to read; ``stop`` is exclusive."""

    log: PartitionLog
    start: int
    stop: int


def plan_windows(
    source: RemoteStorageManager,
    snapshot: LogSnapshot,
    windows: Mapping[TopicPartition, OffsetWindow],
    query: LogQuery,
    limits: SplitLimits,
) -> list[WindowSplit]:
    """Return splits that read the windows, each offset in exactly one split.

    Splits that read the bucket come first, then those that read the broker. Both parts are sorted by topic, partition
    and offset. No split exceeds the limits, except that a record batch larger than ``max_bytes`` stays whole. Windows
    that are large enough yield at least ``min_splits``. Raise DataLossError for offsets that do not exist, if the query
    does not accept losses.
    """
    spans = [_LogSpan(snapshot.logs[where], *window) for where, window in sorted(windows.items())]
    spans = [span for span in spans if span.start < span.stop]
    losses = Losses(query)
    losses.accept_missing(loss for span in spans for loss in losses_between(*span))
    # Ranges of which the bucket has all offsets, without a gap.
    runs = [
        _LogSpan(log, *run)
        for log, start, stop in spans
        if log.lineage is not None
        for run in find_runs(log.lineage, start, min(stop, log.seam))
    ]
    # Divide a constant number of readers among the ranges that are planned at the same time.
    readers = max(1, READERS // max(1, len(runs)))
    bounds = replace(limits, max_bytes=_split_bytes(spans, limits))
    settings = ReadSettings(columns=("offset",), isolation=query.isolation)

    def splits_of(run: _LogSpan) -> Sequence[RecordSplit]:
        lineage = run.log.lineage
        assert lineage is not None
        plan = SplitPlanner(source, lineage, settings, bounds, readers).plan(run.start, run.stop)
        if plan.undecided is not None and plan.stop < run.stop:
            # When the window was chosen, every transaction in it had an outcome (commit or abort). If an outcome is
            # missing now, retention has deleted the segment that had it.
            _logger.warning("%s", plan.undecided)
            losses.accept_missing([LostOffsets(lineage.partition, plan.stop, run.stop)])
        return plan.splits

    with ThreadPool(READERS, "tieredstore-splits") as pool:
        planned = list(in_parallel(pool, splits_of, runs, at_once=2 * READERS))
    splits: list[WindowSplit] = list(itertools.chain.from_iterable(planned))
    return splits + list(_live_splits(_live_spans(spans), limits, already=len(splits)))


def _live_spans(spans: Iterable[_LogSpan]) -> list[_LogSpan]:
    live = [_LogSpan(log, max(start, log.seam), min(stop, log.end)) for log, start, stop in spans if log.on_broker]
    return [span for span in live if span.start < span.stop]


def _split_bytes(spans: Iterable[_LogSpan], limits: SplitLimits) -> int:
    if limits.min_splits is None:
        return limits.max_bytes
    # Round down, to get more splits rather than fewer.
    total = sum(log.bytes_between(start, stop) for log, start, stop in spans)
    return max(1, min(limits.max_bytes, total // limits.min_splits))


def _live_splits(spans: list[_LogSpan], limits: SplitLimits, already: int) -> Iterator[LiveSplit]:
    """Divide the broker's part into equal numbers of offsets, because its size in bytes is unknown."""
    missing = (limits.min_splits or 0) - already
    total = sum(stop - start for _, start, stop in spans)
    most = limits.max_records or total
    if missing > 0:
        # Round down, to get more splits rather than fewer.
        most = max(1, min(most, total // missing))
    for log, start, stop in spans:
        count = -(-(stop - start) // most)
        # Divide into equal parts, so that every task gets the same amount of work.
        borders = [start + (stop - start) * number // count for number in range(count + 1)]
        yield from (LiveSplit.of(log, *window) for window in itertools.pairwise(borders))
