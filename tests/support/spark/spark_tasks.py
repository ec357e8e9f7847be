"""Queries without a JVM: the data source is called as by Spark's Python workers, with pickled objects."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, Filter, InputPartition

from tests.support.golden.records import Row, expected_rows, partitions_of
from tests.support.golden.segments import case_path, segments
from tieredstore.errors import TieredStoreError
from tieredstore.records.splits import RecordSplit
from tieredstore.spark.source.batch import PushdownBatchReader
from tieredstore.spark.source.data_source import TieredStoreDataSource
from tieredstore.spark.source.options import parse_options
from tieredstore.spark.source.rows import KAFKA_ROWS, RowShape

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as Spark passes them: strings, with names in lower case."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return cast("dict[str, str]", CaseInsensitiveDict(texts))


def reader_of(options: Mapping[str, Any]) -> DataSourceReader:
    """Return a query's reader after pickling."""
    source = TieredStoreDataSource(as_texts(options))
    reader: DataSourceReader = _sent(source.reader(source.schema()))
    return reader


def pushing_reader(options: Mapping[str, Any], filters: list[Filter]) -> DataSourceReader:
    """Return the reader of a query with filters that Spark pushes down."""
    reader = PushdownBatchReader(parse_options(as_texts(options), streaming=False))
    assert list(reader.pushFilters(filters)) == filters
    return reader


def tasks_of(reader: DataSourceReader) -> list[InputPartition]:
    """Return the tasks of a query."""
    return list(reader.partitions())


def splits_of(reader: DataSourceReader) -> list[RecordSplit]:
    """Return the splits read by the tasks of a query over the bucket alone."""
    tasks = tasks_of(reader)
    stored = [task.value for task in tasks if isinstance(task.value, RecordSplit)]
    assert len(stored) == len(tasks)
    return stored


def rows_of_reader(reader: DataSourceReader) -> list[Row]:
    """Return the rows of a query, task by task, pickling each as for another process."""
    rows: list[Row] = []
    for task in tasks_of(reader):
        rows += rows_of_task(reader, task)
    return rows


def rows_of_task(reader: DataSourceReader, task: InputPartition) -> list[Row]:
    """Return the rows of one task."""
    return [row for batch in _sent(reader).read(_sent(task)) for row in _rows(cast("pa.RecordBatch", batch))]


def rows_in(options: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a batch query."""
    return rows_of_reader(reader_of(options))


def error_of(options: Mapping[str, Any]) -> TieredStoreError:
    """Return the error that a batch query raises, in planning or in reading."""
    try:
        rows_in(options)
    except TieredStoreError as error:
        return error
    raise AssertionError(f"the query has rows: {options}")


def golden_options(case: str, **more: Any) -> dict[str, Any]:
    """Return options that read a whole golden case in place."""
    settings = case_path(case) / "rsm.properties"
    return {"settings": str(settings), "subscribe": topic_of(case), "includeHeaders": True, **more}


def topic_of(case: str) -> str:
    (topic,) = {segment.topic for segment in segments(case)}
    return topic


def golden_rows(case: str, isolation: str = "read_committed") -> list[Row]:
    """Return a consumer's rows in the format of Spark's Kafka source, in order, with times in milliseconds."""
    return [
        {
            "key": row["key"],
            "value": row["value"],
            "topic": topic_of(case),
            "partition": partition,
            "offset": row["offset"],
            "timestamp": row["timestamp"],
            "timestampType": row["timestampType"],
            "headers": [{"key": key, "value": value} for key, value in row["headers"]] or None,
        }
        for partition in partitions_of(case)
        for row in expected_rows(case, partition, isolation)
    ]


def _sent(what: Any) -> Any:
    return pickle.loads(pickle.dumps(what))


def _rows(batch: pa.RecordBatch) -> list[Row]:
    assert batch.num_rows
    untyped: Any = batch
    names = [name for name in KAFKA_ROWS.columns if name in untyped.schema.names]
    assert untyped.schema.equals(RowShape(names).arrow_schema)
    rows: list[Row] = untyped.to_pylist()
    for row in rows:
        if "timestamp" in row:
            row["timestamp"] = (row["timestamp"] - _EPOCH) // timedelta(milliseconds=1)
    return rows
