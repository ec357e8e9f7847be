"""Effectively once: repeated Messages are read once, from any starting position, and nothing else is skipped."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.support.pubsub.memq_batches import build_batch
from tests.support.pubsub.pubsub_topics import orders_on, values_of
from tests.support.stores.doubles import CountingStore
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.batches import index_size
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, seal_message
from tieredstore.pubsub.format.notifications import BatchKey, Notification
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import Topics

LOCALHOST = b"\x7f\0\0\1"
_server_ids = itertools.count()


def once(topics: Topics, offset: int = 0, **options: str) -> BatchConsumer:
    consumer = BatchConsumer(topics, "orders", delivery="effectively-once", **options)  # type: ignore[arg-type]
    consumer.seek(0, offset)
    return consumer


def message(value: bytes, request_id: int, *, address: bytes = LOCALHOST, epoch_ms: int = 7) -> bytes:
    body = BodyWriter(1 << 16)
    assert body.take(value, None, None, None, 5) == 0
    return seal_message(body, 1, ProducerRequest(address, epoch_ms, request_id), Compression.NONE)


def notify_as_memq(topics: Topics, *messages: bytes, damage: int | None = None) -> str:
    """Write a batch and its notification like MemQ's broker. ``damage`` is a byte to flip, counted from the object's
    end.
    """
    key = str(BatchKey(topics.get("orders").path, 0, next(_server_ids), 1, 0, "h"))
    body = bytearray(build_batch(messages))
    if damage is not None:
        body[-damage] ^= 1
    topics.store.put(key, body)
    notification = Notification("orders", len(body) - index_size(len(messages)), len(messages), key=key)
    topics.queue(topics.get("orders")).append(0, [notification.to_json()], Deadline.after(60.0))
    return key


def repeat(topics: Topics, offset: int) -> None:
    """Append a notification of the queue a second time."""
    queue = topics.queue(topics.get("orders"))
    queue.append(0, [queue.read(0, offset)[0].raw], Deadline.after(60.0))


def test_a_batch_that_is_notified_twice_is_read_once_wherever_one_begins() -> None:
    topics = orders_on()
    for value in (b"a", b"b"):
        with BatchProducer(topics, "orders") as producer:
            producer.send(value)
    repeat(topics, 0)
    assert values_of(BatchConsumer(topics, "orders"), at_least=3) == [b"a", b"b", b"a"]
    consumer = once(topics)
    assert values_of(consumer, at_least=2) == [b"a", b"b"]
    assert consumer.doubles == 1
    later = once(topics, 256)
    assert values_of(later, at_least=1) == [b"b"]
    assert later.doubles == 1
    later.seek(0, 0)
    assert values_of(later, at_least=2) == [b"a", b"b"]  # records come again if the consumer seeks back


def test_a_message_that_memqs_client_sent_again_is_one_among_others_of_its_batches() -> None:
    topics = orders_on()
    notify_as_memq(topics, message(b"0", 0), message(b"1", 1))
    notify_as_memq(topics, message(b"1", 1), message(b"2", 2), message(b"2", 2))
    for offset, values in ((0, [b"0", b"1", b"2"]), (256, [b"2"])):
        consumer = once(topics, offset)
        assert values_of(consumer, at_least=len(values)) == values
        assert consumer.doubles == 2


def test_positions_within_a_batch_leave_out_the_same() -> None:
    topics = orders_on()
    notify_as_memq(topics, *(message(b"%d" % number, number % 3) for number in range(3)), message(b"0", 0))
    notify_as_memq(topics, message(b"2", 2), message(b"3", 3))
    with BatchConsumer(topics, "orders", group="g", delivery="effectively-once") as consumer:
        assert next(consumer.records(60.0)).value == b"0"
        consumer.commit()
    with BatchConsumer(topics, "orders", group="g", delivery="effectively-once") as later:
        assert values_of(later, at_least=3) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "other",
    [
        message(b"1", 1),
        message(b"0", 0, epoch_ms=8),
        message(b"0", 0, address=b"\x7f\0\0\2"),
        message(b"another producer that began in the same ms", 0),
    ],
)
def test_what_only_resembles_it_is_no_double(other: bytes) -> None:
    topics = orders_on()
    notify_as_memq(topics, message(b"0", 0))
    notify_as_memq(topics, other)
    assert len(values_of(once(topics), at_least=2)) == 2
    assert len(values_of(once(topics, 256), at_least=1)) == 1


def test_messages_that_name_no_producer_are_all_given() -> None:
    topics = orders_on()
    body = BodyWriter(1 << 16)
    assert body.take(b"v", None, None, None, 5) == 0
    nobodys = seal_message(body, 1, None, Compression.NONE)
    notify_as_memq(topics, nobodys, nobodys)
    assert values_of(once(topics), at_least=2) == [b"v", b"v"]


def test_a_copy_of_what_is_damaged_or_gone_is_given() -> None:
    topics = orders_on()
    notify_as_memq(topics, message(b"0", 0), damage=1)
    gone = notify_as_memq(topics, message(b"1", 1))
    notify_as_memq(topics, message(b"0", 0), message(b"1", 1))
    topics.store.delete([gone])
    consumer = once(topics, on_corrupt="skip", on_data_loss="report")
    assert values_of(consumer, at_least=2) == [b"0", b"1"]
    assert (len(consumer.skipped), len(consumer.losses), consumer.doubles) == (1, 1, 0)


def test_behind_the_window_nothing_is_remembered() -> None:
    topics = orders_on(dedup_window_ms="1")
    notify_as_memq(topics, message(b"0", 0))
    written_ms = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > written_ms + 1)
    notify_as_memq(topics, message(b"0", 0))
    assert values_of(once(topics), at_least=2) == [b"0", b"0"]


def test_objects_are_opened_only_where_memq_wrote_the_notification() -> None:
    store = CountingStore(MemoryObjectStore())
    topics = orders_on(store)
    for number in range(4):
        with BatchProducer(topics, "orders") as producer:
            producer.send(b"%d" % number)
    notify_as_memq(topics, message(b"memq", 0))
    with BatchProducer(topics, "orders") as producer:
        producer.send(b"last")
    store.reset()
    assert values_of(once(topics, 5 * 256), at_least=1) == [b"last"]
    opened = [*store.keys_of("get"), *store.keys_of("get_into")]
    assert sum("!tieredstore" not in key for key in opened) == 2


def test_a_delivery_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="delivery"):
        BatchConsumer(orders_on(), "orders", delivery="exactly-once")  # type: ignore[arg-type]
