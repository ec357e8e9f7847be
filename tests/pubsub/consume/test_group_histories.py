"""Groups on one simulated clock: members join, die, pause and resume while batches arrive. Each record is committed
once, in order, by its partition's owner.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest

from tests.support.pubsub.pubsub_topics import sealed_message, topics_on
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import FaultyStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import FencedError, PreconditionFailedError, StoreUnavailableError
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.format.messages import ProducerRequest
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.queue.groups import PATIENCE_S, StoreGroup
from tieredstore.pubsub.queue.topics import BatchLog

pytestmark = pytest.mark.usefixtures("beats_by_hand")

PARTITIONS = 3
Place = tuple[int, int, int, int]


@dataclass
class Member:
    """A consumer, and its uncommitted records by partition."""

    consumer: BatchConsumer
    store: FaultyStore
    given: dict[int, list[Place]] = field(default_factory=dict[int, list[Place]])
    is_stopped: bool = False

    @property
    def group(self) -> StoreGroup:
        assert isinstance(self.consumer._member, StoreGroup)
        return self.consumer._member


class History:
    """A history of random steps. After each step, the committed records are a prefix of the published ones."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.clock = SimulatedClock()
        self.inner = MemoryObjectStore()
        self.topics = topics_on(self.inner, message_bytes="1024")
        self.writer = BatchWriter(BatchLog(self.topics, self.topics.create("orders", PARTITIONS)))
        self.members: list[Member] = []
        self.published: dict[int, list[Place]] = {partition: [] for partition in range(PARTITIONS)}
        self.committed: dict[int, list[Place]] = {partition: [] for partition in range(PARTITIONS)}
        self.requests = 0
        self.join()

    def step(self) -> None:
        steps = [self.publish, self.live, self.live, self.live, self.commit, self.commit, self.join, self.kill,
                 self.stop, self.go_on, self.leave]  # fmt: skip
        (step,) = self.source.choices(steps, [6, 6, 6, 6, 6, 4, 1, 1, 1, 2, 1])
        step()

    # --- events ---

    def publish(self) -> None:
        partition = self.source.randrange(PARTITIONS)
        counts = [self.source.randrange(1, 4) for _ in range(self.source.randrange(1, 3))]
        messages: list[SealedMessage] = []
        for count in counts:
            self.requests += 1
            messages.append(sealed_message(ProducerRequest(b"\x7f\0\0\1", 1, self.requests), *[b"v"] * count))
        _, offset = self.writer.write(messages, Deadline.after(60), partition)
        self.published[partition] += [
            (partition, offset, message, record) for message, count in enumerate(counts) for record in range(count)
        ]

    def live(self) -> None:
        """Let some seconds pass, in which running members send heartbeats, rebalance and read."""
        self.clock.sleep(self.source.choice((1.0, 5.0, 5.0, 7.0)))
        members = [member for member in self.members if not member.is_stopped]
        self.source.shuffle(members)
        for member in members:
            if member.group._beater is not None:
                with contextlib.suppress(StoreUnavailableError, PreconditionFailedError):
                    member.group.beat()
            self.read(member)

    def read(self, member: Member) -> None:
        with contextlib.suppress(StoreUnavailableError):
            member.consumer.assignment()
            self.forget(member)
            for _ in range(self.source.randrange(4)):
                rows = member.consumer.poll(0.0)
                self.forget(member)
                if rows is None:
                    continue
                for row in rows.to_pylist():
                    place = (row["partition"], row["offset"], row["message"], row["record"])
                    member.given.setdefault(row["partition"], []).append(place)

    def forget(self, member: Member) -> None:
        """Drop the uncommitted work of partitions that the member has lost, because another member repeats it."""
        for partition in member.given.keys() - member.consumer._partitions.keys():
            del member.given[partition]

    def commit(self) -> None:
        member = self.any_member()
        if member is not None and not member.is_stopped:
            self.commit_of(member)

    def commit_of(self, member: Member) -> None:
        partitions = list(member.consumer._partitions)
        self.source.shuffle(partitions)
        for partition in partitions:
            if partition not in member.consumer._partitions:
                continue
            given = member.given.get(partition, [])
            position = member.consumer.position()[partition]
            self.give_trouble(member)
            try:
                member.consumer.commit({partition: position})
            except FencedError:
                member.given.pop(partition, None)
            except StoreUnavailableError:
                member.store.fail_at = None
                self.resolve(member, partition)
            else:
                self.committed[partition] += given
                member.given[partition] = []
            member.store.fail_at = None

    def give_trouble(self, member: Member) -> None:
        """Sometimes let a request of the next commit fail, or lose its answer."""
        if self.source.random() < 0.2:
            member.store.moment = self.source.choice(("before", "after"))
            member.store.fail_at = len(member.store.operations) + self.source.randrange(2)

    def resolve(self, member: Member, partition: int) -> None:
        """Commit again, because the previous commit's outcome is unknown."""
        given = member.given.pop(partition, [])
        try:
            member.consumer.commit({partition: member.consumer.position()[partition]})
        except FencedError:
            return
        self.committed[partition] += given

    def join(self) -> None:
        if len(self.members) < 4:
            store = FaultyStore(self.inner)
            topics = topics_on(store, message_bytes="1024")
            clock = self.clock
            consumer = BatchConsumer(topics, "orders", group="g", monotonic=clock, sleep=clock.sleep)
            member = Member(consumer, store)
            member.group.member = f"{self.source.getrandbits(128):032x}"
            self.members.append(member)

    def kill(self) -> None:
        """Stop a member without notice to anyone."""
        if len(self.members) > 1 and (member := self.any_member()):
            self.members.remove(member)
            member.group._stopped.set()

    def leave(self) -> None:
        if len(self.members) > 1 and (member := self.any_member()) and not member.is_stopped:
            self.members.remove(member)
            member.consumer.close()

    def stop(self) -> None:
        if member := self.any_member():
            member.is_stopped = True

    def go_on(self) -> None:
        if member := self.any_member():
            member.is_stopped = False

    def any_member(self) -> Member | None:
        return self.source.choice(self.members) if self.members else None

    # --- invariants ---

    def check(self) -> None:
        for partition, places in self.committed.items():
            assert places == self.published[partition][: len(places)], partition

    def settle(self) -> None:
        for member in self.members:
            member.is_stopped = False
        until_s = self.clock.now + 4 * PATIENCE_S
        while self.clock.now < until_s:
            self.live()
            for member in self.members:
                for _ in range(10):
                    self.read(member)
                self.commit_of(member)
            self.check()
        assert self.committed == self.published
        owners = [sorted(member.consumer.assignment()) for member in self.members]
        assert sorted(partition for owned in owners for partition in owned) == list(range(PARTITIONS))
        for member in self.members:
            member.consumer.close()


def play(seed: int, steps: int) -> None:
    history = History(seed)
    for _ in range(steps):
        history.step()
        history.check()
    history.settle()


@pytest.mark.parametrize("seed", range(6))
def test_positions_are_committed_once_and_in_order(seed: int) -> None:
    play(seed, 120)


@pytest.mark.soak
def test_many_histories() -> None:
    for seed in range(100, 700):
        play(seed, 300)
