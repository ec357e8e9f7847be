"""Filters that Spark pushes down skip excluded data, and never change the rows of a query."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from tests.support.records.topic_buckets import Bucket, fill
from tests.support.spark.spark_readings import EVERYTHING, RecordPlace, places
from tests.support.spark.spark_session import configured, read
from tests.support.spark.spark_tasks import pushing_reader, reader_of, rows_of_reader, splits_of

OFFSETS = "topic,partition,offset,timestamp"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ALL = EVERYTHING["orders"] + EVERYTHING["payments"]


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """Yield records whose timestamps are a hundred times their offsets. Two logs of the topic ``broken`` are
    overwritten, so reads fail.
    """
    filled = Bucket(tmp_path_factory.mktemp("pushdown"))
    fill(filled)
    for start in (0, 100, 200):
        filled.write(100, "broken")
        assert filled.ends["broken", 0, next(iter(filled.ends))[2]] == start + 100
    for segment in (0, 200):
        (log,) = Path(filled.options["storage.root"]).rglob(f"broken-*/0/{segment:020d}-*.log")
        log.write_bytes(b"\xff" * log.stat().st_size)
    yield filled
    filled.close()


BY_TASKS: list[tuple[list[Filter], str]] = [
    ([EqualTo(("topic",), "orders")], "orders-0 orders-1"),
    ([EqualTo(("topic",), "nothing")], ""),
    ([StringStartsWith(("topic",), "pay"), IsNotNull(("value",))], "payments-0"),
    ([In(("topic",), ("orders", "x")), EqualTo(("partition",), 1)], "orders-1"),
    ([GreaterThan(("partition",), 0)], "orders-1"),
    ([LessThan(("partition",), 1)], "orders-0 payments-0"),
    ([In(("partition",), (1, 5))], "orders-1"),
    ([GreaterThanOrEqual(("offset",), 50)], "orders-0 payments-0"),
    ([GreaterThan(("offset",), 98), LessThanOrEqual(("offset",), 99)], "orders-0 payments-0"),
    ([EqualTo(("offset",), 1999)], "payments-0"),
    ([GreaterThanOrEqual(("timestamp",), at(9901))], "payments-0"),
    ([EqualTo(("timestamp",), at(5000))], "orders-0 payments-0"),
    ([EqualTo(("timestamp",), at(10**9))], ""),
    ([EqualTo(("value",), b"v1")], "orders-0 orders-1 payments-0"),
]  # fmt: skip


@pytest.mark.parametrize(("filters", "partitions"), BY_TASKS)
def test_filters_leave_out_partitions(bucket: Bucket, filters: list[Filter], partitions: str) -> None:
    options = {**bucket.options, "subscribe": "orders,payments"}
    splits = splits_of(pushing_reader(options, filters))
    names = [f"{split.partition.topic}-{split.partition.partition}" for split in splits]
    assert " ".join(dict.fromkeys(names)) == partitions


def test_filters_leave_out_most_of_a_log(bucket: Bucket) -> None:
    options = {**bucket.options, "subscribe": "payments", "maxSplitBytes": 4096}
    total = sum(split.size_in_bytes for split in splits_of(reader_of(options)))
    narrow: list[list[Filter]] = [
        [EqualTo(("offset",), 1234)],
        [GreaterThan(("offset",), 990), LessThan(("offset",), 1010)],
        [GreaterThanOrEqual(("timestamp",), at(199_000))],
        [GreaterThanOrEqual(("timestamp",), at(123_400)), LessThan(("offset",), 1240)],
    ]
    for filters in narrow:
        reader = pushing_reader(options, filters)
        assert 0 < sum(split.size_in_bytes for split in splits_of(reader)) < total / 4
        offsets = {row["offset"] for row in rows_of_reader(reader)}
        assert {offset for offset in range(2000) if _passes(filters, offset)} <= offsets


def _passes(filters: list[Any], offset: int) -> bool:
    values: dict[str, Any] = {"offset": offset, "timestamp": at(offset * 100)}
    tests: dict[type[Filter], Callable[[Any, Any], bool]] = {
        EqualTo: operator.eq,
        GreaterThan: operator.gt,
        GreaterThanOrEqual: operator.ge,
        LessThan: operator.lt,
    }
    return all(tests[type(one)](values[one.attribute[0]], one.value) for one in filters)


QUERIES: dict[str, str] = {
    "topic = 'orders' and partition = 1": "topic == 'orders' and partition == 1",
    "topic in ('payments') and offset between 990 and 1010": "topic == 'payments' and 990 <= offset <= 1010",
    "offset = 3 or partition = 1": "offset == 3 or partition == 1",
    "topic like '%ments' and offset % 500 = 0": "topic == 'payments' and offset % 500 == 0",
    "topic like 'ord%' and not (offset > 1)": "topic == 'orders' and offset <= 1",
    "timestamp > timestamp_millis(199500) and timestamp < timestamp_millis(199700)": "offset == 1996",
    "timestamp < timestamp_millis(150)": "offset <= 1",
    "offset <=> 5 and timestamp is not null": "offset == 5",
    "offset > 5000000000": "False",
}


def chosen(name: str, df: DataFrame) -> DataFrame:
    """Return topic, partition and offset of a query's rows, with the query's name as a column."""
    return df.where(name).select("topic", "partition", "offset").withColumn("query", functions.lit(name))


def check_queries(queries: list[DataFrame]) -> None:
    rows = [row.asDict() for row in reduce(DataFrame.unionAll, queries).collect()]
    for query, condition in QUERIES.items():
        assert sorted(places([row for row in rows if row["query"] == query])) == _expected(condition), query


def test_pushed_filters_change_no_rows(spark: SparkSession, bucket: Bucket) -> None:
    options = bucket.options | {"subscribe": "orders,payments", "columns": OFFSETS, "filterPushdown": True}
    with configured(spark, PUSHDOWN, "true"):
        check_queries([chosen(query, read(spark, options)) for query in QUERIES])


def test_a_dataframe_that_is_used_again_has_all_its_rows_unless_it_asked_for_pushdown(
    spark: SparkSession, bucket: Bucket
) -> None:
    with configured(spark, PUSHDOWN, "true"):
        df = read(spark, bucket.options | {"subscribe": "orders,payments", "columns": OFFSETS})
        check_queries([chosen(query, df) for query in QUERIES])
        assert df.count() == len(ALL)


def test_pushdown_is_only_what_spark_allows(spark: SparkSession, bucket: Bucket) -> None:
    with configured(spark, PUSHDOWN, "false"):
        df = read(spark, bucket.options | {"subscribe": "orders", "filterPushdown": True})
        assert df.where("partition = 1").count() == 50


def _expected(condition: str) -> list[RecordPlace]:
    return sorted(
        place for place in ALL if eval(condition, dict(zip(("topic", "partition", "offset"), place, strict=True)))
    )


def test_what_filters_exclude_is_not_read_in_spark(spark: SparkSession, bucket: Bucket) -> None:
    options = bucket.options | {"subscribe": "broken,orders", "filterPushdown": True}
    with configured(spark, PUSHDOWN, "true"):
        counted = read(spark, options).where("offset > 99 and offset <= 199").groupBy("topic").count()
        assert counted.collect() == [("broken", 100)]
        few = read(spark, options).where("partition = 1 and timestamp >= timestamp_millis(4000)")
        assert few.rdd.getNumPartitions() == 1
