"""The queue in a store, in memory and on servers: the contract of queues, lost answers, races, retention, hedged puts,
and the number of requests."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from tests.support.pubsub.pubsub_topics import (
    entries_of,
    orders_on,
    publish,
    run_together,
    topics_in,
    topics_on,
    values_of,
)
from tests.support.servers.s3_server import S3Server
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import CountingStore, FaultyStore, Moment, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep
from tests.support.stores.s3_stores import options_for
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import (
    AccessDeniedError,
    ConfigError,
    DataLossError,
    InvalidRangeError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.errors import NotificationCorruptError
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue import queues as queue_kinds
from tieredstore.pubsub.queue.hedging import Hedge, UsualTime
from tieredstore.pubsub.queue.queues import NotificationQueue
from tieredstore.pubsub.queue.store_queue import StoreQueue
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.testing.notification_queue_tests import NotificationQueueTests, read_all

QUEUE = "!tieredstore/pubsub/default/queues/orders/0/"


class TestInMemory(NotificationQueueTests):
    @pytest.fixture
    def queue(self) -> NotificationQueue:
        topics = topics_on()
        return topics.queue(topics.create("orders", 2))


class TestInAFolder(NotificationQueueTests):
    @pytest.fixture
    def queue(self, tmp_path: Path) -> NotificationQueue:
        topics = topics_in(tmp_path)
        return topics.queue(topics.create("orders", 2))


def queue_on(topics: Topics) -> StoreQueue:
    queue = topics.queue(topics.get("orders"))
    assert isinstance(queue, StoreQueue)
    return queue


def soon() -> Deadline:
    return Deadline.after(60.0)


@pytest.mark.parametrize("gone", [0, 3, 4])
def test_a_deleted_entry_is_neither_the_end_nor_an_empty_queue(gone: int) -> None:
    store = MemoryObjectStore()
    queue = queue_on(orders_on(store))
    assert (queue.end(0), queue.read(0, 0)) == (0, [])
    for number in range(6):
        queue.append(0, [b"%d" % number], soon())
    store.delete([f"{QUEUE}{gone:020}"])
    fresh, lost = queue_on(topics_on(store)), rf"queue orders/0: the entry of offset {256 * gone} is missing"
    assert fresh.end(0) == 256 * 6
    with pytest.raises(DataLossError, match=lost):
        fresh.read(0, 256 * gone)
    cursor = queue.cursor(0, 0)

    def read() -> None:
        while True:
            cursor.read()

    with pytest.raises(DataLossError, match=lost):
        read()
    fresh.free(0, 256 * (gone + 1))
    assert [one.raw for one in fresh.read(0, 256 * (gone + 1))] == [b"%d" % (gone + 1)]
    assert fresh.end(0) == 256 * 6


@pytest.mark.parametrize("gone", [0, 3, 4])
def test_a_new_writer_puts_no_entry_in_the_place_of_a_lost_one(gone: int) -> None:
    """Readers beyond that place would never see the new entry."""
    store = MemoryObjectStore()
    queue = queue_on(orders_on(store))
    for number in range(6):
        queue.append(0, [b"%d" % number], soon())
    cursor = queue.cursor(0, 5 * 256)
    assert [entry.raw for entry in cursor.read()] == [b"5"]
    store.delete([f"{QUEUE}{gone:020}"])
    assert queue_on(topics_on(store)).append(0, [b"new"], soon()) == [6 * 256]
    assert [entry.raw for entry in cursor.read()] == [b"new"]


def test_a_new_writer_whose_listing_fails_puts_no_entry_in_the_place_of_a_lost_one() -> None:
    store = ScriptedStore(MemoryObjectStore())
    queue = queue_on(orders_on(store))
    for number in range(3):
        queue.append(0, [b"%d" % number], soon())
    store.delete([f"{QUEUE}{1:020}"])
    store.on("list", do=StoreUnavailableError("slow down"), times=1)
    writer = StoreQueue(topics_on(store).folder, "orders", lambda: 1, sleep=lambda _: None)
    assert writer.append(0, [b"new"], soon()) == [3 * 256]


@pytest.mark.parametrize("end", [9_999, 12_004])
def test_a_new_writer_of_a_long_queue_lists_little_of_it(end: int) -> None:
    """Azure lists a prefix from its beginning."""
    store = ScriptedStore(MemoryObjectStore())
    queue_on(orders_on(store)).append(0, [b"v"], soon())
    entry = store.get(f"{QUEUE}{0:020}")
    for number in range(1, end + 2):
        if number != end:  # this entry is lost
            store.put(f"{QUEUE}{number:020}", entry)
    store.reset()
    assert queue_on(topics_on(store)).append(0, [b"new"], soon()) == [(end + 2) * 256]
    listed = [len(list(store.inner.list(prefix))) for prefix in store.keys_of("list")]
    assert sum(listed) <= 10_000


def test_a_new_writer_finds_the_end_of_a_queue_that_has_lost_its_start() -> None:
    store = MemoryObjectStore()
    queue = queue_on(orders_on(store))
    queue.append(0, [b"v"], soon())
    store.put(f"{QUEUE}{30_000:020}", store.get(f"{QUEUE}{0:020}"))
    store.delete([f"{QUEUE}{0:020}"])
    assert queue_on(topics_on(store)).append(0, [b"new"], soon()) == [30_001 * 256]


def test_a_writer_needs_no_listing() -> None:
    inner = MemoryObjectStore()
    queue_on(orders_on(inner)).append(0, [b"a"], soon())
    store = ScriptedStore(inner).on("list", do=AccessDeniedError("Forbidden"))
    assert queue_on(topics_on(store)).append(0, [b"b"], soon()) == [256]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_whatever_fails_or_whose_answer_is_lost_an_entry_is_there_once(moment: Moment) -> None:
    def make() -> MemoryObjectStore:
        orders_on(store := MemoryObjectStore())
        return store

    def append(store: ObjectStore) -> Sequence[int]:
        queue = StoreQueue(topics_on(store).folder, "orders", lambda: 1, sleep=lambda _: None)
        return queue.append(0, [b"a"], soon())

    for _, inner, store in OperationSweep(make, append, numbers=slice(None, None, 1)).fail(moment):
        (offset,) = append(store)
        assert [(entry.offset, entry.raw) for entry in read_all(queue_on(topics_on(inner)), 0)] == [(offset, b"a")]


def test_sixteen_writers_whose_store_fails_now_and_then_are_dense_and_lose_nothing() -> None:
    inner = MemoryObjectStore()
    orders_on(inner)
    offsets: dict[bytes, int] = {}

    def write(writer: int) -> None:
        source = random.Random(writer)
        moment = source.choice(("before", "after"))
        store = FaultyStore(inner, fail_at=lambda _: source.random() < 0.2, moment=moment)  # type: ignore[arg-type]
        queue = StoreQueue(topics_on(store).folder, "orders", lambda: 1, sleep=lambda _: None)
        for number in range(5):
            raw = b"%d-%d" % (writer, number)
            (offsets[raw],) = queue.append(0, [raw], soon())

    run_together(*(partial(write, writer) for writer in range(16)))
    entries = entries_of(topics_on(inner))
    assert {entry.raw: entry.offset for entry in entries} == offsets
    assert [entry.offset for entry in entries] == [256 * number for number in range(80)]


def test_a_store_that_stays_away_is_told_at_the_deadline() -> None:
    inner = MemoryObjectStore()
    orders_on(inner)
    queue = StoreQueue(topics_on(FaultyStore(inner, fail_at=lambda _: True)).folder, "orders", lambda: 1)
    with pytest.raises(StoreUnavailableError, match="queue orders/0: the notification was not appended"):
        queue.append(0, [b"a"], Deadline.after(0.3))


def test_a_minute_without_the_queue_delays_and_doubles_nothing() -> None:
    inner, clock = MemoryObjectStore(), SimulatedClock()
    orders_on(inner)
    for moment in ("before", "after"):
        store = FaultyStore(inner, fail_at=lambda _: clock.now < 60, moment=moment)
        queue = StoreQueue(topics_on(store).folder, "orders", lambda: 1, sleep=clock.sleep)
        queue.append(0, [moment.encode()], soon())
        assert clock.now >= 60
        assert len(store.operations) < 80, "it is asked less and less often"
        clock.now = 0.0
    assert [entry.raw for entry in read_all(queue_on(topics_on(inner)), 0)] == [b"before", b"after"]


def test_a_number_that_retention_has_freed_is_no_ack() -> None:
    topics = orders_on(MemoryObjectStore())
    slow, others = queue_on(topics), queue_on(topics)
    slow.append(0, [b"first"], soon())  # the slow writer now tries number 1 next
    for number in range(5):
        others.append(0, [b"%d" % number], soon())
    others.free(0, 4 * 256)
    (offset,) = slow.append(0, [b"late"], soon())
    assert offset >= 4 * 256
    assert [entry.raw for entry in read_all(others, 0)] == [b"3", b"4", b"late"]


@pytest.mark.parametrize("may_delete", [True, False])
def test_a_late_entry_does_not_hide_a_freed_one(*, may_delete: bool) -> None:
    store = ScriptedStore(MemoryObjectStore())
    topics = orders_on(store)
    slow, others = queue_on(topics), queue_on(topics)
    slow.append(0, [b"first"], soon())
    others.append(0, [b"freed"], soon())
    others.free(0, 512)
    if not may_delete:
        store.on("delete", do=AccessDeniedError("Forbidden"))
    store.reset()
    assert slow.append(0, [b"late"], soon()) == [512]
    # Do not read there: a hedged put may come after the deletion.
    assert store.keys_of("delete") == [f"{QUEUE}{1:020}"]
    assert [entry.raw for entry in others.read(0, 512)] == [b"late"]


def test_freeing_ends_what_an_earlier_run_left() -> None:
    store = MemoryObjectStore()
    queue = queue_on(orders_on(store))
    for number in range(4):
        queue.append(0, [b"%d" % number], soon())
    # The start is moved but no entry is deleted, like after a run that was killed.
    store.put(f"{QUEUE}start", b'{"version":1,"number":3}\n')
    queue.free(0, 3 * 256)
    assert [info.key for info in store.list(QUEUE)] == [f"{QUEUE}{3:020}", f"{QUEUE}start"]
    with pytest.raises(InvalidRangeError, match="ends before offset"):
        queue.free(0, 99 * 256)


def test_entries_that_another_process_frees_at_the_same_time_are_not_beyond_the_end() -> None:
    store = ScriptedStore(MemoryObjectStore())
    other = queue_on(orders_on(store.inner))
    for number in range(3):
        other.append(0, [b"%d" % number], soon())
    store.on("head", f"{QUEUE}0*", lambda _: other.free(0, 3 * 256), times=1)
    with pytest.raises(PreconditionFailedError):
        queue_on(topics_on(store)).free(0, 256)
    assert other.start(0) == 3 * 256


def test_an_idle_reader_of_a_freed_place_hears_of_it_in_the_end() -> None:
    topics = orders_on(MemoryObjectStore())
    queue, writer = queue_on(topics), queue_on(topics)
    cursor = queue.cursor(0, 0)
    assert cursor.read() == []
    for number in range(4):
        writer.append(0, [b"%d" % number], soon())
    writer.free(0, 3 * 256)
    with pytest.raises(DataLossError, match="continue at 768"):
        deque((cursor.read() for _ in range(20)), maxlen=0)


@pytest.mark.usefixtures("inline_threads")  # nothing is hedged
def test_requests_of_writers_and_readers() -> None:
    inner = MemoryObjectStore()
    orders_on(inner)
    store = CountingStore(inner)
    queue = queue_on(topics_on(store))
    queue.append(0, [b"a"], soon())
    store.reset()
    queue.append(0, [b"b"], soon())
    assert (len(store.keys_of("put")), len(store.keys_of("get")), len(store.keys_of("head"))) == (1, 1, 0)
    cursor = queue.cursor(0, 0)
    while cursor.read():
        pass
    store.reset()
    for _ in range(60):
        assert cursor.read() == []
    assert len(store.keys_of("get")) == 60  # one per read: a few of them get the queue's start instead of an entry
    assert len(store.keys_of("list")) == 1  # one, however long the reader is idle


def test_a_walk_up_to_the_end_makes_one_request_for_each_entry() -> None:
    inner = MemoryObjectStore()
    writer = queue_on(orders_on(inner))
    for number in range(3):
        writer.append(0, [b"%d" % number], soon())
    store = CountingStore(inner)
    queue = queue_on(topics_on(store))
    start, end = queue.start(0), queue.end(0)
    store.reset()
    assert [entry.raw for entry in queue.walk(0, start, end)] == [b"0", b"1", b"2"]
    assert (len(store.keys_of("get")), len(store.keys_of("head")), len(store.keys_of("list"))) == (3, 0, 0)


def lose_queue(store: MemoryObjectStore) -> None:
    """Delete the queue, like an operator that creates a topic again, but keeps its groups."""
    store.delete([info.key for info in store.list(QUEUE)])


@pytest.mark.parametrize(("offset", "is_beyond"), [(256, False), (257, True), (512, True), (5 * 256, True)])
def test_an_offset_beyond_the_end_is_named_with_the_end(offset: int, *, is_beyond: bool) -> None:
    queue = queue_on(orders_on(MemoryObjectStore()))
    queue.append(0, [b"0"], soon())
    if not is_beyond:
        assert queue.read(0, offset) == []
        return
    with pytest.raises(DataLossError, match=f"queue orders/0: offset {offset} is beyond the end, 256.*continue at 0"):
        queue.read(0, offset)


@pytest.mark.parametrize("idle_reads", [1, 20, 100])
def test_a_waiting_reader_hears_of_a_queue_that_was_created_again(idle_reads: int) -> None:
    store = MemoryObjectStore()
    queue = queue_on(orders_on(store))
    for number in range(3):
        queue.append(0, [b"%d" % number], soon())
    cursor = queue.cursor(0, 0)
    assert [len(cursor.read()) for _ in range(3 + idle_reads)] == [1, 1, 1, *[0] * idle_reads]
    lose_queue(store)
    with pytest.raises(DataLossError, match="offset 768 is beyond the end, 0"):
        deque((cursor.read() for _ in range(20)), maxlen=0)


@pytest.mark.parametrize("loss", ["fail", "report"])
def test_a_group_of_a_topic_that_was_created_again_hears_of_it(loss: Literal["fail", "report"]) -> None:
    store = MemoryObjectStore()
    topics = orders_on(store)
    for value in (b"a", b"b"):
        publish(topics, [value])
    with BatchConsumer(topics, "orders", group="g") as consumer:
        assert values_of(consumer, at_least=2) == [b"a", b"b"]
        consumer.commit()
    lose_queue(store)
    publish(topics, [b"c"])
    lost = "queue orders/0: offset 512 is beyond the end, 256"
    with BatchConsumer(topics, "orders", group="g", on_data_loss=loss) as consumer:
        if loss == "report":
            assert values_of(consumer, at_least=1) == [b"c"]
            assert [sentence.partition(",")[0] for sentence in consumer.losses] == [lost.partition(",")[0]]
        else:
            with pytest.raises(DataLossError, match=lost):
                deque(consumer.records(0.01), maxlen=0)


class OwnQueue(StoreQueue):
    """Queue class, as if an installed package provided it."""


class NoQueue:
    """A class that is no queue."""


def test_a_queue_of_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {"mine": f"{__name__}:OwnQueue", "none": f"{__name__}:NoQueue", "gone": "no_such_module:Queue"}

    def installed(group: str, name: str) -> str | None:
        assert group == queue_kinds.QUEUES
        return classes.get(name)

    monkeypatch.setattr(queue_kinds, "installed_class", installed)
    topics = orders_on(queue="mine")
    assert isinstance(topics.queue(topics.get("orders")), OwnQueue)
    for kind, why in (
        ("none", "not a subclass of NotificationQueue"),
        ("gone", "cannot load the queue"),
        ("else", "expected store, kafka"),
    ):
        with pytest.raises(ConfigError, match=why):
            topics_on(None, queue=kind).create("orders")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b'{"version":1,"mark":"m","ms":1,"count":2}\na\n',
        b'{"version":1,"mark":"m","ms":1,"count":1}\na',
        bytes(9 << 20),
    ],
)
def test_an_entry_that_is_none_is_refused(damaged: bytes) -> None:
    store = MemoryObjectStore()
    queue = queue_on(orders_on(store))
    store.put(f"{QUEUE}{0:020}", damaged)
    with pytest.raises(NotificationCorruptError, match=f"{0:020}"):
        queue.read(0, 0)


def test_notifications_of_one_entry() -> None:
    queue = queue_on(orders_on(MemoryObjectStore()))
    assert queue.append(0, [b"x"] * 256, soon()) == list(range(256))
    assert queue.append(0, [b"y"], soon()) == [256]
    for wrong in ([], [b"x"] * 257, [b"two\nlines"]):
        with pytest.raises(InvalidRangeError):
            queue.append(0, wrong, soon())


def test_a_reader_that_has_read_all_that_was_freed_has_lost_nothing() -> None:
    queue = queue_on(orders_on(MemoryObjectStore()))
    for number in range(3):
        queue.append(0, [b"%d" % number], soon())
    cursor = queue.cursor(0, 0)
    assert [cursor.read()[0].raw for _ in range(3)] == [b"0", b"1", b"2"]
    queue.free(0, 3 * 256)
    assert [cursor.read() for _ in range(20)] == [[]] * 20
    queue.append(0, [b"3"], soon())
    assert [entry.raw for entry in cursor.read()] == [b"3"]


LONG_S = 120.0


def test_a_try_is_worth_it_after_three_times_what_is_usual() -> None:
    usual = UsualTime()
    assert usual.hedge_after_s == 1.5
    usual.note(0.001)
    assert usual.hedge_after_s == 0.3
    for number in range(100):
        usual.note(0.2 if number < 96 else 50.0)
    assert usual.hedge_after_s == pytest.approx(0.6)


class Tries:
    """Operation whose first ``hanging`` calls hang until ``released``. Each call ends with the next of the outcomes."""

    def __init__(self, hanging: int, *outcomes: object) -> None:
        self.hanging = hanging
        self.outcomes = list(outcomes)
        self.count = 0
        self.released = threading.Event()

    def __call__(self) -> object:
        self.count += 1
        if self.count <= self.hanging:
            assert self.released.wait(LONG_S)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.mark.slow
def test_the_first_that_succeeds_counts() -> None:
    hedge = Hedge("test", 4)
    hangs = Tries(1, "second", "first")
    assert hedge.run(hangs) == "second"
    hangs.released.set()
    assert hangs.count == 2
    hedge.close()


def test_what_ends_in_time_is_tried_once_well_or_not() -> None:
    hedge = Hedge("test", 4, least_s=LONG_S)
    quick = Tries(0, "quick")
    assert hedge.run(quick) == "quick"
    failing = Tries(0, StoreUnavailableError("away"))
    with pytest.raises(StoreUnavailableError, match="away"):
        hedge.run(failing)
    assert (quick.count, failing.count) == (1, 1)
    hedge.close()


@pytest.mark.slow
def test_an_entry_whose_answer_hangs_keeps_no_ack_back_and_stands_once() -> None:
    store, released = ScriptedStore(MemoryObjectStore()), threading.Event()
    topics = orders_on(store, batch_ms="10")
    store.on("put", "*/queues/*", lambda _: released.wait(LONG_S), moment="after", times=1)
    with BatchProducer(topics, "orders") as producer:
        place = producer.send(b"v").result(LONG_S)
        assert (place.offset, released.is_set()) == (0, False)
        with BatchConsumer(topics, "orders") as consumer:
            assert values_of(consumer, at_least=1) == [b"v"]
        released.set()


class OnAServer(NotificationQueueTests):
    @pytest.fixture
    def topics(self, server: S3Server) -> Iterator[Topics]:
        with closing(S3ObjectStore(options_for(server, server.make_bucket()))) as store:
            yield topics_on(store)

    @pytest.fixture
    def queue(self, topics: Topics) -> NotificationQueue:
        return topics.queue(topics.create("orders", 2))

    def test_records_from_a_producer_to_a_group(self, topics: Topics) -> None:
        topics.create("orders", 2)
        with BatchProducer(topics, "orders") as producer:
            futures = [producer.send(b"%d" % number) for number in range(500)]
            producer.flush()
            assert all(future.exception(0) is None for future in futures)
        for values in ([b"%d" % number for number in range(500)], []):
            with BatchConsumer(topics, "orders", group="g") as consumer:
                assert values_of(consumer, at_least=len(values)) == values
                consumer.commit()


class TestMinio(OnAServer):
    @pytest.fixture
    def server(self, minio: S3Server) -> S3Server:
        return minio


class TestSeaweedFS(OnAServer):
    @pytest.fixture
    def server(self, seaweedfs: S3Server) -> S3Server:
        return seaweedfs
