"""Promises of docs about the consumer of bucket and broker: changes of source, starts, columns, limits and closing.

A script plays the broker.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import pytest
from confluent_kafka import Message, TopicPartition

from tests.consumer.buckets import DEADLINE_S, ORDERS, OTHERS, PLACE, Fetches, offsets_of, read, reader_of, until
from tests.support.kafka.scripted_member import SELDOM, ScriptedBroker, ScriptedLog, parts_of
from tests.support.paths import REPOSITORY
from tests.support.records.topic_buckets import Bucket
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import Moment, ScriptedStore
from tieredstore.backends.registry import store_from_settings
from tieredstore.config import Settings
from tieredstore.consumer.assembly import Makers, Measures
from tieredstore.consumer.core import Core
from tieredstore.consumer.live_side import LiveSide
from tieredstore.consumer.lookups import Lookups
from tieredstore.consumer.loss_policy import LossPolicy
from tieredstore.consumer.partition import Partition
from tieredstore.consumer.settings import parse_settings
from tieredstore.errors import BrokerUnavailableError, StoreUnavailableError
from tieredstore.partitions.position import Position
from tieredstore.remote import RemoteStorageManager


def test_who_lags_by_a_whole_segment_goes_back_to_the_bucket(bucket: Bucket) -> None:
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 30)})
    with broker.consumer(bucket, ORDERS, mode="remote_preferred") as (consumer, member):
        given = read(consumer, 30)
        assert consumer.tiered_stats()[ORDERS]["source"] == "broker"
        member.stuck.add(ORDERS)
        broker.logs[ORDERS].end = 80
        bucket.write(10)
        bucket.write(20)
        given += read(consumer, 50)
        assert offsets_of(given) == list(range(80))
        assert consumer.tiered_stats()[ORDERS]["side_changes"] == 3


@pytest.mark.parametrize("mode", ["kafka_preferred", "remote_preferred"])
def test_sides_change_once_a_segment_at_most(bucket: Bucket, mode: str) -> None:
    """Even if retention deletes a little after each record, the source changes at most once per segment."""
    for _ in range(4):
        bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(10, 90)})
    with broker.consumer(bucket, ORDERS, mode=mode, refresh_ms=10) as (consumer, _):
        given: list[Any] = []
        while len(given) < 90:
            given += read(consumer, 1)[:90]
            broker.logs[ORDERS].start = min(80, given[-1].offset() + 3)
        assert offsets_of(given) == list(range(90))
        assert consumer.tiered_stats()[ORDERS]["side_changes"] <= 4


def test_what_is_committed_is_asked_for_until_the_coordinator_answers(bucket: Bucket) -> None:
    """A missing answer never counts as "nothing committed", which would reread everything or skip to the end."""
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 30)}, committed={ORDERS: 15}, failures=4)
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        assert offsets_of(read(consumer, 15)) == list(range(15, 30))
        assert broker.failures == 0
        assert parts_of(consumer).measures.resets == 0


def test_resets_are_counted(bucket: Bucket) -> None:
    bucket.write(20, skip=100)
    broker = ScriptedBroker({ORDERS: ScriptedLog(120, 130)}, committed={ORDERS: 7})
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        assert offsets_of(read(consumer, 30)) == list(range(100, 130))
        assert parts_of(consumer).measures.resets == 1


def test_columns_of_both_sources_have_one_schema(bucket: Bucket) -> None:
    bucket.write(20)
    broker = ScriptedBroker({ORDERS: ScriptedLog(20, 30)})
    schemas: list[Any] = []
    with broker.consumer(bucket, ORDERS) as (consumer, _):
        rows = 0
        while rows < 30:
            batch = consumer.poll_arrow(DEADLINE_S)
            assert batch is not None
            rows, schemas = rows + batch.records.num_rows, [*schemas, batch.records.schema]
    assert len(schemas) >= 2
    assert all(schema.equals(schemas[0], check_metadata=True) for schema in schemas)


class Assignments:
    """Client that records its assignments."""

    def __init__(self) -> None:
        self.all: list[list[tuple[int, int]]] = []

    def assign(self, places: list[TopicPartition]) -> None:
        self.all.append([(place.partition, place.offset) for place in places])

    def positions(self, _: object) -> list[TopicPartition]:
        return []


def test_eager_assignments_are_one_a_second_at_most() -> None:
    now, client = [100.0], Assignments()
    inside: Any = client
    live = LiveSide(inside, 60.0, Makers(clock=lambda: now[0]))
    live.join_group(is_eager=True)
    for number in range(6):
        partition = live.partitions["orders", number] = Partition(("orders", number), Position(10 * number))
        live.add(partition)
        live.flush()
        now[0] += 0.25
    assert client.all == [[(0, 0)], [(number, 10 * number) for number in range(5)]]
    assert live.due_in == pytest.approx(0.5)
    now[0] += 0.5
    live.flush()
    assert client.all[-1] == [(number, 10 * number) for number in range(6)]
    assert live.due_in is None


class DeadCluster:
    """Cluster without a broker: each request fails after its timeout, and the first after at most ``first_s``."""

    def __init__(self, clock: SimulatedClock, first_s: float) -> None:
        self.clock = clock
        self.first_s = first_s
        self.timeout_s = 8.0
        self.waits: list[float] = []

    def within(self, timeout_s: float) -> DeadCluster:
        self.timeout_s = timeout_s
        return self

    def describe(self, _: object) -> dict[str, Any]:
        self.waits.append(self.timeout_s if self.waits else min(self.first_s, self.timeout_s))
        self.clock.sleep(self.waits[-1])
        raise BrokerUnavailableError("no broker answered")


class InlineLookups(Lookups):
    """Look-ups that run in the polling thread."""

    def _start(self) -> None:
        looks, self._of_broker = self._of_broker, []
        self._ask_broker(looks)


@pytest.mark.parametrize(("first_s", "waits"), [(8.0, [8.0]), (3.0, [3.0, 4.9])])
def test_an_error_is_raised_when_timeout_ms_has_passed(first_s: float, waits: list[float]) -> None:
    """The time counts from the start of the first failing look-up. The last look-up's timeout is the remaining time."""
    clock = SimulatedClock()
    cluster: Any = DeadCluster(clock, first_s)
    unused: Any = None
    settings = parse_settings(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "tiered.storage.timeout.ms": 8000,
         "tiered.storage.settings": {"storage.backend.class": "filesystem", "storage.root": "/nowhere"}}
    )  # fmt: skip

    def now() -> float:
        return clock.now

    live = LiveSide(unused, settings.timeout_s, Makers(clock=now))
    lookups = InlineLookups(settings, unused, cluster, threading.Event(), now)
    policy = LossPolicy(settings, Measures(dict[str, float]), 0.1, now)
    core = Core(settings, live, lookups, unused, policy, now)
    core.add([(ORDERS, "earliest")])
    error: Exception | None = None
    while error is None:
        core.tick()
        error = core.take_error()
        clock.sleep(0.0 if core.is_busy or error else core.due_in)
    assert isinstance(error, BrokerUnavailableError)
    assert cluster.waits == pytest.approx(waits)
    assert clock.now == pytest.approx(8.0)


def test_all_partitions_together_keep_to_the_bound(bucket: Bucket) -> None:
    """One limit holds for the queued decoded records of all partitions; each thread may exceed it by a batch."""
    partitions, most = 15, 0
    for number in range(partitions):
        bucket.write(200, partition=number)
    places = [TopicPartition("orders", number, 0) for number in range(partitions)]
    options = {"tiered_storage_queued_max_kbytes": 64, "tiered_storage_partitions_at_once": 3}
    before = set(threading.enumerate())
    with reader_of(bucket, *places, **options) as consumer:
        streams, given = parts_of(consumer).core.streams, 0
        while given < 200 * partitions:
            given += len(read(consumer, 1))
            most = max(most, streams.queued_bytes)
        own = set(threading.enumerate()) - before
        assert len([one for one in own if one.name.startswith("tieredstore-consumer_")]) == 3
    assert 0 < most <= (1 + 3) * 64 * 1024


def test_what_is_held_of_the_client_is_bounded_too(bucket: Bucket) -> None:
    """Columns are returned per partition. The queue of the other partitions' records has a limit too."""
    wheres = [("orders", number) for number in range(30)]
    broker = ScriptedBroker({where: ScriptedLog(0, 20) for where in wheres})
    with broker.consumer(bucket, *wheres, makers={"held_bytes": 64 * 100}) as (consumer, _):
        known, rows, most = parts_of(consumer).core.partitions, 0, 0
        while rows < 600:
            batch = consumer.poll_arrow(DEADLINE_S)
            assert batch is not None
            rows += batch.records.num_rows
            most = max(most, sum(len(one.held) for one in known.values()))
    assert 50 < most <= 101


BESIDE: Final[dict[str, dict[str, Any]]] = {
    "key": {"key": b"k" * 6400},
    "headers": {"headers": [("h", b"h" * 3200), ("g", None), ("i", b"i" * 3200)]},
}


@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("call", ["consume", "poll_arrow"])
def test_what_is_kept_of_the_client_is_bounded_by_keys_and_headers_too(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, beside: dict[str, Any], call: str
) -> None:
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 5000)})
    with broker.consumer(bucket, ORDERS, makers={"held_bytes": 64_000}, client=SELDOM) as (consumer, member):
        consume, asked = member.consume, list[int]()

        def with_more(count: int, timeout_s: float) -> list[Any]:
            asked.append(count)
            return [
                Message(topic=one.topic(), partition=one.partition(), offset=one.offset(), value=b"", **beside)
                for one in consume(count, timeout_s)
            ]

        monkeypatch.setattr(member, "consume", with_more)
        until(consumer, bool, count=10)
        asked.clear()
        received: list[Any] = parts_of(consumer).core.live._received  # pyright: ignore[reportPrivateUsage]
        for _ in range(100):
            if call == "consume":
                consumer.consume(10, DEADLINE_S)
            else:
                consumer.poll_arrow(DEADLINE_S)
            assert sum(map(len, received)) <= 4 * 1024 * 1024 // 6400 + 10
        assert max(asked) <= 10
        assert consumer.position([PLACE])[0].offset >= 900


def test_the_end_of_a_partition_is_not_counted_as_a_record(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next call would request many large records, because this event is small and has no key."""
    broker = ScriptedBroker({ORDERS: ScriptedLog(0, 20)})
    with broker.consumer(bucket, ORDERS, makers={"held_bytes": 64_000}) as (consumer, member):
        consume, asked = member.consume, list[int]()

        def with_keys(count: int, timeout_s: float) -> list[Any]:
            asked.append(count)
            return [
                message if message.error() is not None
                else Message(topic="orders", partition=0, offset=message.offset(), key=b"k" * 6400, value=b"")
                for message in consume(count, timeout_s)
            ]  # fmt: skip

        monkeypatch.setattr(member, "consume", with_keys)
        member.emits_eof = True
        given = until(consumer, lambda given: bool(given) and given[-1].error() is not None)
        assert len(given) == 21
        assert parts_of(consumer).measures.records["broker"] == 20
        asked.clear()
        broker.logs[ORDERS].end = 5000
        for _ in range(10):
            consumer.poll_arrow(DEADLINE_S)
        assert max(asked) <= 10


def test_a_store_that_hangs_does_not_keep_a_consumer_open(bucket: Bucket, fetches: Fetches) -> None:
    """Closing abandons hanging store threads after a while; they do not block the process's exit."""
    bucket.write(20)
    goes_on, hangs = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        hangs.set()
        goes_on.wait(DEADLINE_S)
        raise StoreUnavailableError("it was closed long ago")

    fetches.before = hang
    begun = time.monotonic()
    with reader_of(bucket, PLACE, makers=Makers(closing_s=0.2)) as consumer:
        until(consumer, lambda _: hangs.is_set())
    assert time.monotonic() - begun < DEADLINE_S / 2
    left = [one for one in threading.enumerate() if one.name.startswith("tieredstore-consumer_")]
    assert all(thread.daemon for thread in left)
    goes_on.set()
    for thread in left:
        thread.join(DEADLINE_S)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("policy", ["fail", "report"])
def test_a_chunk_that_hangs_does_not_keep_a_consumer_open(bucket: Bucket, moment: Moment, policy: str) -> None:
    """Nothing counts as lost."""
    bucket.write(20_000)
    goes_on, hangs = threading.Event(), threading.Event()
    lost: list[Any] = []

    def hang(_: object) -> None:
        hangs.set()
        goes_on.wait(DEADLINE_S)

    def manager(chosen: Settings, **more: Any) -> RemoteStorageManager:
        store = ScriptedStore(store_from_settings(chosen)).on(None, "*.log", hang, moment=moment)
        return RemoteStorageManager(chosen, store=store, **more)

    begun = time.monotonic()
    makers, own = Makers(manager=manager, closing_s=0.2), {"tiered_storage_on_data_loss": policy}
    with reader_of(bucket, PLACE, makers=makers, loss_cb=lost.append, **own) as consumer:
        given = until(consumer, lambda _: hangs.is_set())
    assert time.monotonic() - begun < DEADLINE_S / 2
    assert offsets_of(given) == list(range(len(given)))
    left = [one for one in threading.enumerate() if one.name.startswith("tieredstore-consumer_")]
    goes_on.set()
    for thread in left:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert lost == []


def test_the_page_of_metrics_names_each_of_a_consumers() -> None:
    page = (REPOSITORY / "docs" / "reference" / "metrics.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("`tieredstore_consumer_")]
    levels = ("queued_bytes", "refreshes", "lag_records", "lag_records_max", "lag_seconds", "lag_seconds_max")
    names = {*Measures(lambda: dict.fromkeys(levels, 0.0)).snapshot()}
    assert {name for name in names if f"`{name}`" not in line} == set()


def test_a_record_that_is_ready_does_not_wait_for_the_other_source(bucket: Bucket, fetches: Fetches) -> None:
    """A call that waits for the bucket returns the broker's records at once, and vice versa."""
    bucket.write(20)
    broker, goes_on = ScriptedBroker({ORDERS: ScriptedLog(20, 20), OTHERS: ScriptedLog(0, 0)}), fetches.hold()
    with broker.consumer(bucket, ORDERS, OTHERS) as (consumer, member):
        until(consumer, lambda _: OTHERS in member.fetching)
        timer = threading.Timer(0.1, lambda: setattr(broker.logs[OTHERS], "end", 1))
        timer.start()
        begun = time.monotonic()
        first = consumer.poll(2 * DEADLINE_S)
        assert first is not None
        assert first.partition() == 1
        timer = threading.Timer(0.1, goes_on.set)
        timer.start()
        second = consumer.poll(2 * DEADLINE_S)
        assert second is not None
        assert second.partition() == 0
        assert time.monotonic() - begun < DEADLINE_S
