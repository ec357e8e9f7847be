"""Parsers of values that are of a schema: Avro, Protocol Buffers, Thrift. What has no usable time is bad."""

from __future__ import annotations

import importlib
import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.filing.test_filing import DAY, filed, records
from tests.support.network.key_services import serving
from tests.support.network.schema_registry_server import RegistryService, framed, written
from tests.support.pipelines.pipeline_runs import pipeline_of, texts
from tests.support.records.protobuf_messages import EVENT, descriptor_set, event
from tieredstore.errors import ConfigError
from tieredstore.pipelines.parser_table import parser_of
from tieredstore.pipelines.parsers import Parser
from tieredstore.pipelines.run.recipes import fingerprint_of
from tieredstore.values.thrift import Protocol, thrift_field

SECORS = "com.pinterest.secor.parser"
ON_THE_DAY = "dt=2014-07-21"
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "timestamp", "type": ["null", "long", "string"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}], "default": None},
        {"name": "meta", "type": {"type": "record", "name": "Meta", "fields": [{"name": "day", "type": "string"}]},
         "default": {"day": ""}},
    ],
}  # fmt: skip
IDL = """
struct Meta { 1: string name, 7: i64 at }
struct Event { 1: i64 at, 3: Meta meta, 4: list<map<string, i32>> tags, 5: bool b, 6: double d }
"""


def parser(topic: str = "t", **properties: str) -> Parser:
    pipeline = pipeline_of(**texts(properties))
    how: Parser = pickle.loads(pickle.dumps(parser_of(pipeline.own, pipeline.schemas)))
    return how.for_topic(topic)


@pytest.fixture
def avro_file(tmp_path: Path) -> str:
    (tmp_path / "event.avsc").write_text(json.dumps(AVRO))
    return str(tmp_path / "event.avsc")


@pytest.fixture
def protobuf_file(tmp_path: Path) -> str:
    (tmp_path / "events.desc").write_bytes(descriptor_set())
    return str(tmp_path / "events.desc")


@pytest.fixture
def registry() -> Iterator[RegistryService]:
    service = RegistryService()
    with serving(service):
        yield service


def avro(timestamp: object, at: int | None = None, day: str = "") -> bytes:
    return written(AVRO, {"timestamp": timestamp, "at": at, "meta": {"day": day}})


@pytest.mark.parametrize(
    ("properties", "message", "directory"),
    [
        ({}, avro(DAY), ON_THE_DAY),
        ({}, avro(DAY * 1_000_000), ON_THE_DAY),
        ({}, avro(str(DAY)), ON_THE_DAY),
        ({"message.timestamp.name": "at"}, avro(None, at=DAY * 1000), ON_THE_DAY),
        # Of a logical type the unit is known: in 1971, and not in 2970.
        ({"message.timestamp.name": "at"}, avro(None, at=31_536_000_000_000), "dt=1971-01-01"),
        ({"secor.message.parser.class": "avro-iso8601", "message.timestamp.name": "meta/day",
          "message.timestamp.name.separator": "/"}, avro(None, day="2014-07-21T00:00"), ON_THE_DAY),
        ({"secor.message.parser.class": f"{SECORS}.AvroSplitByFieldMessageParser",
          "message.split.field.name": "meta.day"}, avro(DAY, day="../x"), f"meta.day=..%2Fx/{ON_THE_DAY}"),
        ({}, avro(None), None),
        ({}, avro("soon"), None),
        ({}, avro(0), None),
        ({"message.timestamp.name": "no"}, avro(DAY), None),
        ({"message.timestamp.name": "timestamp.no"}, avro(DAY), None),
        ({}, avro(DAY) + b"!", None),
        ({}, avro(DAY)[:-1], None),
        ({}, b"", None),
    ],
)  # fmt: skip
def test_avro_by_a_file(avro_file: str, properties: dict[str, str], message: bytes, directory: str | None) -> None:
    how = parser(**{
        "secor.message.parser.class": f"{SECORS}.AvroMessageParser", "secor.avro.message.schema.t": avro_file,
        **properties,
    })  # fmt: skip
    assert filed(how, records(message, None)) == [directory, None]


def test_avro_by_a_registry(registry: RegistryService) -> None:
    first = registry.register("t-value", AVRO)
    other = registry.register("t-value", {**AVRO, "fields": AVRO["fields"][:1]})
    how = parser(**{"secor.message.parser.class": "avro", "schema.registry.url": registry.url})
    datum = avro(DAY)
    batch = records(framed(first, datum), framed(other, avro(DAY)[:-2]), framed(77, datum), datum, b"\0\0", b"")
    assert filed(how, batch) == [ON_THE_DAY, ON_THE_DAY, None, None, None, None]


def test_protobuf_by_a_descriptor_set(protobuf_file: str) -> None:
    properties = {
        "secor.message.parser.class": f"{SECORS}.ProtobufMessageParser",
        "secor.protobuf.message.class.*": EVENT,
        "protobuf.descriptor.set": protobuf_file,
    }
    messages = records(event(id=DAY, at=DAY, meta={"millis": DAY}), event(), event(id=5), b"\xff", b"\x08", None)
    # Where the settings name none it is the first uint64, as Secor has it: that of 5 is in 1970, and told.
    assert filed(parser(**properties), messages) == [ON_THE_DAY, None, "dt=1970-01-01", None, None, None]
    for name in ("at", "meta.millis"):
        how = parser(**properties, **{"message.timestamp.name": name})
        assert filed(how, messages) == [ON_THE_DAY, None, None, None, None, None]
    for name in ("no", "tags", "meta.no", "id.no"):
        with pytest.raises(ConfigError, match="field"):
            parser(**properties, **{"message.timestamp.name": name})
    with pytest.raises(ConfigError, match="nothing says which message"):
        parser("other", **{**properties, "secor.protobuf.message.class.t": EVENT, "secor.protobuf.message.class.*": ""})


def thrift(protocol: Protocol, spec: str = "Event", **fields: Any) -> bytes:
    """As thriftpy2 writes it."""
    thriftpy2: Any = importlib.import_module("thriftpy2")
    module = thriftpy2.load_fp(io.StringIO(IDL), "events_thrift")
    factory = importlib.import_module("thriftpy2.protocol")
    protocols: Any = {"binary": factory.TBinaryProtocolFactory, "compact": factory.TCompactProtocolFactory}
    if "meta" in fields:
        fields["meta"] = module.Meta(**fields["meta"])
    data: bytes = importlib.import_module("thriftpy2.utils").serialize(
        getattr(module, spec)(**fields), protocols[protocol]()
    )
    return data


FIELDS: dict[str, Any] = {"tags": [{"a": 1, "b": -2}, {}], "b": True, "d": 0.5}


@pytest.mark.parametrize("protocol", ["binary", "compact"])
def test_thrift_by_field_id_and_by_idl(protocol: Protocol, tmp_path: Path) -> None:
    (tmp_path / "events.thrift").write_text(IDL)
    kinds = {"binary": "org.apache.thrift.protocol.TBinaryProtocol", "compact": "compact"}
    properties = {
        "secor.message.parser.class": f"{SECORS}.ThriftMessageParser", "secor.thrift.protocol.class": kinds[protocol],
    }  # fmt: skip
    top, inner = thrift(protocol, at=DAY, **FIELDS), thrift(protocol, meta={"name": "m", "at": DAY}, **FIELDS)
    assert filed(parser(**properties), records(top, inner, None, b"", b"\xff")) == [ON_THE_DAY, None, None, None, None]
    by_id = parser(**properties, **{"message.timestamp.id": "3.7"})
    assert filed(by_id, records(inner, top)) == [ON_THE_DAY, None]
    by_name = parser(**properties, **{
        "secor.thrift.message.class.t": "com.example.Event", "thrift.idl": str(tmp_path / "events.thrift"),
        "message.timestamp.name": "meta.at",
    })  # fmt: skip
    assert filed(by_name, records(inner, top)) == [ON_THE_DAY, None]
    with pytest.raises(ConfigError, match=r"no struct 'Event' with a field 'meta\.no'"):
        parser(**properties, **{
            "secor.thrift.message.class.t": "Event", "thrift.idl": str(tmp_path / "events.thrift"),
            "message.timestamp.name": "meta.no",
        })  # fmt: skip


@given(
    st.sampled_from(["binary", "compact"]),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.dictionaries(st.text(max_size=3), st.integers(-(2**31), 2**31 - 1), max_size=3), max_size=20),
    st.booleans(),
    st.floats(allow_nan=False),
)
def test_thriftpy2s_messages_are_read_field_by_field(
    protocol: Protocol, at: int, tags: list[dict[str, int]], is_b: bool, number: float
) -> None:
    data = thrift(protocol, meta={"name": "m", "at": at}, tags=tags, b=is_b, d=number)
    assert thrift_field(data, (3, 7), protocol) == at
    assert thrift_field(data, (3, 1), protocol) == b"m"
    assert thrift_field(data, (5,), protocol) is is_b
    assert thrift_field(data, (6,), protocol) == number
    assert thrift_field(data, (9,), protocol) is None


@given(st.binary(max_size=60), st.sampled_from(["binary", "compact"]))
def test_hostile_thrift_is_read_or_refused(data: bytes, protocol: Protocol) -> None:
    for path in ((1,), (3, 7), (99,)):
        try:
            thrift_field(data, path, protocol)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("protocol", "data"),
    [
        ("binary", b"\x0f\x00\x02\x0c\x7f\xff\xff\xff"),  # 2³¹ structs that there are not
        ("binary", b"\x0b\x00\x02\xff\xff\xff\xff"),
        ("binary", b"\x0c\x00\x02" * 100_000),
        ("binary", b"\x0f\x00\x02" + b"\x0f\x00\x00\x00\x01" * 100_000),
        ("compact", b"\x1c" * 100_000),
        ("compact", b"\x29" + b"\x19" * 100_000),
        ("compact", b"\x26" + b"\xff" * 100_000),
        ("compact", b"\x28\xff\xff\xff\xff\x0f"),
    ],
)
def test_thrift_that_would_take_for_ever_is_refused(protocol: Protocol, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^(it|its|a) "):
        thrift_field(data, (99,), protocol)


def test_the_fingerprint_is_of_what_the_files_say_and_not_of_where_they_lie(tmp_path: Path, avro_file: str) -> None:
    properties = {"secor.message.parser.class": "avro", "secor.avro.message.schema.*": avro_file}
    before = fingerprint_of(pipeline_of(**texts(properties)).own)
    moved = tmp_path / "moved.avsc"
    moved.write_text(Path(avro_file).read_text())
    assert fingerprint_of(pipeline_of(**texts({**properties, "secor.avro.message.schema.*": str(moved)})).own) == before
    Path(avro_file).write_text(json.dumps({**AVRO, "name": "Other"}))
    assert fingerprint_of(pipeline_of(**texts(properties)).own) != before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("secor.avro.message.schema.t", b"{", "no schema of Avro"),
        ("protobuf.descriptor.set", b"\xff\xff", "no descriptor set"),
        ("thrift.idl", b"struct {", "no IDL"),
        ("thrift.idl", None, "cannot be read"),
        ("secor.avro.message.schema.t", None, "cannot be read"),
    ],
)
def test_files_that_are_none_are_refused_at_the_start(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    file = tmp_path / "file.thrift"
    if content is not None:
        file.write_bytes(content)
    kinds = {"thrift.idl": "secor.thrift.message.class.t", "protobuf.descriptor.set": "secor.protobuf.message.class.t"}
    named = {kinds[name]: "Event"} if name in kinds else {}
    with pytest.raises(ConfigError, match=words):
        pipeline_of(**texts({name: str(file), **named}))
