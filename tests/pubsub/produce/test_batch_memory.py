"""Messages are written directly into the memory of their batch. The stored objects are the same as with copies."""

from __future__ import annotations

import random
import threading
import zlib
from typing import Any

import pytest

from tests.support.pubsub.memq_batches import build_batch, rows_of
from tests.support.pubsub.pubsub_topics import batch_keys, fresh_topics, orders_on
from tests.support.records.counted_checksums import counted_checksums
from tests.support.stores.doubles import Operation, ScriptedStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import InvalidRangeError
from tieredstore.kafka.records._slabs import Slab, SlabPool
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.errors import InvalidRecordError
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.batches import BatchIndex
from tieredstore.pubsub.produce.batch_writer import BatchMemory, room_for
from tieredstore.pubsub.produce.futures import RecordPlace
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.testing.notification_queue_tests import read_all


def test_messages_lie_as_the_batch_that_copies_of_them_make() -> None:
    memory = BatchMemory(SlabPool(), 1000, 10)
    sealed = [bytes([number]) * (20 + number) for number in range(3)]
    for message in sealed:
        memory.add(message)
    laid = memory.list_messages()
    assert laid == sealed
    assert memory.batch(laid) == build_batch(sealed)
    with pytest.raises(InvalidRangeError, match="the 2 given Messages are not the 3 Messages of the batch"):
        memory.batch(laid[:2])


def test_a_memory_that_begins_small_grows_to_all_of_its_room() -> None:
    memory = BatchMemory(SlabPool(), 1 << 20, 1000, first=10)
    sealed = [random.Random(number).randbytes(5000 + number) for number in range(300)]
    while memory.left >= len(sealed[memory.messages]):
        memory.add(sealed[memory.messages])
    assert memory.used > (1 << 20) - 20_000
    assert memory.batch(memory.list_messages()) == build_batch(sealed[: memory.messages])


def test_a_memory_is_full_by_bytes_and_by_messages() -> None:
    memory = BatchMemory(SlabPool(), 1000, 2)
    before = memory.left
    memory.add(bytes(100))
    assert memory.left == before - 100
    memory.add(bytes(100))
    assert memory.left == 0
    alone = BatchMemory(SlabPool(), 1000, 10, least=5000)
    assert alone.left == 5000  # a Message larger than a batch gets memory of its own size
    alone.add(bytes(950))
    assert alone.left == 0
    assert room_for(1000, 16 << 20, 1 << 20) == 34
    assert room_for(1, 16 << 20, 1 << 20) == 1


def test_lent_memory_has_exactly_the_room_that_was_said() -> None:
    room = memoryview(bytearray(100))
    body = BodyWriter(60, room, 40)
    assert body.take(bytes(30), None, None, None, 0) == 0
    assert body.take(b"", None, None, None, 0) == -1
    with pytest.raises(InvalidRecordError, match="a header of 39 bytes does not fit the 40 bytes"):
        body.add_header(bytes(39))
    assert body.add_header(b"h" * 40) == room[:91]
    assert room[:40] == b"h" * 40
    for most, head in ((61, 40), (0, 40), (10, -1)):
        with pytest.raises(InvalidRecordError, match="cannot hold a header of"):
            BodyWriter(most, room, head)


def sized(count: int, most: int, seed: int) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(source.choice([0, 1, source.randrange(most), most])) for _ in range(count)]


@pytest.mark.parametrize(
    ("message_bytes", "batch_bytes", "batch_messages"),
    [(1024, 4096, 1000), (1024, 4096, 3), (4096, 5000, 1000), (8192, 4096, 1000), (1024, 1 << 20, 1000)],
)
def test_records_of_all_sizes_come_back_from_batches_within_their_limits(
    message_bytes: int, batch_bytes: int, batch_messages: int
) -> None:
    topics = fresh_topics(
        message_bytes=str(message_bytes),
        batch_bytes=str(batch_bytes),
        batch_messages=str(batch_messages),
        batch_ms="60000",
        compression="none",
    )
    values = sized(400, message_bytes - 21, 1)
    with BatchProducer(topics, "orders") as producer:
        futures = [producer.send(value) for value in values]
    read: dict[RecordPlace, bytes] = {}
    with BatchConsumer(topics, "orders") as consumer:
        for record in consumer.records(60.0):
            read[RecordPlace(*record[:4])] = record.value
            if len(read) == len(values):
                break
    assert read == {future.result(0): value for future, value in zip(futures, values, strict=True)}
    objects = {key: topics.store.get(key) for key in batch_keys(topics)}
    for key, stored in objects.items():
        index = BatchIndex(stored, key, len(stored))
        assert len(index) <= batch_messages
        assert len(stored) <= batch_bytes or len(index) == 1
        assert all(len(message) <= 52 + message_bytes for _, message in index.messages(stored))
    if (message_bytes, batch_messages) == (1024, 1000):
        # Only a Message that no longer fits ends a batch, so batches are nearly full.
        assert len(objects) <= sum(len(value) + 21 for value in values) // (batch_bytes - 2 * message_bytes) + 1


def test_what_is_stored_as_it_is_is_neither_copied_together_nor_read_twice() -> None:
    topics = fresh_topics(compression="none", batch_ms="60000", message_bytes="65536", batch_bytes="1048576")
    values = [random.Random(number).randbytes(10_000) for number in range(250)]
    with counted_checksums(copies=False) as read, BatchProducer(topics, "orders") as producer:
        for value in values:
            producer.send(value)
    objects = [topics.store.get(key) for key in batch_keys(topics)]
    stored = sum(map(len, objects))
    assert stored <= sum(read) <= stored + 1000  # each byte is read once
    notifications = [entry.raw for entry in read_all(topics.queue(topics.get("orders")), 0)]
    assert len(notifications) == len(objects) == 3
    assert all(b'"crc32":%d' % zlib.crc32(each) in b"".join(notifications).replace(b" ", b"") for each in objects)
    assert sum(len(rows_of(each)) for each in objects) == 250


class WatchedPool:
    """A pool that notes the addresses of its slabs."""

    def __init__(self) -> None:
        self.pool = SlabPool()
        self.addresses: list[int] = []

    def slab(self, size: int) -> Slab:
        slab = self.pool.slab(size)
        self.addresses.append(slab.address)
        return slab


def test_memory_is_used_again_once_nobody_sends_from_it() -> None:
    topics = fresh_topics(compression="none", batch_ms="60000", batch_bytes="1048576", message_bytes="65536")
    pool: Any = WatchedPool()
    topics.memory = pool
    for _ in range(5):
        with BatchProducer(topics, "orders") as producer:
            for _ in range(4):
                producer.send(b"v")
                producer.flush()
    assert len(pool.addresses) == 20
    assert len(set(pool.addresses)) <= 4


def test_a_buffer_of_the_usual_size_holds_as_many_whole_batches_as_are_sent_at_once() -> None:
    under_way, are_there, waits = set[str](), threading.Event(), list[bool]()

    def wait_for_four(put: Operation) -> None:
        under_way.update(put.keys)  # a hedged put is of the same batch
        if len(under_way) >= 4:
            are_there.set()
        waits.append(are_there.wait(60))

    store = ScriptedStore(MemoryObjectStore()).on("put", "[!!]*", wait_for_four)  # not our own objects
    topics = orders_on(store, compression="none", batch_ms="60000")
    settings = topics.batches
    value = bytes(10_000)
    with BatchProducer(topics, "orders") as producer:
        # Send as much as the buffer holds. The fourth batch must be put before any other put has finished.
        for _ in range(4 * settings.batch_bytes // 10_021):
            producer.send(value)
        assert producer.counts.blocked_sends == 0
    assert all(waits)
