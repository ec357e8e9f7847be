"""Parsers of values with a schema. Each message is filed below the topic, or is bad with a reason."""

from __future__ import annotations

import importlib
import io
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.pipelines.filing.test_filing import DAY, filed, records
from tests.support.network.key_services import serving
from tests.support.network.schema_registry_server import RegistryService, framed, written
from tests.support.pipelines.pipeline_runs import pipeline_of, texts
from tests.support.records.protobuf_messages import EVENT, descriptor_set, event
from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT64
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
        # A logical type defines its unit, so the year is 1971, not 2970.
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
    # Without a configured field, the first uint64 is the time, as in Secor. The time 5 is in 1970.
    assert filed(parser(**properties), messages) == [ON_THE_DAY, None, "dt=1970-01-01", None, None, None]
    for name in ("at", "meta.millis"):
        how = parser(**properties, **{"message.timestamp.name": name})
        assert filed(how, messages) == [ON_THE_DAY, None, None, None, None, None]
    for name in ("no", "tags", "meta.no", "id.no"):
        with pytest.raises(ConfigError, match="field"):
            parser(**properties, **{"message.timestamp.name": name})
    with pytest.raises(ConfigError, match="no Protocol Buffers message type is given"):
        parser("other", **{**properties, "secor.protobuf.message.class.t": EVENT, "secor.protobuf.message.class.*": ""})


def thrift(protocol: Protocol, spec: str = "Event", **fields: Any) -> bytes:
    """Encode with thriftpy2."""
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
        ("binary", b"\x0f\x00\x02\x0c\x7f\xff\xff\xff"),  # claims 2³¹ structs
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
        ("secor.avro.message.schema.t", b"{", "not an Avro schema"),
        ("protobuf.descriptor.set", b"\xff\xff", "not a Protocol Buffers descriptor set"),
        ("thrift.idl", b"struct {", "not a valid Thrift IDL"),
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


DAY_MS: Final = 86_400_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST: Final = datetime(1583, 1, 1, tzinfo=UTC)
LAST_MS: Final = 253_402_300_800_000
"""End of the year 9999."""
PER_DIRECTORY: Final = 1000
PATTERN: Final = "yyyy/MM/dd HH:mm:ss"
ZONE: Final = "Asia/Tokyo"

Parsers = Mapping[str, Parser]


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> Parsers:
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "event.avsc").write_text(json.dumps(AVRO))
    (folder / "events.desc").write_bytes(descriptor_set())
    (folder / "events.thrift").write_text(IDL)
    by_avro = {"secor.avro.message.schema.t": str(folder / "event.avsc")}
    by_protobuf = {
        "protobuf.descriptor.set": str(folder / "events.desc"), "secor.protobuf.message.class.t": EVENT,
    }  # fmt: skip
    properties: dict[str, dict[str, str]] = {
        "offset": {},
        "daily-offset": {},
        "kafka-timestamp": {},
        "json": {},
        "iso8601": {},
        "messagepack": {},
        "regex": {"message.timestamp.input.pattern": r"at=(\d+)"},
        "date": {"message.timestamp.input.pattern": PATTERN, "secor.parser.timezone": ZONE},
        "split-by-field": {"message.split.field.name": "k"},
        "avro": by_avro,
        "avro-split-by-field": {**by_avro, "message.split.field.name": "meta.day"},
        "protobuf": {**by_protobuf, "message.timestamp.name": "meta.millis"},
        "thrift": {
            "thrift.idl": str(folder / "events.thrift"), "secor.thrift.message.class.t": "Event",
            "message.timestamp.name": "at",
        },
    }  # fmt: skip
    general = {"secor.offsets.per.partition": str(PER_DIRECTORY)}
    return {
        name: parser(**general, **{"secor.message.parser.class": name}, **more) for name, more in properties.items()
    }


def outcome(
    how: Parser, *values: bytes | None, offset: int = 0, times: Sequence[int] | None = None
) -> list[str | None]:
    """Return the directory of each record, or None for a bad one; assert what holds for all parsers."""
    columns = [
        pa.array(list(values), pa.binary()),
        pa.array(range(offset, offset + len(values)), pa.int64()),
        pa.array([DAY_MS * 365] * len(values) if times is None else list(times), pa.int64()),
    ]
    filed = how.file(pa.RecordBatch.from_arrays(columns, names=["value", "offset", "timestamp"]))
    assert len(filed.codes) == len(values)
    assert filed.reasons.keys() == {row for row, code in enumerate(filed.codes) if code < 0}
    assert all(filed.reasons.values())
    for directory in filed.directories:
        parts = directory.split("/")
        assert not {"", ".", ".."} & set(parts)
        assert not any(part[0] in "._" or set(part) & set("\\\0\n") for part in parts)
        directory.encode()
    return [None if code < 0 else filed.directories[code] for code in filed.codes]


def day_of(time_ms: int) -> str | None:
    """Return the directory of a time after the epoch, by Python's calendar; None if the time is out of range."""
    return None if time_ms <= 0 else day_of_date(time_ms)


def day_of_date(time_ms: int, zone: str = "UTC") -> str | None:
    """Return the directory of a date, which may be before 1970."""
    try:
        day = (EPOCH + timedelta(milliseconds=time_ms)).astimezone(ZoneInfo(zone))
    except OverflowError:
        return None
    if day.astimezone(UTC) < FIRST:
        return None
    return f"dt={day.year:04}-{day.month:02}-{day.day:02}"


def day_of_any_unit(number: int) -> str | None:
    """Return the directory of a time. Its number of digits decides its unit: s up to 12, ms to 15, us to 18, or ns."""
    nanoseconds = number * 10 ** {0: 9, 1: 6, 2: 3}.get(max(0, (len(str(number)) - 10) // 3), 0)
    return day_of(nanoseconds // 10**6)


whole_numbers = st.integers(0, 10**19 - 1) | st.integers(0, 10**13) | st.sampled_from(
    [10**power + more for power in (9, 12, 15, 18) for more in (-1, 0, 1)]
)  # fmt: skip
long_numbers = whole_numbers.filter(lambda number: number <= MAX_INT64)


@given(st.lists(st.binary(max_size=80) | st.none(), max_size=6))
def test_no_bytes_are_more_than_bad(parsers: Parsers, values: list[bytes | None]) -> None:
    for name, how in parsers.items():
        directories = outcome(how, *values)
        if name in {"offset", "daily-offset", "kafka-timestamp"}:
            assert None not in directories
            continue
        for value, directory in zip(values, directories, strict=True):
            assert value or directory is None
            # These parsers file a message by a time in its value, so each value that they file contains a digit.
            if directory is not None and name in {"regex", "date", "iso8601", "json", "split-by-field"}:
                assert re.search(rb"[0-9]", value or b"")


VALID: Final = {
    "avro": avro(1_405_970_352_123, at=5, day="x"),
    "avro-split-by-field": avro(str(1_405_970_352_123), day="../x"),
    "protobuf": event(id=7, name="n", tags=["a"], meta={"millis": 1_405_970_352_123}, counts={"y": 2}),
    "thrift": thrift("binary", at=1_405_970_352_123, meta={"name": "m", "at": 5}, b=True),
    "date": json.dumps({"timestamp": "2014/07/21 19:19:12"}).encode(),
    "iso8601": json.dumps({"timestamp": "2014-07-21T19:19:12+02:00"}).encode(),
    "regex": b"GET at=1405970352 /",
    "split-by-field": json.dumps({"k": "a/b", "timestamp": 1_405_970_352}).encode(),
    "messagepack": b"\x81\xa9timestamp\xce\x53\xcd\x66\xf0",
}


@given(st.sampled_from(sorted(VALID)), st.data())
def test_a_message_that_was_damaged_is_filed_below_the_topic_or_bad(
    parsers: Parsers, name: str, data: st.DataObject
) -> None:
    assert None not in outcome(parsers[name], VALID[name])
    damaged = bytearray(VALID[name])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    outcome(
        parsers[name], bytes(damaged), bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), bytes(damaged) * 2
    )


@given(st.integers(0, MAX_INT64 - 20), st.lists(st.integers(-(2**63), MAX_INT64), max_size=8))
def test_records_by_offset_and_by_their_own_time(parsers: Parsers, offset: int, times: list[int]) -> None:
    times = [*times, -1, 0, 1, DAY_MS - 1, DAY_MS, LAST_MS - 1, LAST_MS]
    nothing = [None] * len(times)
    within = [f"base_offset={at // PER_DIRECTORY * PER_DIRECTORY}" for at in range(offset, offset + len(times))]
    days = [day_of(time_ms) for time_ms in times]
    assert outcome(parsers["offset"], *nothing, offset=offset, times=times) == within
    assert outcome(parsers["kafka-timestamp"], *nothing, times=times) == days
    assert outcome(parsers["daily-offset"], *nothing, offset=offset, times=times) == [
        day and f"{day}/{part}" for day, part in zip(days, within, strict=True)
    ]


@given(whole_numbers, st.binary(max_size=20), st.binary(max_size=20))
def test_times_by_an_expression(parsers: Parsers, number: int, before: bytes, after: bytes) -> None:
    """The first match counts. If it has more than 19 digits, it does not fit a long, and the message is bad."""
    value = before + b"at=%d" % number + after
    match = re.search(rb"at=([0-9]+)", value)
    assert match is not None
    expected = day_of_any_unit(int(match[1])) if len(match[1]) <= 19 else None
    assert outcome(parsers["regex"], value) == [expected]


moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59))  # noqa: DTZ001  the test adds the zone


@given(moments)
@example(datetime(1888, 1, 1))  # noqa: DTZ001  the first second of a day, 9:18:59 ahead of UTC
def test_dates_in_a_zone(parsers: Parsers, moment: datetime) -> None:
    text = f"{moment.year:04}/{moment.month:02}/{moment.day:02} {moment.hour:02}:{moment.minute:02}:{moment.second:02}"
    in_zone = moment.replace(microsecond=0, tzinfo=ZoneInfo(ZONE))
    since_epoch_ms = (in_zone - EPOCH) // timedelta(milliseconds=1)
    value = json.dumps({"timestamp": text}).encode()
    assert outcome(parsers["date"], value) == [day_of_date(since_epoch_ms, ZONE)]


@given(st.text(max_size=30) | st.integers() | st.floats() | st.none() | st.booleans() | st.lists(st.integers()))
def test_what_is_no_date_of_the_pattern_is_bad(parsers: Parsers, content: object) -> None:
    value = json.dumps({"timestamp": content, "k": "a"}).encode()
    for name in ("date", "iso8601"):
        (directory,) = outcome(parsers[name], value)
        if not isinstance(content, str) or not re.search(r"\d{4}", content):
            assert directory is None


@given(long_numbers, st.text(max_size=40), st.booleans())
def test_times_and_fields_of_avro(parsers: Parsers, number: int, day: str, as_text: bool) -> None:
    try:
        value = avro(str(number) if as_text else number, day=day)
    except UnicodeEncodeError:
        return
    expected = day_of_any_unit(number)
    assert outcome(parsers["avro"], value) == [expected]
    (directory,) = outcome(parsers["avro-split-by-field"], value)
    if not day or expected is None:
        assert directory is None
    elif directory is not None:
        field, _, time = directory.rpartition("/")
        assert (unquote(field.removeprefix("meta.day=")), time) == (day, expected)
    else:
        assert len(day.encode()) * 3 > 200


@given(long_numbers)
def test_times_of_protobuf_and_thrift(parsers: Parsers, number: int) -> None:
    expected = day_of_any_unit(number)
    assert outcome(parsers["protobuf"], event(meta={"millis": number})) == [expected]
    assert outcome(parsers["thrift"], thrift("binary", at=number)) == [expected]
    assert outcome(parsers["json"], json.dumps({"timestamp": number}).encode()) == [expected]


@pytest.mark.parametrize("pattern", ["(", r"(\u0031+)", "no group"])
def test_what_is_no_expression_with_a_time_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"message\.timestamp\.input\.pattern"):
        parser(**{"secor.message.parser.class": "regex", "message.timestamp.input.pattern": pattern})
