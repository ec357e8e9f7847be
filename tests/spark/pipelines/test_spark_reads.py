"""Pipelines' files as Spark's own sources read them: the records, the directories as columns, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed, pipeline_of, run_once
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.pipelines import Pipeline
from tieredstore.testing.segments import Record, build_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOUR_MS = 3_600_000
FIRST_MS = 1_405_970_352_123 + 3 * HOUR_MS
"""2014-07-21T22:19:12.123Z"""
RECORDS = 6
BAD = 3
FORMATS = {"parquet": "snappy", "orc": "zstd", "json": "gzip", "text": "gzip"}
COLUMNS = {"json": "key STRING, value STRING, offset BIGINT", "text": "value STRING"}
"""Of those that do not tell them themselves."""


def value_of(offset: int) -> bytes:
    return b"bad" if offset == BAD else json.dumps({"n": offset, "timestamp": FIRST_MS + offset * HOUR_MS}).encode()


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """A record an hour; one is no JSON, and goes to the quarantine."""
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        records = [Record(value_of(offset), timestamp_ms=FIRST_MS + offset * HOUR_MS) for offset in range(RECORDS)]
        topic.copy(0, [build_batch(records, 0)])
        yield topic


def pipeline_in(name: str, codec: str, **changes: str) -> Pipeline:
    """Its directories are complete, but for the latest."""
    return pipeline_of(
        output__key__prefix=f"{name}/", secor__file__reader__writer__factory=name, secor__compression__codec=codec,
        secor__message__parser__class="json", partitioner__granularity__hour="true",
        pipeline__finalize="true", **changes,
    )  # fmt: skip


def rows_of(frame: DataFrame, name: str) -> DataFrame:
    """Format, day, hour and value of each row; JSON has the bytes in base64."""
    value = functions.unbase64("value") if name == "json" else functions.col("value").cast("binary")
    return frame.select(functions.lit(name).alias("format"), "dt", "hr", value.alias("value"))


def reader(spark: SparkSession, name: str) -> Any:
    options = spark.read.format(name)
    return options.schema(COLUMNS[name]) if name in COLUMNS else options


def expected_rows() -> list[tuple[date, int, bytes]]:
    days, hours = date(2014, 7, 21), 22
    return [
        (days.replace(day=days.day + (hours + offset) // 24), (hours + offset) % 24, value_of(offset))
        for offset in range(RECORDS)
        if offset != BAD
    ]


def test_spark_reads_each_record_once_with_its_directories_as_columns(
    spark: SparkSession, topic: StoredTopic, tmp_path: Path
) -> None:
    """What pipelines keep for themselves, and beside text, is passed over in the root's directories too."""
    (output := tmp_path / "output").mkdir()
    store = FilesystemObjectStore(output)
    frames: list[DataFrame] = []
    for name, codec in FORMATS.items():
        run_once(topic, store, pipeline_in(name, codec, max__file__records="3"))
        assert f"{name}/{TOPIC}/dt=2014-07-21/hr=22/_SUCCESS" in listed(store, f"{name}/")
        assert list(store.list(f"{name}/_tieredstore/kept/1/quarantine/"))
        frames.append(rows_of(reader(spark, name).load(str(output / name / TOPIC)), name))
        whole = reader(spark, name).option("recursiveFileLookup", "true").load(str(output / name))
        frames.append(rows_of(whole.withColumns({"dt": functions.lit(None), "hr": functions.lit(None)}), name))
    united = reduce(DataFrame.unionByName, frames).collect()
    rows = [(row["format"], row["dt"], row["hr"], bytes(row["value"])) for row in united]
    for name in FORMATS:
        in_topic = [(day, hour, value) for kind, day, hour, value in rows if kind == name and day is not None]
        assert sorted(in_topic) == expected_rows()
        in_root = [value for kind, day, _, value in rows if kind == name and day is None]
        assert sorted(in_root) == sorted(value for _, _, value in expected_rows())


def test_spark_reads_the_envelope_of_one_generation_beside_another(
    spark: SparkSession, topic: StoredTopic, tmp_path: Path
) -> None:
    (output := tmp_path / "output").mkdir()
    store = FilesystemObjectStore(output)
    run_once(topic, store, pipeline_in("parquet", "zstd"))
    run_once(topic, store, pipeline_in("parquet", "zstd", secor__generation="2"))
    folder = str(output / "parquet" / TOPIC)
    assert {key.rpartition("/")[2][0] for key in listed(store, "parquet/") if key.endswith(".parquet")} == {"1", "2"}
    second = spark.read.option("pathGlobFilter", "2_*").parquet(folder)
    (row, *others) = second.orderBy("offset").collect()
    assert [one.offset for one in others] == [offset for offset in range(1, RECORDS) if offset != BAD]
    assert (row.topic, row.partition, row.key, row.headers, row.hr) == (TOPIC, NUMBER, None, None, 22)
    assert row.timestamp.timestamp() * 1000 == FIRST_MS
    kafka = dict(second.dtypes)
    assert [kafka[name] for name in ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")] == [
        "binary", "binary", "string", "int", "bigint", "timestamp", "int",
    ]  # fmt: skip
    assert kafka["headers"] == "array<struct<key:string,value:binary>>"
