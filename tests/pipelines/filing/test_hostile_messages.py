"""Messages that would like to choose where they are filed, or whether they are seen."""

from __future__ import annotations

import json
import logging
import posixpath
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies

from tests.pipelines.files.test_files import batch
from tests.support.pipelines.pipeline_runs import TOPIC, listed, listed_offsets, pipeline_of, run_once, texts
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, InvalidValue
from tieredstore.pipelines.log.entries import Window
from tieredstore.pipelines.parsers import Filed, Parser
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.window_writing import write_window
from tieredstore.pipelines.transforming import Message
from tieredstore.pipelines.upkeep.inspection import verify_output
from tieredstore.testing.segments import PARTITION, Record, build_batch

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
        # What begins so is passed over by Hadoop's readers, Spark and Hive.
        assert field[0] not in "._"
    assert list(verify_output(pipeline_of(**BY_FIELD), store)) == []
    assert {path.name for path in tmp_path.iterdir()} == {"output", "logs"}


def test_nothing_of_a_message_is_in_logs_errors_and_commits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = MemoryObjectStore()
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        write(topic, "", [SECRET], {SECRET: 1}, SECRET * 40, None, True, "fine")
        with pytest.raises(InvalidValue, match="6 messages of a batch are bad") as refused:
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
        {"secor.message.transformer.class": "tests.pipelines.filing.test_hostile_messages:talkative"},
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
    window = Window(TOPIC, "id", 0, 0, len(rows))
    _, reasons = write_window(window, [batch(0, rows)], recipe, MemoryObjectStore())
    assert len(reasons) > len(rows) // 2
    assert not any(SECRET in reason for reason in reasons.values())


class AsTheyAre(Parser):
    """Files by the value itself, as a class of one's own may."""

    columns = ("value",)

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
    window, reasons = write_window(Window(TOPIC, "id", 0, 0, len(rows)), [batch(0, rows)], recipe, MemoryObjectStore())
    keys = [file.key for file in window.files if file.kind == "data"]
    assert all(posixpath.normpath(key) == key and key.startswith(f"out/{TOPIC}/") for key in keys)
    assert not any(set(key) & {"\\", "\0", "\n"} for key in keys)
    assert sum(file.records for file in window.files) == len(names)
    bad = {number for number, name in enumerate(names) if name in STRAYS}
    assert bad <= reasons.keys()
    assert all("no directory" in reason for reason in reasons.values())
    if "a/b" in names:
        assert f"out/{TOPIC}/a/b/1_0_{names.index('a/b'):020}.parquet" in keys


def talkative(message: Message) -> Message:
    """Says of each message why it does not like it."""
    raise ValueError(message.value)


def test_a_topic_that_has_the_name_of_the_pipelines_own_directory_is_refused(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    with closing(StoredTopic(tmp_path / "logs")) as topic:
        topic.copy(
            0, [build_batch([Record(b"v", timestamp_ms=DAY_MS)], 0)], partition=replace(PARTITION, topic="_tieredstore")
        )
        with pytest.raises(ConfigError, match=r"the topic _tieredstore cannot be kept.*secor\.kafka\.topic_blacklist"):
            run_once(topic, store, pipeline_of())
        topic.copy_plain(0, 10)
        run_once(topic, store, pipeline_of(secor__kafka__topic_blacklist="_tieredstore", secor__generation="2"))
