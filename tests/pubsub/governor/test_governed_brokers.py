"""Three brokers that elect a governor among themselves. They are killed, stopped and cut off under load, without
loss or duplicates.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future

import pytest

from tests.support.pubsub.pubsub_brokers import LONG_S, RunningBroker, client_of, listening_anywhere
from tests.support.pubsub.pubsub_topics import orders_on, values_of
from tests.support.servers.zookeeper import ZooKeeperServer, end_session
from tests.support.stores.doubles import Operation, ScriptedStore
from tieredstore.backends.base import ObjectStore
from tieredstore.errors import StoreUnavailableError, TieredStoreError
from tieredstore.live.zookeeper_session import ZooKeeperSession
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.governor.assigning import BrokerSeat, FreeCapacity, TopicLoad
from tieredstore.pubsub.governor.directory import Directory, Governor, KnownTopic, StoreTopics
from tieredstore.pubsub.governor.store_governor import StoreGovernor, broker_name
from tieredstore.pubsub.governor.zookeeper_governor import ZooKeeperGovernor
from tieredstore.pubsub.produce.futures import UNREPORTED, RecordPlace
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import Topics


class Link(ScriptedStore):
    """One broker's connection to the store. A test can cut it, or pause it with the broker."""

    def __init__(self, store: ObjectStore, generations: list[int]) -> None:
        super().__init__(store)
        self.may = threading.Event()
        self.may.set()
        self.is_cut = False

        def note_generation(replaced: Operation) -> None:
            generations.append(json.loads(store.get(replaced.keys[0]))["generation"])

        self.on(("put", "replace", "head"), do=lambda _: self.check())
        self.on("replace", "*governor/assignments", note_generation, moment="after")

    def check(self) -> None:
        assert self.may.wait(LONG_S)
        if self.is_cut:
            raise StoreUnavailableError("cut off")


class Coordinator:
    """Coordination of brokers by a store. A subclass coordinates by ZooKeeper, where tests must end the sessions of
    silent and dead brokers.
    """

    generations: list[int]
    """Generations of governors that wrote assignments into the store, in order."""

    def __init__(self) -> None:
        self.generations = []

    def governor(
        self, topics: Topics, seat: Callable[[], BrokerSeat], known: Callable[[], list[KnownTopic]]
    ) -> Governor:
        def loads() -> list[TopicLoad]:
            return [topic.load for topic in known()]

        return StoreGovernor(topics.folder, seat, loads, FreeCapacity(), patience_s=1.0)

    def is_silent(self, governor: Governor) -> None:
        """Do nothing: the broker's beat stops by itself."""

    def died(self, governor: Governor) -> None:
        """Do nothing: the broker's beat stops by itself."""


class ZooKeeper(Coordinator):
    """A real ZooKeeper, which ends the sessions of silent brokers."""

    def __init__(self, hosts: str) -> None:
        super().__init__()
        self.hosts = hosts
        self.sessions: dict[Governor, ZooKeeperSession] = {}

    def governor(
        self, topics: Topics, seat: Callable[[], BrokerSeat], known: Callable[[], list[KnownTopic]]
    ) -> Governor:
        del topics
        session = ZooKeeperSession(self.hosts, 20.0, answer_s=LONG_S)
        governor = ZooKeeperGovernor(session, seat, known, FreeCapacity())
        self.sessions[governor] = session
        return governor

    def is_silent(self, governor: Governor) -> None:
        end_session(self.hosts, self.sessions[governor]._client)  # pyright: ignore[reportPrivateUsage]

    def died(self, governor: Governor) -> None:
        self.is_silent(governor)
        self.sessions.pop(governor).close()


class Member:
    """A broker with its governor, which ticks on a thread."""

    def __init__(self, topics: Topics, number: int, coordinator: Coordinator) -> None:
        self.link = Link(topics.store, coordinator.generations)
        own = listening_anywhere(Topics(self.link, topics.settings), f"127.0.0.{number + 1}", batch_by="producer")
        directory = Directory(StoreTopics(own))
        self.coordinator = coordinator
        self.governor = coordinator.governor(own, self._seat, directory.all)
        self.running = RunningBroker(Broker(own, assignment=self.governor, directory=directory)).begin()
        directory.try_refresh()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._tick)
        self.thread.start()

    def _seat(self) -> BrokerSeat:
        address = self.running.broker.address
        return BrokerSeat(broker_name(address), address, 200)

    def _tick(self) -> None:
        while not self.stopped.wait(0.1):
            assert self.link.may.wait(LONG_S)
            with contextlib.suppress(TieredStoreError):
                self.link.check()  # a cut also separates the broker from ZooKeeper
                self.governor.tick()

    def stop(self) -> None:
        """Pause the broker like SIGSTOP: its loop, uploads and ticks pause, and its connections stay open."""
        self.link.may.clear()
        self.running.loop.call_soon_threadsafe(self.link.may.wait, LONG_S)
        self.coordinator.is_silent(self.governor)

    def cut_off(self) -> None:
        """Cut the broker off from the store and other brokers, but not from clients."""
        self.link.is_cut = True
        self.coordinator.is_silent(self.governor)

    def goes_on(self) -> None:
        """Wake the broker and restore its connections."""
        self.link.is_cut = False
        self.link.may.set()

    @property
    def is_well(self) -> bool:
        return not self.stopped.is_set() and self.link.may.is_set() and not self.link.is_cut

    def kill(self) -> None:
        """End the broker like kill -9."""
        self.goes_on()
        if not self.stopped.is_set():
            self.stopped.set()
            self.running.kill()
            self.thread.join(LONG_S)
            self.coordinator.died(self.governor)


@contextlib.contextmanager
def three(topics: Topics, coordinator: Coordinator) -> Generator[list[Member]]:
    members: list[Member] = []
    try:
        members.extend(Member(topics, number, coordinator) for number in range(3))
        yield members
    finally:
        for member in members:
            member.kill()


def orders() -> Topics:
    """Return a store with topic ``orders``."""
    return orders_on(None, 2, batch_ms="20", message_bytes="1024", compression="none")


def producer_to(members: list[Member], topics: Topics, *, request_timeout_ms: int) -> BatchProducer:
    places = (member.running.place for member in members)
    return BatchProducer(client_of(topics, *places, request_timeout_ms=request_timeout_ms), "orders")


def holder(members: list[Member]) -> Member:
    """Wait for a broker that has the topic, and return it."""
    for _ in range(12_000):
        for member in members:
            if member.is_well and member.governor.serves("orders"):
                return member
        threading.Event().wait(0.05)
    raise AssertionError("nobody has the topic")


@pytest.fixture(params=["store", pytest.param("zookeeper", marks=[pytest.mark.slow, pytest.mark.broker])])
def coordinator(request: pytest.FixtureRequest) -> Coordinator:
    if request.param == "store":
        return Coordinator()
    server: ZooKeeperServer = request.getfixturevalue("zookeeper")
    return ZooKeeper(server.chroot())


@pytest.mark.slow
def test_brokers_and_governors_that_are_killed_under_load_lose_nothing_and_double_nothing(
    coordinator: Coordinator,
) -> None:
    topics = orders()
    sent: dict[Future[RecordPlace], bytes] = {}
    with three(topics, coordinator) as members:
        holder(members)
        with producer_to(members, topics, request_timeout_ms=3000) as producer:
            for number in range(400):
                value = b"%05d" % number + os.urandom(200)
                sent[producer.send(value)] = value
                if number == 100:
                    holder(members).kill()
                if number == 250:
                    governing = [each for each in members if each.governor.generation and not each.stopped.is_set()]
                    (governing or [holder(members)])[0].kill()
            producer.flush()
        assert {future.result(0) for future in sent} == {UNREPORTED}
    with BatchConsumer(topics, "orders", delivery="effectively-once") as consumer:
        assert sorted(values_of(consumer, at_least=400)) == sorted(sent.values())


def governing(members: list[Member]) -> Member:
    """Return the governing broker; if no broker governs at the moment, the one with the topic."""
    return next((each for each in members if each.is_well and each.governor.generation), None) or holder(members)


def play(coordinator: Coordinator, faults: Sequence[tuple[str, bool]]) -> None:
    """Send records while the governor or the broker with the topic fails and resumes, once for each of ``faults``."""
    topics = orders()
    sent: dict[Future[RecordPlace], bytes] = {}
    with three(topics, coordinator) as members:
        holder(members)

        def send(count: int) -> None:
            for _ in range(count):
                value = b"%05d" % len(sent) + os.urandom(200)
                sent[producer.send(value)] = value

        with producer_to(members, topics, request_timeout_ms=1000) as producer:
            for how, governs in faults:
                send(60)
                faulty = governing(members) if governs else holder(members)
                faulty.stop() if how == "stopped" else faulty.cut_off()
                send(60)
                holder(members)
                send(60)
                faulty.goes_on()
                send(60)
            producer.flush()
        assert {future.result(0) for future in sent} == {UNREPORTED}
    with BatchConsumer(topics, "orders", delivery="effectively-once") as consumer:
        assert sorted(values_of(consumer, at_least=len(sent))) == sorted(sent.values())
    # A governor cannot write after a later governor has written, because its etag is outdated.
    assert coordinator.generations == sorted(coordinator.generations)


@pytest.mark.slow
def test_brokers_and_governors_that_are_stopped_or_cut_off_and_come_back(coordinator: Coordinator) -> None:
    play(coordinator, [("stopped", False), ("cut off", True)])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_brokers_and_governors_that_are_stopped_and_cut_off_again_and_again(
    coordinator: Coordinator, seed: int
) -> None:
    source = random.Random(seed)
    play(coordinator, [(source.choice(("stopped", "cut off")), source.random() < 0.5) for _ in range(8)])
