"""Numbers of requests counted at the store: for publishing, reading and idle topics."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.support.pubsub.pubsub_topics import batch_keys, orders_on, topics_on
from tests.support.stores.doubles import CountingStore, FaultyStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.consume.partition_state import Fetching
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.groups import StoreGroup

MIB = 1 << 20
RECORDS = 1400
MOST_A_GIB = 72


def requests_of(store: FaultyStore) -> Counter[str]:
    """Count requests by operation and kind of key. Puts of a key count once, because some may be hedged."""
    kinds: Counter[str] = Counter()
    seen: set[str] = set()
    for operation in store.operations:
        key = operation.keys[0] if operation.keys else ""
        if operation.name == "put":
            if key in seen:
                continue
            seen.add(key)
        place = "queue" if "/queues/" in key else "member" if "/groups/" in key else "own" if "!" in key else "object"
        kinds[f"{operation.name} {place}"] += 1
    return kinds


class Clock:
    """A clock whose time passes only in ``sleep``."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)


@pytest.mark.slow
def test_a_gib_takes_72_puts_an_entry_a_batch_and_72_gets_of_a_reader() -> None:
    store = FaultyStore(MemoryObjectStore())
    topics = orders_on(store, compression="none", batch_ms="60000")
    store.operations.clear()
    value = os.urandom(100_000)
    with BatchProducer(topics, "orders") as producer:
        for _ in range(RECORDS):
            producer.send(value)
        producer.flush()
    written = requests_of(store)
    stored = sum(info.size for info in store.inner.list("") if "/topics/orders/" in info.key and "!" not in info.key)
    batches = producer.counts.delivered_batches
    assert stored >= 8 * 16 * MIB
    assert batches == written["put object"] == written["put queue"]
    assert written["put object"] - 1 <= MOST_A_GIB * stored / (1 << 30)  # the last batch may be partly full
    store.operations.clear()
    with BatchConsumer(topics, "orders") as consumer:
        while consumer.counts.records < RECORDS:
            consumer.poll(5.0)
        read = requests_of(store)
        assert read["get object"] == batches
        assert read["get queue"] <= 2 * batches + consumer.counts.looks + 4
        assert not any(name.startswith("list") for name in read)


@pytest.mark.parametrize(("partitions", "batches"), [(1, 0), (1, 3), (4, 0), (4, 8)])
def test_an_idle_topic_takes_no_put_and_half_a_get_a_second_of_a_partition(partitions: int, batches: int) -> None:
    store, clock = FaultyStore(MemoryObjectStore()), Clock()
    topics = orders_on(store, partitions)
    with BatchProducer(topics, "orders") as producer:
        for _ in range(batches):
            producer.send(b"v")
            producer.flush()
    with BatchConsumer(topics, "orders", monotonic=clock, sleep=clock.sleep) as consumer:
        while consumer.counts.records < batches:
            consumer.poll(1.0)
        consumer.poll(30.0)  # busy for ten seconds, then idle
        store.operations.clear()
        begin = clock.now
        assert consumer.poll(200.0) is None
        seconds = clock.now - begin
        idle = requests_of(store)
    assert not [name for name in idle if name.startswith(("put", "replace", "delete", "list"))]
    assert sum(idle.values()) <= 0.55 * seconds * partitions


def test_batches_of_one_writer_do_not_race_each_other_for_numbers() -> None:
    store = FaultyStore(MemoryObjectStore())
    topics = orders_on(store, batch_messages="1", message_bytes="1024", compression="none")
    store.operations.clear()
    with BatchProducer(topics, "orders") as producer:
        for _ in range(40):
            producer.send(os.urandom(900))
    puts = [each.keys[0] for each in store.operations if each.name == "put" and "/queues/" in each.keys[0]]
    assert len(set(puts)) == 40
    assert len(puts) <= 42  # a busy machine may hedge two puts


def test_a_member_of_a_group_beats_by_one_put_every_five_seconds() -> None:
    store, clock = FaultyStore(MemoryObjectStore()), Clock()
    topics = orders_on(store)
    member = StoreGroup(topics.folder, "g", "orders", lambda: 1, monotonic=clock, beat_s=5.0)
    member.tick()
    member.beat()
    store.operations.clear()
    for _ in range(20):
        clock.sleep(5.0)
        member.beat()
        member.tick()
    puts = sum(count for name, count in requests_of(store).items() if name.startswith(("put", "replace")))
    assert puts <= 0.2 * 100
    member.leave()


def test_a_message_is_read_by_two_requests_for_as_many_bytes() -> None:
    inner = MemoryObjectStore()
    topics_on(inner, message_bytes="1024", compression="none").create("orders")
    with BatchProducer(topics_on(inner, message_bytes="1024", compression="none"), "orders") as producer:
        for _ in range(5):
            producer.send(os.urandom(900))
    store = CountingStore(inner)
    with BatchConsumer(topics_on(store), "orders") as consumer:
        store.reset()
        assert consumer.read_at(0, 0, 3).num_rows == 1
        assert [key for key in store.keys_of("get") if "!" not in key] == batch_keys(topics_on(inner)) * 2
        assert store.bytes_down < 2500  # reads a queue entry, the object's index, and one of its five Messages


def test_no_more_is_fetched_ahead_than_there_is_room_for() -> None:
    inner = MemoryObjectStore()
    topics_on(inner).create("orders")
    with BatchProducer(topics_on(inner, compression="none"), "orders") as producer:
        for _ in range(12):
            producer.send(os.urandom(400_000))
            producer.flush()
    for properties, ahead in (({"fetch_bytes": "1048576"}, 3), ({"fetches": "5"}, 5), ({}, 8)):
        store = FaultyStore(inner)
        with BatchConsumer(topics_on(store, **properties), "orders") as consumer:
            (reader,) = consumer._partitions.values()
            while reader.position.message == reader.position.record == 0:
                consumer.poll(0.1)
            for each in reader._ahead:
                if isinstance(each, Fetching) and each.object is not None:
                    each.object.result(60)
            fetched = [each for each in store.operations if each.name == "get" and "!" not in each.keys[0]]
            assert len(fetched) == len(reader._ahead) <= ahead
