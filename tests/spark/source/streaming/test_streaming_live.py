"""Streams that read from a broker: batches end where transactions are decided, and the broker may lose records."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kafka.kafka_topics import (
    Produced,
    Transaction,
    admin_of,
    delete_records,
    delete_topic,
    make_topic,
    produce,
)
from tests.support.servers.kafka import KafkaServer
from tests.support.spark.spark_stream_topics import Bucket, Query, rows_between
from tieredstore.errors import DataLossError

NewPartitions: Any = importlib.import_module("confluent_kafka.admin").NewPartitions
# no types


@pytest.fixture
def queries() -> Iterator[list[Query]]:
    """Yield a list for queries; stop the queries in it at the end."""
    begun: list[Query] = []
    yield begun
    for query in begun:
        query.reader.stop()


def query_of(queries: list[Query], bucket: Bucket, kafka: KafkaServer, topic: str, **options: str) -> Query:
    live = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
    queries.append(Query(bucket.reader(**live, **options)))
    return queries[-1]


def records(*numbers: int) -> list[Produced]:
    return [Produced(None, b"%d" % number) for number in numbers]


def rows(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_what_is_produced_is_read_once_by_whoever_goes_on(
    kafka: KafkaServer, bucket: Bucket, queries: list[Query]
) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, records(*range(10)))
    query = query_of(queries, bucket, kafka, topic, maxOffsetsPerTrigger="4")
    assert query.trigger() == rows(0, 1, 2, 3)
    produce(kafka, topic, records(10, 11))
    again = query_of(queries, bucket, kafka, topic)
    again.start = query.start
    assert again.trigger() == rows(*range(4, 12))
    assert again.trigger() == []


def test_a_transaction_is_read_when_it_is_decided(kafka: KafkaServer, bucket: Bucket, queries: list[Query]) -> None:
    topic = make_topic(kafka)
    query = query_of(queries, bucket, kafka, topic)
    committed, aborted = Transaction(kafka), Transaction(kafka)
    committed.send(topic, records(1))
    aborted.send(topic, records(2))
    produce(kafka, topic, records(3))
    assert query.trigger() == []
    committed.end("commit")
    assert query.trigger() == rows(1)
    aborted.end("abort")
    assert query.trigger() == rows(3)
    assert query.trigger() == []


def test_new_partitions_are_read_from_their_beginning(kafka: KafkaServer, bucket: Bucket, queries: list[Query]) -> None:
    topic = make_topic(kafka)
    query = query_of(queries, bucket, kafka, topic, startingOffsets="latest")
    assert query.trigger() == []
    admin = admin_of(kafka)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
    produce(kafka, topic, records(5), partition=1)
    assert query.trigger() == rows(5)


def test_retention_of_the_broker_is_data_loss(kafka: KafkaServer, bucket: Bucket, queries: list[Query]) -> None:
    topic = make_topic(kafka)
    strict = query_of(queries, bucket, kafka, topic)
    lenient = query_of(queries, bucket, kafka, topic, failOnDataLoss="false")
    produce(kafka, topic, records(*range(10)))
    delete_records(kafka, topic, 6)
    with pytest.raises(DataLossError, match="begins at offset 6, but was read up to 0"):
        strict.trigger()
    assert lenient.trigger() == rows(6, 7, 8, 9)


def test_a_topic_created_again_on_the_broker_is_data_loss(
    kafka: KafkaServer, bucket: Bucket, queries: list[Query]
) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, records(*range(10)))
    strict = query_of(queries, bucket, kafka, topic)
    lenient = query_of(queries, bucket, kafka, topic, failOnDataLoss="false")
    before = lenient.start
    strict.run()
    lenient.run()
    delete_topic(kafka, topic)
    make_topic(kafka, name=topic)
    produce(kafka, topic, records(20, 21))
    with pytest.raises(DataLossError, match=f"topic {topic} was created again as "):
        strict.trigger()
    with pytest.raises(DataLossError, match="now, but offsets 0 to 9 were requested"):
        rows_between(strict.reader, before, lenient.start)
    assert lenient.trigger() == rows(20, 21)
