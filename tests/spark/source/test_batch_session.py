"""Batches in a real Spark: every option's rows, one-sentence errors, and no secrets in plans."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from tests.support.records import fixtures
from tests.support.records.topic_buckets import Bucket
from tests.support.spark.spark_readings import READINGS, WRONG, all_of, places
from tests.support.spark.spark_session import read

EXPLAINED = ("extended", "formatted", "codegen", "cost")


bucket = fixtures.filled_bucket


def failure_of(action: Callable[[], object]) -> str:
    """Return Spark's message for a failing query."""
    try:
        done = action()
    except PySparkException as error:
        return str(error)
    raise AssertionError(f"it does not fail: {done}")


def check_sentence(said: str, sentence: str) -> None:
    """Assert that Spark shows our sentence without internals."""
    assert sentence in said
    assert "Traceback" not in said
    assert 'File "' not in said


def test_options_select_the_same_rows_in_spark(spark: SparkSession, bucket: Bucket) -> None:
    queries = [
        read(spark, bucket.options | options)
        .select("topic", "partition", "offset")
        .withColumn("name", functions.lit(name))
        for name, (options, _) in READINGS.items()
    ]
    rows = [row.asDict() for row in reduce(DataFrame.unionAll, queries).collect()]
    for name, (_, expected) in READINGS.items():
        assert sorted(places([row for row in rows if row["name"] == name])) == sorted(expected), name


def test_what_is_wrong_is_told_in_one_sentence_wherever_it_is_found(spark: SparkSession, bucket: Bucket) -> None:
    """Errors arise from the schema, the reader, the bucket, and a user's schema."""
    for name in ("columns", "minPartitions", "no topic of this name", "an end beyond the log"):
        options, sentence = WRONG[name]
        check_sentence(failure_of(partial(collect, spark, bucket.options | options)), sentence)
    reader = spark.read.format("tieredstore").schema("key binary, value binary")
    said = failure_of(reader.options(**bucket.options, subscribe="orders").load().collect)
    check_sentence(said, "leave out schema(), and choose columns by the option columns")


def collect(spark: SparkSession, options: dict[str, Any]) -> object:
    return read(spark, options).collect()


def test_what_goes_wrong_in_a_task_is_told_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    damaged = bucket.write(100)
    (log,) = Path(bucket.options["storage.root"]).rglob("*.log")
    stored = log.read_bytes()
    log.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
    said = failure_of(read(spark, bucket.options | {"subscribe": "orders"}).collect)
    check_sentence(said.partition("Driver stacktrace")[0], f"BatchCorruptError: {damaged}")
    bucket.close()


def test_who_writes_is_told_that_it_reads_only(spark: SparkSession) -> None:
    for mode in ("append", "overwrite"):
        writer = spark.range(1).write.format("tieredstore").mode(mode)
        check_sentence(failure_of(writer.save), "ConfigError: the format tieredstore only reads; write to a topic by")


def test_tasks_are_cut_as_options_say(spark: SparkSession, bucket: Bucket) -> None:
    options = bucket.options | {"subscribe": "payments"}
    counts = {
        name: read(spark, options | {name: value}).rdd.getNumPartitions()
        for name, value in (("maxSplitBytes", "10k"), ("minPartitions", "6"), ("maxRecordsPerPartition", "250"))
    }
    assert counts["maxSplitBytes"] >= 4
    assert counts["minPartitions"] >= 6
    assert counts["maxRecordsPerPartition"] == 8
    assert read(spark, options).rdd.getNumPartitions() == 1


def test_a_query_without_rows_is_empty(spark: SparkSession, bucket: Bucket) -> None:
    assert read(spark, bucket.options | {"subscribePattern": "none.*"}).collect() == []


def test_settings_in_a_file_found_by_every_process(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    file = tmp_path / "shipped-by-spark.properties"
    file.write_text("\n".join(f"{name}={value}" for name, value in bucket.options.items()))
    spark.sparkContext.addFile(str(file))
    expected = all_of("orders", 1, 50)
    for settings in (str(file), file.name):
        rows = read(spark, {"settings": settings, "assign": '{"orders":[1]}'}).collect()
        assert places([row.asDict() for row in rows]) == expected


def test_no_plan_shows_a_setting(spark: SparkSession, bucket: Bucket) -> None:
    df = read(spark, bucket.options | {"subscribe": "orders", "includeHeaders": "true"})
    df.createOrReplaceTempView("planned")
    shown = _explained(df.groupBy("partition").count())
    for mode in EXPLAINED:
        shown += "".join(row[0] for row in spark.sql(f"explain {mode} select * from planned").collect())
    assert "BatchScan tieredstore" in shown
    assert bucket.options["storage.root"] not in shown


def test_spark_masks_the_secrets_of_a_view_that_sql_makes(spark: SparkSession, bucket: Bucket) -> None:
    options = bucket.options | {"subscribe": "orders", "storage.aws.secret.access.key": "hush-hush"}
    given = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    (row,) = spark.sql(f"explain extended create temporary view made using tieredstore options ({given})").collect()
    assert "storage.aws.secret.access.key" in row[0]
    assert "hush-hush" not in row[0]


def test_offsets_are_resolved_once_for_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(30)
    df = read(spark, bucket.options | {"subscribe": "orders", "columns": "offset"})
    assert df.count() == 30
    bucket.write(30)
    assert df.where("offset >= 0").count() == 30
    assert read(spark, bucket.options | {"subscribe": "orders"}).count() == 60
    bucket.close()


def _explained(df: DataFrame) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for mode in EXPLAINED:
            df.explain(mode=mode)
    frame: Any = df
    execution = frame._jdf.queryExecution()
    return f"{out.getvalue()}{execution.toString()}{execution.stringWithStats()}{execution.logical().toJSON()}"
