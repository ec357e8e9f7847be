"""A topic of batches in a folder, planned and read as by Spark's source, but without a JVM."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

from tests.support.pubsub.pubsub_topics import topics_in
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, seal_message
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.spark.memq.data_source import MemqDataSource

BATCHES, MESSAGES, RECORDS = 6, 4, 5
Rows = list[dict[str, Any]]


class Topic:
    """Topic ``orders`` with two read partitions in a folder; batch n is in partition n % 2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.topics: Topics = topics_in(folder)
        self.options = {"topic": "orders", "storage.backend.class": "filesystem", "storage.root": str(folder)}
        self._topic = self.topics.create("orders", 2)
        self.queue = self.topics.queue(self._topic)
        self._requests = 0

    def write(self, batches: range = range(BATCHES), messages: int = MESSAGES) -> None:
        with closing(BatchWriter(BatchLog(self.topics, self._topic))) as writer:
            for batch in batches:
                sealed = [self.message(batch, number) for number in range(messages)]
                writer.write(sealed, Deadline.after(60), batch % 2)

    def message(self, batch: int, number: int) -> SealedMessage:
        body = BodyWriter(1 << 20)
        for record in range(RECORDS):
            name = b"%d.%d.%d" % (batch, number, record)
            body.take(name, b"k%d" % (record % 3), [("h", name)], name[::-1], batch * 1000 + record)
        self._requests += 1
        request = ProducerRequest(b"\x7f\x00\x00\x01", 1, self._requests)
        stored = seal_message(body, RECORDS, request, Compression.NONE)
        return SealedMessage(stored, request, RECORDS, batch * 1000, batch * 1000 + RECORDS - 1)

    def keys(self) -> list[str]:
        return [info.key for info in self.topics.store.list("") if "/topics/orders/" in info.key]


def written_topic(folder: Path) -> Topic:
    """Return the topic with all its batches."""
    topic = Topic(folder)
    topic.write()
    return topic


def values(batches: range, messages: int = MESSAGES) -> list[bytes]:
    return sorted(
        b"%d.%d.%d" % (batch, number, record)
        for batch in batches
        for number in range(messages)
        for record in range(RECORDS)
    )


def tasks_of(options: dict[str, Any]) -> tuple[Any, list[InputPartition]]:
    source = MemqDataSource({name: str(text) for name, text in options.items()})
    reader: Any = pickle.loads(pickle.dumps(source.reader(source.schema())))
    return reader, list(reader.partitions())


def rows_of(reader: Any, tasks: list[InputPartition]) -> Rows:
    rows: Rows = []
    for task in pickle.loads(pickle.dumps(tasks)):
        for batch in reader.read(task):
            assert batch.num_rows
            rows += batch.to_pylist()
    return rows


def rows_in(options: dict[str, Any]) -> Rows:
    return rows_of(*tasks_of(options))
