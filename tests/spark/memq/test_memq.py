"""Topics of batches planned, read and written without a JVM: each option, tasks cut at Messages, epochs once."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tests.support.pubsub_topics import topics_in, values_of
from tieredstore.errors import ConfigError, DataLoss, InvalidRecord, MessageCorrupt, NotificationCorrupt, TopicNotFound
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consumer import Consumer
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, seal_message
from tieredstore.pubsub.topics import Topics
from tieredstore.pubsub.writer import BatchWriter, SealedMessage
from tieredstore.spark.memq import sink, stream
from tieredstore.spark.memq.data_source import MemqDataSource
from tieredstore.spark.memq.options import parse_options
from tieredstore.spark.memq.rows import TYPES
from tieredstore.spark.memq.sink import MemqStreamWriter, MemqWriter
from tieredstore.spark.memq.stream import MemqStreamReader
from tieredstore.spark.memq.tasks import MemqTask

BATCHES, MESSAGES, RECORDS = 6, 4, 5
Rows = list[dict[str, Any]]


class Topic:
    """The topic ``orders`` of two read partitions in a folder; batch n is in partition n % 2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topics: Topics = topics_in(folder)
        self.options = {"topic": "orders", "storage.backend.class": "filesystem", "storage.root": str(folder)}
        self._topic = self.topics.create("orders", 2)
        self.queue = self.topics.queue(self._topic)
        self._requests = 0

    def write(self, batches: range = range(BATCHES), messages: int = MESSAGES) -> None:
        with closing(BatchWriter(self.topics, self._topic, self.queue)) as writer:
            for batch in batches:
                sealed = [self.message(batch, number) for number in range(messages)]
                writer.write(sealed, Deadline.after(60), batch % 2)

    def message(self, batch: int, number: int) -> SealedMessage:
        body = BodyWriter(1 << 20)
        for record in range(RECORDS):
            name = b"%d.%d.%d" % (batch, number, record)
            body.append(name, b"k%d" % (record % 3), [("h", name)], name[::-1], batch * 1000 + record)
        self._requests += 1
        request = ProducerRequest(b"\x7f\x00\x00\x01", 1, self._requests)
        stored = seal_message(body, RECORDS, request, Compression.NONE)
        return SealedMessage(stored, request, RECORDS, batch * 1000, batch * 1000 + RECORDS - 1)

    def keys(self) -> list[str]:
        return [info.key for info in self.topics.store.list("") if "/topics/orders/" in info.key]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Topic:
    written = Topic(tmp_path_factory.mktemp("memq"))
    written.write()
    return written


def values(batches: range, messages: int = MESSAGES) -> list[bytes]:
    return sorted(
        b"%d.%d.%d" % (batch, number, record)
        for batch in batches
        for number in range(messages)
        for record in range(RECORDS)
    )


def tasks_of(options: dict[str, Any]) -> tuple[Any, list[MemqTask]]:
    source = MemqDataSource({name: str(text) for name, text in options.items()})
    reader: Any = pickle.loads(pickle.dumps(source.reader(source.schema())))
    return reader, list(reader.partitions())


def rows_of(reader: Any, tasks: list[MemqTask]) -> Rows:
    rows: Rows = []
    for task in pickle.loads(pickle.dumps(tasks)):
        for batch in reader.read(task):
            assert batch.num_rows
            rows += batch.to_pylist()
    return rows


def rows_in(options: dict[str, Any]) -> Rows:
    return rows_of(*tasks_of(options))


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
    assert [task.batches[0].partition for task in whole] == [0, 1]
    size = len(topic.message(0, 0).stored)
    reader, tasks = tasks_of(topic.options | {"maxSplitBytes": 2 * size})
    assert len(tasks) == BATCHES * MESSAGES // 2
    assert all(sum(batch.size for batch in task.batches) <= 2 * size for task in tasks)
    places = [(row["partition"], row["offset"], row["message"], row["record"]) for row in rows_of(reader, tasks)]
    assert places == sorted(places)
    assert len(tasks_of(topic.options | {"maxSplitBytes": 1})[1]) == BATCHES * MESSAGES
    assert len(tasks_of(topic.options | {"minPartitions": 7})[1]) >= 7


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
    with pytest.raises(TopicNotFound):
        rows_in(topic.options)
    for cut in ({}, {"maxSplitBytes": 300}):
        rows = rows_in({**topic.options, "discover": "listing", **cut})
        assert sorted(row["value"] for row in rows) == values(range(BATCHES))
        assert {(row["partition"], row["offset"]) for row in rows} == {(None, None)}


def test_a_message_that_stands_twice_is_read_once_however_it_is_cut(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    twice = [topic.message(0, number) for number in range(MESSAGES)]
    with closing(BatchWriter(topic.topics, topic.topics.get("orders"), topic.queue)) as writer:
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
    with pytest.raises(DataLoss, match=f"the object {absent} is not there; set failOnDataLoss to false"):
        rows_of(reader, tasks)
    left = rows_in(topic.options | {"failOnDataLoss": "false"})
    assert len(left) == (BATCHES - 1) * MESSAGES * RECORDS
    topic.topics.store.put(damaged, body[:-1] + b"?")
    with pytest.raises(MessageCorrupt, match=damaged):
        rows_in(topic.options | {"failOnDataLoss": "false"})
    topic.queue.free(0, 512)
    with pytest.raises(DataLoss, match="orders-0: retention has freed offsets 0 to 511; set failOnDataLoss to false"):
        tasks_of(topic.options | {"startingOffsets": '{"orders":{"0":0,"1":0}}'})
    topic.queue.append(0, [b"{}"], Deadline.after(60))
    with pytest.raises(NotificationCorrupt, match="queue orders/0, offset"):
        tasks_of(topic.options)


WRONG: dict[str, tuple[dict[str, str | None], str]] = {
    "topic": ({"topic": ""}, "the option topic is ''"),
    "two topics": ({"topic": "a,b"}, "name one topic of batches with the option topic"),
    "subscribe": ({"subscribe": "orders"}, "the format memq reads one topic: name it with the option topic"),
    "unknown": ({"startingOffset": "earliest"}, "is not known; the nearest is startingOffsets"),
    "kafka": ({"kafka.bootstrap.servers": "x"}, "the option kafka.bootstrap.servers is not known"),
    "columns": ({"columns": "key,what"}, "expected is some of key, value, topic"),
    "headers": ({"columns": "headers", "includeHeaders": "false"}, "columns has headers and includeHeaders is false"),
    "other topic": ({"startingOffsets": '{"sales":{"0":1}}'}, "names sales, and the option topic says orders"),
    "a partition missing": ({"startingOffsets": '{"orders":{"0":1}}'}, "do not name orders-1"),
    "latest": ({"startingOffsets": "latest"}, "startingOffsets is latest, where a batch has nothing to read"),
    "delivery": ({"delivery": "once"}, "expected is at-least-once or effectively-once"),
    "listing once": ({"delivery": "effectively-once", "discover": "listing"}, "discover=listing does without: choose"),
    "listing by offsets": ({"discover": "listing", "endingOffsets": "latest"}, "use times"),
    "no store": ({"storage.backend.class": None}, "nothing names the store"),
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


# --- streams ---


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def stream_of(topic: Topic, clock: Any = None, **options: str) -> MemqStreamReader:
    given = {**topic.options, "startingOffsets": "earliest", **options}
    return MemqStreamReader(parse_options(given, streaming=True), clock=clock or Clock())


def stream_values(reader: MemqStreamReader, start: Any, end: Any) -> list[bytes]:
    return sorted(row["value"] for row in rows_of(reader, list(reader.partitions(start, end))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "counts"),
    [({}, [6]), ({"maxBatchesPerTrigger": "4"}, [4, 2]), ({"maxBytesPerTrigger": "1"}, [1] * 6)],
)
def test_a_stream_takes_what_came_within_its_limits(topic: Topic, options: dict[str, str], counts: list[int]) -> None:
    reader = stream_of(topic, **options)
    limit = reader.getDefaultReadLimit()
    at = reader.initialOffset()
    seen: list[bytes] = []
    for count in counts:
        end = reader.latestOffset(at, limit)
        given = stream_values(reader, at, end)
        # Read again after a restart, which asks again where the first batch began.
        again = pickle.loads(pickle.dumps(reader))
        assert stream_values(again, again.initialOffset() if not seen else at, end) == given
        assert len(given) == count * MESSAGES * RECORDS
        seen += given
        at = end
    assert sorted(seen) == values(range(BATCHES))
    assert reader.latestOffset(at, limit) == at
    reader.stop()


def test_a_stream_looks_once_a_second_and_sees_what_comes_and_new_partitions(tmp_path: Path) -> None:
    topic, clock = Topic(tmp_path), Clock()
    reader = stream_of(topic, clock, startingOffsets="latest")
    at = reader.initialOffset()
    assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
    topic.write(range(2))
    assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
    clock.now = 1.5
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert stream_values(reader, at, end) == values(range(2))
    grown = topic.topics.grow("orders", 3)
    with closing(BatchWriter(topic.topics, grown, topic.topics.queue(grown))) as writer:
        writer.write([topic.message(9, 0)], Deadline.after(60), 2)
    last = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert last["offsets"]["2"] == 1
    assert stream_values(pickle.loads(pickle.dumps(reader)), end, last) == values(range(9, 10), 1)


def test_a_run_up_to_now_and_the_engines_own_limits(topic: Topic) -> None:
    reader = stream_of(topic, maxBatchesPerTrigger="2")
    at = reader.initialOffset()
    counts = []
    for limit in (ReadMaxRows(3), ReadMaxBytes(1), ReadAllAvailable()):
        end = reader.latestOffset(at, limit)
        counts.append(len(stream_values(reader, at, end)) // (MESSAGES * RECORDS))
        at = end
    assert counts == [3, 1, 2]
    with pytest.raises(ConfigError, match="cannot be read by ReadMaxFiles"):
        reader.latestOffset(reader.initialOffset(), ReadMaxFiles(1))
    reader = stream_of(topic)
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    assert stream_values(reader, at, end) == values(range(BATCHES))
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_a_checkpoint_of_something_else_is_refused(topic: Topic) -> None:
    reader = stream_of(topic)
    whole = reader.initialOffset()
    for foreign in ({}, whole | {"topic": "sales"}, whole | {"version": 2}, whole | {"offsets": {"x": 1}},
                    whole | {"offsets": {"0": -1}}, whole | {"offsets": None}):  # fmt: skip
        with pytest.raises(ConfigError, match="the checkpoint's offsets are not"):
            reader.partitions(foreign, whole)
    for options, sentence in (
        ({"endingOffsets": "latest"}, "is for batches"),
        ({"discover": "listing"}, "for batches"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            stream_of(topic, **options)
    assert stream._VERSION == 1


# --- writing ---

SCHEMA = StructType([StructField("value", StringType())])


def arrow_rows(*texts: str) -> Iterator[Any]:
    yield pa.RecordBatch.from_pydict({"value": list(texts)})


def test_a_batch_is_notified_when_all_of_it_is_stored_and_aborts_delete(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    writer: Any = MemqDataSource(topic.options).writer(SCHEMA, False)
    assert isinstance(writer, MemqWriter)
    tried, won = writer.write(arrow_rows("a", "b")), writer.write(arrow_rows("a", "b"))
    assert all(f"spark-{won.query}-0-0" in batch.key for batch in won.batches)
    pickle.loads(pickle.dumps(writer)).commit([won, None])
    writer.abort([won])  # as Spark does when it does not hear of the commit
    with Consumer(topic.topics, "orders") as consumer:
        assert sorted(values_of(consumer, 0.05, patience=2)) == [b"a", b"b"]
    other: Any = MemqDataSource(topic.options).writer(SCHEMA, False)
    other.abort([tried, None])
    other.commit([])
    assert set(topic.keys()) == {batch.key for batch in won.batches}


def test_columns_that_a_row_may_have(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    full = rows_schema()
    writer: Any = MemqDataSource(topic.options).writer(full, False)
    fields: Any = [
        ("key", pa.binary()), ("value", pa.binary()), ("messageId", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]  # fmt: skip
    kinds = pa.schema(fields)
    rows: Rows = [
        {"key": b"k", "value": b"v", "messageId": b"id", "timestamp": 1_700_000_000_123_456,
         "headers": [{"key": "h", "value": b"1"}]},
        {"key": None, "value": b"", "messageId": None, "timestamp": -1, "headers": None},
        {"key": None, "value": b"now", "messageId": None, "timestamp": None, "headers": []},
    ]  # fmt: skip
    writer.commit([writer.write(iter([pa.RecordBatch.from_pylist(rows, schema=kinds)]))])
    with Consumer(topic.topics, "orders") as consumer:
        records = sorted(consumer.records(0.05), key=lambda record: record.record)
    assert [(each.key, each.value, each.headers, each.message_id) for each in records] == [
        (b"k", b"v", (("h", b"1"),), b"id"), (None, b"", (), None), (None, b"now", (), None),
    ]  # fmt: skip
    assert records[0].timestamp == 1_700_000_000_123
    assert records[1].timestamp == -1
    assert (records[2].timestamp or 0) > 1_700_000_000_123
    with pytest.raises(InvalidRecord, match="a row has no value"):
        writer.write(arrow_rows("a", None))  # type: ignore[arg-type]
    assert len(topic.keys()) == 1


def rows_schema() -> StructType:
    names = ("key", "value", "messageId", "timestamp", "headers")
    return StructType([StructField(name, TYPES[name]) for name in names])


def test_a_stream_writes_each_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(tmp_path)
    given = {sink._QUERY_ID: "a-query", sink._BATCH_ID: "7"}
    writer: Any = MemqDataSource(topic.options | {"checkpointLocation": "c"}).streamWriter(SCHEMA, False)
    assert isinstance(writer, MemqStreamWriter)
    with pytest.raises(ConfigError, match="Spark does not tell its tasks"):
        writer.write(arrow_rows("a"))
    monkeypatch.setattr(sink, "_property", given.__getitem__)
    for _ in range(2):  # the second time as after a driver that was killed
        writer.commit([writer.write(arrow_rows("a"))], 7)
    given[sink._BATCH_ID] = "8"
    lost = writer.write(arrow_rows("b"))
    writer.abort([lost, None], 8)
    writer.commit([writer.write(arrow_rows("b"))], 8)
    with Consumer(topic.topics, "orders") as consumer:
        assert sorted(values_of(consumer, 0.05, patience=2)) == [b"a", b"b"]
    assert len(topic.keys()) == 2


def test_what_cannot_be_written(topic: Topic) -> None:
    def writer_of(schema: StructType, **options: str) -> object:
        return MemqDataSource(topic.options | options).writer(schema, False)

    with pytest.raises(ConfigError, match="appended to, and not overwritten: write with mode append"):
        MemqDataSource(topic.options).writer(SCHEMA, True)
    with pytest.raises(ConfigError, match="appended to, and not overwritten: use the output mode"):
        MemqDataSource(topic.options).streamWriter(SCHEMA, True)
    with pytest.raises(ConfigError, match="the option startingOffsets is for reading"):
        writer_of(SCHEMA, startingOffsets="earliest")
    with pytest.raises(ConfigError, match="cannot write the column partition: a row may have key, value"):
        writer_of(StructType([*SCHEMA.fields, StructField("partition", LongType())]))
    with pytest.raises(ConfigError, match="the column value is bigint, and must be binary"):
        writer_of(StructType([StructField("value", LongType())]))
    with pytest.raises(ConfigError, match="there is no column value"):
        writer_of(StructType([StructField("key", BinaryType())]))
