"""A Spark task of a query. It reads one split: a range of offsets from the bucket or from the broker's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from tieredstore.reading.plan import WindowSplit, plan_windows
from tieredstore.reading.query import LogQuery, QueryWords, timeout_of
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import SplitLimits
from tieredstore.spark.source.rows import RowShape
from tieredstore.spark.source.store_source import manager_of
from tieredstore.spark.source.workers import spare_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.spark.source.options import SourceOptions


def plan_tasks(
    source: RemoteStorageManager,
    snapshot: LogSnapshot,
    windows: Mapping[TopicPartition, OffsetWindow],
    options: SourceOptions,
    *,
    since_ms: int | None = None,
) -> list[InputPartition]:
    """Return tasks that together read each offset of the windows once. The value of a task is a split.
    ``maxSplitBytes`` and other options limit the size of the tasks.

    Raises DataLossError for offsets that no longer exist, if ``failOnDataLoss`` is true.
    """
    limits = SplitLimits(options.max_split_bytes, options.max_records_per_partition, options.min_partitions, since_ms)
    splits = plan_windows(source, snapshot, windows, query_of(options), limits)
    return [InputPartition(split) for split in splits]


def read_task(task: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as Arrow batches, without empty batches.

    The memory that a task needs depends on the store's settings and the size of a batch, but not on the task's size. If
    records were deleted after planning, raise DataLossError, or only log the loss if ``failOnDataLoss`` is false.
    """
    spare_modules()
    # For a plan without tasks, Spark runs one task whose value is None, so return no rows for that task.
    return iter(()) if task.value is None else _rows(task.value, options)


def _rows(split: WindowSplit, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    shape = RowShape(options.columns)
    # Open the store only for a split of the bucket, or if the broker has deleted the split's records.
    open_source = partial(manager_of, options.store)
    with TopicReader(open_source, query_of(options), ReadSettings(columns=shape.decoder_columns)) as reader:
        for records in reader.read_split(split):
            yield shape.convert(records, split.partition.topic, split.partition.partition)


_OPTIONS: Final = QueryWords(
    accept_loss="set failOnDataLoss to false",
    topic_ids="topicIds",
    choose_topic_id="the option topicIds",
    starts="the options start",
    starting="the option startingOffsets",
    starting_times="the option startingOffsetsByTimestamp",
    ending="the option endingOffsets",
    ending_times="the option endingOffsetsByTimestamp",
    start_late="set startingOffsetsByTimestampStrategy to latest",
)


def query_of(options: SourceOptions) -> LogQuery:
    """Return the query that the options describe. Raise ConfigError for an invalid timeout."""
    return LogQuery(
        options.selection,
        isolation=options.isolation,
        on_data_loss="fail" if options.fail_on_data_loss else "report",
        topic_ids=options.topic_ids,
        client=None if options.kafka is None else dict(options.kafka),
        timeout_s=timeout_of(dict(options.kafka or ()), named="the option kafka."),
        words=_OPTIONS,
    )
