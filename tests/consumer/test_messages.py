"""Messages of the bucket equal confluent-kafka's, method by method. The consumer has all methods of
confluent-kafka's.
"""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE

from tests.support.kafka.kafka_topics import Produced, random_produced
from tieredstore.consumer import Consumer, Message
from tieredstore.consumer._message import BatchMessages
from tieredstore.kafka.arrow_values import array_of
from tieredstore.kafka.records import COLUMNS
from tieredstore.kafka.records.columns import RecordColumns

_library: Any = confluent_kafka


def batch_of(records: list[Produced]) -> Any:
    schema: Any = RecordColumns(COLUMNS).schema
    columns: dict[str, Any] = {
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "headers": [list(record.headers) or None for record in records],
        "offset": [100 + at for at in range(len(records))],
        "timestamp": [record.timestamp_ms for record in records],
        "timestampType": [at % 3 - 1 for at in range(len(records))],
        "leaderEpoch": [at % 5 - 1 for at in range(len(records))],
    }
    arrays = [array_of(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_each_method_of_the_librarys_message_is_there() -> None:
    assert public(Message) == public(_library.Message)


def test_each_method_of_the_librarys_consumer_is_ours_or_meant_to_be_its_own() -> None:
    theirs = {"cluster_id", "consumer_group_metadata", "list_topics", "memberid"}
    ours = {name for name in vars(Consumer) if not name.startswith("_")}
    assert public(_library.Consumer) - theirs <= ours
    assert ours - public(_library.Consumer) == {"batches", "poll_arrow", "tiered_stats"}


@pytest.mark.parametrize("seed", range(5))
def test_each_row_is_a_message(seed: int) -> None:
    records = random_produced(random.Random(seed), 50)
    first, count = seed * 3, 50 - seed * 3
    messages = BatchMessages("orders", 7, batch_of(records).slice(first, count)).take(0, count)
    types = (TIMESTAMP_NOT_AVAILABLE, TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME)
    for at, message in enumerate(messages, first):
        record = records[at]
        assert (message.topic(), message.partition(), message.offset()) == ("orders", 7, 100 + at)
        assert (message.key(), message.value()) == (record.key, record.value)
        assert (message.deserialized_key(), message.deserialized_value()) == (record.key, record.value)
        assert message.headers() == (list(record.headers) or None)
        assert message.timestamp() == (types[at % 3], record.timestamp_ms)
        assert message.leader_epoch() == (None if at % 5 == 0 else at % 5 - 1)
        assert (message.error(), message.latency(), message.delivery_count()) == (None, None, None)
        assert len(message) == len(record.value or b"")


def test_what_a_deserializer_puts_in() -> None:
    (message,) = BatchMessages("orders", 0, batch_of([Produced(b"k", b"v")])).take(0, 1)
    message.set_key(1)
    message.set_value({"a": 2})
    message.set_headers([("h", b"x")])
    message.set_topic("other")
    assert (message.key(), message.value(), message.headers()) == (1, {"a": 2}, [("h", b"x")])
    assert message.deserialized_value() is message.value()
    assert message.topic() == "other"


class _Owner:
    """Part of a reference cycle with a message."""


def test_the_collector_looks_at_messages_only_once_they_may_refer_to_something() -> None:
    """Garbage collections do not visit the thousands of messages of a call, but still find reference cycles."""
    rows = BatchMessages("orders", 0, batch_of([Produced(b"k", b"v"), Produced(None, b"v", headers=(("h", b"x"),))]))
    plain, with_headers = rows.take(0, 2)
    assert not gc.is_tracked(plain)
    assert gc.is_tracked(with_headers)
    owner: Any = _Owner()
    owner.message = plain
    plain.set_value(owner)
    plain.set_key("k")
    assert gc.is_tracked(plain)
    gone = weakref.ref(owner)
    del owner, plain
    gc.collect()
    assert gone() is None


def test_rows_that_there_are_not() -> None:
    messages = BatchMessages("orders", 0, batch_of([Produced(b"k", b"v")]))
    for start, stop in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(IndexError):
            messages.take(start, stop)
    with pytest.raises(TypeError, match="only a consumer makes"):
        Message()
