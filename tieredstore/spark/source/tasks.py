"""What one Spark task reads: a split of the bucket, or a stretch of the broker's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from tieredstore.reading.live_window import LiveSplit, read_live_split
from tieredstore.reading.plan import SplitLimits, plan_windows
from tieredstore.reading.stored_window import read_record_split
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit
from tieredstore.spark.source.managers import manager_of
from tieredstore.spark.source.queries import query_of
from tieredstore.spark.source.rows import RowShape
from tieredstore.spark.source.workers import spare_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.remote.source import SegmentSource
    from tieredstore.spark.source.options import SourceOptions


class RemoteTask(InputPartition):
    """Reads a split of the bucket."""

    def __init__(self, split: RecordSplit) -> None:
        self.split = split


class LiveTask(InputPartition):
    """Reads a stretch of a partition's log from the broker."""

    def __init__(self, split: LiveSplit) -> None:
        self.split = split


def plan_tasks(
    source: SegmentSource,
    snapshot: LogSnapshot,
    windows: Mapping[TopicPartition, OffsetWindow],
    options: SourceOptions,
    *,
    since_ms: int | None = None,
) -> list[InputPartition]:
    """The tasks that read the windows, each offset in exactly one, cut by the options ``maxSplitBytes`` and its kin.

    DataLoss by ``failOnDataLoss`` for offsets that neither bucket nor broker has.
    """
    limits = SplitLimits(options.max_split_bytes, options.max_records_per_partition, options.min_partitions, since_ms)
    splits = plan_windows(source, snapshot, windows, query_of(options), limits)
    return [RemoteTask(split) if isinstance(split, RecordSplit) else LiveTask(split) for split in splits]


def read_task(task: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in batches of Arrow without empty ones; a task that is neither of ours has none.

    Memory is bounded by the settings of the store and the size of a batch, not by that of the task. DataLoss where
    retention passed by since the planning, unless ``failOnDataLoss`` is false: that is logged then.
    """
    spare_modules()
    match task:
        case RemoteTask():
            return _stored_rows(task.split, options)
        case LiveTask():
            return _live_rows(task.split, options)
        case _:
            # Spark makes up a partition of its own where there are none.
            return iter(())


def _stored_rows(split: RecordSplit, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    shape = RowShape(options.columns)
    settings = ReadSettings(columns=shape.decoder_columns, isolation=options.isolation, on_data_loss="report")
    for records in read_record_split(manager_of(options.store), split, query_of(options), settings):
        yield shape.convert(records, split.partition.topic, split.partition.partition)


def _live_rows(split: LiveSplit, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    shape = RowShape(options.columns)
    # The settings of the store are read only where the broker has deleted what the bucket has by now.
    open_source = partial(manager_of, options.store)
    for records in read_live_split(split, open_source, query_of(options), columns=shape.decoder_columns):
        yield shape.convert(records, split.partition.topic, split.partition.partition)
