"""The queue in Kafka with a real broker: the contract, groups, lost answers, and MemQ's own form."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tests.support.kafka.dead_controller import DeadController
from tests.support.kafka.kafka_topics import Produced, make_topic, produce
from tests.support.pubsub.pubsub_topics import orders_on, topics_on, values_of
from tests.support.servers.kafka import KafkaServer
from tests.support.waiting import wait_until
from tieredstore.errors import ConfigError, DataLossError, FencedError, StoreUnavailableError, TopicNotFoundError
from tieredstore.live.clients import LiveProducer
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.kafka_queue import KafkaQueue
from tieredstore.pubsub.queue.queues import NotificationQueue, Position
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.testing.notification_queue_tests import NotificationQueueTests, read_all

pytestmark = pytest.mark.slow
LONG_S = 120.0
_names = itertools.count()


@pytest.fixture
def properties(kafka: KafkaServer) -> dict[str, str]:
    return {"bootstrap.servers": kafka.bootstrap_servers}


@pytest.fixture
def queue(kafka: KafkaServer, properties: dict[str, str]) -> Iterator[KafkaQueue]:
    with KafkaQueue(properties, make_topic(kafka, partitions=2), "orders") as opened:
        yield opened


class TestInKafka(NotificationQueueTests):
    @pytest.fixture
    def queue(self, kafka: KafkaServer, properties: dict[str, str]) -> Iterator[NotificationQueue]:
        with KafkaQueue(properties, make_topic(kafka, partitions=2), "orders") as opened:
            yield opened


def topics_with_kafka(kafka: KafkaServer, partitions: int = 1, **more: str) -> Topics:
    name = f"notifications-{time.time_ns()}-{next(_names)}"
    return orders_on(
        None, partitions, queue="kafka", queue_topic=name, kafka_bootstrap_servers=kafka.bootstrap_servers, **more
    )


class SilentProducer:
    """Producer that loses the broker's answer ``times`` times, after the broker has stored the record."""

    def __init__(self, inner: LiveProducer, times: int, *, sends: bool) -> None:
        self.inner = inner
        self.times = times
        self.sends = sends
        self.produced = 0
        self.is_lost = False

    def produce(self, topic: str, raw: bytes, *, partition: int, on_delivery: Any) -> None:
        self.produced += 1
        if self.times:
            self.times -= 1
            if self.sends:
                self.inner.produce(topic, raw, partition=partition)
                assert self.inner.flush(LONG_S) == 0
            on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), NoMessage())
        else:
            self.inner.produce(topic, raw, partition=partition, on_delivery=on_delivery)

    def poll(self, timeout_s: float) -> int:
        return self.inner.poll(timeout_s)

    def purge(self) -> None:
        self.inner.purge()


class NoMessage:
    def offset(self) -> None:
        return None


@pytest.mark.parametrize(("sends", "produced"), [(True, 1), (False, 3)])
def test_before_what_may_be_there_is_sent_again_the_tail_is_searched(
    queue: KafkaQueue, monkeypatch: pytest.MonkeyPatch, sends: bool, produced: int
) -> None:
    queue.append(0, [b"before"], Deadline.after(LONG_S))
    client = queue._producer  # pyright: ignore[reportPrivateUsage]
    silent = SilentProducer(client.get(), 2, sends=sends)
    monkeypatch.setattr(client, "get", lambda: silent)
    (offset,) = queue.append(0, [b"once"], Deadline.after(LONG_S))
    assert [(entry.offset, entry.raw) for entry in read_all(queue, 0)] == [(0, b"before"), (1, b"once")]
    assert (offset, silent.produced) == (1, produced)


def test_an_append_meanwhile_hides_no_record_whose_answer_was_lost(
    queue: KafkaQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = queue._producer  # pyright: ignore[reportPrivateUsage]
    silent = SilentProducer(client.get(), 1, sends=True)
    monkeypatch.setattr(client, "get", lambda: silent)

    def append_other(_: float) -> None:
        monkeypatch.undo()
        queue.append(0, [b"other"], Deadline.after(LONG_S))

    monkeypatch.setattr(time, "sleep", append_other)
    assert queue.append(0, [b"once"], Deadline.after(LONG_S)) == [0]
    assert [(entry.offset, entry.raw) for entry in read_all(queue, 0)] == [(0, b"once"), (1, b"other")]


def test_a_broker_that_stays_away_is_told_at_the_deadline() -> None:
    with KafkaQueue({"bootstrap.servers": "127.0.0.1:1"}, "nowhere", "orders") as nowhere:
        nowhere._known_partitions = 1, float("inf")  # pyright: ignore[reportPrivateUsage]
        nowhere._floors[0] = 0  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(StoreUnavailableError, match=r"queue orders/0 .* was not appended, or its state is unknown"):
            nowhere.append(0, [b"v"], Deadline.after(0.5))


def test_a_writer_that_sleeps_during_a_pause_sends_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, sent = 0.0, list[bytes]()

    def sleep(_: float) -> None:
        nonlocal now_s
        now_s += 86_400

    def refuse(_: LiveProducer, __: str, raw: bytes, **___: object) -> None:
        sent.append(raw)
        raise BufferError

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(LiveProducer, "produce", refuse)
    with KafkaQueue({"bootstrap.servers": "127.0.0.1:1"}, "nowhere", "orders") as nowhere:
        nowhere._known_partitions = 1, float("inf")  # pyright: ignore[reportPrivateUsage]
        nowhere._floors[0] = 0  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(StoreUnavailableError, match=r"was not appended, or its state is unknown: .* is full"):
            nowhere.append(0, [b"v"], Deadline.after(LONG_S, lambda: now_s))
    assert sent == [b"v"]


def test_nothing_is_sent_after_the_deadline(queue: KafkaQueue) -> None:
    with pytest.raises(StoreUnavailableError, match="the time for the delivery is over"):
        queue.append(0, [b"late"], Deadline.after(0))
    assert queue.end(0) == 0


def test_readers_jump_about_and_share_one_client(queue: KafkaQueue) -> None:
    for number in range(6):
        queue.append(number % 2, [b"%d" % number], Deadline.after(LONG_S))
    for _ in range(2):
        assert [entry.raw for entry in read_all(queue, 0, 1)] == [b"2", b"4"]
        assert [entry.raw for entry in read_all(queue, 1)] == [b"1", b"3", b"5"]
        assert [entry.raw for entry in read_all(queue, 0)] == [b"0", b"2", b"4"]


def test_a_topic_in_kafka_from_end_to_end_with_its_group(kafka: KafkaServer) -> None:
    topics = topics_with_kafka(kafka, 2, message_bytes="1024", batch_messages="2", compression="none")
    with BatchProducer(topics, "orders") as producer:
        futures = [producer.send(b"%d" % number + bytes(400)) for number in range(12)]
    assert {future.result(0).partition for future in futures} == {0, 1}
    with BatchConsumer(topics, "orders", group="g") as consumer:
        read: list[bytes] = []
        while len(read) < 5:
            for record in consumer.records(0.5):
                read.append(record.value[:2].rstrip(b"\0"))
                if len(read) == 5:
                    break
        consumer.commit()
        places = consumer.position()
    (states,) = topics.groups(topics.get("orders")).values()
    committed = {state.partition: state.position for state in states}
    assert committed == {partition: place for partition, place in places.items() if partition in committed}
    assert any(place is not None and (place.message or place.record) for place in committed.values())
    with BatchConsumer(topics, "orders", group="g") as later:
        read += [value[:2].rstrip(b"\0") for value in values_of(later, at_least=7)]
    assert sorted(map(int, read)) == list(range(12))


def test_members_share_and_a_deposed_one_is_fenced(queue: KafkaQueue) -> None:
    first, second = queue.member("shared"), queue.member("shared")
    wait_until(lambda: len(first.claims()) == 2, meanwhile=first.tick)
    first.commit({0: Position(3, 2, 1)})

    def tick() -> None:
        first.tick()
        second.tick()

    wait_until(lambda: len(first.claims()) == len(second.claims()) == 1, meanwhile=tick)
    claims = first.claims() | second.claims()
    assert {partition: claim.committed for partition, claim in claims.items()} == {0: Position(3, 2, 1), 1: None}
    (other,) = second.claims()
    with pytest.raises(FencedError, match="another member of group shared now owns"):
        first.commit({other: Position(9)})
    second.leave()
    wait_until(lambda: len(first.claims()) == 2, meanwhile=first.tick)
    with pytest.raises(FencedError):
        second.commit({other: Position(9)})
    assert queue.groups()["shared"][0].position == Position(3, 2, 1)
    first.leave()


def test_a_commit_of_memqs_own_consumer_is_the_batchs_beginning(kafka: KafkaServer, queue: KafkaQueue) -> None:
    member = queue.member("memq")
    wait_until(lambda: len(member.claims()) == 2, meanwhile=member.tick)
    client = member._consumer  # pyright: ignore[reportPrivateUsage]
    assert client is not None
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    name = queue._name  # pyright: ignore[reportPrivateUsage]
    client.commit(offsets=[TopicPartition(name, 0, 4), TopicPartition(name, 1, 5, "of others")], asynchronous=False)
    member.leave()
    states = queue.groups()["memq"]
    assert [(state.partition, state.position) for state in states] == [(0, Position(4)), (1, Position(5))]


def test_notifications_of_memqs_broker_are_read_and_ours_are_json_as_its_own(kafka: KafkaServer) -> None:
    topics = topics_with_kafka(kafka)
    name = topics.get("orders").queue_name
    with BatchProducer(topics, "orders") as producer:
        producer.send(b"ours").add_done_callback(lambda _: None)
    with topics.queue(topics.get("orders")) as queue:
        (entry,) = read_all(queue, 0)
        fields = json.loads(entry.raw)
        assert list(fields)[:7] == [
            "bucket", "key", "objectSize", "topic", "headerSize", "numBatchMessages", "numAttempts"
        ]  # fmt: skip
        as_memq = {key: fields[key] for key in list(fields)[:7]} | {"Content-MD5": "x"}
        produce(kafka, name, [Produced(None, json.dumps(as_memq).encode())])
        with BatchConsumer(topics, "orders") as consumer:
            assert values_of(consumer, at_least=2) == [b"ours", b"ours"]


def test_what_is_missing_is_said(kafka: KafkaServer, properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"set pubsub\.kafka\.bootstrap\.servers"):
        topics_on(None, queue="kafka").create("orders")
    with KafkaQueue(properties, "no-such-topic", "orders") as absent, pytest.raises(TopicNotFoundError, match="orders"):
        absent.read(0, 0)
    with pytest.raises(ConfigError, match="expected store, kafka, or"):
        topics_on(None, queue="pulsar").create("orders")


def test_a_topic_grows(kafka: KafkaServer) -> None:
    topics = topics_with_kafka(kafka)
    topics.grow("orders", 3)
    with topics.queue(topics.get("orders")) as queue:
        wait_until(lambda: queue.partitions == 3, meanwhile=lambda: queue.provide(3))


class StaleStart(KafkaQueue):
    """Queue whose retention runs between the look-up of the start and the fetch."""

    stale: int | None = None

    def start(self, partition: int) -> int:
        stale, self.stale = self.stale, None
        return super().start(partition) if stale is None else stale


def test_a_read_that_retention_overtakes_says_where_to_continue(kafka: KafkaServer, properties: dict[str, str]) -> None:
    with StaleStart(properties, make_topic(kafka, partitions=1), "orders") as queue:
        queue.append(0, [b"0", b"1", b"2"], Deadline.after(LONG_S))
        queue.free(0, 2)
        queue.stale = 0
        with pytest.raises(DataLossError, match="retention has freed offsets 0 to 1") as raised:
            queue.read(0, 0)
        assert raised.value.continue_at == 2


def test_notifications_are_kept_as_long_as_the_kafka_topics_records(queue: KafkaQueue) -> None:
    for retention_ms, expected in (("5", 5), ("0", 0), ("-1", None)):
        queue._cluster.change_settings(queue._name, {"retention.ms": retention_ms})  # pyright: ignore[reportPrivateUsage]
        wait_until(lambda: queue.forgets_ms() == expected)  # noqa: B023  called in this turn


def test_a_controller_that_died_is_not_waited_for_by_who_makes_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating an existing topic and adding partitions both go to the controller, which is dead."""
    monkeypatch.setattr("tieredstore.live.cluster.LiveAdmin", DeadController)
    with KafkaQueue({"bootstrap.servers": "127.0.0.1:1"}, "orders", "orders") as queue:
        queue.provide(2)


def test_partitions_that_are_there_already_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first request that timed out has added them, or the broker that lists the topic does not know them yet."""

    class Grown(DeadController):
        def create_partitions(self, _: Sequence[object], *, request_timeout: float) -> dict[str, Future[Any]]:
            assert request_timeout > 0
            return self._ask(KafkaError.INVALID_PARTITIONS)

    monkeypatch.setattr("tieredstore.live.cluster.LiveAdmin", Grown)
    with KafkaQueue({"bootstrap.servers": "127.0.0.1:1"}, "orders", "orders") as queue:
        queue.provide(2)
