"""At each record in turn, a loop over records stops, a member dies, or a member loses a partition. No record is lost. A
member returns no record of a partition that it has lost, and reads a new partition from the group's commit.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterator
from functools import partial

import pytest
from confluent_kafka import KafkaError

from tests.support.kafka.mock_kafka import OFFSET_COMMIT, mock_kafka
from tests.support.pubsub.pubsub_topics import fresh_topics, orders_on, records_of, topics_on, values_of
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import ScriptedStore
from tests.support.waiting import wait_until
from tieredstore.errors import FencedError, InvalidRangeError, StoreUnavailableError
from tieredstore.live.cluster import LiveCluster
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.consume.partition_state import ConsumedRecord
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue import queues as queue_kinds
from tieredstore.pubsub.queue import store_queue
from tieredstore.pubsub.queue.groups import StoreGroup
from tieredstore.pubsub.queue.kafka_group import KafkaGroup
from tieredstore.pubsub.queue.queues import Claim, GroupMember, Position
from tieredstore.pubsub.queue.store_queue import StoreQueue
from tieredstore.pubsub.queue.topics import Topics

pytestmark = pytest.mark.usefixtures("beats_by_hand")

RECORDS = 12
WAIT_S = 1.0
"""Seconds to wait for records, on the simulated clock."""
Place = tuple[int, int, int, int]


def published(partitions: int = 1) -> tuple[Topics, dict[int, list[Place]]]:
    """Publish batches of three Messages of two records, in turn in each partition. Return the places of the records."""
    topics = fresh_topics(partitions, message_bytes="1024", compression="none", batch_messages="3")
    places: dict[int, list[Place]] = {partition: [] for partition in range(partitions)}
    with BatchProducer(topics, "orders") as producer:
        for batch in range(RECORDS * partitions // 6):
            futures = [producer.send(b"%d %d" % (batch, number) + bytes(400)) for number in range(6)]
            producer.flush()
            for place in (future.result(0) for future in futures):
                assert place.partition is not None
                places[place.partition].append((place.partition, place.offset, place.message, place.record))
    assert {len(each) for each in places.values()} == {RECORDS}
    return topics, places


def place_of(record: ConsumedRecord) -> Place:
    return record.partition, record.offset, record.message, record.record


def consumer_of(topics: Topics, group: str | None = None, clock: SimulatedClock | None = None) -> BatchConsumer:
    """Return a consumer on a simulated clock, so that nothing waits."""
    time = clock or SimulatedClock()
    return BatchConsumer(topics, "orders", group=group, monotonic=lambda: time.now, sleep=time.sleep)


def rest_of(consumer: BatchConsumer) -> list[Place]:
    """Return the places of all further records, until none arrives for a second."""
    return [place_of(record) for record in consumer.records(WAIT_S)]


class FailedError(Exception):
    """Raised by the handler of a record."""


def leave_by_break(records: Iterator[ConsumedRecord], count: int) -> list[Place]:
    given: list[Place] = []
    for record in records:
        given.append(place_of(record))
        if len(given) == count:
            break
    return given


def leave_by_an_exception(records: Iterator[ConsumedRecord], count: int) -> list[Place]:
    given: list[Place] = []
    with contextlib.suppress(FailedError):
        for record in records:
            given.append(place_of(record))
            if len(given) == count:
                raise FailedError
    return given


def leave_without_an_end(records: Iterator[ConsumedRecord], count: int) -> list[Place]:
    """Stop reading, but keep the generator open."""
    given = [place_of(next(records)) for _ in range(count)]
    unended.append(records)
    return given


def leave_by_a_close(records: Iterator[ConsumedRecord], count: int) -> list[Place]:
    assert isinstance(records, Generator)
    given = [place_of(next(records)) for _ in range(count)]
    records.close()
    return given


unended: list[Iterator[ConsumedRecord]] = []


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_an_exception, leave_without_an_end, leave_by_a_close])
def test_a_loop_that_is_left_goes_on_where_it_was_left(leave: object) -> None:
    assert callable(leave)
    topics, places = published()
    for count in range(1, RECORDS + 1):
        with consumer_of(topics, f"g{count}") as consumer:
            given = leave(consumer.records(WAIT_S), count)
            assert given == places[0][:count]
            consumer.commit()
            with consumer_of(topics) as other:
                committed = consumer.committed()[0]
                assert committed is not None
                other.seek(0, committed)
                assert rest_of(other) == places[0][count:], count
            assert rest_of(consumer) == places[0][count:], count
            consumer.commit()


def test_a_poll_gives_the_rest_of_what_a_loop_has_left() -> None:
    topics, places = published()
    for count in range(1, RECORDS + 1):
        with consumer_of(topics) as consumer:
            leave_by_break(consumer.records(WAIT_S), count)
            rows = consumer.poll(WAIT_S)
            left = [] if rows is None else rows.to_pylist()
            given = [(row["partition"], row["offset"], row["message"], row["record"]) for row in left]
            assert given + rest_of(consumer) == places[0][count:]


def test_a_seek_within_a_loop_goes_there_with_the_next_record() -> None:
    topics, places = published()
    with consumer_of(topics) as consumer:
        given: list[Place] = []
        for record in consumer.records(WAIT_S):
            given.append(place_of(record))
            if len(given) == 3:
                consumer.seek(0, Position(*places[0][0][1:]))
            if len(given) == 7:
                break
        assert given == places[0][:3] + places[0][:4]
        assert consumer.position() == {0: Position(given[-1][1], given[-1][2], given[-1][3] + 1)}


@pytest.mark.parametrize("kind", ["killed before", "killed behind"])
def test_a_member_that_is_killed_at_each_record_loses_none(kind: str) -> None:
    """Each member handles one record and dies, before or after it commits. The next member continues at the commit."""
    topics, places = published()
    clock = SimulatedClock()
    handled: list[Place] = []
    for _ in range(2 * RECORDS):
        consumer = consumer_of(topics, "g", clock)
        while not consumer.assignment():
            clock.sleep(5.0)
        for record in consumer.records(WAIT_S):
            handled.append(place_of(record))
            if kind == "killed behind":
                consumer.commit()
            break  # this member dies silently
    assert handled == (places[0] if kind == "killed behind" else places[0][:1] * (2 * RECORDS))


def joined_by(member: GroupMember, topics: Topics) -> BatchConsumer:
    """Return a consumer with this member of its group, as a queue gives it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreQueue, "member", lambda *_: member)
        return consumer_of(topics, "g")


def with_member(topics: Topics) -> tuple[BatchConsumer, Told]:
    member = Told()
    return joined_by(member, topics), member


@pytest.mark.parametrize("heard", ["by a tick", "by its commit"])
def test_a_partition_lost_at_any_record_returns_no_more_and_the_rest_is_committed(heard: str) -> None:
    topics, places = published(2)
    for count in range(1, 2 * RECORDS):
        consumer, member = with_member(topics)
        member.has = {0: None, 1: None}
        given: list[Place] = []
        fenced = 0
        lost_at = 0
        for record in consumer.records(WAIT_S):
            given.append(place_of(record))
            if len(given) == count:
                lost_at = count
                if heard == "by a tick":
                    del member.has[0]
                else:
                    member.lost = {0}
            try:
                consumer.commit()
            except FencedError:
                fenced += 1
        given += rest_of(consumer)
        assert lost_at == count
        before, after = given[:lost_at], given[lost_at:]
        assert all(partition == 1 for partition, *_ in after), count
        assert sorted(place for place in given if place[0] == 1) == places[1]
        assert [place for place in before if place[0] == 0] == places[0][: sum(place[0] == 0 for place in before)]
        # FencedError is raised at most once: afterwards the member knows which partitions it has lost.
        assert fenced == (1 if heard == "by its commit" else fenced)
        assert fenced <= 1
        consumer.commit()
        consumer.close()


def test_a_partition_lost_and_taken_again_between_two_records_is_read_from_the_groups_commit() -> None:
    topics, places = published()
    for count in range(1, RECORDS):
        consumer, member = with_member(topics)
        member.take(0, None)
        records = consumer.records(WAIT_S)
        given = [place_of(next(records)) for _ in range(count)]
        member.take(0, Position(*places[0][0][1:]))  # lose and regain the partition at once, which begins a new term
        assert place_of(next(records)) == places[0][0]
        assert given == places[0][:count]
        consumer.close()


def share(clock: SimulatedClock, members: list[BatchConsumer]) -> None:
    """Let some seconds pass, in which all members send heartbeats and rebalance."""
    for _ in range(4):
        clock.sleep(5.0)
        for each in members:
            assert isinstance(each._member, StoreGroup)
            each._member.beat()
            each.assignment()
    assert all(len(each.assignment()) == 1 for each in members)


@pytest.mark.parametrize("count", range(1, 2 * RECORDS))
def test_a_rebalance_at_each_record_gives_each_record_to_its_owner_of_then(count: int) -> None:
    """Another member joins at one record. Both members commit in order, and only their own partitions."""
    topics, places = published(2)
    clock = SimulatedClock()
    members = [consumer_of(topics, "g", clock) for _ in range(2)]
    handled: dict[int, list[Place]] = {0: [], 1: []}
    for given, record in enumerate(members[0].records(WAIT_S), 1):
        if given == count:
            share(clock, members)
        if record.partition in members[0].assignment():
            members[0].commit()
            handled[record.partition].append(place_of(record))
    for consumer in members:
        for place in rest_of(consumer):
            handled[place[0]].append(place)
        consumer.commit()
    assert handled == places
    for consumer in members:
        consumer.close()


def test_a_commit_of_what_is_not_owned_commits_the_rest_and_says_so() -> None:
    topics, _ = published(2)
    consumer, member = with_member(topics)
    member.has = {0: None, 1: None}
    assert len(rest_of(consumer)) == 2 * RECORDS
    ends = consumer.position()
    member.has = {1: None}
    with pytest.raises(FencedError, match=r"partition 0 of orders"):
        consumer.commit(ends)
    assert member.committed == {1: ends[1]}
    with pytest.raises(InvalidRangeError, match="was not read that far"):
        consumer.commit({1: ends[1]._replace(offset=ends[1].offset + 1)})
    consumer.close()


def test_a_store_group_fences_what_was_taken_and_commits_the_others() -> None:
    store = topics_on().store
    clock = SimulatedClock()

    def join() -> StoreGroup:
        return StoreGroup(topics_on(store).folder, "g", "orders", lambda: 3, monotonic=clock)

    first, second = join(), join()
    first.tick()
    second._owned = {}
    second._take(1, ["nobody"])
    assert list(second.claims()) == [1]
    with pytest.raises(FencedError, match="partition 1 of orders"):
        first.commit({0: Position(1), 1: Position(1), 2: Position(1)})
    assert first.claims() == {0: Claim(1, Position(1)), 2: Claim(1, Position(1))}
    first.leave()
    second.leave()


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", [KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS]
)
def test_a_member_of_a_group_in_kafka_has_nothing_when_it_was_fenced(code: int) -> None:
    with mock_kafka() as kafka:
        kafka.make_topic("notifications", 2)
        properties = {"bootstrap.servers": kafka.bootstrap_servers}
        with LiveCluster(properties, isolation="read_uncommitted") as cluster:
            member = KafkaGroup(properties, "g", "notifications", cluster)
            wait_until(lambda: len(member.claims()) == 2, meanwhile=member.tick)
            kafka.push_errors(OFFSET_COMMIT, code)
            with pytest.raises(FencedError):
                member.commit({0: Position(1), 1: Position(1)})
            assert member.claims() == {}
            member.leave()


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_member_is_asked_for_its_claims_when_they_have_changed(*, is_counted: bool) -> None:
    """``version`` counts the changes of a member's claims. The loop asks for the claims only if this count has changed.
    If the member has no count, the loop asks before each record.
    """
    topics, places = published(2)
    asked: list[int] = []

    class Counted(Told):
        @property
        def version(self) -> int | None:
            return self.term if is_counted else None

        def claims(self) -> dict[int, Claim]:
            asked.append(self.term)
            return super().claims()

    member = Counted()
    consumer = joined_by(member, topics)
    member.take(0, None)
    member.take(1, None)
    for record in itertools.islice(consumer.records(WAIT_S), RECORDS):
        assert place_of(record) in places[record.partition]
    assert len(asked) == (1 if is_counted else RECORDS)
    member.take(1, None)  # in a new term both partitions are read from the start, without a commit
    assert sorted(rest_of(consumer)) == sorted(places[0] + places[1])
    consumer.close()


def test_rows_of_a_loop_are_made_once() -> None:
    """Taking a record does not rebuild the other records of its decoded batch."""
    topics, _ = published()
    with consumer_of(topics) as consumer:
        records = consumer.records(WAIT_S)
        next(records)
        reader = consumer._partitions[0]
        before = reader.at_hand
        next(records)
        assert reader.at_hand is before


LONG_S = 120.0


class Told(GroupMember):
    """Member whose claims the test sets. It notices the loss of a partition in ``lost`` only at its next commit."""

    def __init__(self) -> None:
        self.has: dict[int, Position | None] = {}
        self.committed: dict[int, Position] = {}
        self.lost: set[int] = set()
        self.term = 0

    def take(self, partition: int, position: Position | None) -> None:
        """Assign the partition to the member in a new term."""
        self.has[partition] = position
        self.term += 1

    def tick(self) -> None: ...

    def claims(self) -> dict[int, Claim]:
        return {partition: Claim(self.term, position) for partition, position in self.has.items()}

    def commit(self, positions: dict[int, Position]) -> None:
        for partition in sorted(positions.keys() & self.lost):
            self.has.pop(partition, None)
        self.committed |= {number: place for number, place in positions.items() if number in self.has}
        if gone := sorted(positions.keys() - self.has.keys()):
            raise FencedError(f"partition {gone[0]} of orders is another member's")

    def leave(self) -> None:
        self.has = {}


def test_a_partition_that_could_not_be_opened_is_opened_by_the_next_poll() -> None:
    store = ScriptedStore(orders_on().store)
    store.on(None, "*/queues/orders/0/start", StoreUnavailableError("away"), times=1)
    with BatchConsumer(topics_on(store), "orders", group="g") as consumer:
        with pytest.raises(StoreUnavailableError, match="away"):
            consumer.assignment()
        assert consumer.assignment() == [0]


def publish_in_turn(topics: Topics, values: list[bytes]) -> None:
    """Publish each value in a separate batch. The producer's batches alternate between the partitions."""
    with BatchProducer(topics, "orders") as producer:
        for value in values:
            producer.send(value)
            producer.flush()


def two_partitions() -> Topics:
    """Return a topic with two records in each partition."""
    topics = orders_on(None, 2, batch_messages="1")
    publish_in_turn(topics, [b"%d" % number for number in range(4)])
    return topics


def test_a_deposed_consumer_reads_no_more_of_what_it_lost_and_commits_the_rest() -> None:
    topics = two_partitions()
    consumer, member = with_member(topics)
    member.has = {0: None, 1: None}
    assert len(values_of(consumer, at_least=4)) == 4
    member.lost = {0}
    with pytest.raises(FencedError, match="partition 0"):
        consumer.commit()
    assert consumer.position().keys() == {1}
    publish_in_turn(topics, [b"later %d" % number for number in range(4)])
    partitions = {record.partition for record in records_of(consumer, at_least=2)}
    assert partitions == {1}
    consumer.commit()
    assert member.committed.keys() == {1}
    consumer.close()


@pytest.mark.slow
def test_partitions_that_are_added_are_written_and_read_by_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedClock()
    by_clock = partial(queue_kinds.TopicPartitions, monotonic=clock)
    monkeypatch.setattr(store_queue, "TopicPartitions", by_clock)
    topics = orders_on(None, 1, batch_messages="1")
    with (
        BatchProducer(topics, "orders") as producer,
        BatchConsumer(topics, "orders", group="g", monotonic=clock, sleep=clock.sleep) as consumer,
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
        raise StoreUnavailableError("away")

    topics = topics_on()
    site = queue_kinds.QueueSite(topics.folder, "orders", 2, "orders", topics.batches, away)
    clock = SimulatedClock()
    partitions = queue_kinds.TopicPartitions(site, monotonic=clock)
    clock.sleep(1000)
    assert partitions() == 2
