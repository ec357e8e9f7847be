"""A data source that costs almost nothing: it returns one Arrow batch repeatedly, which each worker reads from a file
once.

It shows how fast Spark itself takes rows from Python. Spark's workers import this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tieredstore.spark.source.rows import COLUMNS, RowShape


class SyntheticSource(DataSource):
    """``rows`` rows in ``tasks`` tasks, in batches like the one in ``file``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "synthetic"

    def schema(self) -> StructType:
        """Return the schema of our source, to which this source is compared."""
        return RowShape(COLUMNS).schema

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's name
        """Return a reader of the batch."""
        return SyntheticReader(self.options["file"], int(self.options["rows"]), int(self.options["tasks"]))


class SyntheticReader(DataSourceReader):
    """A reader that divides the rows equally among the tasks."""

    def __init__(self, file: str, rows: int, tasks: int) -> None:
        self._file = file
        self._borders = [rows * at // tasks for at in range(tasks + 1)]

    def partitions(self) -> list[InputPartition]:
        """Return the number of rows for each task."""
        return [InputPartition(stop - start) for start, stop in zip(self._borders, self._borders[1:], strict=False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch repeatedly, and at the end its first rows, until the task's number of rows is reached."""
        batch, left = _batch_in(self._file), partition.value
        while left:
            given = batch.slice(0, min(left, batch.num_rows))
            left -= given.num_rows
            yield given


def write_batch(batch: pa.RecordBatch, file: str) -> None:
    """Write the batch for the workers."""
    with pa.OSFile(file, "wb") as stream, pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)


def read_synthetic(spark: SparkSession, file: str, rows: int, tasks: int) -> DataFrame:
    """Return a DataFrame of synthetic rows."""
    spark.dataSource.register(SyntheticSource)
    return spark.read.format("synthetic").options(file=file, rows=rows, tasks=tasks).load()


@cache
def _batch_in(file: str) -> Any:
    with pa.OSFile(file) as stream:
        return pa.ipc.open_stream(stream).read_next_batch()
