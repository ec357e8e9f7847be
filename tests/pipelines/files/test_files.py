"""A window is written to prepared files; our files, Secor's files and damaged ones are read back."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.damage.hostile_schemas import LINKED, READER
from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed, pipeline_of, run_once, texts
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import CorruptDataError, ObjectNotFoundError
from tieredstore.pipelines.files.formats import Parquet, Text
from tieredstore.pipelines.filing.naming import Naming, Places
from tieredstore.pipelines.format_table import read_output
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.log.holdings import Committed
from tieredstore.pipelines.parsers import OffsetParser
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.source import query_of
from tieredstore.pipelines.run.window_writing import Recipe, write_window
from tieredstore.pipelines.upkeep.output_files import origins_of, place_of, read_records
from tieredstore.pipelines.writers import Format, JsonLines
from tieredstore.reading.survey import survey_logs

WINDOW = BatchWindow("events", "AAECAwQFBgcICQoLDA0ODw", 3, 0, 40)
ROWS: Sequence[dict[str, Any]] = [
    {"key": b"k", "value": b"one", "headers": [{"key": "h", "value": b"\x00"}, {"key": "h", "value": None}]},
    {"key": None, "value": None, "headers": None},
    {"key": b"", "value": b"", "headers": []},
    {"key": b"\xff", "value": b"\xff\x00", "headers": None},
    {"key": b"large", "value": b"v" * (1 << 20), "headers": None},
]


def batch(start: int = 0, rows: Sequence[dict[str, Any]] = ROWS) -> Any:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = [
        pa.array([row["key"] for row in rows], pa.binary()),
        pa.array([row["value"] for row in rows], pa.binary()),
        pa.array([row["headers"] for row in rows], header),
        pa.array(range(start, start + len(rows)), pa.int64()),
        pa.array([1_000 + start + number for number in range(len(rows))], pa.int64()),
        pa.array([0] * len(rows), pa.int8()),
    ]
    return pa.RecordBatch.from_arrays(
        columns, names=["key", "value", "headers", "offset", "timestamp", "timestampType"]
    )


def write(how: Format, *batches: Any, file_bytes: int = 1 << 30, file_records: int = 0) -> dict[str, bytes]:
    store = MemoryObjectStore()
    naming = Naming(Places(""), "p", 1, how.ending)
    recipe = Recipe(OffsetParser(), how, naming, file_bytes, file_records)
    window, _ = write_window(WINDOW, iter(batches), recipe, store)
    for file in window.files:
        store.publish(file.prepared)
    assert [info.key for info in store.list()] == sorted(file.key for file in window.files)
    return {file.key: store.get(file.key) for file in window.files}


def parquet_rows(data: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
    return rows


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd", "snappy"])
def test_parquet_has_the_whole_envelope(codec: str) -> None:
    ((key, data),) = write(Parquet(codec), batch()).items()
    assert key == f"events/base_offset=0/1_3_{0:020}.parquet"
    rows = parquet_rows(data)
    assert [{name: row[name] for name in ("key", "value", "headers")} for row in rows] == list(ROWS)
    assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [("events", 3, at) for at in range(5)]
    assert rows[0]["timestamp"].isoformat() == "1970-01-01T00:00:01+00:00"


def unpack(data: bytes, codec: str) -> bytes:
    if codec == "gzip":
        return gzip.decompress(data)
    return zstandard.ZstdDecompressor().decompressobj().decompress(data) if codec == "zstd" else data


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_json_has_a_line_a_record(codec: str) -> None:
    ((key, data),) = write(JsonLines(codec), batch()).items()
    assert key.endswith({"none": ".json", "gzip": ".json.gz", "zstd": ".json.zst"}[codec])
    rows = [json.loads(line) for line in unpack(data, codec).splitlines()]
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [base64.b64decode(row["value"]) if "value" in row else None for row in rows] == [r["value"] for r in ROWS]
    assert rows[0]["headers"] == [{"key": "h", "value": "AA=="}, {"key": "h", "value": None}]


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_text_has_the_values_and_a_file_beside_it_all_else(codec: str) -> None:
    files = write(Text(codec), batch())
    (data_key,) = (key for key in files if not key.endswith(".parquet"))
    folder, _, name = data_key.rpartition("/")
    assert unpack(files[data_key], codec).split(b"\n")[:-1] == [row["value"] or b"" for row in ROWS]
    beside = parquet_rows(files[f"{folder}/.{name}.parquet"])
    assert [(row["offset"], row["key"], row["is_null"]) for row in beside] == [
        (at, row["key"], row["value"] is None) for at, row in enumerate(ROWS)
    ]
    assert [row["headers"] for row in beside] == [row["headers"] for row in ROWS]


def test_a_value_with_the_delimiter_inside_is_put_aside_and_never_split() -> None:
    rows = [{"key": None, "value": value, "headers": None} for value in (b"one", b"two\nthree", b"four")]
    files = write(Text(), batch(rows=rows))
    (text,) = (data for key, data in files.items() if key.endswith(".txt"))
    assert text == b"one\nfour\n"
    (aside,) = (data for key, data in files.items() if "/quarantine/events/" in key)
    (bad,) = parquet_rows(aside)
    assert (bad["offset"], bad["value"]) == (1, b"two\nthree")
    assert "delimiter" in bad["reason"]


@pytest.mark.parametrize("how", [Parquet(), JsonLines("gzip"), Text("gzip")], ids=["parquet", "json", "text"])
def test_the_same_records_are_the_same_files_in_whatever_batches_they_come(how: Format) -> None:
    rows = [{"key": b"k", "value": b"v" * (number % 7), "headers": None} for number in range(40)]
    whole = batch(rows=rows)
    limits = {"file_bytes": 60, "file_records": 0}
    expected = write(how, whole, **limits)
    for cut in (1, 3, 17, 39):
        assert write(how, whole.slice(0, cut), whole.slice(cut), **limits) == expected
    assert write(how, *(whole.slice(number, 1) for number in range(40)), **limits) == expected


def test_a_file_ends_at_the_record_that_reaches_a_limit() -> None:
    rows = [{"key": None, "value": b"12345", "headers": None} for _ in range(7)]
    by_bytes = write(Parquet(), batch(rows=rows), file_bytes=11)
    assert [len(parquet_rows(data)) for data in by_bytes.values()] == [3, 3, 1]
    assert [int(key[-28:-8]) for key in by_bytes] == [0, 3, 6]
    by_number = write(Parquet(), batch(rows=rows), file_records=5)
    assert [len(parquet_rows(data)) for data in by_number.values()] == [5, 2]


def test_a_window_without_records_has_no_file() -> None:
    assert write(Parquet()) == {}


@pytest.mark.parametrize("values", [[b"a|", b"b"], [b"|"], [b"a||b"], [b"a|||"]])
def test_a_value_whose_end_begins_the_delimiter_is_put_aside(values: list[bytes]) -> None:
    how = Text("none", b"||")
    rows = batch(rows=[{"key": None, "value": value, "headers": None} for value in [*values, b"good", None]])
    assert list(how.faults(rows)) == [row for row, value in enumerate(values) if value != b"b"]


@given(st.lists(st.binary(max_size=6).map(lambda value: bytes(b"|ab"[byte % 3] for byte in value))))
def test_what_is_no_fault_is_read_back(values: list[bytes]) -> None:
    for delimiter in (b"|", b"||", b"|a|", b"aba"):
        how = Text("none", delimiter)
        rows: Any = batch(rows=[{"key": None, "value": value, "headers": None} for value in values])
        bad = how.faults(rows)
        good = [value for row, value in enumerate(values) if row not in bad]
        assert b"".join(value + delimiter for value in good).split(delimiter) == [*good, b""]


SMALL = pipeline_of(secor__max__file__size__bytes="9000")


def read(data: bytes, sidecar: bytes | None = None, delimiter: bytes = b"\n") -> list[dict[str, Any]]:
    beside = None if sidecar is None else io.BytesIO(sidecar)
    batches: list[Any] = list(read_output(io.BytesIO(data), "a file", sidecar=beside, delimiter=delimiter))
    return [row for one in batches for row in one.to_pylist()]


@pytest.mark.parametrize(
    "how",
    [Parquet(), JsonLines("none"), JsonLines("gzip"), JsonLines("zstd"), Text("none"), Text("gzip"), Text("zstd")],
    ids=lambda how: f"{how.name}-{how.codec}",
)
def test_every_format_is_read_as_it_was_written(how: Format) -> None:
    files = write(how, batch())
    data, *beside = sorted(files.items(), key=lambda item: item[0].rpartition("/")[2].startswith("."))
    rows = read(data[1], beside[0][1] if beside else None)
    assert [{name: row[name] for name in ("key", "value", "headers")} for row in rows] == list(ROWS)
    assert [(row["offset"], row["timestamp"]) for row in rows] == [(at, 1_000 + at) for at in range(5)]


def test_files_of_others_are_values_alone() -> None:
    rows = read(gzip.compress(b'{"a": 1}\nplain\n'))
    assert [(row["offset"], row["value"]) for row in rows] == [(None, b'{"a": 1}'), (None, b"plain")]
    assert [row["value"] for row in read(b"one||two||", delimiter=b"||")] == [b"one", b"two"]


@pytest.mark.parametrize("how", [Parquet(), JsonLines("gzip"), Text("zstd")], ids=lambda how: how.name)
def test_a_file_that_breaks_off_is_damaged(how: Format) -> None:
    files = write(how, batch())
    data = next(content for key, content in files.items() if not key.rpartition("/")[2].startswith("."))
    for stop in (len(data) // 2, len(data) - 1):
        with pytest.raises(CorruptDataError, match="a file is damaged"):
            read(data[:stop])


@pytest.mark.parametrize("name", ["offset", "timestamp", "key", "headers", "is_null"])
def test_a_sidecar_without_a_column_is_damaged(name: str) -> None:
    files = write(Text("none"), batch())
    data, beside = sorted(files.values(), key=lambda content: content.startswith(b"PAR1"))
    table = pq.read_table(io.BytesIO(beside)).drop_columns([name])
    pq.write_table(table, sidecar := io.BytesIO())
    with pytest.raises(CorruptDataError, match="a file is damaged"):
        read(data, sidecar.getvalue())


def test_a_file_of_avro_whose_data_have_no_bound_is_not_decoded() -> None:
    for schema, row in ((LINKED, {"id": 7, "r": None}), (READER, {"id": 7})):
        file = io.BytesIO()
        fastavro.writer(file, fastavro.parse_schema(schema), [row])
        if schema is READER:
            assert len(read(file.getvalue())) == 1
        else:
            with pytest.raises(CorruptDataError, match="a file is damaged"):
                read(file.getvalue())


def test_text_and_what_lies_beside_it_have_to_agree() -> None:
    files = write(Text(), batch())
    (text,) = (content for key, content in files.items() if key.endswith(".txt"))
    (beside,) = (content for key, content in files.items() if key.endswith(".parquet"))
    for other in (text + b"more\n", text[: text.index(b"\n") + 1]):
        with pytest.raises(CorruptDataError):
            read(other, beside)


def test_records_are_printed_with_what_lies_beside_text(topic: StoredTopic) -> None:
    store, pipeline = MemoryObjectStore(), pipeline_of(**texts({"secor.file.reader.writer.factory": "text"}))
    run_once(topic, store, pipeline)
    (key,) = (one for one in listed(store) if one.endswith(".txt.zst"))
    rows: list[Any] = [row for one in read_records(pipeline, store, key) for row in one.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(300))
    folder, _, name = key.rpartition("/")
    store.delete([f"{folder}/.{name}.parquet"])
    rows = [row for one in read_records(pipeline, store, key) for row in one.to_pylist()]
    assert len(rows) == 300
    assert {row["offset"] for row in rows} == {None}


def test_what_a_file_came_from_is_told_with_all_that_holds_it_raw(topic: StoredTopic) -> None:
    store, kept = MemoryObjectStore(), MemoryObjectStore()
    run_once(topic, store, SMALL)
    backup = pipeline_of(pipeline__name="backup", max__file__records="60")
    run_once(topic, kept, backup)
    key = listed(store)[-1]
    snapshot = survey_logs(topic.manager, query_of(SMALL))
    (origin,) = origins_of(SMALL, store, [key], snapshot=snapshot, backups=[Committed.of(commit_log_of(backup, kept))])
    assert (origin.topic, origin.partition, origin.first, origin.last) == (TOPIC, NUMBER, int(key[-28:-8]), 299)
    assert origin.committed
    assert origin.backups == tuple(one for one in listed(kept) if int(one[-28:-8]) + 59 >= origin.first)
    assert [name.partition("-")[0] for name in origin.segments] == [f"{200:020}"] if origin.first >= 200 else True
    assert origin.segments


def test_secors_files_are_told_by_their_names() -> None:
    store = MemoryObjectStore()
    keys = [f"out/events/dt=2024-01-{day:02}/1_0_{first:020}.gz" for day, first in ((1, 0), (2, 0), (3, 40))]
    for key in [*keys, f"out/events/dt=2024-01-01/1_1_{7:020}.gz", f"out/events/dt=2024-01-01/2_0_{8:020}.gz"]:
        store.put(key, b"")
    origins = list(origins_of(SMALL, store, keys))
    assert [(one.first, one.last, one.committed) for one in origins] == [
        (0, 39, False),
        (0, 39, False),
        (40, None, False),
    ]
    with pytest.raises(ObjectNotFoundError, match="does not exist"):
        list(origins_of(SMALL, store, [f"out/events/dt=2024-01-09/1_0_{0:020}.gz"]))
    for key in ("out/events/other", f"elsewhere/events/1_0_{0:020}", f"out/1_0_{0:020}"):
        with pytest.raises(ObjectNotFoundError, match="not named like an output file of Secor"):
            place_of(Places("out/"), key)
    assert place_of(Places("out/"), f"out/_tieredstore/kept/1/quarantine/events/1_4_{0:020}.r2.parquet") == (
        "events",
        4,
    )
