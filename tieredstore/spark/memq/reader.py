"""The batch reader of a topic of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tieredstore.spark.memq.tasks import plan_tasks, read_task
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.spark.memq.options import TopicOptions


class MemqReader(DataSourceReader):
    """Reads what the options select, resolved once beside the driver."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the offsets, and cut what lies between them into tasks."""
        with one_sentence():
            return plan_tasks(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))
