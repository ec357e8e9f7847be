"""Output files read back, and where their records came from."""

from __future__ import annotations

import gzip
import io
from typing import Any

import fastavro
import pytest

from tests.pipelines.files.test_files import ROWS, batch, write
from tests.support.damage.hostile_schemas import LINKED, READER
from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed, pipeline_of, run_once, texts
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import CorruptData, ObjectNotFound
from tieredstore.pipelines.files.container_formats import Parquet
from tieredstore.pipelines.files.text_format import Text
from tieredstore.pipelines.filing.naming import Places
from tieredstore.pipelines.format_table import read_output
from tieredstore.pipelines.run.selection import query_of
from tieredstore.pipelines.upkeep.origins import Backup, origins_of, place_of
from tieredstore.pipelines.upkeep.output_files import read_records
from tieredstore.pipelines.writers import Format, JsonLines
from tieredstore.reading.survey import survey_logs

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
        with pytest.raises(CorruptData, match="a file cannot be read"):
            read(data[:stop])


def test_a_file_of_avro_whose_data_have_no_bound_is_not_decoded() -> None:
    avro: Any = fastavro
    for schema, row in ((LINKED, {"id": 7, "r": None}), (READER, {"id": 7})):
        file = io.BytesIO()
        avro.writer(file, avro.parse_schema(schema), [row])
        if schema is READER:
            assert len(read(file.getvalue())) == 1
        else:
            with pytest.raises(CorruptData, match="a file cannot be read"):
                read(file.getvalue())


def test_text_and_what_lies_beside_it_have_to_agree() -> None:
    files = write(Text(), batch())
    (text,) = (content for key, content in files.items() if key.endswith(".txt"))
    (beside,) = (content for key, content in files.items() if key.endswith(".parquet"))
    for other in (text + b"more\n", text[: text.index(b"\n") + 1]):
        with pytest.raises(CorruptData):
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
    (origin,) = origins_of(SMALL, store, [key], snapshot=snapshot, backups=[Backup.of(backup, kept)])
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
    with pytest.raises(ObjectNotFound, match="is not there"):
        list(origins_of(SMALL, store, [f"out/events/dt=2024-01-09/1_0_{0:020}.gz"]))
    for key in ("out/events/other", f"elsewhere/events/1_0_{0:020}", f"out/1_0_{0:020}"):
        with pytest.raises(ObjectNotFound, match="Secor's"):
            place_of(Places("out/"), key)
    assert place_of(Places("out/"), f"out/_tieredstore/kept/1/quarantine/events/1_4_{0:020}.r2.parquet") == (
        "events",
        4,
    )
