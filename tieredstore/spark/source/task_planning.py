"""From windows of offsets to Spark tasks: what is lost, where the bucket ends, how much a task reads."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql.datasource import InputPartition

from tieredstore.catalog import Lineage
from tieredstore.errors import DataLoss
from tieredstore.model import TopicIdPartition
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.records import LostOffsets, ReadSettings, RecordSplit, plan_splits
from tieredstore.records.partition import lost_offsets
from tieredstore.spark.source.log_snapshot import LogSnapshot, PartitionLog
from tieredstore.spark.source.options import SourceOptions, TopicPartition
from tieredstore.spark.source.tasks import LiveTask, RemoteTask

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

_log: Final = logging.getLogger(__name__)

_SHOWN: Final = 5

Window: TypeAlias = tuple[int, int]
"""Offsets, half-open."""


def plan_tasks(
    manager: RemoteStorageManager,
    snapshot: LogSnapshot,
    windows: Mapping[TopicPartition, Window],
    options: SourceOptions,
    *,
    since_ms: int | None = None,
) -> list[InputPartition]:
    """The tasks that read the windows, each offset in exactly one.

    Those of the bucket come first, then the broker's; both are sorted by topic, partition and offset.
    No task has more than ``maxSplitBytes`` of a log (where its batches allow it) or ``maxRecordsPerPartition`` offsets,
    and there are ``minPartitions`` at least if there is enough to divide. DataLoss by ``failOnDataLoss`` for offsets
    that neither bucket nor broker has. ``since_ms`` leaves out what holds only earlier records.
    """
    wanted = [(snapshot.logs[where], *window) for where, window in sorted(windows.items()) if window[0] < window[1]]
    report_lost((extent for piece in wanted for extent in _lost(*piece)), options)
    runs = [run for log, start, stop in wanted for run in _runs(log, start, min(stop, log.seam))]
    # One run alone has all readers, and many share them: their number is the same.
    readers = max(1, READERS // max(1, len(runs)))
    planner = _Planner(manager, options, since_ms, _split_bytes(wanted, options), readers)
    with ThreadPoolExecutor(READERS, thread_name_prefix="tieredstore-splits") as pool:
        planned = list(in_parallel(pool, planner.splits, runs, at_once=2 * READERS))
    tasks: list[InputPartition] = [RemoteTask(split) for splits in planned for split in splits]
    live = [(log, max(start, log.seam), min(stop, log.end)) for log, start, stop in wanted if log.on_broker]
    return tasks + list(_live_tasks([piece for piece in live if piece[1] < piece[2]], options, already=len(tasks)))


def report_lost(lost: Iterable[LostOffsets], options: SourceOptions) -> None:
    """DataLoss that names the offsets, or a warning for each extent if ``failOnDataLoss`` is false."""
    extents = list(lost)
    if extents and options.fail_on_data_loss:
        named = ", ".join(map(_shown, extents[:_SHOWN]))
        more = f" and {len(extents) - _SHOWN} more such ranges" if len(extents) > _SHOWN else ""
        raise DataLoss(
            f"offsets {named}{more} are not there: retention passed by, a segment is missing, or they are not written "
            "or not decided yet; ask for what is there, or set failOnDataLoss to false to read on with a warning"
        )
    for extent in extents:
        _log.warning("%s", extent)


def _shown(extent: LostOffsets) -> str:
    return f"{extent.start} to {extent.stop - 1} of {extent.partition.topic}-{extent.partition.partition}"


def _lost(log: PartitionLog, start: int, stop: int) -> Iterator[LostOffsets]:
    """What of a window neither the bucket nor the broker has."""
    partition = TopicIdPartition(log.topic_id, log.topic, log.partition)
    if log.lineage is not None:
        yield from lost_offsets(log.lineage, start, min(stop, log.seam))
    live_start = log.seam if log.live_start is None else log.live_start
    for first, last in (
        (max(start, log.seam if log.lineage is not None else 0), min(stop, live_start)),
        (max(start, log.end), stop),
    ):
        if first < last:
            yield LostOffsets(partition, first, last)


def _split_bytes(wanted: Iterable[tuple[PartitionLog, int, int]], options: SourceOptions) -> int:
    if options.min_partitions is None:
        return options.max_split_bytes
    total = sum(log.bytes_between(start, stop) for log, start, stop in wanted)
    return max(1, min(options.max_split_bytes, total // options.min_partitions))


def _runs(log: PartitionLog, start: int, stop: int) -> Iterator[tuple[Lineage, int, int]]:
    """What the bucket has of a window, without the gaps in it."""
    if log.lineage is None:
        return
    edges = [max(start, log.lineage.earliest_offset)]
    for gap in log.lineage.gaps_between(start, stop):
        edges += [gap.start, gap.stop]
    edges.append(stop)
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if first < last:
            yield log.lineage, first, last


class _Planner:
    """Cuts runs of segments without a gap into splits."""

    def __init__(
        self,
        manager: RemoteStorageManager,
        options: SourceOptions,
        since_ms: int | None,
        split_bytes: int,
        readers: int,
    ) -> None:
        self._manager = manager
        self._options = options
        self._since_ms = since_ms
        self._split_bytes = split_bytes
        self._readers = readers
        self._settings = ReadSettings(columns=("offset",), isolation=options.isolation, on_data_loss="report")

    def splits(self, run: tuple[Lineage, int, int]) -> tuple[RecordSplit, ...]:
        lineage, start, stop = run
        plan = plan_splits(
            self._manager, lineage, start, stop, self._settings,
            max_split_bytes=self._split_bytes,
            max_split_records=self._options.max_records_per_partition,
            since_ms=self._since_ms,
            readers=self._readers,
        )  # fmt: skip
        if plan.undecided is not None and plan.stop < stop:
            # A window ends where all is decided: what decided this was in segments that are missing.
            _log.warning("%s", plan.undecided)
            report_lost([LostOffsets(lineage.partition, plan.stop, stop)], self._options)
        return plan.splits


def _live_tasks(
    pieces: list[tuple[PartitionLog, int, int]], options: SourceOptions, already: int
) -> Iterator[InputPartition]:
    """Cuts the broker's part by offsets, since nothing tells its bytes."""
    missing = (options.min_partitions or 0) - already
    total = sum(stop - start for _, start, stop in pieces)
    most = options.max_records_per_partition or total
    if missing > 0:
        most = min(most, -(-total // missing))
    for log, start, stop in pieces:
        count = -(-(stop - start) // most)
        borders = [start + (stop - start) * at // count for at in range(count + 1)]
        yield from (LiveTask(log, *window) for window in itertools.pairwise(borders))
