"""Queues that forget by themselves, as Kafka's retention has it: what gc warns of, and what it does not take for an
orphan."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest

from tests.support.pubsub.pubsub_topics import sealed_message, topics_on
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config.installed import QUEUES
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.produce.batch_writer import BatchWriter
from tieredstore.pubsub.queue import queues as queue_kinds
from tieredstore.pubsub.queue.store_queue import StoreQueue
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.garbage import DAY_MS, GarbageCollection

MINUTE_MS = 60_000


class Forgetful(StoreQueue):
    """One of somebody else's."""

    days: ClassVar[int | None] = None

    def forgets_ms(self) -> int | None:
        return None if self.days is None else self.days * DAY_MS


class Topic:
    """``orders``, on a clock that the test moves."""

    def __init__(self, partitions: int = 1, **properties: str) -> None:
        self.store = MemoryObjectStore()
        self.topics: Topics = topics_on(self.store, queue="forgetful", hashing="false", **properties)
        self.topic = self.topics.create("orders", partitions)
        self.queue = self.topics.queue(self.topic)
        self.writer = BatchWriter(self.topics, self.topic, self.queue)
        self.requests = 0

    def batch(self, partition: int | None = 0) -> str:
        """The key of a batch; notified if there is a partition."""
        self.requests += 1
        sealed = sealed_message(ProducerRequest(b"\1\2\3\4", 1, self.requests), b"v", timestamp_ms=5)
        notification = self.writer.store([sealed], Deadline.after(60))
        if partition is not None:
            self.queue.append(partition, [notification.to_json()], Deadline.after(60))
        assert notification.key is not None
        return notification.key

    def outcomes(self) -> dict[str, str]:
        run = GarbageCollection(self.topics, self.topic)
        outcomes = {step.item.key: str(step.outcome) for step in run.run()}
        self.warnings = run.warnings
        return outcomes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of one number: the time in ms."""
    now = [1_700_000_000_000]

    def installed(group: str, name: str) -> str:
        assert (group, name) == (QUEUES, "forgetful")
        return f"{__name__}:Forgetful"

    monkeypatch.setattr(time, "time_ns", lambda: now[0] * 1_000_000)
    monkeypatch.setattr(queue_kinds, "installed_class", installed)
    return now


def test_what_the_queue_has_dropped_by_itself_is_forgotten_and_no_orphan(clock: list[int]) -> None:
    topic = Topic()
    dropped = topic.batch()
    clock[0] += DAY_MS
    topic.batch()
    orphan = topic.batch(None)
    topic.queue.free(0, 256)  # nobody has recorded that, as when Kafka does it
    clock[0] += 2 * DAY_MS
    assert topic.outcomes() == {dropped: "forgotten", orphan: "deleted"}
    topic.queue.free(0, 512)
    assert topic.outcomes() == {dropped: "forgotten", orphan: "forgotten"} | dict.fromkeys(
        topic.outcomes(), "forgotten"
    ), "of an empty queue nobody knows anything"


def test_behind_its_own_retention_what_is_forgotten_goes(clock: list[int]) -> None:
    topic = Topic(retention_ms=str(3 * DAY_MS), delete_delay_ms="0")
    dropped = topic.batch()
    clock[0] += 2 * DAY_MS
    topic.batch()
    topic.queue.free(0, 256)
    assert topic.outcomes() == {dropped: "forgotten"}
    clock[0] += 2 * DAY_MS
    assert topic.outcomes()[dropped] == "deleted"


def test_a_queue_that_was_made_anew_makes_no_orphans_of_what_it_never_knew(clock: list[int]) -> None:
    topic = Topic(2)
    old = [topic.batch(partition) for partition in (0, 1)]
    topic.store.delete([info.key for info in topic.store.list() if "/queues/" in info.key])
    clock[0] += DAY_MS
    topic.queue = topic.topics.queue(topic.topic)
    orphan = topic.batch(None)
    clock[0] += MINUTE_MS
    topic.batch(0)
    clock[0] += 2 * DAY_MS
    assert topic.outcomes() == {old[0]: "forgotten", old[1]: "forgotten", orphan: "deleted"}


def test_a_partition_that_was_added_makes_nothing_forgotten(clock: list[int]) -> None:
    topic = Topic(1)
    topic.batch()
    orphan = topic.batch(None)
    clock[0] += 5 * DAY_MS
    topic.topic = topic.topics.grow("orders", 2)
    topic.queue = topic.topics.queue(topic.topic)
    topic.batch(1)
    assert topic.outcomes() == {orphan: "deleted"}


@pytest.mark.parametrize(
    ("forgets", "keeps", "warned"),
    [(None, None, False), (7, None, True), (7, 8, True), (8, 7, False), (None, 3, False)],
)
def test_a_queue_that_forgets_before_the_topic_does_is_warned_of(
    clock: list[int], monkeypatch: pytest.MonkeyPatch, forgets: int | None, keeps: int | None, *, warned: bool
) -> None:
    del clock
    monkeypatch.setattr(Forgetful, "days", forgets)
    topic = Topic() if keeps is None else Topic(retention_ms=str(keeps * DAY_MS))
    topic.batch()
    topic.outcomes()
    assert bool(topic.warnings) == warned
    assert all("forgets notifications after" in sentence for sentence in topic.warnings)
