"""map_records in a real Spark: the source's records, passed to a function in the task that decodes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.golden.records import expected_rows, partitions_of
from tests.support.golden.segments import case_path, segments, settings_text
from tests.support.kafka.kafka_topics import produce_transaction, random_produced
from tests.support.kafka.live_topics import TieredTopic
from tests.support.records import fixtures
from tests.support.records.topic_buckets import Bucket
from tests.support.servers.kafka import KafkaServer
from tieredstore.errors import ConfigError
from tieredstore.spark import decode_segments, map_records

Batches = Iterator[pa.RecordBatch]


bucket = fixtures.filled_bucket


def identity(batches: Batches) -> Batches:
    yield from batches


def counts(batches: Batches) -> Batches:
    """Return one row per task: the first offset, and the number of records."""
    untyped: Iterator[Any] = batches
    rows: list[tuple[int, int]] = [(batch.num_rows, batch.column("offset")[0].as_py()) for batch in untyped]
    if rows:
        yield pa.RecordBatch.from_pydict({"first": [rows[0][1]], "n": [sum(count for count, _ in rows)]})


def read(spark: SparkSession, bucket: Bucket, **options: Any) -> DataFrame:
    return spark.read.format("tieredstore").options(**bucket.options, **options).load()


def mapped(spark: SparkSession, bucket: Bucket, function: Any, schema: Any, **options: Any) -> DataFrame:
    return map_records(spark, function, schema, **bucket.options, **options)


def test_the_records_are_those_of_the_source(spark: SparkSession, bucket: Bucket) -> None:
    options = {"subscribePattern": ".*", "maxSplitBytes": "20k"}
    source = read(spark, bucket, **options)
    rows = mapped(spark, bucket, identity, source.schema, **options)
    assert rows.schema == source.schema
    key = ("topic", "partition", "offset")
    assert rows.sort(*key).collect() == source.sort(*key).collect()


def test_the_records_are_those_of_the_source_across_the_seam(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    tiered = TieredTopic(kafka, tmp_path)
    records = random_produced(random.Random(3), 200)
    for outcome in ("commit", "abort"):
        tiered.produce(records)
        produce_transaction(kafka, tiered.topic, records[:30], outcome)
        tiered.produce(records[:100])
    assert tiered.tier(but_last=2) > 0
    for isolation in ("read_committed", "read_uncommitted"):
        options = tiered.options(isolationLevel=isolation, maxSplitBytes=5000)
        source = spark.read.format("tieredstore").options(**options).load()
        rows = map_records(spark, identity, source.schema, **options)
        assert rows.rdd.getNumPartitions() > 2
        assert rows.sort("offset").collect() == source.sort("offset").collect()
    tiered.close()


def test_only_results_reach_the_jvm_one_call_a_task(spark: SparkSession, bucket: Bucket) -> None:
    options: dict[str, Any] = {"subscribe": "orders", "columns": "offset", "maxSplitBytes": 1000}
    arrow: Any = pa
    rows = mapped(spark, bucket, counts, arrow.schema([("n", pa.int64()), ("first", pa.int64())]), **options)
    tasks = rows.collect()
    assert sum(row["n"] for row in tasks) == 150
    assert rows.rdd.getNumPartitions() == len(tasks) > 2
    # Columns are converted and ordered by the schema.
    narrow = mapped(spark, bucket, counts, "first int, n short", subscribe="orders", columns="offset").collect()
    assert sorted((row["first"], row["n"]) for row in narrow) == [(0, 50), (0, 100)]


def test_nothing_is_planned_before_an_action(spark: SparkSession, tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(10)
    rows = mapped(spark, bucket, counts, "n long, first long", subscribe="orders", columns="offset")
    bucket.write(5)
    assert sum(row["n"] for row in rows.collect()) == 15
    bucket.close()


def test_a_function_that_raises_shows_its_own_traceback_and_ours_shows_none(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    def raising(batches: Batches) -> Batches:
        for _ in batches:
            raise ValueError("of mine")
        yield from ()

    def raising_at_once(_: Batches) -> Batches:
        raise ValueError("of mine")

    for function in (raising, raising_at_once):
        with pytest.raises(PySparkException) as caught:
            mapped(spark, bucket, function, "n long", subscribe="orders").collect()
        shown = str(caught.value)
        assert shown.count("ValueError: of mine") == 1
        assert f"in {function.__name__}" in shown
        assert "/tieredstore/" not in shown.replace(str(Path(__file__)), "")

    holes = Bucket(tmp_path)
    holes.write(10)
    holes.write(10, skip=5)
    with pytest.raises(PySparkException) as caught:
        mapped(spark, holes, identity, "n long", subscribe="orders").collect()
    assert "DataLossError: offsets 10 to 14" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    # As in the source, a lenient query gets the records that remain.
    rest = mapped(spark, holes, counts, "n long, first long", subscribe="orders", failOnDataLoss=False).collect()
    assert sum(row["n"] for row in rest) == 20
    holes.close()


def test_what_a_function_must_not_yield_is_one_sentence(spark: SparkSession, bucket: Bucket) -> None:
    """This is one kind of invalid result; test_mapped_rows tests all kinds."""
    with pytest.raises(PySparkException, match=r"yielded the columns .* but the schema has n") as caught:
        mapped(spark, bucket, identity, "n long", subscribe="orders").collect()
    assert "Traceback" not in str(caught.value)


def test_options_are_checked_at_once(spark: SparkSession, bucket: Bucket) -> None:
    for options, sentence in (
        ({"subscribe": "orders", "maxSplitBytes": "many"}, "maxSplitBytes"),
        ({"subscribe": "orders", "filterPushdown": True}, "no meaning for map_records"),
        ({}, "subscribe"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            mapped(spark, bucket, identity, "n long", **options)
    with pytest.raises(ConfigError, match="is not a Spark schema"):
        mapped(spark, bucket, identity, "n long long", subscribe="orders")
    with pytest.raises(ConfigError, match="schema is of the type NoneType; it must be Spark's"):
        mapped(spark, bucket, identity, None, subscribe="orders")
    with pytest.raises(ConfigError, match="function is of the type str; it must be a function over batches"):
        mapped(spark, bucket, "n long", identity, subscribe="orders")
    with pytest.raises(ConfigError, match="spark is of the type dict; it must be a SparkSession"):
        map_records({}, identity, "n long")  # type: ignore[arg-type]
    # None leaves an option out, as with Spark's own options.
    rows = mapped(spark, bucket, counts, "n long, first long", subscribe="orders", columns="offset", maxSplitBytes=None)
    assert sum(row["n"] for row in rows.collect()) == 150


def test_decoded_segments_go_through_a_function_as_well(spark: SparkSession) -> None:
    (topic,) = {segment.topic for segment in segments("07-txn")}
    folder = case_path("07-txn") / "original" / f"{topic}-0"
    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.log").load(str(folder))
    plain = decode_segments(files, columns=("offset",)).count()
    rows = decode_segments(files, columns=("offset",), function=counts, schema="n long, first long").collect()
    assert sum(row["n"] for row in rows) == plain
    with pytest.raises(ConfigError, match="belong together"):
        decode_segments(files, function=counts)


def test_segments_of_a_store_go_through_a_function_as_well(spark: SparkSession) -> None:
    # A transactional topic: aborted records must not reach the function either.
    stored = [(segment.main_path,) for segment in segments("07-txn")]
    named = spark.createDataFrame(stored, "segment string").repartition(2)
    words: dict[str, Any] = {"source": settings_text("07-txn"), "columns": ("partition", "offset")}
    plain = decode_segments(named, **words).collect()

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: Any = batch.to_pydict()
            twice = [2 * offset for offset in rows["offset"]]
            yield pa.RecordBatch.from_pydict({"where": rows["partition"], "twice": twice})

    mapped = decode_segments(named, **words, function=doubled, schema="where int, twice long")
    assert mapped.columns == ["where", "twice"]
    rows = sorted((row["where"], row["twice"]) for row in mapped.collect())
    assert rows == sorted((row["partition"], 2 * row["offset"]) for row in plain)
    assert len(rows) == sum(
        len(expected_rows("07-txn", number, "read_committed")) for number in partitions_of("07-txn")
    )
