"""Maintenance of a topic: retention, orphans and their adoption, queues that drop notifications, runs killed at any
operation, and random histories on clocks that tests move.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import ClassVar

import pytest

from tests.support.pubsub.memq_batches import build_batch
from tests.support.pubsub.pubsub_topics import batch_keys, notified, sealed_message, topics_on, values_of
from tests.support.stores.doubles import FaultyStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep
from tieredstore.backends import memory
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.errors import (
    AccessDeniedError,
    ConfigError,
    DataLossError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from tieredstore.ops.steps import Outcome
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.format.batches import index_size
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.format.notifications import BatchKey, Notification
from tieredstore.pubsub.produce.batch_writer import BatchWriter
from tieredstore.pubsub.queue import queues as queue_kinds
from tieredstore.pubsub.queue.store_queue import StoreQueue
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.garbage import DAY_MS, GarbageCollection, plan_gc

HOUR_MS = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def pass_ms(self, ms: int) -> None:
        self.ms += ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace this process's wall clock by one that the test moves. Deadlines use another clock."""
    moved = Clock()
    monkeypatch.setattr(time, "time_ns", lambda: moved.ms * 1_000_000)
    return moved


def topics_of(store: ObjectStore, **properties: str) -> Topics:
    return topics_on(store, hashing="false", delete_delay_ms=str(HOUR_MS), **properties)


def fresh(**properties: str) -> Topics:
    topics = topics_of(MemoryObjectStore(), **properties)
    topics.create("orders")
    return topics


@pytest.fixture
def store_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Give stores in memory a wall clock of their own."""
    moved = Clock()
    monkeypatch.setattr(memory, "time", SimpleNamespace(time_ns=lambda: moved.ms * 1_000_000))
    return moved


class Writing:
    """Writer of batches in two steps: an object, then perhaps its notification."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.count = 0

    def put(self, size: int = 0) -> str:
        request = ProducerRequest(b"\1\2\3\4", 1, self.count)
        stored = build_batch([sealed_message(request, b"%d" % self.count + bytes(size), timestamp_ms=5).stored])
        path = self.topics.get("orders").path
        key = str(BatchKey(path, self.count, self.count, 1, 0, "h", self.topics.get("orders").is_hashed))
        self.topics.store.put(key, stored, if_absent=True)
        self.count += 1
        return key

    def notify(self, *keys: str, partition: int = 0) -> int:
        """Append one entry for these keys; return its first offset."""
        sizes = [self.topics.store.head(key).size - index_size(1) for key in keys]
        raw = [Notification("orders", size, 1, key=key).to_json() for key, size in zip(keys, sizes, strict=True)]
        return self.topics.queue(self.topics.get("orders")).append(partition, raw, Deadline.after(60.0))[0]


def collect(topics: Topics, *, adopt: bool = False, dry_run: bool = False) -> dict[str, list[str]]:
    """Collect garbage; return the keys by outcome."""
    run = GarbageCollection(BatchLog(topics, topics.get("orders")), adopt=adopt, dry_run=dry_run)
    outcomes: dict[str, list[str]] = {}
    for each in run.run():
        outcomes.setdefault(each.code, []).append(str(each.name))
    return outcomes


def test_batches_that_are_too_old_are_freed_first_and_deleted_later(clock: Clock) -> None:
    topics = fresh(retention_ms=str(5 * DAY_MS // 2))
    writing = Writing(topics)
    keys = [writing.put() for _ in range(4)]
    for key in keys:
        writing.notify(key)
        clock.pass_ms(DAY_MS)
    dry = collect(topics, dry_run=True)
    assert dry == {"freed": keys[:2]}
    assert collect(topics) == {"freed": keys[:2], "waiting": keys[:2]}
    assert set(batch_keys(topics)) == set(keys)  # readers that have their notifications may still fetch them
    with pytest.raises(DataLossError, match="retention has freed"):
        topics.queue(topics.get("orders")).read(0, 0)
    clock.pass_ms(HOUR_MS)
    assert collect(topics) == {"deleted": keys[:2]}
    assert set(batch_keys(topics)) == set(keys[2:])
    assert collect(topics) == {}
    assert len(values_of(BatchConsumer(topics, "orders"), at_least=2)) == 2


@pytest.mark.parametrize("ahead_ms", [60_000, 2 * HOUR_MS, DAY_MS, 30 * DAY_MS, -30 * DAY_MS])
def test_a_machine_whose_clock_is_ahead_deletes_nothing_young(clock: Clock, store_clock: Clock, ahead_ms: int) -> None:
    """The store's clock decides, so a machine whose clock is wrong deletes nothing earlier or later than others."""

    def pass_ms(ms: int) -> None:
        clock.pass_ms(ms)
        store_clock.pass_ms(ms)

    def collect_at(ms: int) -> dict[str, list[str]]:
        """Collect on a machine whose clock is this far ahead. Writers' clocks are right."""
        pass_ms(ms)
        clock.pass_ms(ahead_ms)
        outcomes = collect(topics)
        clock.pass_ms(-ahead_ms)
        return outcomes

    topics = fresh(retention_ms=str(2 * DAY_MS))
    writing = Writing(topics)
    orphan, kept = writing.put(), writing.put()
    writing.notify(kept)
    assert collect_at(DAY_MS - 1) == {"young": [orphan]}
    assert collect_at(1) == {"deleted": [orphan]}
    assert collect_at(DAY_MS) == {}
    assert collect_at(1) == {"freed": [kept], "waiting": [kept]}
    assert collect_at(HOUR_MS - 1) == {"waiting": [kept]}
    assert collect_at(1) == {"deleted": [kept]}


@pytest.mark.parametrize("writer_ms", [0, 2_000_000_000_000])
def test_batches_of_a_writer_whose_clock_is_wrong_are_kept_as_long_as_others(
    clock: Clock, store_clock: Clock, writer_ms: int
) -> None:
    topics = fresh(retention_ms=str(5 * DAY_MS))
    writing = Writing(topics)
    clock.ms = writer_ms  # 0 as after a start without a clock
    keys = [writing.put(), writing.put()]
    for key in keys:
        writing.notify(key)
    store_clock.pass_ms(5 * DAY_MS)
    assert collect(topics) == {}
    store_clock.pass_ms(1)
    assert collect(topics) == {"freed": keys, "waiting": keys}


def test_a_batch_of_a_slow_clock_that_is_written_while_gc_runs_is_kept(clock: Clock, store_clock: Clock) -> None:
    store = ScriptedStore(MemoryObjectStore())
    topics = topics_of(store, retention_ms=str(DAY_MS))
    topics.create("orders")
    writing = Writing(topics)
    clock.ms = 0

    def publish(_: Operation) -> None:
        writing.notify(writing.put())

    store.on("list", "*/sinks/*", publish, times=1)
    assert collect(topics) == {}
    assert len(batch_keys(topics)) == len(notified(topics)) == 1, store_clock.ms


def test_a_store_whose_clock_jumps_ahead_frees_and_deletes_nothing() -> None:
    ahead_ms = 0
    store = ScriptedStore(MemoryObjectStore()).change("now_ms", change=lambda now_ms: now_ms and now_ms + ahead_ms)
    topics = topics_of(store, retention_ms=str(10 * HOUR_MS))
    topics.create("orders")
    writing = Writing(topics)
    keys = [writing.put(), writing.put()]
    writing.notify(keys[0])
    plan = plan_gc(topics, ["orders"])
    ahead_ms = 30 * DAY_MS
    for collected in (lambda: list(plan), plan.apply):
        with pytest.raises(StoreError, match=r"is 720\.0 h ahead of this machine's, so new batches may look old"):
            collected()
    assert batch_keys(topics) == keys
    ahead_ms = 20 * HOUR_MS
    assert [(one.name, one.code) for one in plan] == [(keys[1], "young")]
    writing.notify(keys[1])
    assert values_of(BatchConsumer(topics, "orders"), at_least=2) == [b"0", b"1"]


@pytest.mark.parametrize("is_copied", [True, False])
def test_batches_of_another_cluster_with_the_same_path_are_no_orphans(clock: Clock, *, is_copied: bool) -> None:
    """Someone has copied the definitions, or the two settings of the other cluster together give the same path."""
    prod = topics_of(MemoryObjectStore(), cluster="prod/eu")
    prod.create("orders")
    if is_copied:
        other = topics_of(prod.store, cluster="test")
        for info in list(prod.store.list("!tieredstore/pubsub/prod/eu/")):
            copy = info.key.replace("/prod/eu/", "/test/")
            prod.store.put(copy, prod.store.get(info.key))
    else:
        texts = {"storage.backend.class": "memory", "chunk.size": "4194304", "key.prefix": "prod/"}
        other = Topics(prod.store, settings_from({**texts, "pubsub.cluster": "eu", "pubsub.hashing": "false"}))
        other.create("orders")
    writing = Writing(prod)
    key = writing.put()
    writing.notify(key)
    clock.pass_ms(2 * DAY_MS)
    plan = plan_gc(other, ["orders"])
    for collected in (lambda: list(plan), plan.apply):
        with pytest.raises(
            ConfigError, match=r"pubsub/.*orders\.json defines a topic of another cluster with the same"
        ):
            collected()
    assert batch_keys(prod) == [key]
    # Without the other definition, nothing else uses the objects.
    prod.store.delete([prod.folder.key("topics", "orders.json")])
    assert [one.code for one in plan] == ["deleted"]


def test_credentials_that_are_limited_to_the_key_prefix_collect_garbage(clock: Clock) -> None:
    def refuse(operation: Operation) -> None:
        if not all(key.startswith("team-a/") for key in operation.keys):
            raise AccessDeniedError("Forbidden")

    texts = {"storage.backend.class": "memory", "chunk.size": "4194304", "key.prefix": "team-a/"}
    store = ScriptedStore(MemoryObjectStore()).on(do=refuse)
    topics = Topics(store, settings_from({**texts, "pubsub.hashing": "false"}))
    topics.create("orders")
    key = Writing(topics).put()
    clock.pass_ms(2 * DAY_MS)
    assert [(each.code, each.name) for each in plan_gc(topics)] == [("deleted", key)]
    plan_gc(topics).apply()
    with pytest.raises(ObjectNotFoundError):
        store.head(key)


def test_batches_beyond_the_size_limit_are_freed(clock: Clock) -> None:
    topics = fresh(retention_bytes="5000")
    writing = Writing(topics)
    keys = [writing.put(1000) for _ in range(8)]
    for key in keys:
        writing.notify(key)
    assert collect(topics)["freed"] == keys[:4]
    assert collect(topics) == {"waiting": keys[:4]}


def test_batches_of_one_entry_are_freed_together(clock: Clock) -> None:
    topics = fresh(retention_bytes="5000")
    writing = Writing(topics)
    keys = [writing.put(1000) for _ in range(9)]
    for first in range(0, 9, 3):
        writing.notify(*keys[first : first + 3])
    assert clock.ms
    assert collect(topics, dry_run=True) == {"freed": keys[:3]}
    assert collect(topics) == {"freed": keys[:3], "waiting": keys[:3]}
    assert collect(topics) == {"waiting": keys[:3]}
    assert batch_keys(topics) == keys


def test_orphans_are_told_by_their_age_and_deleted_or_adopted(clock: Clock) -> None:
    topics = fresh()
    writing = Writing(topics)
    orphans = [writing.put(), writing.put()]
    damaged = str(BatchKey(topics.get("orders").path, 77, 7, 1, 0, "h", False))
    topics.store.put(damaged, b"no batch")
    topics.store.put("default/topics/orders/not-ours", b"another's")
    notified = writing.put()
    writing.notify(notified)
    assert collect(topics) == {"young": sorted([*orphans, damaged])}
    clock.pass_ms(DAY_MS)
    assert collect(topics, adopt=True, dry_run=True) == {"adopted": orphans, "damaged": [damaged]}
    assert collect(topics, adopt=True) == {"adopted": orphans, "damaged": [damaged]}
    assert sorted(values_of(BatchConsumer(topics, "orders"), at_least=3)) == [b"0", b"1", b"2"]
    assert collect(topics) == {"deleted": [damaged]}
    assert set(batch_keys(topics)) == {*orphans, notified, "default/topics/orders/not-ours"}


def test_an_age_at_which_writers_may_still_notify_is_refused(clock: Clock) -> None:
    topics = fresh(delivery_timeout_ms="60000")
    plan_gc(topics, ["orders"], min_age=timedelta(milliseconds=180_000))
    with pytest.raises(ConfigError, match=r"use at least 180000 ms, 3 times pubsub\.delivery\.timeout\.ms"):
        plan_gc(topics, ["orders"], min_age=timedelta(milliseconds=179_999))


def test_a_batch_that_is_notified_again_keeps_its_object(clock: Clock) -> None:
    topics = fresh(retention_ms=str(DAY_MS))
    writing = Writing(topics)
    key = writing.put()
    writing.notify(key)
    clock.pass_ms(2 * DAY_MS)
    writing.notify(key)
    assert collect(topics) == {"freed": [key]}
    clock.pass_ms(HOUR_MS)
    assert collect(topics) == {}
    assert values_of(BatchConsumer(topics, "orders"), at_least=1) == [b"0"]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_run_that_fails_anywhere_is_made_again(clock: Clock, moment: Moment) -> None:
    def make() -> MemoryObjectStore:
        inner = MemoryObjectStore()
        topics = topics_of(inner, retention_ms=str(DAY_MS))
        topics.create("orders")
        writing = Writing(topics)
        for _ in range(3):
            writing.notify(writing.put())
        writing.put()
        clock.pass_ms(2 * DAY_MS)
        writing.notify(writing.put())
        return inner

    def collect_twice(store: ObjectStore) -> None:
        for _ in range(2):
            with suppress(StoreUnavailableError):
                collect(topics_of(store, retention_ms=str(DAY_MS)))
                clock.pass_ms(HOUR_MS)

    for number, inner, store in OperationSweep(make, collect_twice).fail(moment):
        collect_twice(store)
        collect_twice(inner)
        topics = topics_of(inner, retention_ms=str(DAY_MS))
        collect(topics)
        assert len(set(batch_keys(topics))) == 1, number
        assert values_of(BatchConsumer(topics, "orders"), at_least=1) == [b"4"], number


class History:
    """Random history of writers, orphans, retention and garbage collections, some of which fail. Each step ends with a
    check of the invariants.
    """

    def __init__(self, seed: int, clock: Clock) -> None:
        self.source = random.Random(seed)
        self.clock = clock
        self.inner = MemoryObjectStore()
        self.properties = {"retention_ms": str(3 * DAY_MS)} if seed % 3 else {}
        self.topics = topics_of(self.inner, **self.properties)
        self.topics.create("orders", 2)
        self.writing = Writing(self.topics)
        self.written_ms: dict[str, int] = {}
        self.notified_ms: dict[str, int] = {}

    def step(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (4, self.publish), (2, self.leave_orphan), (1, self.notify_again), (3, self.wait), (3, self.collect)
        ]  # fmt: skip
        weights = [weight for weight, _ in actions]
        (action,) = self.source.choices([action for _, action in actions], weights)
        action()
        self.check()

    def publish(self) -> None:
        """Write a batch whose notification follows within the delivery timeout."""
        key = self.writing.put()
        self.written_ms[key] = self.clock.ms
        if self.source.random() < 0.5:
            self.clock.pass_ms(self.source.randrange(120_000))
            if self.source.random() < 0.5:
                self.collect()
        self.notify(key)

    def notify(self, key: str) -> None:
        self.writing.notify(key, partition=self.source.randrange(2))
        self.notified_ms[key] = self.clock.ms

    def leave_orphan(self) -> None:
        self.written_ms[self.writing.put()] = self.clock.ms

    def notify_again(self) -> None:
        alive = sorted(self.referenced())
        if alive:
            self.notify(self.source.choice(alive))

    def wait(self) -> None:
        self.clock.pass_ms(self.source.choice([1000, HOUR_MS, 6 * HOUR_MS, DAY_MS]))

    def collect(self) -> None:
        store: MemoryObjectStore | FaultyStore = self.inner
        if self.source.random() < 0.4:
            moment = self.source.choice(("before", "during", "after"))
            store = FaultyStore(self.inner, fail_at=self.source.randrange(30), moment=moment)  # type: ignore[arg-type]
        adopt, dry_run = self.source.random() < 0.3, self.source.random() >= 0.8
        before = set(self.inner.list())
        try:
            outcomes = collect(topics_of(store, **self.properties), adopt=adopt, dry_run=dry_run)
        except StoreUnavailableError:
            return
        for key in outcomes.get(Outcome.ADOPTED, ()) if not dry_run else ():
            self.notified_ms[key] = self.clock.ms
        assert not dry_run or set(self.inner.list()) == before

    def referenced(self) -> set[str]:
        return {told.key for partition in range(2) for told in notified(self.topics, partition)}

    def check(self) -> None:
        there, referenced = set(batch_keys(self.topics)), self.referenced()
        assert referenced <= there
        for key, written_ms in self.written_ms.items():
            if key in there:
                continue
            if key in self.notified_ms:
                # Only retention deletes notified batches, and not before their time.
                assert self.properties
                assert self.clock.ms - self.notified_ms[key] >= 3 * DAY_MS
            else:
                assert self.clock.ms - written_ms >= DAY_MS

    def settle(self) -> None:
        for _ in range(3):
            self.clock.pass_ms(DAY_MS)
            outcomes = collect(self.topics)
            assert set(batch_keys(self.topics)) == self.referenced() | set(outcomes.get(Outcome.WAITING, ()))


@pytest.mark.parametrize("seed", range(8))
def test_histories(clock: Clock, seed: int) -> None:
    history = History(seed, clock)
    for _ in range(30):
        history.step()
    history.settle()


@pytest.mark.soak
def test_more_histories(clock: Clock) -> None:
    for seed in range(8, 600):
        history = History(seed, clock)
        for _ in range(60):
            history.step()
        history.settle()


MINUTE_MS = 60_000


class Forgetful(StoreQueue):
    """Queue of a third party that drops notifications by itself."""

    days: ClassVar[int | None] = None

    def forgets_ms(self) -> int | None:
        return None if self.days is None else self.days * DAY_MS


class Topic:
    """Topic ``orders``, on a clock that the test moves."""

    def __init__(self, partitions: int = 1, **properties: str) -> None:
        self.store = MemoryObjectStore()
        self.topics: Topics = topics_on(self.store, queue="forgetful", hashing="false", **properties)
        self.topic = self.topics.create("orders", partitions)
        self.queue = self.topics.queue(self.topic)
        self.writer = BatchWriter(BatchLog(self.topics, self.topic))
        self.requests = 0
        self.notifications: dict[str, bytes] = {}

    def batch(self, partition: int | None = 0) -> str:
        """Write a batch and return its key. Append its notification if there is a partition."""
        self.requests += 1
        sealed = sealed_message(ProducerRequest(b"\1\2\3\4", 1, self.requests), b"v", timestamp_ms=5)
        notification = self.writer.store([sealed], Deadline.after(60))
        self.notifications[notification.key] = notification.to_json()
        if partition is not None:
            self.announce(notification.key, partition)
        return notification.key

    def announce(self, key: str, partition: int = 0) -> None:
        self.queue.append(partition, [self.notifications[key]], Deadline.after(60))

    def outcomes(self) -> dict[str, str]:
        run = GarbageCollection(BatchLog(self.topics, self.topic))
        outcomes = {str(each.name): each.code for each in run.run()}
        self.warnings = run.warnings
        return outcomes


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the wall clock's time in ms, as a list of one number that the test changes."""
    now = [1_700_000_000_000]

    def installed(group: str, name: str) -> str:
        assert (group, name) == (queue_kinds.QUEUES, "forgetful")
        return f"{__name__}:Forgetful"

    monkeypatch.setattr(time, "time_ns", lambda: now[0] * 1_000_000)
    monkeypatch.setattr(queue_kinds, "installed_class", installed)
    return now


def test_what_the_queue_has_dropped_by_itself_is_forgotten_and_no_orphan(moment: list[int]) -> None:
    topic = Topic()
    dropped = topic.batch()
    moment[0] += DAY_MS
    topic.batch()
    orphan = topic.batch(None)
    topic.queue.free(0, 256)  # leaves no record, like Kafka's retention
    moment[0] += 2 * DAY_MS
    assert topic.outcomes() == {dropped: "forgotten", orphan: "deleted"}
    topic.queue.free(0, 512)
    assert topic.outcomes() == {dropped: "forgotten", orphan: "forgotten"} | dict.fromkeys(
        topic.outcomes(), "forgotten"
    ), "of an empty queue nobody knows anything"


def test_a_writer_whose_clock_is_behind_makes_no_orphans_of_what_the_queue_has_dropped(moment: list[int]) -> None:
    topic = Topic()
    dropped, kept = topic.batch(), topic.batch(None)
    moment[0] -= 10 * HOUR_MS
    topic.announce(kept)
    moment[0] += 10 * HOUR_MS + 2 * DAY_MS
    topic.queue.free(0, 256)
    assert topic.outcomes() == {dropped: "forgotten"}


def test_behind_its_own_retention_what_is_forgotten_goes(moment: list[int]) -> None:
    topic = Topic(retention_ms=str(3 * DAY_MS), delete_delay_ms="0")
    dropped = topic.batch()
    moment[0] += 2 * DAY_MS
    topic.batch()
    topic.queue.free(0, 256)
    assert topic.outcomes() == {dropped: "forgotten"}
    moment[0] += 2 * DAY_MS
    assert topic.outcomes()[dropped] == "deleted"


def test_a_queue_that_was_made_anew_makes_no_orphans_of_what_it_never_knew(moment: list[int]) -> None:
    topic = Topic(2)
    old = [topic.batch(partition) for partition in (0, 1)]
    topic.store.delete([info.key for info in topic.store.list() if "/queues/" in info.key])
    moment[0] += DAY_MS
    topic.queue = topic.topics.queue(topic.topic)
    orphan = topic.batch(None)
    moment[0] += MINUTE_MS
    topic.batch(0)
    moment[0] += 2 * DAY_MS
    assert topic.outcomes() == {old[0]: "forgotten", old[1]: "forgotten", orphan: "deleted"}


def test_a_partition_that_was_added_makes_nothing_forgotten(moment: list[int]) -> None:
    topic = Topic(1)
    topic.batch()
    orphan = topic.batch(None)
    moment[0] += 5 * DAY_MS
    topic.topic = topic.topics.grow("orders", 2)
    topic.queue = topic.topics.queue(topic.topic)
    topic.batch(1)
    assert topic.outcomes() == {orphan: "deleted"}


def test_a_partition_that_was_added_after_the_plan_makes_no_orphans(clock: Clock) -> None:
    topics = fresh()
    writing = Writing(topics)
    plan = plan_gc(topics, ["orders"])
    topics.grow("orders", 2)
    key = writing.put()
    writing.notify(key, partition=1)
    clock.pass_ms(2 * DAY_MS)
    assert list(plan) == []
    plan.apply()
    assert batch_keys(topics) == [key]


@pytest.mark.parametrize(
    ("forgets", "keeps", "warned"),
    [(None, None, False), (7, None, True), (7, 8, True), (8, 7, False), (None, 3, False)],
)
def test_a_queue_that_forgets_before_the_topic_does_is_warned_of(
    moment: list[int], monkeypatch: pytest.MonkeyPatch, forgets: int | None, keeps: int | None, *, warned: bool
) -> None:
    del moment
    monkeypatch.setattr(Forgetful, "days", forgets)
    topic = Topic() if keeps is None else Topic(retention_ms=str(keeps * DAY_MS))
    topic.batch()
    topic.outcomes()
    assert bool(topic.warnings) == warned
    assert all("forgets notifications after" in sentence for sentence in topic.warnings)
