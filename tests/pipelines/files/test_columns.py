"""Values decoded to columns next to ``kafka``: complete, deterministic, and lossless."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as arrow_orc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.files.test_files import WINDOW, batch, parquet_rows, read, write
from tests.support.network.schema_registry_server import framed, written
from tests.support.pipelines.pipeline_runs import pipeline_of, texts
from tests.support.records.protobuf_messages import EVENT, descriptor_set, event
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, RegistryUnavailableError
from tieredstore.pipelines.files.columns import Columns, FrameColumns, OfOneSchema, OfRegistry
from tieredstore.pipelines.files.formats import AvroContainer, Orc, Parquet
from tieredstore.pipelines.filing.naming import Naming, Places
from tieredstore.pipelines.filing.schemas import Schemas
from tieredstore.pipelines.format_table import format_of
from tieredstore.pipelines.parsers import MessageParser
from tieredstore.pipelines.run.recipes import fingerprint_of
from tieredstore.pipelines.run.window_writing import Recipe, write_window
from tieredstore.pipelines.writers import Format, JsonLines
from tieredstore.values.ddl import parse_ddl
from tieredstore.values.unmapped_json import UnmappedFields

DDL = "id BIGINT, at TIMESTAMP, who STRUCT<name: STRING, age: INT>, tags ARRAY<STRING>, price DECIMAL(10,2)"
V1 = {"type": "record", "name": "Event", "fields": [
    {"name": "id", "type": "int"},
    {"name": "old", "type": "string"},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
    {"name": "who", "type": {"type": "record", "name": "Who", "fields": [{"name": "name", "type": "string"}]}},
]}  # fmt: skip
V2 = {"type": "record", "name": "Event", "fields": [
    {"name": "id", "type": "long"},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "who", "type": ["null", {"type": "record", "name": "Who", "fields": [
        {"name": "name", "type": "string"}, {"name": "age", "type": "int", "default": 7}]}]},
    {"name": "score", "type": "double"},
    {"name": "more", "type": {"type": "map", "values": "Who"}, "default": {}},
]}  # fmt: skip
SCHEMAS: dict[int, Any] = {
    1: V1, 2: V2,
    3: {"type": "record", "name": "Other", "fields": [{"name": "id", "type": "int"}]},
    4: {"type": "record", "name": "Event", "fields": [{"name": "id", "type": "string"}]},
    5: "string",
    6: {"type": "record", "name": "Event", "fields": [{"name": "kafka", "type": "int"}]},
    7: {"type": "record", "name": "Event", "fields": [{"name": "id", "type": ["int", "string"]}]},
}  # fmt: skip


def json_columns(inner: Format, ddl: str = DDL) -> Columns:
    return OfOneSchema(inner, Schemas(ddl=(("*", ddl),)), "json")


def registry_columns(inner: Format) -> Columns:
    return OfRegistry(inner, SCHEMAS.__getitem__)


def values(messages: Sequence[bytes | None], start: int = 0) -> Any:
    return batch(start, [{"key": b"k", "value": message, "headers": None} for message in messages])


def data_and_reasons(how: Format, messages: Sequence[bytes | None]) -> tuple[bytes, dict[int, str]]:
    """Return the content of the only data file, and the reasons for rejected messages by offset."""
    files = write(how, values(messages))
    aside = [content for key, content in files.items() if key.startswith("_tieredstore")]
    (data,) = [content for key, content in files.items() if not key.startswith("_tieredstore")] or [b""]
    return data, {row["offset"]: row["reason"] for content in aside for row in parquet_rows(content)}


def rows_of(how: Format, messages: Sequence[bytes | None]) -> list[dict[str, Any]]:
    data, reasons = data_and_reasons(how, messages)
    assert not reasons
    return parquet_rows(data)


def test_json_by_a_schema_with_the_rest_as_text() -> None:
    first = b'{"id": 7, "at": "2014-07-21T19:19:12Z", "price": "1.10", "x": 1.10, "who": {"name": "a", "y": [1e5]}}'
    rows = rows_of(json_columns(Parquet()), [first, None, b"{}"])
    assert rows[0] == {
        "id": 7, "at": datetime(2014, 7, 21, 19, 19, 12, tzinfo=UTC), "who": {"name": "a", "age": None}, "tags": None,
        "price": Decimal("1.10"), "_rest": '{"x":1.10,"who":{"y":[1e5]}}',
        "kafka": {"offset": 0, "partition": 3, "timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "key": b"k",
                  "headers": None},
    }  # fmt: skip
    for row in rows[1:]:
        assert [row[name] for name in ("id", "at", "who", "tags", "price", "_rest")] == [None] * 6
    assert [row["kafka"]["offset"] for row in rows] == [0, 1, 2]


def test_messages_that_are_no_object_of_the_schema_are_aside_whole() -> None:
    bad = [b"", b"null", b"[]", b"{", b'{"id": "x"}', b'{"id": 1.5}', b'{"id": 1, "id": 2}', b'{"x": 1, "x": 2}',
           b"\xff", b"{} {}", b'{"who": {"name": "a", "name": "b"}}', b'{"tags": "t"}', b"[" * 100_000,
           b'{"x": ' + b"[" * 100_000]  # fmt: skip
    data, reasons = data_and_reasons(json_columns(Parquet()), [b'{"id": 1}', *bad])
    assert sorted(reasons) == list(range(1, len(bad) + 1))
    assert set(reasons.values()) <= {
        "its value does not match the topic's JSON schema", "its value is not a JSON object, or has a field twice",
    }  # fmt: skip
    assert [row["id"] for row in parquet_rows(data)] == [1]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    st.dictionaries(st.text(max_size=4), json_values, max_size=4),
    st.booleans(),
    st.integers(0, 3).map(lambda width: width or None),
)
def test_no_field_is_lost(extra: dict[str, Any], is_ascii: bool, indent: int | None) -> None:
    rest = UnmappedFields(parse_ddl(DDL))
    content = {"id": 1, "who": {"name": "n"}, "tags": ["t"], **{f"+{name}": one for name, one in extra.items()}}
    text = rest.of(json.dumps(content, ensure_ascii=is_ascii, indent=indent))
    assert json.loads(text or "{}") == {name: one for name, one in content.items() if name.startswith("+")}


def test_lists_of_objects_with_more_stay_whole() -> None:
    rest = UnmappedFields(parse_ddl("l ARRAY<STRUCT<a: INT>>"))
    assert rest.of('{"l": [{"a": 1}, {"a": 2}]}') is None
    assert rest.of('{"l": [{"a": 1}, {"a": 2, "b": 3}]}') == '{"l":[{"a": 1}, {"a": 2, "b": 3}]}'


def v1(number: int) -> bytes:
    return framed(1, written(V1, {"id": number, "old": "o", "kind": "A", "who": {"name": "w"}}))


def v2(number: int) -> bytes:
    who = None if number % 4 == 1 else {"name": "w", "age": 9}
    more = {"x": {"name": "m", "age": 1}}
    return framed(2, written(V2, {"id": number, "kind": "B", "who": who, "score": 0.5, "more": more}))


def alternating(count: int) -> list[bytes | None]:
    return [v2(at) if at % 2 else v1(at) for at in range(count)]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_two_versions_of_a_schema_that_alternate_are_one_file(is_reversed: bool) -> None:
    messages = alternating(8)[:: -1 if is_reversed else 1]
    rows = rows_of(registry_columns(Parquet()), [*messages, None])
    for offset, row in enumerate(rows[:-1]):
        number = 7 - offset if is_reversed else offset
        is_second = number % 2 == 1
        who = None if number % 4 == 1 else {"name": "w", "age": 9 if is_second else 7}
        assert {name: row[name] for name in row if name != "kafka"} == {
            "id": number, "old": None if is_second else "o", "kind": "B" if is_second else "A", "who": who,
            "score": 0.5 if is_second else None,
            "more": [("x", {"name": "m", "age": 1})] if is_second else [],
        }  # fmt: skip
        assert row["kafka"]["offset"] == offset
    assert [rows[-1][name] for name in rows[-1] if name != "kafka"] == [None] * 6


@pytest.mark.parametrize("nullable", [(True, True), (True, False), (False, True)])
def test_versions_of_a_record_that_may_be_null_keep_the_fields_of_both(nullable: tuple[bool, bool]) -> None:
    first, second = (["null", one] if is_nullable else one for one, is_nullable in zip((V1, V2), nullable, strict=True))
    messages = [
        framed(1, written(first, {"id": 0, "old": "o", "kind": "A", "who": {"name": "w"}})),
        framed(2, written(second, {"id": 1, "kind": "B", "who": None, "score": 0.5, "more": {}})),
    ]
    rows = rows_of(OfRegistry(Parquet(), {1: first, 2: second}.__getitem__), messages)
    assert [(row["old"], row["score"]) for row in rows] == [("o", None), (None, 0.5)]


class ByKey(MessageParser):
    def parts(self, key: bytes | None, value: bytes | None, timestamp_ms: int, offset: int) -> list[tuple[str, str]]:
        return [("k=", (key or b"").decode())]


def test_versions_that_alternate_in_several_directories_are_one_file_a_directory() -> None:
    messages = alternating(24)
    # In each of three directories, pairs of messages of both versions alternate.
    rows = [{"key": b"%d" % (at // 2 % 3), "value": message, "headers": None} for at, message in enumerate(messages)]
    for batches in ([batch(0, rows)], [batch(at, rows[at : at + 1]) for at in range(24)]):
        store = MemoryObjectStore()
        naming = Naming(Places(""), "p", 1, ".parquet")
        how = registry_columns(Parquet())
        window, reasons = write_window(WINDOW, batches, Recipe(ByKey(), how, naming, 1 << 30, 0), store)
        for file in window.files:
            store.publish(file.prepared)
        assert reasons == {}
        assert [file.key for file in window.files] == [f"events/k={at}/1_3_{2 * at:020}.parquet" for at in range(3)]
        for number, file in enumerate(window.files):
            read_rows = parquet_rows(store.get(file.key))
            assert [row["id"] for row in read_rows] == [at for at in range(24) if at // 2 % 3 == number]
            assert [row["kind"] for row in read_rows] == ["A", "B"] * 4
            assert [row["score"] for row in read_rows] == [None, 0.5] * 4


def test_a_value_of_a_schema_that_cannot_be_united_is_aside() -> None:
    messages = [
        v1(1), framed(3, written(SCHEMAS[3], {"id": 1})), framed(4, written(SCHEMAS[4], {"id": "x"})),
        framed(5, b"\x02x"), framed(6, b"\x02"), framed(7, b"\x00\x02"), framed(99, b""), b"plain", v1(2)[:-1], v2(3),
        v1(4) + b"!",
    ]  # fmt: skip
    data, reasons = data_and_reasons(registry_columns(Parquet()), messages)
    assert [row["id"] for row in parquet_rows(data)] == [1, 3]
    assert sorted(reasons) == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    expected = {1: "cannot be merged", 2: "cannot be merged", 3: "no columns", 4: "use themselves", 5: "union"}
    assert [words for offset, words in expected.items() if words not in reasons[offset]] == []
    assert reasons[6] == "the registry does not have its schema"


def test_files_of_null_values_alone_have_no_column_but_kafkas() -> None:
    (row,) = rows_of(registry_columns(Parquet()), [None])
    assert set(row) == {"kafka"}


def test_a_registry_that_is_away_is_asked_no_more_for_files_that_nobody_will_read() -> None:
    asked: list[int] = []

    def lookup(number: int) -> Any:
        asked.append(number)
        if number == 2:
            raise RegistryUnavailableError("away")
        return SCHEMAS[number]

    with pytest.raises(RegistryUnavailableError):
        write(OfRegistry(Parquet(), lookup), values([v1(0)]), values([v2(1)], start=1))
    assert asked[-1] == 2


INNER = [Parquet("zstd"), Orc("zstd"), AvroContainer("gzip"), JsonLines("gzip")]


@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner.name)
@pytest.mark.parametrize("kind", ["json", "registry"])
def test_the_same_records_become_the_same_bytes_however_they_come(inner: Format, kind: str) -> None:
    how = pickle.loads(pickle.dumps(json_columns(inner))) if kind == "json" else registry_columns(inner)
    some = [b'{"id": %d, "x": 1}' % at for at in range(9)]
    messages = alternating(9) if kind == "registry" else some
    whole = write(how, values(messages))
    for cut in (1, 4):
        assert write(how, values(messages[:cut]), values(messages[cut:], start=cut)) == whole


@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner.name)
def test_columns_are_read_by_others_and_back(inner: Format) -> None:
    data, _ = data_and_reasons(registry_columns(inner), alternating(4))
    match inner.name:
        case "parquet":
            rows = parquet_rows(data)
        case "orc":
            rows = arrow_orc.ORCFile(io.BytesIO(data)).read().to_pylist()
        case "avro":
            avro: Any = fastavro
            rows = list(avro.reader(io.BytesIO(data)))
        case _:
            rows = []
    if rows:
        assert [row["id"] for row in rows] == [0, 1, 2, 3]
        assert [row["kafka"]["offset"] for row in rows] == [0, 1, 2, 3]
    records = read(data)
    if inner.name == "json":
        assert [json.loads(row["value"])["kafka"]["offset"] for row in records] == [0, 1, 2, 3]
    else:
        assert [row["offset"] for row in records] == [0, 1, 2, 3]
        assert [row["timestamp"] for row in records] == [1000, 1001, 1002, 1003]
    assert [json.loads(row["value"])["id"] for row in records] == [0, 1, 2, 3]


OUT_OF_RANGE = "a time of its value is not within the years 1 to 9999"


@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner.name)
def test_a_message_with_a_time_that_the_format_cannot_hold_is_bad(inner: Format) -> None:
    how = json_columns(inner, "at TIMESTAMP, who STRUCT<born: DATE>, times ARRAY<TIMESTAMP>")
    good = b'{"at": "9999-12-31T23:59:59Z", "who": {"born": -719162}, "times": [null, "0001-01-01T00:00:00Z"]}'
    odd = [
        b'{"at": "9999-12-31T23:59:59-05:00"}',
        b'{"who": {"born": 2932897}}',
        b'{"times": ["2000-01-01T00:00:00Z", "0000-06-01T00:00:00Z"]}',
    ]
    _, reasons = data_and_reasons(how, [good, *odd, good])
    assert reasons == dict.fromkeys((1, 2, 3) if inner.name in ("avro", "json") else (), OUT_OF_RANGE)


@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner.name)
def test_a_frames_row_with_a_time_that_the_format_cannot_hold_is_bad(inner: Format) -> None:
    own = pa.schema([pa.field("seen", pa.map_(pa.string(), pa.timestamp("us", "UTC")))])
    seen = pa.array([[("a", 0)], None, [("a", 0), ("b", 2**60)]], own.field("seen").type)
    _, faults = FrameColumns(inner, own).decode(values([b"1", b"2", b"3"]).append_column("seen", seen))
    assert faults == ({2: OUT_OF_RANGE} if inner.name in ("avro", "json") else {})


def test_messages_of_protobuf() -> None:
    schemas = Schemas(descriptor_set=descriptor_set(), messages=(("events", EVENT),))
    full = event(id=2**63, at=1_405_970_352_123, name="", kind="CLICK", tags=["a", "b"], counts={"y": 2, "x": 1},
                 meta={"millis": 5, "small": 2**32 - 1}, body="AAE=")  # fmt: skip
    how = OfOneSchema(Parquet(), schemas, "protobuf")
    data, reasons = data_and_reasons(how, [full, event(), None, b"\xff"])
    rows = [{name: row[name] for name in row if name != "kafka"} for row in parquet_rows(data)]
    assert rows[0] == {
        "id": 2**63, "at": datetime(2014, 7, 21, 19, 19, 12, 123_000, tzinfo=UTC), "name": "", "kind": "CLICK",
        "tags": ["a", "b"], "meta": {"millis": 5, "small": 2**32 - 1}, "counts": [("x", 1), ("y", 2)],
        "body": b"\x00\x01",
    }  # fmt: skip
    assert rows[1] == {"id": 0, "at": None, "name": None, "kind": "NONE", "tags": [], "meta": None, "counts": [],
                       "body": b""}  # fmt: skip
    assert list(rows[2].values()) == [None] * 8
    assert list(reasons) == [3]
    for message, words in (
        ("events.Tree", "contains itself"),
        ("events.Empty", "no field"),
        ("events.No", "lacks the message"),
    ):
        broken = Schemas(descriptor_set=descriptor_set(), messages=(("events", message),))
        with pytest.raises(ConfigError, match=words):
            write(OfOneSchema(Parquet(), broken, "protobuf"), values([full]))


def test_secors_classes_stand_for_a_format_and_its_columns() -> None:
    orc = {
        "secor.file.reader.writer.factory": "com.pinterest.secor.io.impl.JsonORCFileReaderWriterFactory",
        "secor.orc.message.schema.events": "struct<id:bigint,tags:array<string>>",
    }
    pipeline = pipeline_of(**texts(orc))
    how = format_of(pipeline.own, pipeline.schemas)
    assert isinstance(how, Columns)
    assert how.ending == ".orc"
    assert write(how, values([b'{"id": 1}']))
    own = {"json.schema.events": "id BIGINT, tags ARRAY<STRING>", "secor.file.reader.writer.factory": "orc"}
    changed = pipeline_of(**texts({**own, "columns": "json", "json.schema.events": "id INT"}))
    assert fingerprint_of(changed.own) != fingerprint_of(pipeline.own)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"columns": "json"}, "set json.schema.TOPIC"),
        ({"columns": "avro"}, "set schema.registry.url"),
        ({"columns": "protobuf"}, r"secor\.protobuf\.message\.class"),
        (
            {"columns": "json", "json.schema.t": "a INT", "secor.file.reader.writer.factory": "text"},
            "cannot be in text files",
        ),
        ({"json.schema.t": "a MAP<STRING, INT>"}, "map"),
        ({"json.schema.t": "a"}, "missing"),
        ({"json.schema.t": "a INT, a INT"}, "twice"),
        ({"json.schema.t": "a INT; DROP"}, "not valid DDL"),
        ({"json.schema.t": "a DECIMAL(50,2)"}, "decimal"),
        ({"json.schema.t": "a " + "ARRAY<" * 50}, "nested"),
        ({"json.schema.t": "struct<a:int"}, "missing"),
        ({"json.schema.t": "a INT)"}, "not valid DDL"),
    ],
)
def test_values_that_cannot_be_columns_are_refused_at_the_start(properties: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pipeline_of(**texts(properties))


def test_names_that_are_the_pipelines_or_none_of_the_format_are_refused() -> None:
    for ddl in ("kafka INT", "_rest STRING"):
        with pytest.raises(ConfigError, match="use themselves"):
            write(json_columns(Parquet(), ddl), values([b"{}"]))
    with pytest.raises(ConfigError, match="cannot be"):
        write(json_columns(AvroContainer("gzip"), "`a-b` INT"), values([b"{}"]))


def test_ddl_is_read_as_spark_and_hive_write_it() -> None:
    spark: Any = parse_ddl(
        "`a b` INT NOT NULL COMMENT 'it''s', c: struct<d:array<double>>, e VARCHAR(10), f NUMERIC(5, 1)"
    )
    assert [(one.name, str(one.type)) for one in spark] == [
        ("a b", "int32"), ("c", "struct<d: list<item: double>>"), ("e", "string"), ("f", "decimal128(5, 1)"),
    ]  # fmt: skip
    assert parse_ddl("struct<a:int,b:string>") == parse_ddl("a INT, b STRING")
    assert parse_ddl("struct INT").names == ["struct"]
