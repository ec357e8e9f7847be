"""Golden topics as batches: exactly a Java consumer's records, with any partitioning of the query."""

from __future__ import annotations

import itertools
import json
import random
from functools import reduce

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from tests.support.examples import examples
from tests.support.golden.records import Row, partitions_of
from tests.support.golden.segments import CASES
from tests.support.spark.spark_session import read
from tests.support.spark.spark_tasks import (
    golden_options,
    golden_rows,
    reader_of,
    rows_in,
    rows_of_reader,
    splits_of,
    tasks_of,
    topic_of,
)
from tieredstore.spark import register
from tieredstore.spark.source.rows import COLUMNS, KAFKA_ROWS

pytestmark = pytest.mark.slow

LEVELS = ("read_committed", "read_uncommitted")
TRANSACTIONAL = [case for case in CASES if "txn" in case]


def levels_of(case: str) -> tuple[str, ...]:
    """Return one isolation level if no record is transactional, otherwise both."""
    return LEVELS if case in TRANSACTIONAL else LEVELS[:1]


def collected(df: DataFrame) -> list[Row]:
    """Return rows by partition and offset, with times in milliseconds."""
    shown = df.withColumn("timestamp", functions.unix_millis("timestamp"))
    rows = [row.asDict(recursive=True) for row in shown.collect()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def of_case(rows: list[Row], name: str) -> list[Row]:
    """Return the rows of one of several combined queries, without the column of its name."""
    return [{key: value for key, value in row.items() if key != "query"} for row in rows if row["query"] == name]


def together(queries: dict[str, DataFrame]) -> DataFrame:
    """Combine several queries to start only one job."""
    named = [query.withColumn("query", functions.lit(name)) for name, query in queries.items()]
    return reduce(DataFrame.unionAll, named)


@pytest.mark.parametrize("level", LEVELS)
def test_spark_reads_what_a_consumer_read(spark: SparkSession, level: str) -> None:
    queries = {
        case: read(spark, golden_options(case, isolationLevel=level, maxSplitBytes="600k"))
        for case in CASES
        if level in levels_of(case)
    }
    rows = collected(together(queries))
    for case in queries:
        assert of_case(rows, case) == golden_rows(case, level), case


# `make soak` reads splits of the other sizes too. In `make test`, tests/records/test_splits.py does.
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", ["20k", *(pytest.param(size, marks=pytest.mark.soak) for size in ("1000", "1g"))])
def test_splits_of_any_size_give_the_same_rows(case: str, size: str) -> None:
    for level in levels_of(case):
        reader = reader_of(golden_options(case, isolationLevel=level, maxSplitBytes=size))
        assert rows_of_reader(reader) == golden_rows(case, level)


MANY_BATCHES = {"07-txn", "07-zstd-enc-txn", "12-smallbatch"}


# `make soak` reads the cases with hundreds of splits. In `make test`, tests/records/test_splits.py does.
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.soak] if case in MANY_BATCHES else []) for case in CASES]
)
def test_splits_of_single_batches_give_the_same_rows(case: str) -> None:
    for level in levels_of(case):
        reader = reader_of(golden_options(case, isolationLevel=level, maxSplitBytes="1"))
        assert rows_of_reader(reader) == golden_rows(case, level)


def test_small_splits_are_many_tasks() -> None:
    by_size = {
        size: len(tasks_of(reader_of(golden_options("12-smallbatch", maxSplitBytes=size)))) for size in (4096, 2**30)
    }
    assert by_size[4096] > 20
    assert by_size[2**30] == 1


@pytest.mark.parametrize("case", [*TRANSACTIONAL, "01-none", "02-zstd-onechunk", "12-smallbatch"])
def test_any_window_of_offsets_has_its_rows(case: str) -> None:
    source = random.Random(case)
    for level in levels_of(case):
        expected = golden_rows(case, level)
        for _ in range(examples(8)):
            windows = {
                partition: _window(source, [row["offset"] for row in expected if row["partition"] == partition])
                for partition in partitions_of(case)
            }
            options = {
                name: json.dumps({topic_of(case): {partition: window[at] for partition, window in windows.items()}})
                for at, name in enumerate(("startingOffsets", "endingOffsets"))
            }
            size = source.choice([500, 5000, 100_000, 2**26])
            rows = rows_in(golden_options(case, isolationLevel=level, maxSplitBytes=size, **options))
            assert rows == [row for row in expected if row["offset"] in range(*windows[row["partition"]])]


def _window(source: random.Random, offsets: list[int]) -> tuple[int, int]:
    first, last = sorted(source.randrange(offsets[0], offsets[-1] + 2) for _ in range(2))
    return first, last


@pytest.mark.parametrize("case", [*TRANSACTIONAL, "01-none", "06-codec-zstd-logappendtime", "12-smallbatch"])
def test_a_window_of_time_begins_and_ends_at_the_first_record_of_a_time(case: str) -> None:
    source = random.Random(case)
    stored = golden_rows(case, "read_uncommitted")
    first, last = (pick(row["timestamp"] for row in stored) for pick in (min, max))
    for level in levels_of(case):
        for _ in range(examples(6)):
            since, until = sorted(source.randrange(first, last + 2) for _ in range(2))
            options = golden_options(
                case,
                isolationLevel=level,
                startingTimestamp=since,
                endingTimestamp=until,
                maxSplitBytes=30_000,
                startingOffsetsByTimestampStrategy="latest",
            )
            windows = {where: _window_of_time(stored, where, since, until) for where in partitions_of(case)}
            expected = [row for row in golden_rows(case, level) if row["offset"] in windows[row["partition"]]]
            assert rows_in(options) == expected


def _window_of_time(stored: list[Row], partition: int, since: int, until: int) -> range:
    """Return the offsets of a time range, as Kafka looks them up. Transaction markers count too, at times long after
    those of the records.
    """
    times = {row["offset"]: row["timestamp"] for row in stored if row["partition"] == partition}
    edges = [
        min((offset for offset in range(max(times) + 1) if times.get(offset, 2**63) >= moment), default=max(times) + 1)
        for moment in (since, until)
    ]
    return range(*edges)


def test_sql_over_a_view_and_windows_in_spark(spark: SparkSession) -> None:
    case = "07-zstd-enc-txn"
    read(spark, golden_options(case)).createOrReplaceTempView("events")
    expected = golden_rows(case)
    (row,) = spark.sql(
        "select count(*) rows, count(distinct offset) offsets, sum(length(value)) bytes, min(timestamp) first, "
        "max(offset) last, sum(size(headers)) headers, count_if(headers is null) bare from events "
        "where topic like '%txn'"
    ).collect()
    assert row.asDict() | {"first": None} == {
        "rows": len(expected),
        "offsets": len(expected),
        "bytes": sum(len(row["value"]) for row in expected if row["value"] is not None),
        "first": None,
        "last": expected[-1]["offset"],
        "headers": sum(len(row["headers"] or ()) for row in expected),
        "bare": sum(row["headers"] is None for row in expected),
    }
    middle = expected[len(expected) // 3]["offset"], expected[2 * len(expected) // 3]["offset"]
    (counted,) = spark.sql(
        f"select count(*) n from events where offset >= {middle[0]} and offset < {middle[1]}"
    ).collect()
    assert counted["n"] == sum(middle[0] <= row["offset"] < middle[1] for row in expected)


def test_counting_needs_no_column(spark: SparkSession) -> None:
    options = golden_options("07-txn", includeHeaders=False)
    assert read(spark, options).count() == len(golden_rows("07-txn"))
    register(spark)
    assert read(spark, options | {"isolationLevel": "read_uncommitted", "columns": "partition"}).count() == len(
        golden_rows("07-txn", "read_uncommitted")
    )


def test_the_schema_is_that_of_sparks_kafka_source(spark: SparkSession) -> None:
    kafka = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    headers = ", headers array<struct<key: string, value: binary>>"
    options = golden_options("11-single-record")
    assert read(spark, options | {"includeHeaders": "FALSE"}).schema == StructType.fromDDL(kafka)
    assert read(spark, options).schema == StructType.fromDDL(kafka + headers)


@pytest.mark.parametrize("case", ["07-txn", "01-none"])
def test_columns_are_those_asked_for_in_the_order_of_the_schema(case: str) -> None:
    source = random.Random(case)
    expected = golden_rows(case)
    choices = [["topic"], ["offset"], ["partition", "topic"], ["headers"], ["timestamp", "value"], list(COLUMNS)]
    choices += [source.sample(KAFKA_ROWS.columns, source.randrange(1, 8)) for _ in range(8)]
    for names in choices:
        options = golden_options(case, columns=", ".join(names).upper(), maxSplitBytes=50_000)
        del options["includeHeaders"]
        rows = rows_in(options)
        assert list(rows[0]) == [name for name in KAFKA_ROWS.columns if name in names]
        assert rows == [{name: row[name] for name in rows[0]} for row in expected]


def test_spark_reads_a_choice_of_columns(spark: SparkSession) -> None:
    options = golden_options("07-txn", columns="offset,headers,topic")
    del options["includeHeaders"]
    df = read(spark, options)
    assert df.columns == ["topic", "offset", "headers"]
    expected = golden_rows("07-txn")
    assert [row.asDict(recursive=True) for row in df.orderBy("offset").collect()] == [
        {name: row[name] for name in df.columns} for row in expected
    ]


def test_each_row_is_in_one_split_alone() -> None:
    reader = reader_of(golden_options("07-txn", maxSplitBytes=2000))
    splits = splits_of(reader)
    extents = [
        (part.segment.start_offset, part.byte_range.start, part.byte_range.stop)
        for split in splits
        for part in split.sections
    ]
    assert extents == sorted(extents)
    assert all(one[0] != other[0] or one[2] == other[1] for one, other in itertools.pairwise(extents))
