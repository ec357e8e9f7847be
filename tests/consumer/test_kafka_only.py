"""Mode ``kafka_only``: each method behaves like the plain client's, and nothing else is opened."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.support.kafka.kafka_topics import Produced, make_topic, produce
from tests.support.servers.kafka import KafkaServer
from tieredstore.consumer import Consumer

pytestmark = pytest.mark.slow

DEADLINE_S: Final = 60.0
COUNT: Final = 10


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    name = make_topic(kafka)
    produce(kafka, name, [Produced(None, b"%d" % at, timestamp_ms=1000 + at) for at in range(COUNT)])
    return name


@pytest.fixture
def consumer(kafka: KafkaServer, topic: str) -> Iterator[Consumer]:
    properties: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap_servers, "group.id": f"readers-of-{topic}", "log_level": 2,
        "auto.offset.reset": "earliest", "tiered.storage.mode": "kafka_only", "enable.auto.offset.store": False,
    }  # fmt: skip
    with Consumer(properties, logger=logging.getLogger("tests.consumer")) as one:
        yield one


def offsets_read(consumer: Consumer, count: int) -> list[int]:
    messages: list[Any] = []
    end = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < end
        one = consumer.poll(0.1)
        messages += ([] if one is None else [one]) + consumer.consume(count, 0.1)
    assert all(isinstance(message, confluent_kafka.Message) for message in messages)
    return [message.offset() for message in messages]


def test_assigned_paused_sought_and_committed(consumer: Consumer, topic: str) -> None:
    place = TopicPartition(topic, 0, 2)
    consumer.assign([place])
    assert offsets_read(consumer, COUNT - 2) == list(range(2, COUNT))
    assert [(one.topic, one.partition) for one in consumer.assignment()] == [(topic, 0)]
    assert consumer.position([TopicPartition(topic, 0)])[0].offset == COUNT
    consumer.pause([place])
    consumer.seek(TopicPartition(topic, 0, 5))
    assert consumer.consume(1, 0.2) == []
    consumer.resume([place])
    assert offsets_read(consumer, COUNT - 5) == list(range(5, COUNT))
    consumer.store_offsets(offsets=[TopicPartition(topic, 0, 7)])
    consumer.commit(asynchronous=False)
    assert consumer.committed([place], DEADLINE_S)[0].offset == 7
    consumer.unassign()
    assert consumer.assignment() == []
    consumer.incremental_assign([TopicPartition(topic, 0, 9)])
    assert offsets_read(consumer, 1) == [9]
    consumer.incremental_unassign([place])
    assert consumer.assignment() == []


def test_ends_times_and_what_is_wrong(consumer: Consumer, topic: str) -> None:
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_S) == (0, COUNT)
    (found_by_time,) = consumer.offsets_for_times([TopicPartition(topic, 0, 1004)], DEADLINE_S)
    assert found_by_time.offset == 4
    with pytest.raises(KafkaException):
        consumer.seek(TopicPartition(topic, 0, 5))
    with pytest.raises(ValueError, match="num_messages"):
        consumer.consume(-1)


def test_a_member_of_a_group(consumer: Consumer, topic: str) -> None:
    assigned: list[Any] = []
    consumer.subscribe([topic], on_assign=lambda _, places: assigned.extend(places))
    assert offsets_read(consumer, COUNT) == list(range(COUNT))
    assert [(one.topic, one.partition) for one in assigned] == [(topic, 0)]
    consumer.unsubscribe()
    end = time.monotonic() + DEADLINE_S
    while consumer.assignment():
        assert time.monotonic() < end
        consumer.poll(0.1)
