"""Pipelines' files, read by Spark's own sources as records and directory columns, without anything else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pa_parquet
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from tests.pipelines.filing.test_schema_parsers import AVRO, IDL, VALID, avro
from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed, pipeline_of, run_once, texts
from tests.support.records.protobuf_messages import EVENT, descriptor_set
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.pipelines import Pipeline
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.window_writing import write_window
from tieredstore.pipelines.writers import ENVELOPE
from tieredstore.testing.segments import Record, build_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOUR_MS = 3_600_000
FIRST_MS = 1_405_970_352_123 + 3 * HOUR_MS
"""2014-07-21T22:19:12.123Z"""
RECORDS = 6
BAD = 3
FORMATS = {"parquet": "snappy", "orc": "zstd", "json": "gzip", "text": "gzip"}
COLUMNS = {"json": "key STRING, value STRING, offset BIGINT", "text": "value STRING"}
"""Columns of formats without a schema."""


def value_of(offset: int) -> bytes:
    return b"bad" if offset == BAD else json.dumps({"n": offset, "timestamp": FIRST_MS + offset * HOUR_MS}).encode()


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    """Yield one record per hour; one is invalid JSON, and goes to the quarantine."""
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        records = [Record(value_of(offset), timestamp_ms=FIRST_MS + offset * HOUR_MS) for offset in range(RECORDS)]
        topic.copy(0, [build_batch(records, 0)])
        yield topic


def pipeline_in(name: str, codec: str, **changes: str) -> Pipeline:
    """Return a pipeline that marks all directories complete except the latest."""
    return pipeline_of(
        output__key__prefix=f"{name}/", secor__file__reader__writer__factory=name, secor__compression__codec=codec,
        secor__message__parser__class="json", partitioner__granularity__hour="true",
        pipeline__finalize="true", **changes,
    )  # fmt: skip


def rows_of(frame: DataFrame, name: str) -> DataFrame:
    """Return format, day, hour and value of each row; JSON has the bytes in base64."""
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
    """Spark ignores internal objects and sidecars, even when it reads the root's directories."""
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


# Untyped: the type stubs of these libraries are incomplete.
pq: Final[Any] = pa_parquet
dataset: Final[Any] = pa_dataset
sql: Final[Any] = duckdb.sql

ROWS: Final = 40
OFFSETS: Final = [*range(3000, 3000 + ROWS)]
DAY: Final = 1_405_970_352_123
PROPERTIES: Final[Mapping[str, Mapping[str, str]]] = {
    "offset": {},
    "daily-offset": {},
    "kafka-timestamp": {"partitioner.granularity.hour": "true"},
    "json": {"partitioner.granularity.minute": "true"},
    "iso8601": {},
    "date": {"message.timestamp.input.pattern": "yyyy/MM/dd HH:mm:ss"},
    "regex": {"message.timestamp.input.pattern": r"at=(\d+)"},
    "split-by-field": {"message.split.field.name": "k"},
    "messagepack": {},
    "avro": {},
    "avro-iso8601": {"message.timestamp.name": "meta.day"},
    "avro-split-by-field": {"message.split.field.name": "meta.day"},
    "protobuf": {"message.timestamp.name": "meta.millis"},
    "thrift": {"secor.thrift.message.class.t": "Event", "message.timestamp.name": "at"},
}
VALUES: Final = {
    **VALID,
    "json": json.dumps({"timestamp": DAY}).encode(),
    "avro-iso8601": avro(DAY, day="2014-07-21T19:19:12Z"),
}


def write(folder: Path, properties: Mapping[str, str], *values: bytes, topic: str = "t") -> Path:
    """Write the values as one window; assert that none is quarantined. Return the topic's directory."""
    pipeline = pipeline_of(**texts({"secor.offsets.per.partition": "10", "output.key.prefix": "", **properties}))
    store = FilesystemObjectStore(folder)
    messages = [values[row % len(values)] for row in range(ROWS)]
    window = BatchWindow(topic, "AAECAwQFBgcICQoLDA0ODw", 0, OFFSETS[0], OFFSETS[0] + ROWS)
    written, _ = write_window(window, iter([batch(messages)]), recipe_of(pipeline), store)
    assert not written.quarantined, properties
    for file in written.files:
        store.publish(file.prepared)
    return folder / topic


def batch(values: list[bytes]) -> Any:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.array([b"k"] * ROWS, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array([None] * ROWS, header),
        "offset": pa.array(OFFSETS, pa.int64()),
        "timestamp": pa.array([DAY] * ROWS, pa.int64()),
        "timestampType": pa.array([0] * ROWS, pa.int8()),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, str]]:
    """Return the files that parsers with schemas need."""
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "event.avsc").write_text(json.dumps(AVRO))
    (folder / "events.desc").write_bytes(descriptor_set())
    (folder / "events.thrift").write_text(IDL)
    by_avro = {"secor.avro.message.schema.t": str(folder / "event.avsc")}
    by_protobuf = {
        "protobuf.descriptor.set": str(folder / "events.desc"),
        "secor.protobuf.message.class.t": EVENT,
    }
    return {
        **dict.fromkeys(("avro", "avro-iso8601", "avro-split-by-field"), by_avro),
        "protobuf": by_protobuf,
        "thrift": {"thrift.idl": str(folder / "events.thrift")},
    }


Topics = tuple[str, dict[str, Path]]
ALL_FORMATS: Final = frozenset({"parquet", "orc", "avro", "json", "text"})
SHAPES: Final = ("offset", "daily-offset", "kafka-timestamp", "json", "split-by-field", "avro-split-by-field")
"""Parsers with different directory layouts. All other parsers file by time alone."""
FOLDERS: Final = {
    "offset": ["base_offset"],
    "daily-offset": ["dt", "base_offset"],
    "kafka-timestamp": ["dt", "hr"],
    "json": ["dt", "hr", "min"],
    "split-by-field": ["k", "dt"],
    "avro-split-by-field": ["meta.day", "dt"],
}


@pytest.fixture(scope="module", params=PROPERTIES)
def topics(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    schemas: Mapping[str, Mapping[str, str]],
) -> Topics:
    """Return a parser's topic directory for each format."""
    parser, value = request.param, VALUES.get(request.param, b"v")
    properties = {"secor.message.parser.class": parser, **PROPERTIES[parser], **schemas.get(parser, {})}
    folders: dict[str, Path] = {}
    for name in ALL_FORMATS if b"\n" not in value else ALL_FORMATS - {"text"}:
        how = {
            "secor.file.reader.writer.factory": name,
            **({"secor.compression.codec": "gzip"} if name == "avro" else {}),
        }
        folders[name] = write(tmp_path_factory.mktemp(name), {**properties, **how}, value)
    return parser, folders


def test_duckdb_polars_and_pyarrow_read_each_offset_once(topics: Topics) -> None:
    parser, folders = topics
    parquet, lines = folders["parquet"], f"{folders['json']}/**/*.json*"
    reads: dict[str, Any] = {
        "duckdb": sql(f"SELECT * FROM read_parquet('{parquet}/**/*.parquet')").to_arrow_table(),
        "duckdb, json": sql(f"SELECT * FROM read_json('{lines}')").to_arrow_table(),
        "polars": pl.scan_parquet(parquet).collect().to_arrow(),
        "polars, json": pl.scan_ndjson(lines).collect().to_arrow(),
        "polars, avro": pl.concat(pl.read_avro(file) for file in folders["avro"].glob("**/*.avro")).to_arrow(),
        "pyarrow": pq.read_table(parquet),
        "pyarrow, orc": dataset.dataset(folders["orc"], format="orc").to_table(),
    }
    for reader, table in reads.items():
        assert sorted(table.column("offset").to_pylist()) == OFFSETS, (parser, reader)
    assert {name for name in reads["pyarrow"].column_names if name not in ENVELOPE.names} == set(_folders(parser))


def _folders(parser: str) -> list[str]:
    return FOLDERS.get(parser, ["dt"])


def test_spark_reads_each_offset_once(spark: SparkSession, topics: Topics) -> None:
    parser, folders = topics
    for name in ("parquet", "orc", "json") if parser in SHAPES else ("parquet",):
        frame = spark.read.format(name).load(str(folders[name]))
        assert sorted(row.offset for row in frame.select("offset").collect()) == OFFSETS, (parser, name)
        assert frame.columns[-len(_folders(parser)) :] == _folders(parser)
    if "text" in folders and parser in SHAPES:
        frame = spark.read.text(str(folders["text"]))
        assert frame.count() == ROWS
        assert frame.columns == ["value", *_folders(parser)]
