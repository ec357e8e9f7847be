"""What a consumer reads as its partitions come and go: nothing of another member's, and everything from the commit."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import pytest

from tests.support.pubsub.pubsub_topics import orders_on, records_of, topics_on, values_of
from tests.support.simulated_time import SimulatedClock
from tieredstore.errors import Fenced, StoreUnavailable
from tieredstore.pubsub.consume.consumer import Consumer
from tieredstore.pubsub.produce.producer import Producer
from tieredstore.pubsub.queue import queues as queue_kinds
from tieredstore.pubsub.queue.queues import Claim, GroupMember, Position
from tieredstore.pubsub.queue.topics import Topics

LONG_S = 120.0


class Told(GroupMember):
    """A member that has what a test says, and hears of a loss by its commit alone."""

    def __init__(self) -> None:
        self.has: dict[int, Position | None] = {}
        self.committed: dict[int, Position] = {}
        self.lost: set[int] = set()
        self.term = 0

    def take(self, partition: int, position: Position | None) -> None:
        """Have a partition in another term than before."""
        self.has[partition] = position
        self.term += 1

    def tick(self) -> bool:
        return False

    def claims(self) -> dict[int, Claim]:
        return {partition: Claim(self.term, position) for partition, position in self.has.items()}

    def commit(self, positions: dict[int, Position]) -> None:
        for partition in sorted(positions.keys() & self.lost):
            self.has.pop(partition, None)
        self.committed |= {number: place for number, place in positions.items() if number in self.has}
        if gone := sorted(positions.keys() - self.has.keys()):
            raise Fenced(f"partition {gone[0]} of orders is another member's")

    def leave(self) -> None:
        self.has = {}


def publish_in_turn(topics: Topics, values: list[bytes]) -> None:
    """Each value in a batch of its own: one producer's batches are in the partitions by turns."""
    with Producer(topics, "orders") as producer:
        for value in values:
            producer.send(value)
            producer.flush()


def two_partitions() -> Topics:
    """With two records in each."""
    topics = orders_on(None, 2, batch_messages="1")
    publish_in_turn(topics, [b"%d" % number for number in range(4)])
    return topics


def member_of(topics: Topics) -> tuple[Consumer, Told]:
    consumer, member = Consumer(topics, "orders", group="g"), Told()
    consumer._member = member
    return consumer, member


def test_a_deposed_consumer_reads_no_more_of_what_it_lost_and_commits_the_rest() -> None:
    topics = two_partitions()
    consumer, member = member_of(topics)
    member.has = {0: None, 1: None}
    assert len(values_of(consumer, at_least=4)) == 4
    member.lost = {0}
    with pytest.raises(Fenced, match="partition 0"):
        consumer.commit()
    assert consumer.position().keys() == {1}
    publish_in_turn(topics, [b"later %d" % number for number in range(4)])
    partitions = {record.partition for record in records_of(consumer, at_least=2)}
    assert partitions == {1}
    consumer.commit()
    assert member.committed.keys() == {1}
    consumer.close()


def test_what_was_lost_and_taken_again_is_read_from_the_groups_commit() -> None:
    topics = two_partitions()
    consumer, member = member_of(topics)
    member.has = {0: None}
    first = [record.offset for record in records_of(consumer, at_least=2)]
    member.lost = {0}
    with pytest.raises(Fenced):
        consumer.commit()
    member.lost, member.has = set(), {0: Position(first[0] + 1)}  # the other member came as far, and gave it up
    assert [record.offset for record in records_of(consumer, at_least=1)] == first[1:]
    consumer.close()


def test_partitions_that_are_added_are_written_and_read_by_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedClock()
    monkeypatch.setattr(queue_kinds.TopicPartitions.__init__, "__kwdefaults__", {"monotonic": lambda: clock.now})
    topics = orders_on(None, 1, batch_messages="1")
    with (
        Producer(topics, "orders") as producer,
        Consumer(topics, "orders", group="g", monotonic=lambda: clock.now, sleep=clock.sleep) as consumer,
    ):
        producer.send(b"first").result(LONG_S)
        assert values_of(consumer, at_least=1) == [b"first"]
        topics_on(topics.store).grow("orders", 3)
        assert producer.send(b"soon").result(LONG_S).partition == 0
        clock.sleep(queue_kinds.LOOK_AGAIN_S)
        partitions = {producer.send(b"%d" % number).result(LONG_S).partition for number in range(3)}
        assert partitions == {0, 1, 2}
        assert sorted(values_of(consumer, at_least=4)) == [b"0", b"1", b"2", b"soon"]
        assert consumer.assignment() == [0, 1, 2]


def test_a_store_that_does_not_tell_of_partitions_changes_none() -> None:
    def away() -> int:
        raise StoreUnavailable("away")

    topics = topics_on()
    site = queue_kinds.QueueSite(topics.folder, "orders", 2, "orders", topics.batches, away)
    clock = SimulatedClock()
    partitions = queue_kinds.TopicPartitions(site, monotonic=lambda: clock.now)
    clock.sleep(1000)
    assert partitions() == 2
