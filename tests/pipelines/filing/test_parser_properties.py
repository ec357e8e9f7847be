"""Parsers by their properties: whatever comes is filed below the topic or bad with a reason; what is valid, rightly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.pipelines.filing.test_schema_parsers import AVRO, IDL, avro, parser, thrift
from tests.support.records.protobuf_messages import EVENT, descriptor_set, event
from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_INT64
from tieredstore.pipelines.parsers import Parser

DAY_MS: Final = 86_400_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST: Final = datetime(1583, 1, 1, tzinfo=UTC)
LAST_MS: Final = 253_402_300_800_000
"""The end of the year 9999."""
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
    """The directories of records, None for what is bad; what holds of all of them is checked."""
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


def day_of(time_ms: int, zone: str = "UTC") -> str | None:
    """Where a time since the epoch belongs, by Python's calendar; None for what is no time."""
    return None if time_ms <= 0 else day_of_date(time_ms, zone)


def day_of_date(time_ms: int, zone: str = "UTC") -> str | None:
    """The same of a date, which may lie before 1970."""
    try:
        day = (EPOCH + timedelta(milliseconds=time_ms)).astimezone(ZoneInfo(zone))
    except OverflowError:
        return None
    if day.astimezone(UTC) < FIRST:
        return None
    return f"dt={day.year:04}-{day.month:02}-{day.day:02}"


def day_of_any_unit(number: int) -> str | None:
    """By how many digits it has: s up to 12 of them, ms up to 15, us up to 18, ns."""
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
            # A time of 1970 is one that the message tells, and that takes digits where it is a text.
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
    """The first place that matches counts, and no more digits than a long has."""
    value = before + b"at=%d" % number + after
    match = re.search(rb"at=([0-9]+)", value)
    assert match is not None
    expected = day_of_any_unit(int(match[1])) if len(match[1]) <= 19 else None
    assert outcome(parsers["regex"], value) == [expected]


moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59))  # noqa: DTZ001  the zone's, below


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
