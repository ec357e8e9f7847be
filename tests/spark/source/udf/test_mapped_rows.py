"""Conversion of a function's rows for Spark, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.support.records.topic_buckets import Bucket
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.records.splits import RecordSplit
from tieredstore.spark.source.map_records import MappedReader
from tieredstore.spark.source.options import SourceOptions, parse_options
from tieredstore.spark.source.rows import MappedRows, apply_function, schema_of

SCHEMA = StructType([StructField("n", LongType())])
ROWS = pa.RecordBatch.from_pydict({"n": [1, 2]})


def identity(batches: Any) -> Any:
    return batches


def first_batch(batches: Any) -> Any:
    return iter([next(batches)])


def giving(result: Any) -> Any:
    def function(_: Any) -> Any:
        return result

    return function


def given(function: Any, schema: StructType = SCHEMA) -> list[pa.RecordBatch]:
    return list(apply_function(iter([ROWS]), MappedRows(function, schema)))


@pytest.mark.parametrize("schema", [SCHEMA, pa.schema([("n", pa.int64())])])
def test_a_schema_of_spark_or_arrow(schema: Any) -> None:
    assert schema_of(schema) == SCHEMA


@pytest.mark.parametrize("schema", [None, 5, {"n": "long"}, [("n", "long")]])
def test_what_is_no_schema_is_told_of(schema: Any) -> None:
    with pytest.raises(ConfigError, match=f"schema is of the type {type(schema).__name__}; it must be Spark's"):
        schema_of(schema)


def test_rows_pass_as_they_are_or_in_the_types_of_the_schema() -> None:
    assert list(apply_function(iter([ROWS]), None)) == [ROWS]
    assert given(identity) == [ROWS]
    narrow = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], names=["n"])
    assert given(giving(iter([narrow]))) == [ROWS]


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (7, "yielded int"),
        (pa.RecordBatch.from_pydict({"m": [1]}), "yielded the columns m, but the schema has n"),
        (pa.RecordBatch.from_pydict({"n": ["x"]}), "yielded string in the column n"),
    ],
)
def test_what_is_not_of_the_schema_is_one_sentence(batch: Any, sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        given(giving(iter([batch])))


def test_a_null_that_the_schema_forbids_is_one_sentence_with_its_place() -> None:
    n, offset = StructField("n", LongType(), nullable=False), StructField("offset", LongType())
    rows = pa.RecordBatch.from_pydict({"n": [1, None], "offset": [7, 8]})
    with pytest.raises(ConfigError, match=r"null in the column n \(offset 8\), but the schema has NOT NULL: allow"):
        given(giving(iter([rows])), StructType([offset, n]))
    with pytest.raises(ConfigError, match=r"null in the column n \(row 1 of a batch\), but the schema has NOT NULL"):
        given(giving(iter([rows.select(["n"])])), StructType([n]))
    assert given(identity, StructType([n]))[0].to_pydict() == {"n": [1, 2]}


@pytest.mark.parametrize(
    ("result", "sentence"),
    [(None, "returned NoneType, not an iterator"), (ROWS, "returned RecordBatch"), (5, "returned int")],
)
def test_what_has_no_rows_is_one_sentence(result: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        given(giving(result))


def test_no_frame_of_ours_is_in_the_traceback_of_a_function() -> None:
    def at_once(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("of mine")

    def later(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("of mine")

    for function in (at_once, later):
        rows = apply_function(iter([ROWS]), MappedRows(function, SCHEMA))
        with pytest.raises(ValueError, match="of mine") as caught:
            list(rows)
        assert [entry.frame.code.path for entry in caught.traceback] == [Path(__file__)] * 2


def test_a_next_of_no_batch_is_no_end_of_the_rows() -> None:
    with pytest.raises(ConfigError, match="StopIteration"):
        list(apply_function(iter(()), MappedRows(first_batch, SCHEMA)))


def test_an_error_of_the_records_passes_through_the_function() -> None:
    def damaged() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise CorruptDataError("a chunk is damaged")

    def swallowing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with suppress(Exception):
            yield from batches

    for function in (identity, swallowing):
        rows = apply_function(damaged(), MappedRows(function, SCHEMA))
        assert next(rows) == ROWS
        with pytest.raises(CorruptDataError, match="a chunk is damaged"):
            next(rows)


class SmallTasks(MappedReader):
    task_bytes = 2_000, 20_000


def test_tasks_are_large_where_that_leaves_two_for_each_core(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    for _ in range(6):
        bucket.write(300)
    bucket.close()
    options = parse_options({**bucket.options, "subscribe": "orders"}, streaming=False)
    mapped = MappedRows(identity, SCHEMA)
    sizes = [segment.size_in_bytes for segment in planned(options, mapped, None)]
    total = sum(sizes)
    assert len(sizes) == 1
    for cores, most in ((1, 20_000), (4, total // 8), (10_000, 2_000)):
        cut = planned(replace(options, max_split_bytes=1), mapped, cores)
        assert sum(split.size_in_bytes for split in cut) == total
        assert most / 2 < max(split.size_in_bytes for split in cut) <= most


def planned(options: SourceOptions, mapped: MappedRows, cores: int | None) -> list[RecordSplit]:
    tasks = SmallTasks(options, mapped, cores).partitions()
    return [task.value for task in tasks if isinstance(task.value, RecordSplit)]


def test_two_attempts_of_a_task_side_by_side_give_the_same_rows(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    for _ in range(3):
        bucket.write(300)
    bucket.close()
    options = {**bucket.options, "subscribe": "orders", "maxSplitBytes": "5000", "columns": "offset,value"}
    source = parse_options(options, streaming=False)
    schema: Any = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    mapped = MappedRows(identity, schema_of(schema))
    reader = MappedReader(source, mapped)
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    assert len(tasks) > 3
    offsets: list[int] = []
    for task in tasks:
        first, second = reader.read(task), reader.read(task)
        pairs = list(zip(first, second, strict=True))
        assert all(one.equals(other) for one, other in pairs)
        for batch, _ in pairs:
            offsets += batch.to_pydict()["offset"]
    assert offsets == list(range(900))
