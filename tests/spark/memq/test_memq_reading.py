"""Topics of batches, planned and read without a JVM: columns, each option, and tasks that start within a batch."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.pubsub.memq_topic import (
    BATCHES,
    MESSAGES,
    RECORDS,
    Topic,
    rows_in,
    rows_of,
    tasks_of,
    values,
    written_topic,
)
from tieredstore.errors import ConfigError, DataLossError, TopicNotFoundError
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.errors import MessageCorruptError, NotificationCorruptError
from tieredstore.pubsub.produce.batch_writer import BatchWriter
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.spark.source.rows import MEMQ_ROWS, RowShape


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Topic:
    return written_topic(tmp_path_factory.mktemp("memq"))


def test_all_columns_in_their_order_and_what_they_hold(topic: Topic) -> None:
    rows = rows_in(topic.options | {"includeHeaders": "true"})
    assert list(rows[0]) == ["key", "value", "topic", "partition", "offset", "message", "record", "timestamp",
                             "messageId", "headers"]  # fmt: skip
    assert sorted(row["value"] for row in rows) == values(range(BATCHES))
    for row in rows:
        batch, number, record = map(int, row["value"].split(b"."))
        assert (row["topic"], row["partition"], row["offset"]) == ("orders", batch % 2, batch // 2 * 256)
        assert (row["message"], row["record"], row["key"]) == (number, record, b"k%d" % (record % 3))
        assert round(row["timestamp"].timestamp() * 1000) == batch * 1000 + record
        assert row["messageId"] == row["value"][::-1]
        assert row["headers"] == [{"key": "h", "value": row["value"]}]
    assert list(rows_in(topic.options)[0]) == list(rows[0])[:-1]
    assert rows_in(topic.options | {"columns": "Offset,value"})[0].keys() == {"value", "offset"}
    assert len(rows_in(topic.options | {"columns": "topic"})) == len(rows)


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({"startingOffsets": '{"orders":{"0":256,"1":-2}}'}, [1, 2, 3, 4, 5]),
        ({"endingOffsets": '{"orders":{"0":257,"1":256}}'}, [0, 1, 2]),
        ({"endingOffsets": '{"orders":{"0":-1,"1":0}}'}, [0, 2, 4]),
        ({"startingTimestamp": "1"}, list(range(6))),
        ({"startingTimestamp": "99999999999999"}, []),
        ({"endingTimestamp": "1"}, []),
        ({"discover": "listing"}, list(range(6))),
        ({"discover": "listing", "endingTimestamp": "1"}, []),
        ({"discover": "listing", "startingTimestamp": "99999999999999"}, []),
        ({"delivery": "effectively-once"}, list(range(6))),
        ({"maxBatchesPerTrigger": "1"}, list(range(6))),
    ],
)
def test_what_options_select_however_it_is_cut(topic: Topic, options: dict[str, str], batches: list[int]) -> None:
    expected = sorted(value for batch in batches for value in values(range(batch, batch + 1)))
    for cut in ({}, {"maxSplitBytes": 300}, {"minPartitions": 9}, {"sortByKey": "true", "maxSplitBytes": 900}):
        rows = rows_in({**topic.options, **options, **cut})
        assert sorted(row["value"] for row in rows) == expected, cut


def test_tasks_are_cut_by_bytes_at_messages_in_the_order_of_the_queue(topic: Topic) -> None:
    _, whole = tasks_of(topic.options)
    assert [task.value[0].partition for task in whole] == [0, 1]
    size = len(topic.message(0, 0).stored)
    reader, tasks = tasks_of(topic.options | {"maxSplitBytes": 2 * size})
    assert len(tasks) == BATCHES * MESSAGES // 2
    assert all(sum(batch.size for batch in task.value) <= 2 * size for task in tasks)
    places = [(row["partition"], row["offset"], row["message"], row["record"]) for row in rows_of(reader, tasks)]
    assert places == sorted(places)
    assert len(tasks_of(topic.options | {"maxSplitBytes": 1})[1]) == BATCHES * MESSAGES
    assert len(tasks_of(topic.options | {"minPartitions": 7})[1]) >= 7


def test_times_that_spark_does_not_hold_fail_the_query_or_are_null(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    most = ((1 << 63) - 1) // 1000
    times = [1000, most + 1, -most - 1, (1 << 63) - 1, -(1 << 63), None, 2000]
    with BatchProducer(topic.topics, "orders") as producer:
        for number, time_ms in enumerate(times):
            producer.send(b"%d" % number, timestamp_ms=time_ms)
    with pytest.raises(
        ConfigError, match=r"outside Spark's range; leave out .* \(option columns\).*timestampOutOfRange=null"
    ):
        rows_in(topic.options)
    rows = sorted(rows_in(topic.options | {"timestampOutOfRange": "NULL"}), key=lambda row: row["value"])
    assert [row["value"] for row in rows] == [b"%d" % number for number in range(len(times))]
    given = [row["timestamp"] for row in rows]
    assert [time is None for time in given] == [False, True, True, True, True, False, False]
    assert [round(given[number].timestamp()) for number in (0, 6)] == [1, 2]
    with pytest.raises(ConfigError, match="timestampOutOfRange"):
        rows_in(topic.options | {"timestampOutOfRange": "zero"})
    shape = RowShape(("timestamp",), MEMQ_ROWS, out_of_range="null")
    held: Any = shape.convert(pa.record_batch({"timestamp": pa.array([most, -most, None])}), "orders", 0, 0)
    assert held.column(0).null_count == 1


def test_rows_of_a_task_sorted_by_key(topic: Topic) -> None:
    reader, tasks = tasks_of(topic.options | {"sortByKey": "true", "columns": "value,offset"})
    for task in tasks:
        rows = rows_of(reader, [task])
        names = [row["value"].split(b".") for row in rows]
        assert names == sorted(names, key=lambda name: (int(name[2]) % 3, *map(int, name)))


def test_a_listing_needs_neither_queue_nor_topic(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.write()
    topic.topics.store.delete([info.key for info in topic.topics.store.list("!tieredstore")])
    with pytest.raises(TopicNotFoundError):
        rows_in(topic.options)
    for cut in ({}, {"maxSplitBytes": 300}):
        rows = rows_in({**topic.options, "discover": "listing", **cut})
        assert sorted(row["value"] for row in rows) == values(range(BATCHES))
        assert {(row["partition"], row["offset"]) for row in rows} == {(None, None)}


def test_a_message_that_stands_twice_is_read_once_however_it_is_cut(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    twice = [topic.message(0, number) for number in range(MESSAGES)]
    with closing(BatchWriter(BatchLog(topic.topics, topic.topics.get("orders")))) as writer:
        for messages in (twice, [*twice[1:], topic.message(1, 0)], twice[:1]):
            writer.write(messages, Deadline.after(60), 0)
    assert len(rows_in(topic.options)) == 9 * RECORDS
    for cut in ({}, {"maxSplitBytes": 1}, {"maxSplitBytes": 700}):
        rows = rows_in({**topic.options, "delivery": "effectively-once", **cut})
        assert sorted(row["value"] for row in rows) == sorted(values(range(1)) + values(range(1, 2), 1)), cut


def test_what_is_absent_or_damaged_or_freed(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.write()
    reader, tasks = tasks_of(topic.options)
    absent, damaged = topic.keys()[:2]
    body = topic.topics.store.get(damaged)
    topic.topics.store.delete([absent])
    with pytest.raises(DataLossError, match=f"the object {absent} does not exist; set failOnDataLoss to false"):
        rows_of(reader, tasks)
    left = rows_in(topic.options | {"failOnDataLoss": "false"})
    assert len(left) == (BATCHES - 1) * MESSAGES * RECORDS
    topic.topics.store.put(damaged, body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(MessageCorruptError, match=damaged):
        rows_in(topic.options | {"failOnDataLoss": "false"})
    topic.queue.free(0, 512)
    with pytest.raises(
        DataLossError, match="orders-0: retention has freed offsets 0 to 511; set failOnDataLoss to false"
    ):
        tasks_of(topic.options | {"startingOffsets": '{"orders":{"0":0,"1":0}}'})
    topic.queue.append(0, [b"{}"], Deadline.after(60))
    with pytest.raises(NotificationCorruptError, match="queue orders/0, offset"):
        tasks_of(topic.options)


WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "topic": ({"topic": ""}, "the option topic is ''"),
    "two topics": ({"topic": "a,b"}, "name one topic by the option topic"),
    "subscribe": ({"subscribe": "orders"}, "the format memq reads one topic: name it with the option topic"),
    "unknown": ({"startingOffset": "earliest"}, "is not known; did you mean startingOffsets"),
    "kafka": ({"kafka.bootstrap.servers": "x"}, "the option kafka.bootstrap.servers is not known"),
    "columns": ({"columns": "key,what"}, "expected some of key, value, topic"),
    "headers": ({"columns": "headers", "includeHeaders": "false"}, "columns has headers, but includeHeaders is false"),
    "other topic": ({"startingOffsets": '{"sales":{"0":1}}'}, "names sales, but the option topic is orders"),
    "a partition missing": ({"startingOffsets": '{"orders":{"0":1}}'}, "lack orders-1"),
    "latest": ({"startingOffsets": "latest"}, "startingOffsets is latest, where a batch query has nothing to read"),
    "delivery": ({"delivery": "once"}, "expected at-least-once or effectively-once"),
    "listing once": (
        {"delivery": "effectively-once", "discover": "listing"},
        "discover=listing does not use it: choose",
    ),
    "listing by offsets": ({"discover": "listing", "endingOffsets": "latest"}, "use times"),
    "no store": ({"storage.backend.class": None}, "no store is named"),
    "times": ({"startingTimestamp": "5", "endingTimestamp": "4"}, "startingTimestamp is 5, after endingTimestamp"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_told_in_one_sentence(topic: Topic, name: str) -> None:
    options, sentence = WRONG[name]
    every: dict[str, str | None] = {**topic.options, **options}
    given = {key: text for key, text in every.items() if text is not None}
    with pytest.raises(ConfigError) as raised:
        tasks_of(given)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
