"""A broker as a service, in this process: with each coordinator, with a failing store, and while it stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.support.pubsub.pubsub_brokers import (
    LONG_S,
    PacketClient,
    client_of,
    listening_anywhere,
    message_of,
    write_of,
)
from tests.support.pubsub.pubsub_topics import orders_on, read_values, topics_on
from tests.support.servers.zookeeper import ZooKeeperServer
from tests.support.service_process import within
from tests.support.stores.doubles import Operation, ScriptedStore
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import StoreUnavailableError
from tieredstore.process.health import Health
from tieredstore.process.service import Service
from tieredstore.pubsub.broker import running
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.broker.running import broker_service, make_governed_broker
from tieredstore.pubsub.format.packets import Code, MetadataAnswer, MetadataRequest
from tieredstore.pubsub.governor.zookeeper_governor import ZooKeeperGovernor
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import Topics


@dataclass
class Served:
    """A broker served by threads of this process."""

    broker: Broker
    health: Health
    place: str

    @property
    def is_ready(self) -> bool:
        """True if the broker has its topic and no failing condition."""
        assignment = self.broker._assignment  # pyright: ignore[reportPrivateUsage]
        return assignment.serves("orders") and not self.health.reasons()

    def until(self, holds: Callable[[], bool]) -> None:
        wait_until(holds)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    def soon(took_s: float) -> float:
        return 0.02 + 0 * took_s

    monkeypatch.setattr(running, "rest_s", soon)
    monkeypatch.setattr(running, "REFRESH_S", 0.02)


@contextmanager
def served(topics: Topics) -> Generator[Served]:
    broker, governor = make_governed_broker(topics)
    with within(broker_service(broker, governor)) as service:
        yield Served(broker, service.health, place_of(broker))


def place_of(broker: Broker) -> str:
    """Wait until the broker listens, and return its address."""
    wait_until(lambda: broker._serving)  # pyright: ignore[reportPrivateUsage]
    return f"{broker.address.ip}:{broker.address.port}"


def published(topics: Topics, place: str, count: int) -> None:
    with BatchProducer(client_of(topics, place), "orders") as producer:
        futures = [producer.send(b"%d" % number) for number in range(count)]
    for future in futures:
        future.result(LONG_S)


@pytest.mark.parametrize("coordinator", ["none", "store"])
def test_the_broker_serves_until_it_is_stopped_and_is_ready_once_it_knows_its_topics(coordinator: str) -> None:
    topics = orders_on(batch_ms="10", broker_coordinator=coordinator)
    with served(listening_anywhere(topics)) as broker:
        broker.until(lambda: broker.is_ready)
        published(topics, broker.place, 5)
    assert sorted(read_values(topics, 5)) == [b"%d" % number for number in range(5)]


class AsMemqs:
    """Client like MemQ's Java producer. It keeps its connection, and asks for metadata after a redirect (302), at most
    twice per request. It gives up a request if it cannot connect, or if the connection ends.
    """

    def __init__(self, place: str) -> None:
        self.bootstrap = place
        self.client: PacketClient | None = None
        self.failed = 0
        self.redirects = 0

    def send(self, number: int) -> None:
        try:
            for _ in range(3):
                if self.client is None:
                    self.client = self.at_its_broker()
                answer = self.client.ask(write_of(message_of([b"%d" % number], number)), number)
                if answer.code is Code.OK:
                    return
                assert answer.code is Code.REDIRECT
                self.redirects += 1
                self.close()
        except (OSError, AssertionError):
            self.close()
        self.failed += 1

    def at_its_broker(self) -> PacketClient:
        with PacketClient(self.bootstrap) as asking:
            payload = asking.ask(MetadataRequest(("orders",))).payload
        assert isinstance(payload, MetadataAnswer)
        (topic,) = payload.topics
        assert topic.write_brokers
        return PacketClient(f"{topic.write_brokers[0].ip}:{topic.write_brokers[0].port}")

    def close(self) -> None:
        if self.client is not None:
            self.client.socket.close()
        self.client = None


@dataclass
class Two:
    """Two brokers of one cluster. At first, the broker ``first`` has the topic."""

    first: Service
    second: Service
    places: list[str]
    brokers: list[Broker]


@contextmanager
def two_brokers(topics: Topics) -> Generator[Two]:
    places: list[str] = []
    services: list[Service] = []
    brokers: list[Broker] = []
    with ExitStack() as stack:
        for count in (1, 2):
            broker, governor = make_governed_broker(listening_anywhere(topics, f"127.0.0.{count}"))
            services.append(stack.enter_context(within(broker_service(broker, governor))))
            brokers.append(broker)
            places.append(place_of(broker))
            wait_until(broker.directory.all)
            wait_until(brokers[0].serves_any)
        yield Two(services[0], services[1], places, brokers)


@pytest.mark.slow
def test_a_broker_that_is_stopped_tells_its_clients_who_has_its_topics() -> None:
    stop_one_of_two(topics_on(None, batch_ms="5", broker_coordinator="store"))


@pytest.mark.slow
@pytest.mark.broker
def test_a_broker_that_is_stopped_tells_its_clients_who_has_its_topics_in_zookeeper(zookeeper: ZooKeeperServer) -> None:
    hosts = zookeeper.chroot()
    stop_one_of_two(topics_on(None, batch_ms="5", broker_coordinator="zookeeper", broker_zookeeper_connect=hosts))


def stop_one_of_two(topics: Topics) -> None:
    """MemQ's producer loses a request whose connection ends, so a stopping broker must redirect its clients first."""
    topics.create("orders")
    with two_brokers(topics) as two:
        busy, idle = AsMemqs(two.places[0]), AsMemqs(two.places[0])
        idle.send(0)
        for number in range(1, 20):
            busy.send(number)
        two.first.stop()
        number = 20
        while not busy.redirects:
            assert not busy.failed
            busy.send(number)
            number += 1
        assert not two.brokers[0].serves_any()
        idle.send(number)  # the idle client is redirected too, not just disconnected
        busy.send(number + 1)
        assert (busy.failed, idle.failed, busy.redirects, idle.redirects) == (0, 0, 1, 1)
        assert two.brokers[1].counts.stored_messages + two.brokers[1].counts.message_bytes > 0
        busy.close()
        idle.close()
        wait_until(lambda: not two.brokers[0].connections)
    assert sorted(map(int, read_values(topics, number + 2))) == list(range(number + 2))


def test_a_broker_without_another_one_does_not_wait_for_any() -> None:
    topics = orders_on(batch_ms="5", broker_coordinator="store")
    # A stopping broker gives other brokers half of this time to take its topics. The only broker need not wait.
    with served(listening_anywhere(topics, drain_ms=240_000)) as broker:
        broker.until(lambda: broker.is_ready)
        client = AsMemqs(broker.place)
        client.send(0)
        begin_s = time.monotonic()
    assert time.monotonic() - begin_s < 60
    assert (client.failed, client.redirects) == (0, 0)
    client.close()


@pytest.mark.slow
@pytest.mark.broker
def test_by_zookeeper(zookeeper: ZooKeeperServer) -> None:
    hosts = zookeeper.chroot()
    topics = orders_on(batch_ms="10", broker_coordinator="zookeeper", broker_zookeeper_connect=hosts)
    with served(listening_anywhere(topics)) as broker:
        assert isinstance(broker.broker._assignment, ZooKeeperGovernor)  # pyright: ignore[reportPrivateUsage]
        broker.until(lambda: broker.is_ready)
        published(topics, broker.place, 3)
    assert sorted(read_values(topics, 3)) == [b"0", b"1", b"2"]


def test_a_store_that_fails_is_a_reason_not_to_be_ready_and_what_is_known_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_down = threading.Event()

    def fail(_: Operation) -> None:
        if is_down.is_set():
            raise StoreUnavailableError("the store is down")

    store = ScriptedStore(MemoryObjectStore()).on(("list", "delete"), do=fail)
    topics = orders_on(store, batch_ms="10")
    with served(listening_anywhere(topics)) as broker:
        broker.until(lambda: broker.is_ready)
        published(topics, broker.place, 1)  # the first write lists the queue's entries
        is_down.set()
        broker.until(lambda: {"topics", "assignments"} <= set(broker.health.reasons()))
        published(topics, broker.place, 2)
        is_down.clear()
        broker.until(lambda: broker.is_ready)
        is_down.set()
    is_down.clear()
    assert "cannot refresh the topics: the store is down" in caplog.text
    assert "will notice this broker's end only by timeout" in caplog.text
    told = [line.message for line in caplog.records if line.message.startswith("store: ")]
    assert [line.partition(";")[0].partition(" after")[0] for line in told] == [
        "store: lost", "store: available again",
    ]  # fmt: skip
    assert sorted(read_values(topics, 3)) == [b"0", b"0", b"1"]
