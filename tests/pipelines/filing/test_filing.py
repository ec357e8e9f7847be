"""Parsers: directories of messages, bad messages, and messages that try to choose a path."""

from __future__ import annotations

import json
import logging
import posixpath
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies
from hypothesis import strategies as st

from tests.pipelines.files.test_files import batch
from tests.support.pipelines.pipeline_runs import (
    TOPIC,
    listed,
    listed_offsets,
    offsets_of,
    pipeline_of,
    rows_of,
    run_once,
    texts,
    verify_output,
)
from tests.support.pipelines.secor_cases import REFUSED, SecorCase, load_cases
from tests.support.records import json_texts
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, InvalidValueError
from tieredstore.pipelines.filing.directories import TimeDirectories, escape, java_format
from tieredstore.pipelines.filing.times import to_millis
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.parser_table import parser_of
from tieredstore.pipelines.parsers import BadMessageError, Filed, MessageParser, Parser
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.window_writing import write_window
from tieredstore.pipelines.transforming import Message
from tieredstore.testing.segments import PARTITION, Record, build_batch

DAY = 1_405_970_352_123
"""2014-07-21T19:19:12.123Z, the time in Secor's examples."""


def parser(**properties: str) -> Parser:
    return parser_of(pipeline_of(**texts(properties)).own)


def records(*values: bytes | None, timestamps: list[int] | None = None, start: int = 0) -> Any:
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(list(values), pa.binary()),
            pa.array(range(start, start + count), pa.int64()),
            pa.array(timestamps or [DAY] * count, pa.int64()),
        ],
        names=["value", "offset", "timestamp"],
    )


def filed(how: Parser, batch: Any) -> list[str | None]:
    result: Filed = how.file(batch)
    return [None if code < 0 else result.directories[code] for code in result.codes]


def value(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_a_backup_is_filed_by_offset() -> None:
    how = parser(**{"secor.offsets.per.partition": "10"})
    assert filed(how, records(b"", None, b"", start=9)) == ["base_offset=0", "base_offset=10", "base_offset=10"]


@pytest.mark.parametrize(
    ("properties", "directory"),
    [
        ({}, "dt=2014-07-21"),
        ({"partitioner.granularity.hour": "true"}, "dt=2014-07-21/hr=19"),
        ({"partitioner.granularity.minute": "true"}, "dt=2014-07-21/hr=19/min=19"),
        ({"secor.parser.timezone": "Asia/Tokyo"}, "dt=2014-07-22"),
        (
            {"partitioner.granularity.date.format": "yyyyMMdd", "partitioner.granularity.date.prefix": "d-"},
            "d-20140721",
        ),
    ],
)
def test_directories_of_time_are_secors(properties: dict[str, str], directory: str) -> None:
    by_record = parser(**{"secor.message.parser.class": "kafka-timestamp", **properties})
    assert filed(by_record, records(b"x", timestamps=[DAY])) == [directory]
    by_value = parser(**{"secor.message.parser.class": "com.pinterest.secor.parser.JsonMessageParser", **properties})
    for number in (DAY, DAY * 1000, DAY * 1_000_000, DAY // 1000, str(DAY), float(DAY)):
        assert filed(by_value, records(value(timestamp=number))) == [directory]


def test_a_day_and_offsets_within() -> None:
    assert filed(parser(**{"secor.message.parser.class": "daily-offset"}), records(b"x")) == [
        "dt=2014-07-21/base_offset=0"
    ]


@pytest.mark.parametrize(
    ("properties", "content"),
    [
        ({"secor.message.parser.class": "json", "message.timestamp.name": "meta.at",
          "message.timestamp.name.separator": "."}, value(meta={"at": DAY})),
        ({"secor.message.parser.class": "iso8601"}, value(timestamp="2014-07-21T21:19:12+02:00")),
        ({"secor.message.parser.class": "iso8601"}, value(timestamp="2014-07-21T19:19:12Z")),
        ({"secor.message.parser.class": "date", "message.timestamp.input.pattern": "yyyy/MM/dd HH:mm:ss"},
         value(timestamp="2014/07/21 19:19:12")),
        ({"secor.message.parser.class": "regex", "message.timestamp.input.pattern": r"^\w+ (\d+) "},
         f"GET {DAY} /index".encode()),
    ],
)  # fmt: skip
def test_times_are_where_the_settings_say(properties: dict[str, str], content: bytes) -> None:
    how = parser(**properties)
    assert filed(how, records(content)) == ["dt=2014-07-21"]


@pytest.mark.parametrize("name", ["json", "iso8601", "date", "regex", "split-by-field"])
def test_a_message_without_a_usable_time_is_bad_and_never_of_1970(name: str) -> None:
    pattern = r"^(\d+)$" if name == "regex" else "yyyy-MM-dd"
    how = parser(**{
        "secor.message.parser.class": name, "message.timestamp.input.pattern": pattern, "message.split.field.name": "k",
    })  # fmt: skip
    bad = [None, b"", b"\xff", b"[]", b"{}", b"null", value(timestamp=None), value(timestamp="soon", k="a"),
           value(timestamp=True, k="a"), value(timestamp=[], k="a"), value(timestamp={}, k="a"),
           value(timestamp=0, k="a"), value(timestamp=-5, k="a"), value(timestamp=float("nan"), k="a"),
           b"[" * 100_000, value(timestamp="1" * 1_000_000 + "x", k="a")]  # fmt: skip
    result = how.file(records(*bad))
    assert result.codes == [-1] * len(bad)
    assert len(result.reasons) == len(bad)
    assert not any("soon" in reason for reason in result.reasons.values())


def test_fields_are_escaped_as_hive_does() -> None:
    by_field = {"secor.message.parser.class": "split-by-field", "message.split.field.name": "k"}
    how = parser(**by_field)
    secors = parser(**by_field, **{"partitioner.granularity.field.prefix": ""})
    assert filed(secors, records(*(value(k=name, timestamp=DAY) for name in ("plain", "..", "_x", ".x")))) == [
        f"{name}/dt=2014-07-21" for name in ("plain", "%2E%2E", "%5Fx", "%2Ex")
    ]
    names = ["plain", "../../etc", "..", ".", "a/b", "a=b", "%2F", "\x00", "å", 7, "_SUCCESS", ".x"]
    directories = filed(how, records(*(value(k=name, timestamp=DAY) for name in names)))
    assert [directory and directory.partition("/dt=")[0] for directory in directories] == [
        "k=plain", "k=..%2F..%2Fetc", "k=%2E%2E", "k=%2E", "k=a%2Fb", "k=a%3Db", "k=%252F", "k=%00", "k=å", "k=7",
        "k=_SUCCESS", "k=.x",
    ]  # fmt: skip
    nothings: tuple[object, ...] = ("", "x" * 300, True, None, [])
    assert filed(how, records(*(value(k=nothing, timestamp=DAY) for nothing in nothings))) == [None] * 5


@given(st.text())
def test_no_text_becomes_more_than_one_part_of_a_path(text: str) -> None:
    try:
        part = escape(text)
    except ValueError:
        return
    assert part not in {"", ".", ".."}
    assert part[0] not in "._"
    assert escape(text, "k=").startswith("k=")
    assert not set(part) & set("/\\=\x00\n")
    part.encode()


@given(st.integers(1, 4_000_000_000))
def test_units_are_told_by_how_large_a_time_is(seconds: int) -> None:
    for unit in (10**3, 10**6, 10**9):
        if seconds * unit >= unit // 1000 * 10**12:
            assert to_millis(seconds * unit) == seconds * 1000
    assert to_millis(seconds) == seconds * 1000


@given(st.binary(max_size=200))
def test_hostile_values_are_filed_or_bad(payload: bytes) -> None:
    for name in ("json", "iso8601", "split-by-field"):
        how = parser(**{"secor.message.parser.class": name, "message.split.field.name": "k"})
        assert len(how.file(records(payload)).codes) == 1


def test_times_that_are_told_at_once_are_those_that_a_look_at_each_value_tells() -> None:
    assert sum(json_texts.check(seed, 1000) for seed in range(5)) > 500
    plain = [b'{"a":{"t":1405970352123}}', b' {"x":[{"t":1}],\n"a" : {"u":"\\u00e9\xc3\xa9","t":1405970352} } ']
    assert json_texts.said([*plain, None, b"", plain[0]], lead=2) == [DAY, DAY // 1000 * 1000, None, None, DAY]
    # The fast parser leaves these to the slow one: repeated and escaped names, strings, fractions, and invalid JSON.
    others = [
        b'{"a":{"t":1,"t":2}}', b'{"a":{"\\u0074":3}}', b'{"a":{"t":"3"}}', b'{"a":{"t":3.0}}', b'{"a":{"t":3}} x',
        b'{"a":{"t":03}}',
    ]  # fmt: skip
    assert json_texts.said([*others]) == [None] * len(others)
    assert [json_texts.decided(payload) for payload in others] == [2000, 3000, 3000, 3000, None, None]


@pytest.mark.parametrize("name", ["kafka-timestamp", "json", "daily-offset"])
def test_a_batch_is_filed_as_its_records_are_one_by_one(name: str) -> None:
    how = parser(**{"secor.message.parser.class": name, "secor.offsets.per.partition": "3"})
    times = [DAY, DAY, -1, 0, DAY + 86_400_000, 59_999, DAY, 253_402_300_800_000, DAY]
    payloads = [value(timestamp=time) for time in times]
    payloads[4:6] = [b"none", value(timestamp=str(DAY))]
    whole = how.file(records(*payloads, timestamps=times))
    alone = [how.file(records(payloads[row], timestamps=[times[row]], start=row)) for row in range(len(times))]
    assert [None if code < 0 else whole.directories[code] for code in whole.codes] == [
        None if one.codes == [-1] else one.directories[0] for one in alone
    ]
    assert whole.reasons == {row: one.reasons[0] for row, one in enumerate(alone) if one.reasons}
    assert name == "daily-offset" or len(whole.reasons) > 1


@pytest.mark.parametrize(
    ("zone", "moment", "day"),
    [
        ("Asia/Tokyo", "1887-12-30T14:41:00Z", "1887-12-30"),
        ("Asia/Tokyo", "1887-12-30T14:41:01Z", "1887-12-31"),
        ("Africa/Monrovia", "1971-03-02T00:44:29Z", "1971-03-01"),
        ("Africa/Monrovia", "1971-03-02T00:44:30Z", "1971-03-02"),
        ("Africa/Monrovia", "1972-02-02T00:00:00Z", "1972-02-02"),
    ],
)
def test_a_day_begins_to_the_second_where_a_zone_had_seconds(zone: str, moment: str, day: str) -> None:
    time_ms = round(datetime.fromisoformat(moment).timestamp() * 1000)
    date = {"message.timestamp.input.pattern": "yyyy-MM-dd'T'HH:mm:ss", "secor.parser.timezone": zone}
    by_value = parser(**{"secor.message.parser.class": "iso8601", **date})
    by_field = parser(**{"secor.message.parser.class": "split-by-field", "message.split.field.name": "k", **date})
    assert filed(by_value, records(value(timestamp=moment))) == [f"dt={day}"]
    if time_ms > 0:
        number = records(value(timestamp=time_ms // 1000, k="a"), timestamps=[time_ms])
        by_record = parser(**{"secor.message.parser.class": "kafka-timestamp", **date})
        assert filed(by_record, number) == [f"dt={day}"]
        assert filed(by_field, number) == [f"k=a/dt={day}"]


def test_patterns_of_java_that_mean_more_are_refused() -> None:
    assert java_format("'at' yyyy-MM-dd'T'HH:mm:ss", "x") == "at %Y-%m-%dT%H:%M:%S"
    with pytest.raises(ConfigError, match="'EEE'"):
        java_format("EEE MMM", "x")
    assert TimeDirectories().of_second(0) == "dt=1970-01-01"


@pytest.mark.parametrize(
    ("payload", "directory"),
    [
        (b"\x81\xa2ts\xcf\x00\x00\x01\x47\x58\x7e\xa7\xbb", "dt=2014-07-21"),
        (b"\x81\xa2ts\xaa1405970352", "dt=2014-07-21"),
        (b"\x81\xa2ts\xc0", None),
        (b"\x81\xa2tx\x01", None),
        (b"\x92\x01\x02", None),
        (b"\x81\xa2ts", None),
        (b"", None),
    ],
)
def test_messages_of_messagepack_are_filed_by_a_time_in_their_map(payload: bytes, directory: str | None) -> None:
    how = parser(**{"secor.message.parser.class": "messagepack", "message.timestamp.name": "ts"})
    assert filed(how, records(payload)) == [directory]
    secors = "com.pinterest.secor.parser.MessagePackParser"
    assert parser(**{"secor.message.parser.class": secors, "message.timestamp.name": "ts"}) == how


class ByLength(MessageParser):
    """Custom parser."""

    def parts(self, key: bytes | None, value: bytes | None, timestamp_ms: int, offset: int) -> list[tuple[str, str]]:
        if value == b"bad":
            raise BadMessageError("it is bad")
        seconds = str(timestamp_ms // (offset - 100))
        return [("length=", str(len(value or b""))), ("", (value or b"").decode()), ("t=", seconds)]


def test_a_parser_of_ones_own_chooses_no_path_and_its_faults_are_bad_messages() -> None:
    how = parser(**{"secor.message.parser.class": f"{__name__}:ByLength"})
    batch = records(b"..", b"a/b", b"bad", b"\xff", None, b"x", start=96)
    batch = batch.append_column("key", pa.array([None] * 6, pa.binary()))
    result = how.file(batch)
    assert [None if code < 0 else result.directories[code].rpartition("/")[0] for code in result.codes] == [
        "length=2/%2E%2E", "length=3/a%2Fb", None, None, None, "length=1/x",
    ]  # fmt: skip
    assert result.reasons == {
        2: "it is bad",
        3: "its parser failed with UnicodeDecodeError",
        4: "its parser failed with ZeroDivisionError",
    }
    with pytest.raises(ConfigError, match="is not a subclass of Parser"):
        parser(**{"secor.message.parser.class": "json:JSONDecoder"})


class ByParity(Parser):
    """Custom parser of whole Arrow batches."""

    def file(self, records: pa.RecordBatch) -> Filed:
        filed, untyped = Filed(), records
        for offset, value in zip(
            untyped.column("offset").to_pylist(), untyped.column("value").to_pylist(), strict=True
        ):
            if offset % 5 == 4:
                filed.put_aside("it is a fifth one")
            elif value.startswith(b"70"):
                filed.add("../..")
            else:
                filed.add(f"parity={offset % 2}")
        return filed


def test_a_parser_of_ones_own_may_file_whole_batches(topic: StoredTopic, store: ObjectStore) -> None:
    """A folder next to the topic's is not a directory of the topic, even if the store lists it."""
    named = {"secor.message.parser.class": f"{__name__}:ByParity"}
    pipeline = pipeline_of(**texts(named))
    assert isinstance(parser_of(pipeline.own), ByParity)
    ends = StoredTopic(topic.folder / "short")
    with closing(ends):
        ends.copy_plain(0, 60, size=10)
        run_once(ends, store, pipeline)
        assert {key.rpartition("/")[0]: offsets_of(store, key) for key in listed(store)} == {
            f"out/{TOPIC}/parity={parity}": [at for at in range(60) if at % 5 != 4 and at % 2 == parity]
            for parity in (0, 1)
        }
        (aside,) = [info.key for info in store.list("out/_tieredstore/kept/1/quarantine/")]
        assert offsets_of(store, aside) == list(range(4, 60, 5))
        assert list(verify_output(pipeline, store)) == []
        before = listed(store)
        ends.copy_plain(60, 15, size=10)
        (entry,) = run_once(ends, store, pipeline)
    (window,) = entry.windows
    assert (window.records, window.quarantined) == (11, 4)
    assert {key.rpartition("/")[0] for key in set(listed(store)) - set(before)} == {
        f"out/{TOPIC}/parity={parity}" for parity in (0, 1)
    }
    (aside,) = [file.key for file in window.files if file.kind == "quarantine"]
    reasons = {row["offset"]: row["reason"] for row in rows_of(store, aside)}
    assert [offset for offset, reason in reasons.items() if reason != "it is a fifth one"] == [70]
    assert all(offset % 5 == 4 or "invalid directory" in reason for offset, reason in reasons.items())
    assert list(verify_output(pipeline, store)) == []


DAY_MS = 1_405_970_352_123
SECRET = "hunter2"
BY_FIELD = {
    "secor__message__parser__class": "split-by-field",
    "message__split__field__name": "k",
    "message__timestamp__name": "timestamp",
}
NAMES = (
    "plain", "../../etc/passwd", "..", ".", "a/b", "a=b", "%2F", "\x00", "\N{LATIN SMALL LETTER A WITH RING ABOVE}",
    "a\N{COMBINING RING ABOVE}", "_SUCCESS", "_tieredstore", ".hidden", "a\\b", "*", "?", "~", "-rf", "a\n", " ",
    "\N{RIGHT-TO-LEFT OVERRIDE}", "\ud800", "1_0_00000000000000000000.parquet", "x" * 200,
)  # fmt: skip


def write(topic: StoredTopic, *names: object) -> None:
    records = [
        Record(
            json.dumps({"k": name, "timestamp": DAY_MS, "password": SECRET}).encode(),
            key=b"../" + SECRET.encode(),
            headers=(("../..\0", SECRET.encode()),),
            timestamp_ms=DAY_MS,
        )
        for name in names
    ]
    topic.copy(0, [build_batch(records, 0)])


def test_each_is_filed_in_a_directory_of_its_own_that_every_reader_sees(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    store = FilesystemObjectStore(tmp_path / "output")
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        write(topic, *NAMES)
        run_once(topic, store, pipeline_of(**BY_FIELD))
    keys = listed(store)
    assert len({key.rpartition("/")[0] for key in keys}) == len(keys) == len(NAMES)
    assert listed_offsets(store) == list(range(len(NAMES)))
    for key in keys:
        root, name, field, day, _ = key.split("/")
        assert (root, name, day) == ("out", TOPIC, "dt=2014-07-21")
        # Hadoop's readers, Spark and Hive ignore names that begin like this.
        assert field[0] not in "._"
    assert list(verify_output(pipeline_of(**BY_FIELD), store)) == []
    assert {path.name for path in tmp_path.iterdir()} == {"output", "logs"}


def test_nothing_of_a_message_is_in_logs_errors_and_commits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = MemoryObjectStore()
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        write(topic, "", [SECRET], {SECRET: 1}, SECRET * 40, None, True, "fine")
        with pytest.raises(InvalidValueError, match="6 messages of a batch are bad") as refused:
            run_once(topic, store, pipeline_of(**BY_FIELD, secor__consumer__max_bad_messages="5"))
        run_once(topic, store, pipeline_of(**BY_FIELD))
    assert SECRET not in str(refused.value)
    assert SECRET not in caplog.text
    assert not any(SECRET.encode() in entry.to_bytes() for entry in commit_log_of(pipeline_of(), store).entries())


@pytest.mark.parametrize(
    "changes",
    [
        {"secor.message.parser.class": "json"},
        {"secor.message.parser.class": "iso8601"},
        {"secor.message.parser.class": "date", "message.timestamp.input.pattern": "yyyy-MM-dd"},
        {"secor.message.parser.class": "regex", "message.timestamp.input.pattern": "(.*)"},
        {"secor.message.parser.class": "messagepack"},
        {"secor.message.parser.class": "thrift"},
        {"columns": "json", "json.schema.*": "id INT, at TIMESTAMP, in STRUCT<a: DATE>"},
        {"secor.message.transformer.class": "tests.pipelines.filing.test_filing:talkative"},
    ],
    ids=lambda changes: ",".join(changes.values())[:20],
)
def test_reasons_have_nothing_of_a_message(changes: dict[str, str]) -> None:
    whole = {"timestamp": SECRET, "id": SECRET, "in": {"a": SECRET}, SECRET: 1}
    values: list[bytes] = [
        SECRET.encode(), json.dumps(whole).encode(), json.dumps([SECRET]).encode(), b"\x93" + SECRET.encode(),
        b'{"%b": 1, "%b": 2}' % (SECRET.encode(), SECRET.encode()), b"\xff" + SECRET.encode(),
        json.dumps({"timestamp": f"2024-13-45 {SECRET}"}).encode(),
    ]  # fmt: skip
    rows = [{"key": SECRET.encode(), "value": value, "headers": None} for value in values]
    recipe = recipe_of(pipeline_of(**texts(changes)))
    window = BatchWindow(TOPIC, "id", 0, 0, len(rows))
    _, reasons = write_window(window, [batch(0, rows)], recipe, MemoryObjectStore())
    assert len(reasons) > len(rows) // 2
    assert not any(SECRET in reason for reason in reasons.values())


class AsTheyAre(Parser):
    """Custom parser whose directory is the message's value."""

    def file(self, records: Any) -> Filed:
        filed = Filed()
        for value in records.column("value").to_pylist():
            filed.add(value.decode())
        return filed


STRAYS = ("a/../../../other/x", "..", ".", "", "/a", "a/", "a//b", "a/./b", "...", "a\\..\\b", "a\0b", "a\nb")


@settings(max_examples=50, deadline=None)
@given(strategies.lists(strategies.one_of(strategies.sampled_from(STRAYS), strategies.text("ab./\\\n", max_size=9)),
                        min_size=1, max_size=6))  # fmt: skip
@example(list(STRAYS))
def test_no_class_of_ones_own_files_elsewhere_than_below_the_topic(names: list[str]) -> None:
    rows = [{"key": None, "value": name.encode(), "headers": None} for name in names]
    recipe = recipe_of(pipeline_of(**texts({"secor.message.parser.class": f"{__name__}:AsTheyAre"})))
    window, reasons = write_window(
        BatchWindow(TOPIC, "id", 0, 0, len(rows)), [batch(0, rows)], recipe, MemoryObjectStore()
    )
    keys = [file.key for file in window.files if file.kind == "data"]
    assert all(posixpath.normpath(key) == key and key.startswith(f"out/{TOPIC}/") for key in keys)
    assert not any(set(key) & {"\\", "\0", "\n"} for key in keys)
    assert sum(file.records for file in window.files) == len(names)
    bad = {number for number, name in enumerate(names) if name in STRAYS}
    assert bad <= reasons.keys()
    assert all("invalid directory" in reason for reason in reasons.values())
    if "a/b" in names:
        assert f"out/{TOPIC}/a/b/1_0_{names.index('a/b'):020}.parquet" in keys


def talkative(message: Message) -> Message:
    """Fail with the message's value as the reason."""
    raise ValueError(message.value)


def test_a_topic_that_has_the_name_of_the_pipelines_own_directory_is_refused(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        topic.copy(
            0, [build_batch([Record(b"v", timestamp_ms=DAY_MS)], 0)], partition=replace(PARTITION, topic="_tieredstore")
        )
        with pytest.raises(
            ConfigError, match=r"the topic _tieredstore cannot be written.*secor\.kafka\.topic_blacklist"
        ):
            run_once(topic, store, pipeline_of())
        topic.copy_plain(0, 10)
        run_once(topic, store, pipeline_of(secor__kafka__topic_blacklist="_tieredstore", secor__generation="2"))


CASES = load_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parser}-{CASES.index(case)}")
def test_odd_messages_are_filed_as_the_table_says(case: SecorCase) -> None:
    if case.ours == REFUSED:
        with pytest.raises(ConfigError, match="nests character classes"):
            parser(**case.properties)
        return
    assert filed(parser(**case.properties), records(case.value)) == [case.ours]
    strict = parser(**case.properties, **{"secor.parser.strict": "true"})
    assert filed(strict, records(case.value)) == [case.strict]
    assert case.strict in (case.ours, None)


def test_each_difference_from_secor_has_a_reason() -> None:
    assert all(bool(case.why) == (case.ours != case.secor) for case in CASES)
    assert sum(not case.why and case.ours is not None for case in CASES) > 70
