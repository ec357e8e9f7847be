"""Tests of reads from a broker that deleted records, recreated the topic, or has a damaged log."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import crc32c
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.kafka.kafka_topics import (
    Produced,
    Transaction,
    delete_records,
    delete_topic,
    end_offset,
    make_topic,
    produce,
)
from tests.support.kafka.live_reads import read_live
from tests.support.servers.kafka import KafkaServer
from tieredstore.errors import BatchCorruptError, BrokerUnavailableError, DataLossError, ResourceNotFoundError
from tieredstore.live import LiveCluster
from tieredstore.live.messages import MessageColumns, headers_size
from tieredstore.model import Uuid


def records(count: int, size: int = 10) -> list[Produced]:
    source = random.Random(count)
    return [Produced(None, source.randbytes(size)) for _ in range(count)]


def reading(
    server: KafkaServer, topic: str, start: int, stop: int, *, topic_id: Uuid | None = None, timeout_s: float = 60
) -> Iterator[pa.RecordBatch]:
    properties = {"bootstrap.servers": server.bootstrap_servers}
    return read_live(
        properties, topic, 0, start, stop, isolation="read_committed", topic_id=topic_id, timeout_s=timeout_s
    )


def column(batch: pa.RecordBatch, name: str) -> list[object]:
    untyped: Any = batch
    return list(untyped[name].to_pylist())


def collect(batches: Iterator[pa.RecordBatch], offsets: list[object]) -> None:
    for batch in batches:
        offsets += column(batch, "offset")


def topic_id_of(server: KafkaServer, topic: str) -> Uuid:
    with LiveCluster({"bootstrap.servers": server.bootstrap_servers}, isolation="read_committed") as cluster:
        return cluster.topic(topic).topic_id


@pytest.mark.parametrize(("start", "stop", "lost"), [(0, 100, "0 to 39"), (39, 41, "39 to 39"), (5, 20, "5 to 19")])
def test_offsets_before_the_log_are_data_loss(kafka: KafkaServer, start: int, stop: int, lost: str) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, records(100))
    delete_records(kafka, topic, 40)
    with pytest.raises(DataLossError, match=rf"^offsets {lost} are gone from {topic}-0 .* begins at offset 40 now"):
        list(reading(kafka, topic, start, stop))
    assert sum(batch.num_rows for batch in reading(kafka, topic, 40, 100)) == 60


def test_retention_that_passes_by_during_the_read_is_data_loss_behind_what_had_come(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    # The records exceed the read-ahead, so the reader must fetch again after its first batch.
    for _ in range(3):
        produce(kafka, topic, records(20, 1_000_000 - 1000))
    batches = reading(kafka, topic, 0, 60)
    rows = column(next(batches), "offset")
    delete_records(kafka, topic, 59)
    with pytest.raises(DataLossError, match="begins at offset 59 now") as raised:
        collect(batches, rows)
    assert rows == list(range(len(rows)))
    assert 0 < len(rows) < 59
    assert f"offsets {len(rows)} to 58 are gone" in str(raised.value)


def test_an_offset_behind_the_log_is_data_loss(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, records(10))
    with pytest.raises(DataLossError, match="now ends before offset 10, but was read from offset 11 on"):
        list(reading(kafka, topic, 11, 12))


def test_a_log_that_ends_too_early_is_data_loss_after_its_records(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, records(10))
    said, rows = "", list[object]()
    # The first timeout may pass before the broker answers.
    for timeout_s in (2, 10, 50):
        rows.clear()
        with pytest.raises((DataLossError, BrokerUnavailableError)) as raised:
            collect(reading(kafka, topic, 0, 12, timeout_s=timeout_s), rows)
        said = str(raised.value)
        if isinstance(raised.value, DataLossError):
            break
    assert "ends before offset 10, but was to be read up to offset 12" in said
    assert rows == list(range(10))


def test_a_log_that_grows_to_the_end_in_time_is_read(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    transaction = Transaction(kafka)
    transaction.send(topic, records(3))
    batches = reading(kafka, topic, 0, 4, timeout_s=60)
    transaction.end("commit")
    assert [offset for batch in batches for offset in column(batch, "offset")] == [0, 1, 2]


def recreated(server: KafkaServer, topic: str, count: int) -> None:
    delete_topic(server, topic)
    end = time.monotonic() + 120
    while True:
        try:
            topic_id_of(server, topic)
        except ResourceNotFoundError:
            break
        assert time.monotonic() < end
    make_topic(server, name=topic)
    produce(server, topic, records(count))


def test_a_topic_that_was_created_again_is_data_loss(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, records(10))
    old = topic_id_of(kafka, topic)
    recreated(kafka, topic, 10)
    new = topic_id_of(kafka, topic)
    with pytest.raises(DataLossError, match=f"created again: its id is {new} on the broker, but the records of {old}"):
        list(reading(kafka, topic, 0, 10, topic_id=old))
    assert sum(batch.num_rows for batch in reading(kafka, topic, 0, 10, topic_id=new)) == 10


def test_a_topic_that_is_created_again_during_the_read_is_data_loss(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, records(30_000))
    batches = reading(kafka, topic, 0, 30_000, topic_id=topic_id_of(kafka, topic))
    next(batches)
    recreated(kafka, topic, 30_000)
    with pytest.raises(DataLossError):
        list(batches)


def test_a_topic_or_partition_that_is_not_there_is_said(kafka: KafkaServer) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    topic = make_topic(kafka)

    def read_absent(name: str, partition: int) -> None:
        with pytest.raises(ResourceNotFoundError, match=f"{name}-{partition} at"):
            list(read_live(properties, name, partition, 0, 1, isolation="read_committed"))

    # Read in parallel, because a partition counts as absent only after 5 s.
    with ThreadPoolExecutor() as pool:
        reads = pool.map(read_absent, (topic, "nobody"), (7, 0))
        with pytest.raises(ResourceNotFoundError, match="there is no nobody at"):
            list(reading(kafka, "nobody", 0, 1, topic_id=Uuid.random()))
        list(reads)


def change_log(server: KafkaServer, topic: str, change: Callable[[bytes], bytes]) -> None:
    """Change a log in place on the broker's disk. The broker sends it without a check."""
    (log,) = server.folder(topic).glob("*.log")
    with log.open("r+b") as file:
        content = file.read()
        file.seek(0)
        file.write(change(content))


def test_a_header_whose_key_is_no_text_is_an_error_that_says_how_to_go_on(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, [Produced(None, b"0"), Produced(None, b"1", (("AAAA", None),))])

    def malform(log: bytes) -> bytes:
        changed = log.replace(b"AAAA", b"\xff\xfeAA")
        return changed[:17] + crc32c.crc32c(changed[21:]).to_bytes(4, "big") + changed[21:]

    change_log(kafka, topic, malform)
    with pytest.raises(BatchCorruptError, match=f"^the record at offset 1 of {topic}-0 .* read without headers$"):
        list(reading(kafka, topic, 0, 2))
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    batches = read_live(properties, topic, 0, 0, 2, isolation="read_committed", columns=("value",))
    assert [value for batch in batches for value in column(batch, "value")] == [b"0", b"1"]

    # No later look at the message's headers ends the process.
    client = Consumer(properties | {"group.id": "x", "enable.auto.commit": False})
    with closing(client):
        client.assign([TopicPartition(topic, 0, 1)])
        message: Any
        (message,) = client.consume(1, timeout=30)
        assert headers_size(message) == headers_size(message) == 0
        for _ in range(2):
            with pytest.raises(BatchCorruptError, match=r"record at offset 1 .* read without headers$"):
                MessageColumns(("headers",)).build([message])
        with pytest.raises(BatchCorruptError, match=r"record at offset 1 .* read without headers$"):
            list(message.headers())


def test_a_damaged_batch_on_the_brokers_disk_is_an_error(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, records(10, 100))
    change_log(kafka, topic, lambda log: log[:-50] + bytes([log[-50] ^ 1]) + log[-49:])
    assert end_offset(kafka, topic) == 10
    with pytest.raises(BatchCorruptError, match=f"{topic}-0 at .* CRC32C"):
        list(reading(kafka, topic, 0, 10))
