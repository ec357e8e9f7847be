"""decode_segments and decode_batches in a real Spark."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from tests.support.cli.cli_process import tieredstore
from tests.support.golden.records import Row, expected_rows
from tests.support.golden.segments import case_path, segments, settings_text
from tieredstore.errors import ConfigError
from tieredstore.model import Isolation
from tieredstore.spark.source.rows import COLUMNS, KAFKA_ROWS
from tieredstore.spark.source.store_source import StoreSource
from tieredstore.spark.source.udf import RECORD_COLUMNS, decode_batches, decode_segments
from tieredstore.testing.batches import Record, build_batch

TXN = "07-zstd-enc-txn"
ALL_RECORD_COLUMNS = (*RECORD_COLUMNS, "headers")


def golden(case: str, isolation: Isolation = "read_uncommitted") -> list[Row]:
    """Return a consumer's records of partition 0, with headers in Spark's format."""
    rows = expected_rows(case, 0, isolation)
    return [{**row, "headers": [{"key": k, "value": v} for k, v in row["headers"]] or None} for row in rows]


def plain(df: DataFrame) -> list[Row]:
    """Return the rows in order of offset, with timestamps in milliseconds."""
    shown = df.withColumn("timestamp", functions.unix_millis("timestamp"))
    rows = [row.asDict(recursive=True) for row in shown.collect()]
    return sorted(rows, key=lambda row: row["offset"])


def without(rows: list[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def binary_files(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.format("binaryFile").option("pathGlobFilter", "*.log").load(str(folder))


@contextmanager
def failing_with(sentence: str) -> Generator[None]:
    """Assert that Spark fails, and shows the user only our class and sentence."""
    with pytest.raises(PySparkException) as caught:
        yield
    shown = str(caught.value)
    assert sentence in shown
    assert "Traceback" not in shown
    assert 'File "' not in shown


# decode_segments


@pytest.mark.parametrize("case", ["07-txn", "06-codec-lz4-createtime", "06-codec-zstd-logappendtime"])
def test_the_files_of_a_broker_give_the_records_of_their_topic(spark: SparkSession, case: str) -> None:
    (topic,) = {segment.topic for segment in segments(case)}
    files = binary_files(spark, case_path(case) / "original" / f"{topic}-0")
    rows = plain(decode_segments(files, columns=KAFKA_ROWS.columns))
    assert {(row["topic"], row["partition"]) for row in rows} == {(topic, 0)}
    assert without(rows, "topic", "partition") == without(golden(case), "leaderEpoch")


def test_the_schema_is_that_of_sparks_kafka_source(spark: SparkSession) -> None:
    logs = spark.createDataFrame([], "content binary")
    assert decode_segments(logs).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert decode_segments(logs, columns=("headers", "offset")).columns == ["headers", "offset"]
    assert decode_segments(logs).collect() == []


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed", None])
def test_segments_of_a_store_are_read_by_their_paths(spark: SparkSession, isolation: Isolation | None) -> None:
    named = spark.createDataFrame([(segment.main_path,) for segment in segments(TXN)], "segment string")
    read = decode_segments(named.repartition(2), settings_text(TXN), columns=KAFKA_ROWS.columns, isolation=isolation)
    expected = golden(TXN, isolation or "read_committed")
    assert without(plain(read), "topic", "partition") == without(expected, "leaderEpoch")


def settings_file(folder: Path, case: str) -> Path:
    path = folder / "store.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings_text(case).items()))
    return path


def test_a_listing_of_the_command_line_names_segments(spark: SparkSession, tmp_path: Path) -> None:
    settings = settings_file(tmp_path, "01-none")
    listing = tmp_path / "ls.json"
    listing.write_bytes(tieredstore("ls", "-c", settings, "-p", "all", "--json").stdout)
    named = spark.read.json(str(listing)).where("partition = 1 AND base_offset > 0")
    (segment,) = [
        candidate for candidate in segments("01-none") if candidate.partition == 1 and candidate.base_offset > 0
    ]
    read = decode_segments(named, str(settings), columns=("topic", "partition", "offset"))
    expected = [row["offset"] for row in expected_rows("01-none", 1) if row["offset"] >= segment.base_offset]
    assert [tuple(row) for row in read.orderBy("offset").collect()] == [("none", 1, offset) for offset in expected]


def test_rows_can_be_queried_by_sql(spark: SparkSession) -> None:
    (segment, *_) = segments("11-single-record")
    decode_segments(binary_files(spark, segment.directory)).createOrReplaceTempView("records")
    (totals,) = spark.sql("SELECT count(*) AS rows, max(length(value)) AS longest FROM records").collect()
    expected = expected_rows("11-single-record", segment.partition)
    assert (totals["rows"], totals["longest"]) == (len(expected), max(len(row["value"]) for row in expected))


def test_settings_show_in_no_plan(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    secret = settings_text(TXN) | {"storage.root": str(case_path(TXN) / "store")}
    named = spark.createDataFrame([(segments(TXN)[0].main_path,)], "segment string")
    decode_segments(named, secret).explain("extended")
    shown = capsys.readouterr().out
    assert "MapInArrow" in shown
    assert not [value for value in secret.values() if len(value) > 6 and value in shown]


def test_a_damaged_file_fails_with_its_path_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    original = bytearray(segments("11-single-record")[0].original("log").read_bytes())
    original[-1] ^= 1
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{0:020}.log").write_bytes(original)
    with failing_with(f"BatchCorruptError: file:{folder}/{0:020}.log: the record batch at byte 0"):
        decode_segments(binary_files(spark, folder)).collect()


def test_a_segment_that_is_not_there_fails_in_one_sentence(spark: SparkSession) -> None:
    gone = segments("01-none")[0].main_path[:-4] + "AAAA"
    named = spark.createDataFrame([(gone,)], "segment string")
    with failing_with(f"SegmentNotFoundError: segment {gone}"):
        decode_segments(named, settings_text("01-none")).collect()


@pytest.mark.parametrize("case", ["01-none"])
def test_what_cannot_be_is_said_before_any_task_runs(spark: SparkSession, case: str) -> None:
    logs = spark.createDataFrame([], "content binary, path string")
    named = spark.createDataFrame([], "segment string")
    good = settings_text(case)
    wrong: list[tuple[DataFrame, Mapping[str, Any], str]] = [
        (logs, {"isolation": "read_committed"}, "a log alone does not show"),
        (logs, {"columns": ("offset", "nope")}, "choose from"),
        (logs, {"columns": ()}, "choose from"),
        (named, {}, "no store is named"),
        (named, {"source": good, "isolation": "committed"}, "isolation is 'committed'"),
        (named, {"source": "/nowhere.properties"}, "settings file /nowhere.properties"),
        (named, {"source": good | {"storage.backend.class": "nope"}}, "storage.backend.class is 'nope'"),
        (named, {"source": StoreSource(None, ())}, "storage.backend.class"),
        (spark.createDataFrame([], "content string"), {}, "needs a binary column content"),
        (spark.createDataFrame([], "topic string"), {}, "needs a binary column content"),
    ]
    for df, arguments, sentence in wrong:
        with pytest.raises(ConfigError, match=sentence):
            decode_segments(df, **arguments)


# decode_batches


def batch(offset: int) -> bytes:
    return build_batch([Record(b"a%d" % offset, b"k", offset, (("h", b"1"),)), Record(None)], offset)


def test_a_column_of_batches_becomes_one_of_arrays(spark: SparkSession) -> None:
    values = [(0, batch(0)), (1, batch(0) + batch(9)), (2, None), (3, b"")]
    df = spark.createDataFrame(values, "row int, batches binary")
    (kind,) = df.select(decode_batches("batches").alias("records")).schema
    assert kind.dataType.simpleString() == (
        "array<struct<key:binary,value:binary,offset:bigint,timestamp:timestamp,timestampType:int>>"
    )
    decoded = df.select("row", decode_batches(df.batches, columns=("offset", "value", "headers")).alias("records"))
    rows = {row["row"]: row["records"] for row in decoded.collect()}
    assert (rows[2], rows[3]) == (None, [])
    assert [record["offset"] for record in rows[1]] == [0, 1, 9, 10]
    assert rows[0] == [(0, b"a0", [("h", b"1")]), (1, None, None)]


def test_exploded_arrays_are_the_records_of_the_log(spark: SparkSession) -> None:
    case = "06-codec-zstd-createtime"
    (segment, *_) = segments(case)
    files = binary_files(spark, segment.directory)
    exploded = files.select(functions.explode(decode_batches("content", columns=ALL_RECORD_COLUMNS)).alias("record"))
    assert plain(exploded.select("record.*")) == without(golden(case), "leaderEpoch")


def test_every_row_keeps_its_own_records_over_many_arrays(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    try:
        df = spark.createDataFrame([(i, batch(i)) for i in range(50)], "row long, batches binary").repartition(3)
        decoded = df.select("row", decode_batches("batches", columns=["offset"]).alias("records")).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(row["row"] for row in decoded) == [*range(50)]
    assert all([record["offset"] for record in row["records"]] == [row["row"], row["row"] + 1] for row in decoded)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_times_are_instants_whatever_the_sessions_time_zone(spark: SparkSession, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        df = spark.createDataFrame([(batch(1_767_225_600_123),)], "content binary")
        record = functions.element_at(decode_batches("content"), 1)
        (by_column,) = df.select(functions.unix_millis(record["timestamp"]).alias("ms")).collect()
        (by_rows,) = decode_segments(df).where("key IS NOT NULL").select(functions.unix_millis("timestamp")).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    assert (by_column[0], by_rows[0]) == (1_767_225_600_123, 1_767_225_600_123)


def test_a_damaged_value_fails_in_one_sentence_or_is_null(spark: SparkSession) -> None:
    df = spark.createDataFrame([(batch(0),), (batch(1)[:-1],)], "batches binary").coalesce(1)
    with failing_with("BatchCorruptError: value 1 of partition 0: the log ends"):
        df.select(decode_batches("batches")).collect()
    decoded = df.select(decode_batches("batches", columns=["offset"], on_corrupt="null").alias("records")).collect()
    assert [row["records"] for row in decoded] == [[(0,), (1,)], None]


def test_what_batches_do_not_tell_cannot_be_asked_of_them(spark: SparkSession) -> None:
    df = spark.createDataFrame([], "batches binary")
    with pytest.raises(ConfigError, match="do not contain topic and partition"):
        df.select(decode_batches("batches", columns=COLUMNS))
    with pytest.raises(ConfigError, match="on_corrupt is 'skip'"):
        df.select(decode_batches("batches", on_corrupt="skip"))  # type: ignore[arg-type]
