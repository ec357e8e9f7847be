"""Producer and consumer on a store: order, places, limits, futures, many producers, a death at every operation."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from contextlib import closing
from functools import partial

import pytest

from tests.support.pubsub.pubsub_topics import (
    batch_keys,
    facts_of,
    fresh_topics,
    notified,
    orders_on,
    publish,
    read_values,
    records_of,
    request_ids,
    run_together,
    sealed_message,
    topics_later,
    topics_on,
    values_of,
)
from tests.support.stores.doubles import FaultyStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep
from tests.support.waiting import wait_until
from tieredstore.api.outcomes import Outcome
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    AlreadyClosedError,
    ConfigError,
    PreconditionFailedError,
    StoreUnavailableError,
    TopicNotFoundError,
)
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.consume.partition_state import ConsumedRecord
from tieredstore.pubsub.errors import BufferFullError, DeliveryFailedError, InvalidRecordError
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.format.notifications import parse_batch_key
from tieredstore.pubsub.produce.batch_writer import BatchWriter
from tieredstore.pubsub.produce.futures import MessageOutcome, RecordFuture, RecordPlace
from tieredstore.pubsub.produce.outbox import OpenMessage, Outbox, Sending
from tieredstore.pubsub.produce.producer import BatchProducer, StoreDelivery
from tieredstore.pubsub.produce.sink import SinkBatches, SinkCommits
from tieredstore.pubsub.queue.store_queue import StoreQueue
from tieredstore.pubsub.queue.topics import BatchLog
from tieredstore.pubsub.upkeep.garbage import GarbageCollection

LONG_S = 120.0
IDS = [None, b"1", b"22", b"33", None, b"333", b"1", b"1", None, b"22"]
"""Ids of records that go into five Messages."""


def check_ids(records: list[ConsumedRecord]) -> None:
    """Assert that all records are present, in order, and that all ids of a Message have one length."""
    assert [record.message_id for record in records] == IDS
    sizes: dict[tuple[int, int], set[int]] = {}
    for record in records:
        if record.message_id:
            sizes.setdefault((record.offset, record.message), set()).add(len(record.message_id))
    assert [len(each) for each in sizes.values()] == [1] * 5


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_ids_of_two_lengths_are_never_in_one_message(compression: str) -> None:
    topics = fresh_topics(compression=compression)
    with BatchProducer(topics, "orders") as producer:
        futures = [producer.send(b"%d" % number, message_id=each) for number, each in enumerate(IDS)]
    places = [future.result(0) for future in futures]
    with BatchConsumer(topics, "orders") as consumer:
        records = records_of(consumer, at_least=len(IDS))
    check_ids(records)
    assert [(each.message, each.record) for each in records] == [(each.message, each.record) for each in places]


def test_ids_of_two_lengths_are_never_in_one_message_of_a_sink() -> None:
    topics = fresh_topics()
    log = BatchLog(topics, topics.get("orders"))
    with SinkBatches(log, "spark-q-0-0") as batches:
        for number, each in enumerate(IDS):
            batches.add(b"%d" % number, None, None, each, 0)
        stored = batches.finish()
    SinkCommits(log, "q").commit(0, stored)
    with BatchConsumer(topics, "orders") as consumer:
        check_ids(records_of(consumer, at_least=len(IDS)))


def test_a_record_is_refused_while_the_queue_cannot_be_opened_and_later_ones_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(queue: StoreQueue) -> int:
        raise StoreUnavailableError(f"{type(queue).__name__} is away")

    topics, closed = fresh_topics(), list[str]()
    with BatchProducer(topics, "orders") as producer:
        with monkeypatch.context() as patch:
            patch.setattr(StoreQueue, "partitions", property(fail))
            patch.setattr(BatchLog, "close", lambda log: closed.append(log.topic.name))
            with pytest.raises(StoreUnavailableError, match="StoreQueue is away"):
                producer.send(b"refused")
        assert closed == ["orders"]
        future = producer.send(b"taken")
        producer.flush(math.inf)
        assert future.result(0).record == 0
    assert read_values(topics) == [b"taken"]


def test_sent_records_are_read_in_order_with_all_their_fields() -> None:
    topics = fresh_topics()
    with BatchProducer(topics, "orders") as producer:
        future = producer.send(b"v", b"k", [("h", b"1")], 1_700_000_000_000, b"\0\0\0\0\0\0\0\7")
        producer.send(b"")
    (first, second) = records_of(BatchConsumer(topics, "orders"))
    assert future.result(0) == RecordPlace(*first[:4])
    assert first[4:] == (b"k", b"v", (("h", b"1"),), b"\0\0\0\0\0\0\0\7", 1_700_000_000_000)
    assert (second.key, second.value, second.headers, second.message_id) == (None, b"", (), None)


def test_notifications_tell_what_is_in_the_batch() -> None:
    topics = fresh_topics(message_bytes="1024")
    publish(topics, [b"x" * 500] * 5)
    (notification,) = notified(topics)
    (key,) = batch_keys(topics)
    assert notification.key == key
    assert notification.total_size == len(topics.store.get(key))
    assert notification.facts is not None
    assert notification.facts.records == 5
    (runs,) = notification.facts.producers
    assert (len(runs.address), runs.requests) == (32, (0, notification.message_count - 1))
    parsed = parse_batch_key(key, "default/topics/orders")
    assert parsed is not None
    assert parsed.client_request_id == 0


def test_batches_are_sealed_by_size_count_and_time() -> None:
    by_size = fresh_topics(message_bytes="1024", batch_bytes="4096", compression="none")
    publish(by_size, [os.urandom(900)] * 20)
    assert len(batch_keys(by_size)) == 5  # four Messages per batch, each below 1 KiB
    by_count = fresh_topics(message_bytes="1024", batch_messages="2")
    publish(by_count, [os.urandom(900)] * 6)
    assert len(batch_keys(by_count)) == 3
    by_time = fresh_topics(batch_ms="20")
    with BatchProducer(by_time, "orders") as producer:
        producer.send(b"v").result(LONG_S)  # without a flush


def test_request_ids_are_dense_also_when_records_are_refused() -> None:
    topics = fresh_topics(message_bytes="1024", batch_messages="1")
    with BatchProducer(topics, "orders") as producer:
        for number in range(4):
            with pytest.raises(InvalidRecordError, match="does not fit a Message of 1024 bytes"):
                producer.send(bytes(2000))
            producer.send(b"%d" % number)
            producer.flush()
    ids = sorted(
        key.client_request_id
        for key in (parse_batch_key(key, "default/topics/orders") for key in batch_keys(topics))
        if key
    )
    assert ids == [0, 1, 2, 3]


def test_partitions_take_turns_and_records_tell_theirs() -> None:
    topics = fresh_topics(3, batch_messages="1", message_bytes="1024")
    places = publish(topics, [os.urandom(900) for _ in range(9)])
    assert sorted(place.partition for place in places) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(values_of(BatchConsumer(topics, "orders"), at_least=9)) == 9


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_producer_killed_at_any_operation_loses_no_ack_and_halves_nothing(moment: Moment) -> None:
    sweep = OperationSweep(_store_with_orders, lambda store: _killed_run(FaultyStore(store)))
    assert len(sweep.operations) > 6
    for _, inner, store in sweep.die(moment):
        topics = topics_on(inner)
        acked = _killed_run(store)
        read = values_of(BatchConsumer(topics, "orders"), at_least=len(acked))
        assert len(read) == len(set(read))
        assert set(acked) <= set(read) <= {b"0", b"1", b"2"}
        told = {notification.key for notification in notified(topics)}
        assert len(set(batch_keys(topics)) - told) <= 1  # the operation leaves at most an orphan, which no reader sees


def _store_with_orders() -> MemoryObjectStore:
    store = MemoryObjectStore()
    topics_on(store).create("orders")
    return store


def _killed_run(store: FaultyStore) -> list[bytes]:
    """Publish three batches, one after the other, until the process dies. Return the acknowledged values."""
    acked: list[bytes] = []
    try:
        producer = BatchProducer(topics_on(store), "orders")
        for number in range(3):
            value = b"%d" % number
            future = producer.send(value)
            _flush(producer, future, store)
            if future.done() and future.exception(0) is None:
                acked.append(value)
    except BaseException as death:
        if not store.failed:
            raise
        del death
    return acked


def _flush(producer: BatchProducer, future: Future[RecordPlace], store: FaultyStore) -> None:
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    threading.Thread(target=_quietly, args=(producer,), daemon=True).start()
    while not done.is_set() and not store.failed:
        done.wait(0.005)


def _quietly(producer: BatchProducer) -> None:
    with contextlib.suppress(DeliveryFailedError):
        producer.flush(LONG_S)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whatever_fails_once_each_record_is_there_once_and_no_orphan(moment: Moment) -> None:
    started = ScriptedStore(_store_with_orders())
    with BatchProducer(topics_on(started), "orders"):
        producing = len(started.operations)
    sweep = OperationSweep(
        _store_with_orders, lambda store: publish(topics_on(store), [b"v"]), numbers=slice(producing, None)
    )
    for _, inner, store in sweep.fail(moment):
        (place,) = publish(topics_on(store), [b"v"])
        (record,) = records_of(BatchConsumer(topics_on(inner), "orders"))
        assert (RecordPlace(*record[:4]), len(batch_keys(topics_on(inner)))) == (place, 1)


def test_a_put_that_hangs_is_overtaken_and_makes_no_second_object() -> None:
    let_go = threading.Event()
    store = ScriptedStore(MemoryObjectStore())
    # The first put hangs until the test releases it, and then succeeds.
    store.on("put", "*/topics/orders/*", lambda _: let_go.wait(LONG_S), times=1)
    topics = orders_on(store)
    publish(topics, [b"v"])
    let_go.set()
    assert sum("/topics/orders/" in key for key in store.keys_of("put")) == 2
    assert values_of(BatchConsumer(topics, "orders"), at_least=1) == [b"v"]
    assert len(batch_keys(topics)) == 1


def refusing_store(word: str, away: threading.Event) -> ScriptedStore:
    """Return a store that refuses puts of keys that contain ``word`` while ``away`` is set. Set ``away``."""
    away.set()

    def refuse(_: Operation) -> None:
        if away.is_set():
            raise StoreUnavailableError("the store is away")

    return ScriptedStore(MemoryObjectStore()).on("put", f"*{word}*", refuse)


def test_an_unforeseen_error_fails_the_records_and_keeps_nobody_waiting() -> None:
    topics = orders_on(ScriptedStore(MemoryObjectStore()).on("put", "*/topics/orders/*", KeyError("size")))
    with BatchProducer(topics, "orders") as producer:
        future = producer.send(b"v")
        with pytest.raises(DeliveryFailedError, match="internal error: KeyError"):
            future.result(LONG_S)


# A put that is under way at the timeout may still succeed.
@pytest.mark.parametrize(("word", "orphans"), [("/topics/orders/", {0, 1}), ("/queues/", {1})])
def test_records_that_are_not_stored_or_notified_in_time_have_failed(word: str, orphans: set[int]) -> None:
    away = threading.Event()
    store = refusing_store(word, away)
    topics = orders_on(store, delivery_timeout_ms="1000")
    producer = BatchProducer(topics, "orders")
    future = producer.send(b"v")
    producer.flush(LONG_S)
    error = future.exception(0)
    assert isinstance(error, DeliveryFailedError)
    assert error.maybe_stored
    away.clear()
    assert values_of(BatchConsumer(topics, "orders")) == []
    assert len(batch_keys(topics)) in orphans
    # On a busy machine, even a successful put may exceed the timeout of one second.
    while (later := producer.send(b"later")).exception(LONG_S) is not None:
        assert later is not future
    producer.close()
    assert set(values_of(BatchConsumer(topics, "orders"), at_least=1)) == {b"later"}


def test_a_full_buffer_waits_and_then_says_so() -> None:
    away = threading.Event()
    store = refusing_store("/topics/orders/", away)
    topics = orders_on(store, buffer_bytes="1048576", max_block_ms="50", message_bytes="1024", batch_ms="1")
    producer = BatchProducer(topics, "orders")
    with pytest.raises(BufferFullError, match="bytes are not stored after"):
        deque((producer.send(bytes(900)) for _ in range(3000)), maxlen=0)
    away.clear()
    producer.close()
    with pytest.raises(AlreadyClosedError):
        producer.send(b"v")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_that_fills_the_buffer_is_written_at_once(compression: str) -> None:
    topics = fresh_topics(
        buffer_bytes="1048576", batch_bytes="104857600", batch_ms="3600000", max_block_ms="20000",
        message_bytes="65536", compression=compression,
    )  # fmt: skip
    publish(topics, [bytes(900)] * 3000)
    assert len(read_values(topics, at_least=3000)) == 3000


def test_a_send_that_has_room_again_ends_no_batch() -> None:
    class NoDelivery:
        def start(self, outbox: Outbox) -> None:
            """Deliver nothing: the test does."""

        def stop(self) -> None:
            """Do nothing."""

    settings = fresh_topics(buffer_bytes="1048576", message_bytes="524288").batches
    outbox = Outbox(Sending(settings, "all", None, settings.message_bytes, None), NoDelivery())

    def put(size: int) -> None:
        outbox.put(bytes(size), None, None, None, None)

    def send() -> None:
        put(60_000)
        with contextlib.suppress(DeliveryFailedError):
            outbox.flush(0)

    for size in (500_000, 380_000, 150_000):
        put(size)
    first, second = outbox.next((), LONG_S), outbox.next((), LONG_S)
    assert isinstance(first, OpenMessage)
    assert isinstance(second, OpenMessage)
    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: outbox.count()["blocked_sends"] == 1, LONG_S)
    with outbox._changed:  # pyright: ignore[reportPrivateUsage]  the blocked thread runs after ``next`` has looked
        outbox.settle([first, second], None)
        third = outbox.next((), LONG_S)
    thread.join(LONG_S)
    assert isinstance(third, OpenMessage)
    assert third.body.count == 2


def test_headers_and_ids_take_room_in_the_buffer_as_values_do() -> None:
    away = threading.Event()
    store = refusing_store("/topics/orders/", away)
    topics = orders_on(store, buffer_bytes="1048576", max_block_ms="1", message_bytes="65536", batch_ms="1")
    producer = BatchProducer(topics, "orders")
    sent: list[object] = []
    with pytest.raises(BufferFullError):
        sent.extend(producer.send(b"", headers=[("h", bytes(30_000))], message_id=bytes(200)) for _ in range(1000))
    assert len(sent) <= 1 + (1 << 20) // 30_000
    away.clear()
    producer.close()
    assert producer._outbox.held_bytes == 0  # pyright: ignore[reportPrivateUsage]


def test_a_fork_is_a_new_producer() -> None:
    topics = fresh_topics(batch_ms="3600000")
    producer = BatchProducer(topics, "orders")
    producer.send(b"parent")
    child = os.fork()
    if child == 0:
        outbox = producer._outbox  # pyright: ignore[reportPrivateUsage]
        delivery = outbox._delivery  # pyright: ignore[reportPrivateUsage]
        assert isinstance(delivery, StoreDelivery)
        os._exit(0 if outbox.waiting_records == 0 and delivery._started is None else 1)  # pyright: ignore[reportPrivateUsage]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.close()
    assert values_of(BatchConsumer(topics, "orders"), at_least=1) == [b"parent"]


def test_topics_are_made_once_grow_and_never_shrink() -> None:
    topics = fresh_topics(2)
    with pytest.raises(PreconditionFailedError, match="topic orders already exists"):
        topics.create("orders")
    assert topics.grow("orders", 3).partitions == 3
    with pytest.raises(ConfigError, match="their number cannot be reduced"):
        topics.grow("orders", 2)
    with pytest.raises(TopicNotFoundError, match="pubsub topics events --create"):
        topics.get("events")
    for name in ("", "a/b", "..", "a b"):
        with pytest.raises(ConfigError):
            topics.create(name)
    assert list(topics.names()) == ["orders"]


def test_acks() -> None:
    topics = fresh_topics()
    with pytest.raises(ConfigError, match="acks=1"):
        BatchProducer(topics, "orders", acks="1")
    with BatchProducer(topics, "orders", acks="0") as producer:
        assert producer.send(b"v").done()
    assert values_of(BatchConsumer(topics, "orders"), at_least=1) == [b"v"]


def test_a_store_without_conditional_writes_is_refused() -> None:
    with pytest.raises(ConfigError, match="atomic conditional writes"):
        topics_on(ScriptedStore(MemoryObjectStore(), conditional_writes=False))


@pytest.mark.parametrize(("of", "count"), [("producers", 9_000), ("runs", 26_000)])
def test_a_batch_whose_producers_no_notification_holds_is_read_all_the_same(of: str, count: int) -> None:
    topics = fresh_topics()
    requests = [
        ProducerRequest(number.to_bytes(16, "big"), 1_700_000_000_000, 7)
        if of == "producers"
        else ProducerRequest(b"\x7f\0\0\1", 1_700_000_000_000, 1_000_000_000 + 2 * number)
        for number in range(count)
    ]
    writer = BatchWriter(BatchLog(topics, topics.get("orders")))
    writer.write([sealed_message(request, b"v") for request in requests], Deadline.after(LONG_S))
    writer.write([sealed_message(requests[0], b"v")], Deadline.after(LONG_S))  # sent again
    writer.close()
    first, second = facts_of(topics)
    assert (first.records, first.producers, len(second.producers)) == (count, (), 1)
    with BatchConsumer(topics, "orders", delivery="effectively-once") as consumer:
        assert len(values_of(consumer, at_least=count)) == count
        assert consumer.doubles == 1


@pytest.mark.parametrize("sleeps_at", ["batch", "retry", "entry"])
def test_a_writer_that_sleeps_so_long_that_gc_takes_its_batch_acknowledges_nothing(sleeps_at: str) -> None:
    now_s = 0.0

    def sleep(_: Operation | float) -> None:
        nonlocal now_s
        now_s += 2 * 86_400
        topics.store.delete(batch_keys(topics))  # as gc deletes orphans

    def fail(_: Operation) -> None:
        if not now_s:
            raise StoreUnavailableError("busy")

    store = ScriptedStore(MemoryObjectStore())
    topics = orders_on(store)
    log = BatchLog(topics, topics.get("orders"))
    if sleeps_at == "batch":
        store.on("put", "*default/topics/orders/*", sleep, moment="after")
    elif sleeps_at == "entry":
        store.on("put", "*/queues/*", sleep)
    else:
        store.on("put", "*/queues/*", fail)
        log.queue = StoreQueue(topics.folder, "orders", lambda: 1, sleep=sleep)
    writer = BatchWriter(log)
    with pytest.raises(DeliveryFailedError) as raised:
        writer.write([sealed_message(ProducerRequest(b"\1\2\3\4", 1, 1), b"v")], Deadline.after(LONG_S, lambda: now_s))
    writer.close()
    assert raised.value.maybe_stored
    # Only a writer that slept between its last check and the request has announced the batch.
    assert len(notified(topics)) == (sleeps_at == "entry")


def test_a_writer_that_sleeps_while_gc_deletes_acknowledges_nothing() -> None:
    """The entry is stored after gc has read the queue, and before gc deletes the batch."""
    now_s = 0.0
    store = ScriptedStore(MemoryObjectStore())
    topics = orders_on(store, hashing="false")
    run: Iterator[Outcome] = iter(())
    lock = threading.Lock()

    def sleep(_: Operation) -> None:
        nonlocal now_s, run
        with lock:  # a hedged put of the entry waits too
            if now_s:
                return
            now_s += 2 * 86_400
            later = topics_later(topics, 2)
            run = GarbageCollection(BatchLog(later, later.get("orders")), dry_run=False).run()
            assert next(run).code == "deleted"

    with closing(BatchWriter(BatchLog(topics, topics.get("orders")))) as writer:
        writer.store([sealed_message(ProducerRequest(b"\1\2\3\4", 1, 0), b"orphan")], Deadline.after(LONG_S))
        store.on("put", "*/queues/*", sleep)
        late = [sealed_message(ProducerRequest(b"\1\2\3\4", 1, 1), b"v")]
        with pytest.raises(DeliveryFailedError, match="took so long that `gc` may have taken") as raised:
            writer.write(late, Deadline.after(LONG_S, lambda: now_s))
    assert raised.value.maybe_stored
    assert [one.code for one in run] == ["deleted"]


def test_threads_share_a_producer() -> None:
    topics = orders_on(None, 2, message_bytes="1024", batch_messages="5", compression="none")
    threads, each = 8, 100
    with BatchProducer(topics, "orders") as producer:

        def send(thread: int) -> None:
            for number in range(each):
                producer.send(b"%d/%d" % (thread, number) + bytes(100))

        run_together(*(partial(send, thread) for thread in range(threads)))
        producer.flush()
    values = [value.rstrip(b"\0") for value in read_values(topics, threads * each)]
    assert sorted(values) == sorted(b"%d/%d" % (thread, number) for thread in range(threads) for number in range(each))
    ids = request_ids(topics, 2)
    assert ids == list(range(len(ids)))


def futures_of_a_message(count: int) -> tuple[list[RecordFuture], MessageOutcome]:
    outcome = MessageOutcome()
    return [RecordFuture(outcome, number) for number in range(count)], outcome


def places_of(count: int) -> list[RecordPlace]:
    return [RecordPlace(1, 2, 3, number) for number in range(count)]


def test_each_way_of_waiting_hears_of_it_whether_it_began_before_or_after() -> None:
    futures, outcome = futures_of_a_message(5)
    heard: list[RecordPlace] = []
    futures[0].add_done_callback(lambda future: heard.append(future.result()))
    assert not futures[1].done()
    assert wait(futures, timeout=0, return_when=FIRST_COMPLETED).not_done == set(futures)
    waiting = threading.Thread(target=lambda: heard.extend(each.result(60) for each in futures[2:4]))
    waiting.start()
    outcome.succeed((1, 2, 3))
    waiting.join(60)
    futures[4].add_done_callback(lambda future: heard.append(future.result()))
    assert sorted(heard) == [place for place in places_of(5) if place.record != 1]
    assert set(as_completed(futures, timeout=60)) == wait(futures, timeout=60).done == set(futures)


def test_nobody_who_begins_to_wait_meanwhile_is_forgotten() -> None:
    for _ in range(50):
        futures, outcome = futures_of_a_message(40)
        places: list[RecordPlace] = []
        waiting = threading.Thread(target=lambda: places.extend([each.result(60) for each in reversed(futures)]))  # noqa: B023  ends in this iteration
        waiting.start()
        outcome.succeed((1, 2, 3))
        waiting.join(60)
        assert places == places_of(40)[::-1]


def test_a_failure_is_raised_from_those_that_were_looked_at_and_those_that_were_not() -> None:
    futures, outcome = futures_of_a_message(2)
    assert futures[0].running()
    outcome.fail(DeliveryFailedError("gone", maybe_stored=False))
    for future in futures:
        with pytest.raises(DeliveryFailedError, match="gone"):
            future.result(0)
    assert "raised DeliveryFailedError" in repr(futures[1])


def test_a_loop_can_wait_for_one() -> None:
    async def waited() -> RecordPlace:
        (future,), outcome = futures_of_a_message(1)
        asyncio.get_running_loop().call_soon(outcome.succeed, (1, 2, 3))
        return await asyncio.wrap_future(future)

    assert asyncio.run(waited()) == RecordPlace(1, 2, 3, 0)


def test_sent_records_cannot_be_cancelled_and_are_stored_with_the_others() -> None:
    topics = orders_on()
    with BatchProducer(topics, "orders") as producer:
        futures = [producer.send(b"value") for _ in range(3)]
        assert not futures[1].cancel()
        producer.flush()
    assert [future.result(0).record for future in futures] == [0, 1, 2]


def test_a_future_has_no_other_attribute() -> None:
    (future,), _ = futures_of_a_message(1)
    assert not hasattr(future, "place")


def test_futures_that_the_caller_drops_are_freed_at_once() -> None:
    topics = orders_on()
    with BatchProducer(topics, "orders") as producer:
        dropped = weakref.ref(producer.send(b"value"))
        kept = producer.send(b"value")
        assert dropped() is None
        producer.flush()
    assert kept.result(0).record == 1
