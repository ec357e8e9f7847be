"""A producer with brokers: delivery, choice of brokers, and brokers that fail, refuse Messages or lose the topic."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.network.loopback_server import ConnectionServer
from tests.support.pubsub.pubsub_brokers import LONG_S, RunningBroker, client_of, listening_anywhere, running_broker
from tests.support.pubsub.pubsub_topics import orders_on, read_values, request_ids, topics_on
from tests.support.servers.kafka_certificates import issue, make_authority
from tests.support.servers.process import free_port
from tests.support.waiting import wait_until
from tieredstore.config import Settings
from tieredstore.errors import BrokerUnavailableError, ConfigError
from tieredstore.pubsub.broker.authorization import Authorizer, Client
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.errors import DeliveryFailedError
from tieredstore.pubsub.format.packets import (
    BrokerAddress,
    Code,
    MetadataAnswer,
    PacketType,
    Request,
    Response,
    TopicMetadata,
    WriteAnswer,
    WriteRequest,
    parse_request,
    response_bytes,
)
from tieredstore.pubsub.governor.directory import Assignment
from tieredstore.pubsub.produce.broker_producer import BrokerLink, Place, TopicBrokers
from tieredstore.pubsub.produce.futures import UNREPORTED, RecordPlace
from tieredstore.pubsub.produce.outbox import Acks
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.settings import BatchBrokerSettings, BatchClientSettings
from tieredstore.remote.stores import StoreLike

fresh = partial(orders_on, batch_ms="20")


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_sent_messages_arrive_with_dense_request_ids(acks: Acks) -> None:
    topics = fresh(message_bytes="1024")
    values = [b"%04d" % number + os.urandom(300) for number in range(50)]
    with running_broker(topics) as running:
        with BatchProducer(client_of(topics, running.place), "orders", acks=acks) as producer:
            futures = [producer.send(value, b"k", [("h", b"1")]) for value in values]
        assert {future.result(0) for future in futures} == {UNREPORTED}
        running.drain()
    assert sorted(read_values(topics, 50)) == values
    ids = request_ids(topics)
    assert ids == list(range(len(ids)))


def test_a_record_lingers_and_no_longer() -> None:
    topics = fresh()
    with (
        running_broker(topics) as running,
        BatchProducer(client_of(topics, running.place, linger_ms=0), "orders") as producer,
    ):
        producer.send(b"v").result(LONG_S)  # without a flush


class Shared(Assignment):
    """Assignment as the broker at ``port`` sees it: ``brokers`` have every topic."""

    def __init__(self, brokers: list[BrokerAddress], port: int) -> None:
        self.brokers = brokers
        self.port = port

    def serves(self, topic: str) -> bool:
        return self.port in {broker.port for broker in self.brokers}

    def writers(self, topic: str) -> tuple[BrokerAddress, ...]:
        return tuple(self.brokers)

    def readers(self, topic: str) -> tuple[BrokerAddress, ...]:
        return ()


@contextmanager
def several(topics: Topics, *racks: str) -> Generator[tuple[list[RunningBroker], list[BrokerAddress]]]:
    """Yield brokers that know each other, and the list of those that serve the topic. A test may shorten the list."""
    assigned, running = list[BrokerAddress](), list[RunningBroker]()
    try:
        for rack in racks:
            own = listening_anywhere(topics)
            with_rack = own.settings.section(BatchBrokerSettings).model_copy(update={"rack": rack})
            own = Topics(own.store, own.settings.with_section(with_rack))
            broker = Broker(own, assignment=Shared(assigned, own.settings.section(BatchBrokerSettings).listen[1]))
            running.append(RunningBroker(broker).begin())
            assigned.append(broker.address)
        yield running, assigned
    finally:
        for each in running:
            each.kill()


def test_own_zone_comes_first_and_others_when_it_is_gone() -> None:
    topics = fresh()
    with several(topics, "a", "b", "a") as (brokers, _):
        settings = client_of(topics, brokers[0].place, rack="b", request_timeout_ms=30_000)
        with BatchProducer(settings, "orders") as producer:
            for number in range(3):
                producer.send(b"%d" % number).result(LONG_S)
            counts = [each.broker.counts.write_requests for each in brokers]
            assert (counts[0], counts[2]) == (0, 0)
            brokers[1].kill()
            producer.send(b"3").result(LONG_S)
    assert read_values(topics, 4) == [b"0", b"1", b"2", b"3"]


def test_a_redirect_leads_to_the_broker_that_has_the_topic() -> None:
    topics = fresh()
    with several(topics, "", "") as (brokers, assigned):
        first, second = assigned
        assigned.remove(second)
        settings = client_of(topics, *(each.place for each in brokers))
        with BatchProducer(settings, "orders") as producer:
            producer.send(b"0").result(LONG_S)
            assigned.append(second)
            assigned.remove(first)
            producer.send(b"1").result(LONG_S)
        assert brokers[0].broker.counts.redirected_requests == 1
        assert [each.broker.counts.stored_messages for each in brokers] == [1, 1]
    assert read_values(topics, 2) == [b"0", b"1"]


def test_brokers_that_are_lost_under_load_lose_nothing_that_was_acknowledged() -> None:
    topics = fresh(message_bytes="1024", compression="none")
    sent: dict[Future[RecordPlace], bytes] = {}
    with several(topics, "", "", "") as (brokers, _):
        settings = client_of(topics, *(each.place for each in brokers), endpoints=3, request_timeout_ms=3000)
        with BatchProducer(settings, "orders") as producer:
            for number in range(300):
                value = b"%05d" % number + bytes(200)
                sent[producer.send(value)] = value
                if number in {100, 200}:
                    brokers[number // 100].kill()
            producer.flush()
    assert {future.result(0) for future in sent} == {UNREPORTED}
    assert set(read_values(topics, 300)) == set(sent.values())


class FakeBroker(ConnectionServer):
    """Broker with scripted answers, which MemQ's broker may give, but ours does not."""

    def __init__(self, behave: Callable[[FakeBroker, Request, int], bytes | None]) -> None:
        self.requests: list[bytes] = []
        self._behave = behave
        super().__init__(free_port())

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                packet = head + stream.read(int.from_bytes(head, "big"))
                request = parse_request(packet)
                if not isinstance(request.payload, WriteRequest):
                    connection.sendall(self.metadata(request))
                    continue
                self.requests.append(packet)
                answer = self._behave(self, request, len(self.requests))
                if answer is None:
                    return
                connection.sendall(answer)

    def metadata(self, request: Request) -> bytes:
        topic = TopicMetadata("orders", (BrokerAddress("", "127.0.0.1", self.port),), "s3v2", ())
        answer = MetadataAnswer((topic,))
        return response_bytes(
            Response(request.version, request.request_id, PacketType.METADATA, Code.OK, payload=answer)
        )


def answer(request: Request, code: Code, error: str = "") -> bytes:
    payload = WriteAnswer() if code is Code.OK else None
    return response_bytes(Response(request.version, request.request_id, PacketType.WRITE, code, error, payload))


def test_an_unanswered_message_is_sent_again_byte_for_byte() -> None:
    topics = fresh()

    def behave(_: FakeBroker, request: Request, number: int) -> bytes | None:
        return {1: None, 2: answer(request, Code.SERVICE_UNAVAILABLE, "full")}.get(number, answer(request, Code.OK))

    with FakeBroker(behave) as broker, BatchProducer(client_of(topics, broker.place), "orders") as producer:
        producer.send(b"v").result(LONG_S)
        assert len(broker.requests) == 3
        assert len(set(broker.requests)) == 1
        producer.send(b"w").result(LONG_S)
        assert len(set(broker.requests)) == 2


def test_a_broker_that_is_cut_off_and_says_that_it_has_the_topic_is_left() -> None:
    topics = fresh()
    # This broker is cut off from the others and from the store. It answers metadata requests, but no writes.
    with FakeBroker(lambda _, __, ___: b"") as cut_off:
        other = RunningBroker(Broker(listening_anywhere(topics)))
        settings = client_of(topics, cut_off.place, other.place, request_timeout_ms=500)
        with BatchProducer(settings, "orders") as producer:
            first = producer.send(b"v")
            wait_until(lambda: cut_off.requests)
            other.begin()
            first.result(LONG_S)
            # On a busy machine the other broker may be late too, and the producer asks both again.
            sent, asked = 1, -1
            while sent < 6 and len(cut_off.requests) != asked:
                asked = len(cut_off.requests)
                threading.Event().wait(0.5)  # longer than the pause after a first failure
                producer.send(b"v").result(LONG_S)
                sent += 1
            assert len(cut_off.requests) == asked
        other.kill()
    assert read_values(topics, sent) == [b"v"] * sent


def test_a_refusal_is_final_and_nothing_is_stored_by_it() -> None:
    topics = fresh()
    with (
        FakeBroker(lambda _, request, __: answer(request, Code.UNAUTHORIZED, "not open")) as broker,
        BatchProducer(client_of(topics, broker.place), "orders") as producer,
    ):
        with pytest.raises(DeliveryFailedError, match="answers 401: not open") as failure:
            producer.send(b"v").result(LONG_S)
        assert not failure.value.maybe_stored


def failure_within(settings_of: Callable[[Topics], Settings], words: str) -> DeliveryFailedError:
    """Return the error of a record that is not delivered in time. It must contain the words.

    On a busy machine, even the first attempt may take longer than a short limit. So try longer limits too.
    """
    error = None
    for delivery_timeout_ms in ("1000", "10000", "60000"):
        settings = settings_of(fresh(delivery_timeout_ms=delivery_timeout_ms))
        with BatchProducer(settings, "orders") as producer, pytest.raises(DeliveryFailedError) as failure:
            producer.send(b"v").result(LONG_S)
        error = failure.value
        if words in str(error):
            return error
    raise AssertionError(error)


def test_without_a_broker_the_deadline_ends_it_and_nothing_was_stored() -> None:
    error = failure_within(lambda topics: client_of(topics, "127.0.0.1:9"), "cannot connect to broker 127.0.0.1:9")
    assert not error.maybe_stored
    with pytest.raises(ConfigError, match=r"brokers is ''; give host:port, separated by commas"):
        BatchProducer(fresh().settings, "orders", brokers="")


def test_with_brokers_no_store_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TIEREDSTORE_SETTINGS", raising=False)
    file = tmp_path / "client.properties"
    file.write_text("pubsub.message.bytes=70000\n")
    own: tuple[StoreLike, ...] = (None, {"pubsub.message.bytes": 70_000}, file)
    with FakeBroker(lambda _, request, __: answer(request, Code.OK)) as broker:
        for source in own:
            with BatchProducer(source, "orders", brokers=broker.place) as producer:
                producer.send(b"v").result(LONG_S)
    for source in own:
        with pytest.raises(ConfigError, match=r"no store is named|storage\.backend\.class"):
            BatchProducer(source, "orders")


def test_a_broker_that_fails_for_the_whole_time_may_have_stored() -> None:
    with FakeBroker(lambda _, request, __: answer(request, Code.REQUEST_FAILED, "no store")) as broker:
        assert failure_within(lambda topics: client_of(topics, broker.place), "answers 502").maybe_stored


def test_a_forked_child_sends_on_its_own() -> None:
    topics = fresh()
    with running_broker(topics) as running, BatchProducer(client_of(topics, running.place), "orders") as producer:
        producer.send(b"parent").result(LONG_S)
        child = os.fork()
        if not child:
            try:
                producer.send(b"child").result(LONG_S)
                producer.flush()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        producer.send(b"parent again").result(LONG_S)
        assert sorted(read_values(topics, 3)) == [b"child", b"parent", b"parent again"]


@pytest.mark.slow
def test_brokers_that_speak_tls_and_know_their_clients_by_certificates(tmp_path: Path) -> None:
    authority = make_authority()
    paths = {name: issue(authority, name).write(tmp_path / f"{name}.pem") for name in ("broker", "writer", "other")}
    authority_path = tmp_path / "authority.pem"
    authority_path.write_text(authority.certificate_pem)
    topics = fresh()
    files = {"certificate": paths["broker"], "key": paths["broker"], "client_ca": authority_path}
    own = topics.settings.with_section(topics.settings.section(BatchBrokerSettings).model_copy(update=files))
    with running_broker(Topics(topics.store, own), authorizer=OnlyTheWriter()) as running:

        def of(name: str) -> Settings:
            return client_of(
                topics, running.place, tls="tls", ca=authority_path, certificate=paths[name], key=paths[name]
            )

        with BatchProducer(of("writer"), "orders") as producer:
            producer.send(bytes(300_000)).result(LONG_S)
        with (
            BatchProducer(of("other"), "orders") as producer,
            pytest.raises(DeliveryFailedError, match="CN=other has no access"),
        ):
            producer.send(b"v").result(LONG_S)
        failure_within(lambda hurried: client_of(hurried, running.place, tls="tls", ca=authority_path), "127.0.0.1")
        failure_within(lambda hurried: client_of(hurried, running.place), "127.0.0.1")
    assert read_values(topics, 1) == [bytes(300_000)]


class OnlyTheWriter(Authorizer):
    def allows(self, client: Client, operation: PacketType, topic: str) -> bool:
        return client.principal == "CN=writer"


PLACES: list[Place] = [(f"10.0.0.{number}", 9092) for number in range(4)]


class Cluster:
    """Brokers, one of which is cut off from the others. The cut-off broker accepts no writes. It claims forever that it
    has the topic, or that ``claimed`` has it, which was killed.
    """

    def __init__(self, claimed: Place | None = None) -> None:
        self.now_s = 0.0
        self.cut_off = PLACES[0]
        self.claimed = claimed
        self.asked: Counter[Place] = Counter()
        self.has_topic = PLACES[0]
        topics = topics_on(bootstrap=",".join(f"{host}:{port}" for host, port in PLACES))
        settings = topics.settings.section(BatchClientSettings)
        self.brokers = TopicBrokers("orders", settings, open_link=self.open_link, monotonic=lambda: self.now_s)

    async def open_link(self, place: Place) -> BrokerLink:
        return _Link(place, self)

    def fail(self, places: Sequence[Place]) -> None:
        """Let these brokers fail, one after the other."""
        for place in places:
            self.now_s += 10.0
            self.brokers.drop(_Link(place, self), "it was away some time ago")

    def sends(self, tries: int) -> bool:
        """Return True if a Message reaches the broker with the topic."""
        for _ in range(tries):
            self.now_s += 1.0
            try:
                link = asyncio.run(self.brokers.link())
            except BrokerUnavailableError:
                continue
            if link.place == self.has_topic != self.cut_off:
                self.brokers.settle(link.place)
                return True
            self.brokers.drop(link, "no answer")
        return False


class _Link(BrokerLink):
    """Connection to a broker, which answers with the broker that it believes to have the topic."""

    def __init__(self, place: Place, cluster: Cluster) -> None:
        self.place = place
        self.is_lost = False
        self.cluster = cluster

    async def ask(self, request: Request, timeout_s: float) -> Response:
        assert timeout_s > 0
        self.cluster.asked[self.place] += 1
        if self.place == self.cluster.claimed:
            raise BrokerUnavailableError("it was killed")
        is_cut_off = self.place == self.cluster.cut_off
        host, port = (self.cluster.claimed or self.place) if is_cut_off else self.cluster.has_topic
        answer = MetadataAnswer((TopicMetadata("orders", (BrokerAddress("", host, port),), "s3v2", ()),))
        return Response(request.version, request.request_id, request.payload.kind, Code.OK, payload=answer)

    def lose(self, why: str) -> None:
        assert why
        self.is_lost = True


@pytest.mark.parametrize("seed", range(5))
def test_who_is_cut_off_is_left_though_all_have_failed_before(seed: int) -> None:
    random.seed(seed)
    cluster = Cluster()
    cluster.fail(PLACES[1:])
    cluster.brokers._brokers = {PLACES[0]: ""}
    cluster.has_topic = PLACES[2]
    assert cluster.sends(20)
    cluster.cut_off, cluster.has_topic = PLACES[2], PLACES[1]
    assert cluster.sends(20)


@pytest.mark.parametrize("seed", range(5))
def test_who_is_cut_off_and_names_a_killed_broker_is_not_the_only_one_asked(seed: int) -> None:
    random.seed(seed)
    cluster = Cluster(claimed=PLACES[1])
    cluster.has_topic = PLACES[2]
    cluster.fail(PLACES[2:])
    assert cluster.sends(20)


@pytest.mark.parametrize("seed", range(5))
def test_a_dead_broker_is_asked_no_more_often_than_the_others(seed: int) -> None:
    random.seed(seed)
    cluster = Cluster(claimed=PLACES[1])
    cluster.has_topic = PLACES[2]
    for _ in range(30):
        cluster.now_s += 1.0
        cluster.brokers.mark_stale()
        asyncio.run(cluster.brokers.link())
    assert max(cluster.asked.values()) <= 11
