"""A consumer on a store: positions that name a record, losses, damage, and notifications that point elsewhere."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import itertools
import os
import time
from datetime import datetime
from typing import Any

import pytest

from tests.support.damage.planted_messages import store_messages
from tests.support.pubsub.pubsub_brokers import message_of
from tests.support.pubsub.pubsub_topics import (
    batch_keys,
    fresh_topics,
    notified,
    orders_on,
    publish,
    topics_on,
    values_of,
)
from tests.support.records.counted_checksums import counted_checksums
from tests.support.stores.doubles import FaultyStore, ScriptedStore
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    AlreadyClosedError,
    ConfigError,
    DataLossError,
    InvalidRangeError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import BatchConsumer, Delivery
from tieredstore.pubsub.consume.partition_state import Fetches
from tieredstore.pubsub.errors import MessageCorruptError, NotificationCorruptError
from tieredstore.pubsub.format.notifications import Notification
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.queues import Position
from tieredstore.pubsub.queue.topics import BatchLog, Topics

LONG_S = 120.0
SECOND = 1500
"""Position of a byte in the second Message of :func:`three_messages`."""


def three_messages() -> tuple[Topics, str]:
    """Return a topic with one object, and the object's key. The object has three Messages of one record each,
    whose values begin with 0, 1 and 2.
    """
    topics = fresh_topics(message_bytes="1024", compression="none")
    publish(topics, [b"%d" % number + bytes(900) for number in range(3)])
    (key,) = batch_keys(topics)
    return topics, key


def flip(topics: Topics, key: str, *places: int) -> None:
    """Flip the lowest bit of each of these bytes of an object."""
    data = bytearray(topics.store.get(key))
    for place in places:
        data[place] ^= 1
    topics.store.put(key, data)


def test_positions_to_the_record() -> None:
    topics = fresh_topics(message_bytes="1024", compression="none")
    publish(topics, [b"%04d" % number + bytes(300) for number in range(10)])
    consumer = BatchConsumer(topics, "orders", group="g")
    for number, record in enumerate(consumer.records(LONG_S)):
        assert record.value[:4] == b"%04d" % number
        if number == 5:
            break
    consumer.commit()
    with pytest.raises(InvalidRangeError, match="was not read that far"):
        consumer.commit({0: Position(0, 3, 2)})
    consumer.close()
    with BatchConsumer(topics, "orders", group="g") as later:
        assert [value[:4] for value in values_of(later)] == [b"0006", b"0007", b"0008", b"0009"]
        assert later.position() == {0: Position(256)} or later.position()[0].offset == 0
        with pytest.raises(InvalidRangeError, match=r"offset 257 is beyond the end of orders-0 \(256\)"):
            later.seek(0, 257)
        later.seek(0, Position(0, 1, 1))
        assert next(later.records(LONG_S)).value[:4] == b"0004"
    alone = BatchConsumer(topics, "orders")
    one: Any = alone.read_at(0, 0, 1, 1)
    assert one.column("value")[0].as_py()[:4] == b"0004"
    assert alone.read_at(0, 0).num_rows == 10
    for place in ((0, 1), (0, 512), (0, 0, 9), (0, 0, 0, 9), (0, 0, 0, 1 << 63)):
        with pytest.raises(InvalidRangeError):
            alone.read_at(*place)
    with pytest.raises(ConfigError, match="without a group"):
        alone.commit()


def test_a_consumer_that_was_closed_does_not_say_that_there_is_nothing_more() -> None:
    topics = fresh_topics()
    publish(topics, [b"a", b"b"])
    for group in (None, "g"):
        with BatchConsumer(topics, "orders", group=group) as consumer:
            records = consumer.records(LONG_S)
            assert next(records).value == b"a"
        consumer.close()
        for ask in (consumer.poll, lambda records=records: next(records), lambda: next(consumer.records())):
            with pytest.raises(AlreadyClosedError, match="this consumer of orders was closed; open another consumer"):
                ask()


def test_the_latest_and_a_time() -> None:
    topics = fresh_topics()
    publish(topics, [b"before"])
    late = BatchConsumer(topics, "orders", start="latest")
    between_ms = time.time_ns() // 1_000_000 + 1
    wait_until(lambda: time.time_ns() // 1_000_000 > between_ms)
    publish(topics, [b"after"])
    assert values_of(late, at_least=1) == [b"after"]
    late.seek_to_time("1970-01-01")
    assert values_of(late, at_least=2) == [b"before", b"after"]
    late.seek_to_time(f"@{between_ms}")
    assert values_of(late, at_least=1) == [b"after"]
    for time_given, sentence in (
        (7, "time is 7, an offset: give a time, as yesterday"),
        (datetime.fromisoformat("2026-01-01"), "time is 2026-01-01T00:00:00, which has no time zone: add tzinfo=UTC"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            late.seek_to_time(time_given)


@pytest.mark.parametrize("last", [0, 1, 3, 4, 9, 10, 99])
def test_the_last_records_of_each_partition_wherever_messages_and_batches_end(last: int) -> None:
    topics = topics_on()
    topics.create("events", partitions=2)
    sent: dict[int, list[bytes]] = {0: [], 1: []}
    numbers = itertools.count()
    for partition, sizes in ((0, (1,)), (1, (2, 3)), (0, (1, 1, 2)), (1, (1,)), (0, (2, 3))):
        messages = [[b"%d" % next(numbers) for _ in range(size)] for size in sizes]
        store_messages(topics, "events", [message_of(values, n) for n, values in enumerate(messages)], partition)
        sent[partition] += itertools.chain.from_iterable(messages)
    expected = {value for values in sent.values() for value in (values[-last:] if last else [])}
    with BatchConsumer(topics, "events") as consumer:
        consumer.seek_to_last(last)
        assert sorted(values_of(consumer, at_least=len(expected))) == sorted(expected)


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), ObjectNotFoundError("not there yet")])
def test_an_object_that_could_not_be_fetched_is_fetched_again(error: TieredStoreError) -> None:
    store = ScriptedStore(MemoryObjectStore())
    topics = orders_on(store)
    publish(topics, [b"v"])
    (key,) = batch_keys(topics)
    store.on("get", key, error, times=1)
    with BatchConsumer(topics, "orders") as consumer:
        with pytest.raises(TieredStoreError):
            values_of(consumer)
        assert values_of(consumer, at_least=1) == [b"v"]


def test_an_absent_object_and_a_freed_queue_are_data_loss_or_reported() -> None:
    topics = fresh_topics()
    for number in range(4):
        publish(topics, [b"%d" % number])
    queue = topics.queue(topics.get("orders"))
    keys = [told.key for told in notified(topics)]
    topics.store.delete([keys[2]])
    with pytest.raises(DataLossError, match=r"offset 512: the object .* is missing"):
        values_of(BatchConsumer(topics, "orders"))
    slow = BatchConsumer(topics, "orders", on_data_loss="report")
    slow.seek_to_last(4)
    assert values_of(slow, at_least=3) == [b"0", b"1", b"3"]
    assert len(slow.losses) == 1
    queue.free(0, 256)
    slow.seek(0, 0)
    assert values_of(slow, at_least=2) == [b"1", b"3"]
    assert "retention has freed offsets 0 to 255" in slow.losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at-least-once", "effectively-once"])
def test_a_missing_notification_is_reported_once_and_passed_over(delivery: Delivery) -> None:
    topics = fresh_topics()
    for number in range(4):
        publish(topics, [b"%d" % number])
    (lost,) = (info.key for info in topics.store.list("") if info.key.endswith(f"/orders/0/{1:020}"))
    topics.store.delete([lost])
    with BatchConsumer(topics, "orders", on_data_loss="report", delivery=delivery) as consumer:
        assert values_of(consumer, at_least=3) == [b"0", b"2", b"3"]
        assert values_of(consumer) == []
        assert [sentence.partition(" (")[0] for sentence in consumer.losses] == [
            "queue orders/0: the entry of offset 256 is missing"
        ]
        consumer.seek(0, 512)
        assert values_of(consumer, at_least=2) == [b"2", b"3"]


def test_damage_stays_where_it_is_or_is_left_out() -> None:
    topics, key = three_messages()
    flip(topics, key, SECOND)
    with pytest.raises(MessageCorruptError, match="CRC-32 differs"):
        values_of(BatchConsumer(topics, "orders"))
    # Like MemQ's, these notifications have no checksum of the object.
    queue = topics.queue(topics.get("orders"))
    (told_by_memq,) = notified(topics)
    plain = Notification("orders", told_by_memq.object_size, told_by_memq.message_count, key=key)
    queue.append(0, [plain.to_json()], Deadline.after(LONG_S))
    failing = BatchConsumer(topics, "orders")
    failing.seek(0, 256)
    records = failing.records(LONG_S)
    assert next(records).value[:1] == b"0"
    for _ in range(2):
        with pytest.raises(MessageCorruptError, match="Message 1"):
            list(failing.records(LONG_S))
    skipping = BatchConsumer(topics, "orders", on_corrupt="skip")
    skipping.seek(0, 256)
    assert [value[:1] for value in values_of(skipping, at_least=2)] == [b"0", b"2"]
    assert len(skipping.skipped) == 1


@pytest.mark.parametrize(
    ("topic", "bucket", "key"),
    [
        ("other", "", "db/default/topics/orders/0_1_1_0_h"),
        ("orders", "another-bucket", "db/default/topics/orders/0_1_1_0_h"),
        ("orders", "", "db/default/topics/orders/../secrets/0_1_1_0_h"),
        ("orders", "", "db/default/topics/other/0_1_1_0_h"),
        ("orders", "", "default/topics/orders/0_1_1_0_h"),
        ("orders", "", "!tieredstore/pubsub/default/topics/orders.json"),
    ],
)
def test_a_notification_that_points_elsewhere_is_refused_before_anything_is_fetched(
    topic: str, bucket: str, key: str
) -> None:
    topics = fresh_topics()
    queue = topics.queue(topics.get("orders"))
    queue.append(0, [Notification(topic, 71, 1, key=key, bucket=bucket).to_json()], Deadline.after(LONG_S))
    with pytest.raises(NotificationCorruptError, match="queue orders/0, offset 0"):
        values_of(BatchConsumer(topics, "orders"))


def test_records_before_a_damaged_notification_are_returned_before_it_is_raised() -> None:
    topics = fresh_topics()
    publish(topics, [b"a"])
    topics.queue(topics.get("orders")).append(0, [b"no notification"], Deadline.after(LONG_S))
    publish(topics, [b"b"])
    with BatchConsumer(topics, "orders") as consumer:
        assert next(consumer.records(LONG_S)).value == b"a"
        for _ in range(2):
            with pytest.raises(NotificationCorruptError, match="offset 256"):
                list(consumer.records(LONG_S))
        consumer.seek(0, 512)
        assert values_of(consumer, at_least=1) == [b"b"]


def test_a_damaged_message_of_ours_is_left_out_and_the_rest_of_its_object_is_read() -> None:
    topics, key = three_messages()
    flip(topics, key, SECOND)
    skipping = BatchConsumer(topics, "orders", on_corrupt="skip")
    assert [value[:1] for value in values_of(skipping, at_least=2)] == [b"0", b"2"]
    assert len(skipping.skipped) == 1
    assert skipping.counts.damaged_messages == 1
    # The object is whole again, except for the first Message's producer, which the Message's checksum does not cover.
    flip(topics, key, SECOND, 8 + 3 * 12 + 10)
    skipping.seek(0, 0)
    assert len(values_of(skipping, at_least=3)) == 3
    assert "CRC-32 differs" in skipping.skipped[1]


@pytest.mark.parametrize("by", ["us", "MemQ"])
@pytest.mark.parametrize("more", [b"\0", bytes(5000)])
def test_bytes_behind_the_last_message_are_damage_whoever_told_of_the_object(by: str, more: bytes) -> None:
    topics = fresh_topics(compression="none")
    publish(topics, [b"%d" % number + bytes(900) for number in range(3)])
    (key,) = batch_keys(topics)
    if by == "MemQ":
        queue = topics.queue(topics.get("orders"))
        (ours,) = notified(topics)
        plain = Notification("orders", ours.object_size, ours.message_count, key=key)
        queue.append(0, [plain.to_json()], Deadline.after(LONG_S))
    topics.store.put(key, topics.store.get(key) + more)
    for on_corrupt in ("fail", "skip"):
        consumer = BatchConsumer(topics, "orders", on_corrupt=on_corrupt)
        consumer.seek(0, 256 if by == "MemQ" else 0)
        with pytest.raises(MessageCorruptError):
            values_of(consumer)
        consumer.close()


@pytest.mark.parametrize("size", [-1, -900, -2000, 0])
def test_an_object_that_was_cut_is_damage_and_not_a_shorter_result(size: int) -> None:
    topics, key = three_messages()
    topics.store.put(key, topics.store.get(key)[: size or 0])
    with pytest.raises(MessageCorruptError):
        values_of(BatchConsumer(topics, "orders"))


def test_objects_that_are_read_at_once_do_not_get_into_each_other() -> None:
    topics = fresh_topics(message_bytes="4096", batch_bytes="8192", compression="none")
    values = [b"%06d" % number + os.urandom(900) for number in range(400)]
    publish(topics, values)
    assert sorted(values_of(BatchConsumer(topics, "orders"), at_least=400)) == values


def test_a_group_that_has_read_all_that_was_freed_has_lost_nothing() -> None:
    topics = fresh_topics()
    for value in (b"a", b"b"):
        publish(topics, [value])
    with BatchConsumer(topics, "orders", group="g") as consumer:
        assert values_of(consumer, at_least=2) == [b"a", b"b"]
        consumer.commit()
    with topics.queue(topics.get("orders")) as queue:
        queue.free(0, queue.end(0))
    with BatchConsumer(topics, "orders", group="g") as consumer:
        assert values_of(consumer) == []
        publish(topics, [b"c"])
        assert values_of(consumer, at_least=1) == [b"c"]


def test_a_consumer_that_cannot_be_made_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    for kind in (BatchLog, Fetches):
        monkeypatch.setattr(kind, "close", lambda each: closed.append(type(each).__name__))
    with pytest.raises(ConfigError, match="invalid group name"):
        BatchConsumer(fresh_topics(), "orders", group="a name")
    assert closed == ["Fetches", "BatchLog"]


@pytest.mark.usefixtures("inline_threads")
def test_records_before_a_loss_are_returned_before_the_loss_is_raised() -> None:
    """Retention frees queue entries before the consumer reads them. Objects whose fetch has begun are still read."""
    topics = fresh_topics()
    for number in range(6):
        publish(topics, [b"%d" % number])
    slow = BatchConsumer(topics, "orders", on_data_loss="report")
    (reader,) = slow._partitions.values()
    slow._shared.fetches.at_once = 1
    for _ in range(3):
        reader.look()  # the second call reads the next entry ahead; the third begins to fetch its object
        if reader.lookout.looking is not None:
            reader.lookout.looking.exception(LONG_S)
    topics.queue(topics.get("orders")).free(0, 5 * 256)
    reader.look()
    assert values_of(slow, at_least=3) == [b"0", b"1", b"5"]
    assert len(slow.losses) == 1
    assert "retention has freed offsets 512 to 1279" in slow.losses[0]
    slow.close()


def test_a_backlog_is_asked_for_ahead_more_and_more_at_a_time_and_its_end_once() -> None:
    store = FaultyStore(MemoryObjectStore())
    topics = orders_on(store)
    with BatchProducer(topics, "orders") as producer:
        for number in range(11):
            producer.send(b"%d" % number)
            producer.flush()
    with BatchConsumer(topics, "orders") as consumer:
        reader = consumer._partitions[0]
        store.operations.clear()
        asked: list[int] = []
        for _ in range(6):
            reader.look()  # finds an entry, because the test waits below for the read of the queue
            if reader.lookout.looking is not None:
                reader.lookout.looking.exception(LONG_S)
            asked.append(sum("/queues/" in operation.keys[0] for operation in store.operations))
        assert asked == [1, 3, 3, 7, 7, 13]
        values: list[bytes] = []
        while len(values) < 11:
            values += [record.value for record in consumer.records(0.0)]
        assert values == [b"%d" % number for number in range(11)]
    entries = [operation.keys[0] for operation in store.operations if "/queues/" in operation.keys[0]]
    assert len([key for key in entries if not key.endswith("start")]) <= 13


@pytest.mark.parametrize("size", [100_000, 2000])
def test_large_messages_are_fetched_once(size: int) -> None:
    topics = fresh_topics(compression="none", message_bytes=str(size + 21), batch_ms="60000")
    values = [bytes([number]) * size for number in range(12)]
    publish(topics, values)
    (key,) = batch_keys(topics)
    stored = topics.store.head(key).size
    with BatchConsumer(topics, "orders") as consumer, counted_checksums() as read:
        assert values_of(consumer, at_least=12) == values
    is_large = size > 65_536
    assert stored * (1 if is_large else 1.9) <= sum(read) <= stored * (1 if is_large else 2)
