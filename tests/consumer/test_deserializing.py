"""``DeserializingConsumer`` of confluent-kafka, with records from the bucket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.error import ValueDeserializationError
from confluent_kafka.serialization import StringDeserializer

from tests.consumer.buckets import DEADLINE_S
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tieredstore.consumer import Consumer, DeserializingConsumer
from tieredstore.model import TopicIdPartition
from tieredstore.testing.segments import Record, build_batch


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path)
    records = [Record(b"42", b"\xc3\xa4"), Record(None, None), Record(b"none", b"k"), Record(b"43", b"k")]
    topics.copy(TopicIdPartition(FIRST_ID, "orders", 0), [build_batch(records)], range(len(records)))
    yield topics
    topics.close()


def number(data: bytes | None, _: Any) -> int | None:
    return None if data is None else int(data)


def opened(bucket: Bucket) -> Any:
    store = {**bucket.options, "chunk.size": "16384"}
    return DeserializingConsumer(
        {
            "group.id": "readers", "tiered.storage.mode": "remote_only", "tiered.storage.settings": store,
            "key.deserializer": StringDeserializer(), "value.deserializer": number,
        }
    )  # fmt: skip


def polled(consumer: Any) -> Any:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        message = consumer.poll(0.1)
        if message is not None:
            return message
    raise AssertionError("nothing came")


def test_keys_and_values_are_deserialized(bucket: Bucket) -> None:
    consumer = opened(bucket)
    assert {Consumer, confluent_kafka.DeserializingConsumer} <= set(type(consumer).__mro__)
    consumer.assign([TopicPartition("orders", 0, 0)])
    first, null = polled(consumer), polled(consumer)
    assert (first.key(), first.value(), first.offset()) == ("ä", 42, 0)
    assert (null.key(), null.value()) == (None, None)
    with pytest.raises(ValueDeserializationError) as error:
        polled(consumer)
    assert error.value.kafka_message is not None
    assert error.value.kafka_message.offset() == 2
    # As in confluent-kafka, the next call continues with the following message.
    assert polled(consumer).value() == 43
    with pytest.raises(NotImplementedError):
        consumer.consume(1)
    consumer.close()
