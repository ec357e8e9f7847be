"""Three brokers that govern themselves, killed under load: nothing is lost and nothing doubled."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future

import pytest

from tests.support.pubsub_brokers import LONG_S, RunningBroker, listening_anywhere
from tests.support.pubsub_topics import topics_on, values_of
from tests.support.servers.zookeeper import ZooKeeperServer, end_session
from tieredstore.errors import TieredStoreError
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.broker.directory import Directory, KnownTopic, StoreTopics, refreshed
from tieredstore.pubsub.client.producer import BrokerProducer
from tieredstore.pubsub.consumer import Consumer
from tieredstore.pubsub.governor.assigning import BrokerSeat, FreeCapacity, TopicLoad
from tieredstore.pubsub.governor.governing import Governor
from tieredstore.pubsub.governor.store_governor import StoreGovernor, broker_name
from tieredstore.pubsub.governor.zookeeper_governor import ZooKeeperGovernor
from tieredstore.pubsub.governor.zookeeper_session import ZooKeeperSession
from tieredstore.pubsub.producer import UNTOLD, RecordPlace
from tieredstore.pubsub.topics import Topics


class Coordinator:
    """What brokers agree by, and what it does when one is dead."""

    def governor(
        self, topics: Topics, seat: Callable[[], BrokerSeat], known: Callable[[], list[KnownTopic]]
    ) -> Governor:
        def loads() -> list[TopicLoad]:
            return [topic.load for topic in known()]

        return StoreGovernor(topics.folder, seat, loads, FreeCapacity(), patience_s=1.0)

    def died(self, governor: Governor) -> None:
        """Its beat stands still, which is all that there is to it."""


class ZooKeeper(Coordinator):
    """A real one: whose process is dead it does not hear of, and ends its session."""

    def __init__(self, hosts: str) -> None:
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

    def died(self, governor: Governor) -> None:
        session = self.sessions.pop(governor)
        end_session(self.hosts, session._client)  # pyright: ignore[reportPrivateUsage]
        session.close()


class Member:
    """A broker with its part in governing, on a thread that ticks."""

    def __init__(self, topics: Topics, number: int, coordinator: Coordinator) -> None:
        own = listening_anywhere(topics, f"127.0.0.{number + 1}", batch_by="producer")
        directory = Directory(StoreTopics(own))
        self.coordinator = coordinator
        self.governor = coordinator.governor(own, self._seat, directory.all)
        self.running = RunningBroker(Broker(own, assignment=self.governor, directory=directory)).begin()
        refreshed(directory)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._tick)
        self.thread.start()

    def _seat(self) -> BrokerSeat:
        address = self.running.broker.address
        return BrokerSeat(broker_name(address), address, 200)

    def _tick(self) -> None:
        while not self.stopped.wait(0.1):
            with contextlib.suppress(TieredStoreError):
                self.governor.tick()

    def kill(self) -> None:
        """As by kill -9."""
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


def holder(members: list[Member]) -> Member:
    """Who has the topic; waits until somebody has it."""
    for _ in range(1200):
        for member in members:
            if not member.stopped.is_set() and member.governor.serves("orders"):
                return member
        threading.Event().wait(0.05)
    raise AssertionError("nobody has the topic")


@pytest.fixture(params=["store", pytest.param("zookeeper", marks=[pytest.mark.slow, pytest.mark.broker])])
def coordinator(request: pytest.FixtureRequest) -> Coordinator:
    if request.param == "store":
        return Coordinator()
    server: ZooKeeperServer = request.getfixturevalue("zookeeper")
    return ZooKeeper(server.chroot())


def test_brokers_and_governors_that_are_killed_under_load_lose_nothing_and_double_nothing(
    coordinator: Coordinator,
) -> None:
    topics = topics_on(None, batch_ms="20", message_bytes="1024", compression="none")
    topics.create("orders", 2)
    sent: dict[Future[RecordPlace], bytes] = {}
    with three(topics, coordinator) as members:
        holder(members)
        client = topics.settings.broker_client.model_copy(
            update={
                "bootstrap": tuple(member.running.place for member in members),
                "linger_ms": 1,
                "request_timeout_ms": 3000,
            }
        )
        settings = topics.settings.model_copy(update={"broker_client": client})
        with BrokerProducer(settings, "orders") as producer:
            for number in range(400):
                value = b"%05d" % number + os.urandom(200)
                sent[producer.send(value)] = value
                if number == 100:
                    holder(members).kill()
                if number == 250:
                    governing = [each for each in members if each.governor.generation and not each.stopped.is_set()]
                    (governing or [holder(members)])[0].kill()
            producer.flush()
        assert {future.result(0) for future in sent} == {UNTOLD}
    with Consumer(topics, "orders", delivery="effectively-once") as consumer:
        assert sorted(values_of(consumer, at_least=400)) == sorted(sent.values())
