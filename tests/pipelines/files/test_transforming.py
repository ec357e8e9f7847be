"""Transformers, and settings that end files: payload, time range and the number of open files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.files.test_files import batch, parquet_rows
from tests.support.pipelines.pipeline_runs import (
    listed,
    listed_offsets,
    offsets_of,
    pipeline_of,
    run_once,
    texts,
    verify_output,
)
from tests.support.records.stored_records import StoredTopic
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, InvalidValueError
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.filing.times import BadMessageError
from tieredstore.pipelines.log.entries import BatchWindow, WrittenWindow
from tieredstore.pipelines.run.recipes import recipe_of
from tieredstore.pipelines.run.window_writing import write_window
from tieredstore.pipelines.transforming import Message, MessageTransformer, Transformer, of_batches

HERE = __name__
NAMED = "secor.message.transformer.class"


def third(message: Message) -> Message | None:
    """Drop, reject or change the message, or raise an error, depending on its offset."""
    match message.offset % 4:
        case 0:
            return None
        case 1 if message.offset % 8 == 1:
            raise BadMessageError("it is the wrong one")
        case 2 if message.offset % 8 == 2:
            raise ValueError("a secret of the message")
        case _:
            return replace(message, key=b"!", headers=(("h", None),))


class Third(MessageTransformer):
    def transform(self, message: Message) -> Message | None:
        return third(message)


class Even(Transformer):
    def transform(self, records: Any) -> Any:
        return records.filter(pc.equal(pc.bit_wise_and(records.column("offset"), 1), 0))


@of_batches
def fails_on_five(records: Any) -> Any:
    if 5 in records.column("offset").to_pylist():
        raise KeyError("five")
    return None if records.column("offset")[0].as_py() == 6 else records


@of_batches
def backwards(records: Any) -> Any:
    return records.take(pa.array(range(records.num_rows)[::-1]))


def elsewhere(message: Message) -> Message:
    return replace(message, offset=message.offset + 1)


def number(message: Message) -> Any:
    return replace(message, value=cast("Any", 7))


def written(*batches: Any, **properties: str) -> tuple[WrittenWindow, dict[int, str], MemoryObjectStore]:
    """Return a published window with these settings."""
    store = MemoryObjectStore()
    recipe = recipe_of(pipeline_of(**texts(properties)))
    window, reasons = write_window(
        BatchWindow("events", "AAECAwQFBgcICQoLDA0ODw", 3, 0, 100), iter(batches), recipe, store
    )
    for file in window.files:
        store.publish(file.prepared)
    return window, reasons, store


def plain(count: int) -> Any:
    return batch(0, [{"key": None, "value": b"v%d" % at, "headers": None} for at in range(count)])


@pytest.mark.parametrize("name", ["third", "Third"])
def test_messages_are_changed_left_out_or_put_aside_as_they_came(name: str) -> None:
    window, reasons, store = written(plain(16), **{NAMED: f"{HERE}:{name}"})
    assert (window.records, window.filtered, window.quarantined) == (8, 4, 4)
    assert reasons == {
        1: "it is the wrong one", 2: "its transformer failed with ValueError",
        9: "it is the wrong one", 10: "its transformer failed with ValueError",
    }  # fmt: skip
    (key,) = listed(store)
    rows = parquet_rows(store.get(key))
    assert [row["offset"] for row in rows] == [3, 5, 6, 7, 11, 13, 14, 15]
    assert {row["key"] for row in rows} == {b"!"}
    assert rows[0]["headers"] == [{"key": "h", "value": None}]
    assert rows[0]["value"] == b"v3"
    (aside,) = [file.key for file in window.files if file.kind == "quarantine"]
    assert [(row["offset"], row["key"], row["value"]) for row in parquet_rows(store.get(aside))] == [
        (at, None, b"v%d" % at) for at in (1, 2, 9, 10)
    ]


def test_batches_are_changed_whole_and_row_by_row_where_one_is_bad() -> None:
    window, _, store = written(plain(7), **{NAMED: f"{HERE}:Even"})
    assert (window.records, window.filtered) == (4, 3)
    assert offsets_of(store, listed(store)[0]) == [0, 2, 4, 6]
    window, reasons, store = written(plain(7), **{NAMED: f"{HERE}:fails_on_five"})
    assert reasons == {5: "its transformer failed with KeyError"}
    assert (window.records, window.filtered, window.quarantined) == (5, 1, 1)
    assert offsets_of(store, listed(store)[0]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["backwards", "elsewhere", "number"])
def test_a_transformer_that_does_not_keep_to_its_contract_ends_the_run(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        written(plain(7), **{NAMED: f"{HERE}:{name}"})


@pytest.mark.parametrize(
    ("name", "words"), [("none", "imported"), *[(name, "not a function") for name in ("HERE", "Message")]]
)
def test_a_function_that_is_no_transformer_is_refused_when_the_pipeline_starts(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        recipe_of(pipeline_of(**texts({NAMED: f"{HERE}:{name}"})))


def test_a_transformed_message_that_the_parser_refuses_is_quarantined_unchanged() -> None:
    properties = {NAMED: f"{HERE}:Third", "secor.message.parser.class": "json"}
    window, reasons, store = written(plain(8), **properties)
    assert (window.records, window.filtered, sorted(reasons)) == (0, 2, [1, 2, 3, 5, 6, 7])
    (aside,) = [file.key for file in window.files if file.kind == "quarantine"]
    assert [(row["offset"], row["key"]) for row in parquet_rows(store.get(aside))] == [
        (at, None) for at in (1, 2, 3, 5, 6, 7)
    ]


def test_a_whole_run_says_what_was_left_out_and_redrives_by_another_transformer(
    topic: StoredTopic, store: ObjectStore
) -> None:
    strict = pipeline_of(**texts({NAMED: f"{HERE}:third"}))
    entries = run_once(topic, store, strict)
    counts = [(window.records, window.filtered, window.quarantined) for one in entries for window in one.windows]
    assert [sum(numbers) for numbers in zip(*counts, strict=True)] == [149, 75, 76]
    with Runner(pipeline_of(**texts({NAMED: f"{HERE}:Even"})), Parts(store, topic.manager), threads=1) as runner:
        redriven = list(runner.redrive())
    assert [(one.window.records, one.window.filtered, one.key) for one in redriven] == [(38, 38, None)]
    expected = {at for at in range(300) if at % 4 and at % 8 not in (1, 2)} | {at for at in range(300) if at % 8 == 2}
    assert listed_offsets(store) == sorted(expected)


def nothing(message: Message) -> Message | None:
    return message if message.offset >= 300 else None


@of_batches
def nothing_of_batches(records: Any) -> Any:
    return records.filter(pc.greater_equal(records.column("offset"), 300))


@pytest.mark.parametrize("name", ["nothing", "nothing_of_batches"])
def test_a_window_of_which_nothing_stays_is_committed_and_not_read_again(
    topic: StoredTopic, store: ObjectStore, name: str
) -> None:
    pipeline = pipeline_of(**texts({NAMED: f"{HERE}:{name}", "secor.max.file.size.bytes": "9000"}))
    entries = run_once(topic, store, pipeline)
    windows = [window for entry in entries for window in entry.windows]
    assert [(one.records, one.quarantined, one.files) for one in windows] == [(0, 0, ())] * len(windows)
    assert sum(one.filtered for one in windows) == 300
    assert (windows[0].start, windows[-1].stop) == (0, 300)
    assert listed(store) == []
    assert run_once(topic, store, pipeline) == []
    topic.copy_plain(300, 10, size=100)
    (entry,) = run_once(topic, store, pipeline)
    assert [(one.start, one.filtered) for one in entry.windows] == [(300, 0)]
    assert listed_offsets(store) == list(range(300, 310))
    assert list(verify_output(pipeline, store)) == []


def test_more_bad_ones_than_allowed_and_nothing_appears(topic: StoredTopic, store: ObjectStore) -> None:
    with pytest.raises(InvalidValueError, match="its transformer failed with ValueError"):
        run_once(topic, store, pipeline_of(**texts({NAMED: f"{HERE}:third", "secor.consumer.max_bad_messages": "9"})))
    assert listed(store) == []


def spans(window: WrittenWindow) -> list[tuple[int, int]]:
    return sorted((file.first_offset, file.last_offset) for file in window.data_files)


DETERMINISTIC = {"secor.upload.deterministic": "true", "secor.max.file.size.bytes": "1"}
"""Deterministic uploads, which ignore the size limit, as in Secor."""


def test_files_end_by_payload_and_by_times() -> None:
    rows = [{"key": b"12345", "value": b"67890", "headers": None} for _ in range(10)]
    window, _, _ = written(batch(0, rows), **DETERMINISTIC, **{"secor.max.input.payload.size.bytes": "20"})
    assert spans(window) == [(0, 3), (4, 7), (8, 9)]
    # The records are a millisecond apart.
    window, _, _ = written(batch(0, rows), **DETERMINISTIC, **{"secor.max.file.timestamp.range.millis": "4"})
    assert spans(window) == [(0, 4), (5, 9)]
    # With several directories, a window's files all end together; dropped records count towards the limit.
    rows = [
        {"key": None, "value": b'{"k": "%d", "timestamp": 1405970352}' % (at % 2), "headers": None} for at in range(9)
    ]
    split = {"secor.message.parser.class": "split-by-field", "message.split.field.name": "k"}
    length = {"secor.max.input.payload.size.bytes": str(4 * len(b'{"k": "1", "timestamp": 1405970352}'))}
    for batches in ([batch(0, rows)], [batch(0, rows[:3]), batch(3, rows[3:])]):
        window, _, _ = written(*batches, **DETERMINISTIC, **split, **length)
        assert spans(window) == [(0, 2), (1, 3), (4, 6), (5, 7), (8, 8)]
    even = {NAMED: f"{HERE}:Even"}
    window, _, _ = written(batch(0, rows), **DETERMINISTIC, **length, **even)
    assert spans(window) == [(0, 2), (4, 6), (8, 8)]
    # Without deterministic uploads these two settings are ignored.
    window, _, _ = written(batch(0, rows), **{"secor.max.file.timestamp.range.millis": "4"})
    assert spans(window) == [(0, 8)]
    for also in ({}, {"secor.max.file.timestamp.range.millis": "4", "secor.upload.on.shutdown": "true"}):
        with pytest.raises(ConfigError, match="deterministic"):
            pipeline_of(**texts({**DETERMINISTIC, **also}))


def by_directory(numbers: list[int], cuts: list[int], most: int) -> tuple[WrittenWindow, MemoryObjectStore]:
    """Write records in batches that end at ``cuts``; each number names the directory of its record."""

    def batches() -> Iterator[Any]:
        for start, stop in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
            rows = [
                {"key": None, "value": b'{"k": "%d", "timestamp": 1405970352}' % number, "headers": None}
                for number in numbers[start:stop]
            ]
            if rows:
                yield batch(start, rows)

    properties = {
        "secor.message.parser.class": "split-by-field", "message.split.field.name": "k",
        "secor.max.file.count": str(most), "max.file.records": "3",
    }  # fmt: skip
    window, _, store = written(*batches(), **properties)
    return window, store


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 3))
def test_the_stalest_file_ends_where_there_are_too_many_in_whatever_batches_they_come(
    numbers: list[int], cut: int, most: int
) -> None:
    whole, store = by_directory(numbers, [], most)
    parted, _ = by_directory(numbers, [min(cut, len(numbers))], most)
    assert [(file.key, file.sha256) for file in sorted(whole.files, key=lambda file: file.key)] == [
        (file.key, file.sha256) for file in sorted(parted.files, key=lambda file: file.key)
    ]
    assert listed_offsets(store) == list(range(len(numbers)))
    under_way: dict[int, list[int]] = {}
    ended: list[list[int]] = []
    for offset, number in enumerate(numbers):
        if number not in under_way and len(under_way) == most:
            ended.append(under_way.pop(min(under_way, key=lambda one: under_way[one][-1])))
        under_way.setdefault(number, []).append(offset)
        if len(under_way[number]) == 3:
            ended.append(under_way.pop(number))
    files = sorted([*ended, *under_way.values()])
    assert sorted(offsets_of(store, key) for key in listed(store)) == files
