"""Rows written to topics of batches, without a JVM: notified after storage, each epoch once, invalid rows refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tests.support.pubsub.memq_topic import Rows, Topic, written_topic
from tests.support.pubsub.pubsub_topics import records_of, values_of
from tieredstore.errors import ConfigError
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.errors import InvalidRecordError
from tieredstore.spark.memq.data_source import MemqDataSource
from tieredstore.spark.memq.sink import MemqStreamWriter, MemqWriter
from tieredstore.spark.source.rows import MEMQ_ROWS

SCHEMA = StructType([StructField("value", StringType())])


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Topic:
    return written_topic(tmp_path_factory.mktemp("memq"))


def arrow_rows(*texts: str) -> Iterator[Any]:
    yield pa.RecordBatch.from_pydict({"value": list(texts)})


def test_a_batch_is_notified_when_all_of_it_is_stored_and_aborts_delete(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    writer: Any = MemqDataSource(topic.options).writer(SCHEMA, False)
    assert isinstance(writer, MemqWriter)
    tried, won = writer.write(arrow_rows("a", "b")), writer.write(arrow_rows("a", "b"))
    assert all(f"spark-{won.query}-0-0" in batch.key for batch in won.batches)
    pickle.loads(pickle.dumps(writer)).commit([won, None])
    writer.abort([won])  # Spark aborts if it gets no answer to the commit
    with BatchConsumer(topic.topics, "orders") as consumer:
        assert sorted(values_of(consumer)) == [b"a", b"b"]
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
    with BatchConsumer(topic.topics, "orders") as consumer:
        records = sorted(records_of(consumer), key=lambda record: record.record)
    assert [(each.key, each.value, each.headers, each.message_id) for each in records] == [
        (b"k", b"v", (("h", b"1"),), b"id"), (None, b"", (), None), (None, b"now", (), None),
    ]  # fmt: skip
    assert records[0].timestamp == 1_700_000_000_123
    assert records[1].timestamp == -1
    assert (records[2].timestamp or 0) > 1_700_000_000_123
    with pytest.raises(InvalidRecordError, match="a row has a null value"):
        writer.write(arrow_rows("a", None))  # type: ignore[arg-type]
    assert len(topic.keys()) == 1


def rows_schema() -> StructType:
    names = ("key", "value", "messageId", "timestamp", "headers")
    return StructType([StructField(name, MEMQ_ROWS.types[name]) for name in names])


def test_a_stream_writes_each_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(tmp_path)
    given = {"sql.streaming.queryId": "a-query", "streaming.sql.batchId": "7"}
    writer: Any = MemqDataSource(topic.options | {"checkpointLocation": "c"}).streamWriter(SCHEMA, False)
    assert isinstance(writer, MemqStreamWriter)
    with pytest.raises(ConfigError, match="Spark did not give its tasks"):
        writer.write(arrow_rows("a"))
    context = SimpleNamespace(getLocalProperty=given.get, partitionId=lambda: 0)
    monkeypatch.setattr("tieredstore.spark.memq.sink.TaskContext", SimpleNamespace(get=lambda: context))
    for _ in range(2):  # Spark repeats an epoch after a kill of the driver
        writer.commit([writer.write(arrow_rows("a"))], 7)
    given["streaming.sql.batchId"] = "8"
    lost = writer.write(arrow_rows("b"))
    writer.abort([lost, None], 8)
    writer.commit([writer.write(arrow_rows("b"))], 8)
    with BatchConsumer(topic.topics, "orders") as consumer:
        assert sorted(values_of(consumer)) == [b"a", b"b"]
    assert len(topic.keys()) == 2


def test_what_cannot_be_written(topic: Topic) -> None:
    def writer_of(schema: StructType, **options: str) -> object:
        return MemqDataSource(topic.options | options).writer(schema, False)

    with pytest.raises(ConfigError, match="a topic cannot be overwritten: write with mode append"):
        MemqDataSource(topic.options).writer(SCHEMA, True)
    with pytest.raises(ConfigError, match="a topic cannot be overwritten: use output mode"):
        MemqDataSource(topic.options).streamWriter(SCHEMA, True)
    with pytest.raises(ConfigError, match="the option startingOffsets is for reading"):
        writer_of(SCHEMA, startingOffsets="earliest")
    with pytest.raises(ConfigError, match="cannot write the column partition: a row may have key, value"):
        writer_of(StructType([*SCHEMA.fields, StructField("partition", LongType())]))
    with pytest.raises(ConfigError, match="the column value is bigint, but must be binary"):
        writer_of(StructType([StructField("value", LongType())]))
    with pytest.raises(ConfigError, match="there is no column value"):
        writer_of(StructType([StructField("key", BinaryType())]))
