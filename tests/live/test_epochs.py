"""Ends of leader epochs, by librdkafka's mock cluster and by a real broker."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.support.kafka.kafka_topics import Produced, make_topic, produce
from tests.support.kafka.mock_kafka import OFFSET_FOR_LEADER_EPOCH, MockKafka, mock_kafka
from tests.support.servers.kafka import KafkaServer
from tieredstore.errors import BrokerDeniedError, BrokerUnavailableError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.live import EpochEnd, LiveCluster, LiveEvent, LiveFollower
from tieredstore.live.clients import LiveConsumer
from tieredstore.model import TopicPartition


def cluster_of(servers: str, timeout_s: float = 60) -> LiveCluster:
    return LiveCluster({"bootstrap.servers": servers}, isolation="read_uncommitted", timeout_s=timeout_s)


def filled(mock: MockKafka, count: int, partitions: Sequence[int] = (0,)) -> None:
    mock.make_topic("orders", 2)
    producer = Producer({"bootstrap.servers": mock.bootstrap_servers, "log_level": 0})
    for _ in range(count):
        for partition in partitions:
            producer.produce("orders", b"value", partition=partition)
    assert producer.flush(30) == 0


def test_one_inquiry_has_the_ends_of_several_partitions() -> None:
    with mock_kafka() as mock:
        filled(mock, 10)
        with cluster_of(mock.bootstrap_servers) as cluster:
            # An empty log has no epochs.
            assert cluster.epoch_ends({("orders", 0): 0, ("orders", 1): 0}) == {("orders", 0): EpochEnd(0, 10)}
            assert cluster.epoch_ends({}) == {}


def test_an_epoch_that_the_leader_does_not_know_has_no_answer() -> None:
    with mock_kafka() as mock:
        filled(mock, 10)
        with cluster_of(mock.bootstrap_servers) as cluster:
            assert cluster.epoch_ends({("orders", 0): 5}) == {}


def test_the_error_of_a_fetch_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client fetches without a request for the epoch's end if it does not know the leader's epoch yet."""
    consume, assigned = LiveConsumer.consume, list[int]()
    text = "fetch failed due to requested offset not available on the broker: Broker: Offset out of range (broker 1)"

    def assign(consumer: LiveConsumer, places: list[KafkaPartition]) -> None:
        assigned.append(len(places))
        if len(assigned) > 1:
            Consumer.assign(consumer, places)

    def failed_first(consumer: LiveConsumer, count: int, timeout_s: float) -> list[Message]:
        if len(assigned) == 1:
            return [Message("orders", 0, error=KafkaError(KafkaError._AUTO_OFFSET_RESET, text))]
        return consume(consumer, count, timeout_s)

    monkeypatch.setattr(LiveConsumer, "assign", assign)
    monkeypatch.setattr(LiveConsumer, "consume", failed_first)
    with mock_kafka() as mock:
        filled(mock, 10)
        with cluster_of(mock.bootstrap_servers) as cluster:
            assert cluster.epoch_ends({("orders", 0): 0}) == {("orders", 0): EpochEnd(0, 10)}
    assert assigned == [1, 1]


@pytest.mark.slow
def test_what_may_pass_is_asked_again() -> None:
    with mock_kafka() as mock:
        filled(mock, 10)
        mock.push_errors(OFFSET_FOR_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT)
        with cluster_of(mock.bootstrap_servers) as cluster:
            assert cluster.epoch_ends({("orders", 0): 0}) == {("orders", 0): EpochEnd(0, 10)}


@pytest.mark.slow
def test_a_broker_that_is_away_is_an_error_in_time() -> None:
    with mock_kafka() as mock:
        filled(mock, 10)
        mock.set_down(1)
        begun = time.monotonic()
        with cluster_of(mock.bootstrap_servers, timeout_s=1.5) as cluster, pytest.raises(BrokerUnavailableError):
            cluster.epoch_ends({("orders", 0): 0})
        assert time.monotonic() - begun < 40


def records_of(follower: LiveFollower, where: TopicPartition) -> LiveEvent:
    """Return the next event of a partition."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        event = follower.poll(1)
        if event is not None and event.where == where:
            return event
    raise AssertionError(f"nothing comes of {where}")


@pytest.mark.slow
@pytest.mark.parametrize(("epoch", "is_in_log"), [(0, True), (7, False), (None, True)])
def test_a_place_is_checked_by_its_epoch_before_anything_of_it_is_given(epoch: int | None, is_in_log: bool) -> None:
    """The offset is checked even if the client, which follows another partition, already knows the leader."""
    first, second = ("orders", 0), ("orders", 1)
    with mock_kafka() as mock:
        filled(mock, 10, partitions=(0, 1))
        properties = {"bootstrap.servers": mock.bootstrap_servers}
        with LiveFollower(properties, isolation="read_uncommitted", columns=("offset",)) as follower:
            follower.add({second: 0})
            assert records_of(follower, second).next_offset > 0
            for _ in range(3):
                follower.add({first: 5}, {} if epoch is None else {first: epoch})
                event = records_of(follower, first)
                assert (event.records is not None) == is_in_log
                if event.records is not None:
                    assert int64_values(event.records, "offset")[0] == 5


@pytest.mark.broker
def test_a_real_leader_tells_its_epoch_and_where_it_ends(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, [Produced(None, b"value")] * 30)
    with cluster_of(kafka.bootstrap_servers) as cluster:
        end = cluster.ends([(topic, 0)])[topic, 0]
        assert (end.offset, end.leader_epoch) == (30, 0)
        assert cluster.epoch_ends({(topic, 0): 0}) == {(topic, 0): EpochEnd(0, 30)}
        assert cluster.epoch_ends({(topic, 0): 7}) == {}


@pytest.mark.broker
def test_who_may_not_read_the_topic_is_told(kafka: KafkaServer) -> None:
    user = {
        "bootstrap.servers": kafka.sasl_servers, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "reader", "sasl.password": "wrong",
    }  # fmt: skip
    topic = make_topic(kafka)
    with LiveCluster(user, isolation="read_uncommitted", timeout_s=20) as cluster, pytest.raises(BrokerDeniedError):
        cluster.epoch_ends({(topic, 0): 0})
