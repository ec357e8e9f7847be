"""What one Spark task reads: a split of the bucket, or a stretch of the broker's log."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tieredstore.errors import DataLoss, SegmentNotFound
from tieredstore.model import TopicIdPartition
from tieredstore.records import ReadSettings, RecordSplit, SplitPlan, read_split
from tieredstore.spark.source.brokers import live_cluster, patience_s
from tieredstore.spark.source.late_copies import plan_late_copies
from tieredstore.spark.source.managers import manager_of
from tieredstore.spark.source.options import SourceOptions
from tieredstore.spark.source.partition_log import PartitionLog
from tieredstore.spark.source.rows import RowShape
from tieredstore.spark.source.workers import spare_modules

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

_log: Final = logging.getLogger(__name__)


class RemoteTask(InputPartition):
    """Reads a split of the bucket."""

    def __init__(self, split: RecordSplit) -> None:
        self.split = split


class LiveTask(InputPartition):
    """Reads the offsets ``start`` up to ``stop`` (half-open) of a partition from the broker."""

    def __init__(self, log: PartitionLog, start: int, stop: int) -> None:
        self.topic = log.topic
        self.partition = log.partition
        self.topic_id = log.topic_id
        self.start = start
        self.stop = stop


def read_task(task: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in batches of Arrow without empty ones; a task that is neither of ours has none.

    Memory is bounded by the settings of the store and the size of a batch, not by that of the task. DataLoss where
    retention passed by since the planning, unless ``failOnDataLoss`` is false: that is logged then.
    """
    spare_modules()
    match task:
        case RemoteTask():
            return _remote_rows(task, options)
        case LiveTask():
            return _live_rows(task, options)
        case _:
            # Spark makes up a partition of its own where there are none.
            return iter(())


def _remote_rows(task: RemoteTask, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    shape = RowShape(options.columns)
    settings = ReadSettings(columns=shape.decoder_columns, isolation=options.isolation, on_data_loss="report")
    where = task.split.partition
    for records in _records(manager_of(options.store), task.split, settings, options):
        yield shape.convert(records, where.topic, where.partition)


def _records(
    manager: RemoteStorageManager, split: RecordSplit, settings: ReadSettings, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    if options.fail_on_data_loss:
        try:
            yield from read_split(manager, split, settings)
        except SegmentNotFound as error:
            raise DataLoss(_gone(split, error)) from error
        return
    for part in split.parts:
        alone = replace(split, parts=(part,))
        try:
            yield from read_split(manager, alone, settings)
        except SegmentNotFound as error:
            _log.warning("%s", _gone(alone, error))


def _gone(split: RecordSplit, error: SegmentNotFound) -> str:
    return (
        f"offsets {split.start_offset} to {split.stop_offset - 1} of {split.partition} were deleted while they were "
        f"read: {error}"
    )


def _live_rows(task: LiveTask, options: SourceOptions) -> Generator[pa.RecordBatch, None, None]:
    shape = RowShape(options.columns)
    start = task.start
    while start < task.stop:
        try:
            for records in _live_records(task, start, options, shape):
                yield shape.convert(records, task.topic, task.partition)
                start = _behind(records)
        except DataLoss as error:
            begins = _live_start(task, start, options, error)
            # The broker deletes what is in the bucket, so that is where the rows may be now.
            late = _late_copies(task, start, options)
            if late is not None:
                for split in late.splits:
                    yield from _remote_rows(RemoteTask(split), options)
                start = late.stop
            elif options.fail_on_data_loss:
                raise
            else:
                _log.warning("%s", error)
                start = begins
        else:
            return


def _live_records(task: LiveTask, start: int, options: SourceOptions, shape: RowShape) -> Iterator[pa.RecordBatch]:
    from tieredstore.live import read_live  # noqa: PLC0415 - an extra of its own, which a bucket alone does not need

    return read_live(
        dict(options.kafka or ()), task.topic, task.partition, start, task.stop,
        isolation=options.isolation,
        columns=tuple(dict.fromkeys((*shape.decoder_columns, "offset"))),
        topic_id=task.topic_id,
        timeout_s=patience_s(options),
    )  # fmt: skip


def _behind(records: Any) -> int:
    """The offset behind the last record."""
    last: int = records.column("offset")[-1].as_py()
    return last + 1


def _live_start(task: LiveTask, start: int, options: SourceOptions, error: DataLoss) -> int:
    """Where the broker begins now, behind ``start``; the error itself if that is not what it says."""
    where = task.topic, task.partition
    with live_cluster(options) or nullcontext() as cluster:
        if cluster is None or cluster.topic(task.topic).topic_id != task.topic_id:
            raise error
        begins = cluster.earliest_offsets([where])[where]
    if begins <= start:
        raise error
    return begins


def _late_copies(task: LiveTask, start: int, options: SourceOptions) -> SplitPlan | None:
    partition = TopicIdPartition(task.topic_id, task.topic, task.partition)
    settings = ReadSettings(columns=("offset",), isolation=options.isolation, on_data_loss="report")
    return plan_late_copies(
        manager_of(options.store), partition, start, task.stop, settings, split_bytes=options.max_split_bytes
    )
