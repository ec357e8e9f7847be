"""A cluster's topics and offsets."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.kafka.dead_controller import DeadController
from tests.support.kafka.kafka_topics import (
    Produced,
    Transaction,
    delete_records,
    make_topic,
    produce,
    produce_transaction,
)
from tests.support.servers.kafka import KafkaServer
from tieredstore.errors import ResourceNotFoundError
from tieredstore.kafka.logdir import describe, discover
from tieredstore.live import Isolation, LiveCluster
from tieredstore.live.broker_state import BrokerState
from tieredstore.model import TopicPartition


def cluster_of(server: KafkaServer, isolation: Isolation = "read_uncommitted") -> LiveCluster:
    return LiveCluster({"bootstrap.servers": server.bootstrap_servers}, isolation=isolation, timeout_s=60)


def test_topics_are_named_in_order_without_kafkas_own(kafka: KafkaServer) -> None:
    created = sorted([make_topic(kafka), make_topic(kafka, name="__of-a-user"), make_topic(kafka, name="a.topic")])
    produce_transaction(kafka, created[-1], [Produced(None, b"")], "commit")
    with cluster_of(kafka) as cluster:
        topics = cluster.topics()
    assert list(topics) == sorted(topics)
    assert set(created) <= set(topics)
    assert "__transaction_state" not in topics


def test_a_topic_has_the_id_and_partitions_that_its_folders_have(kafka: KafkaServer) -> None:
    topic = make_topic(kafka, partitions=3)
    # The broker writes a partition's metadata with its first records.
    produce(kafka, topic, [Produced(None, b"")], partition=2)
    with cluster_of(kafka) as cluster:
        live = cluster.topic(topic)
    assert (live.topic, live.partitions) == (topic, (0, 1, 2))
    text = kafka.folder(topic, 2).joinpath("partition.metadata").read_text()
    assert f"topic_id: {live.topic_id}\n" in f"{text}\n"
    assert base64.urlsafe_b64decode(f"{live.topic_id}==") == live.topic_id.bytes


def test_segments_that_the_broker_has_closed_are_found_in_its_folders(kafka: KafkaServer) -> None:
    topic = make_topic(kafka, {"internal.segment.bytes": "20000"})
    for number in range(12):
        produce(kafka, topic, [Produced(None, bytes([number]) * 6000)])
    segments = [segment for segment in discover(kafka.log_dir).segments if segment.topic == topic]
    closed = [describe(segment) for segment in segments[:-1]]
    assert len(closed) >= 3
    with cluster_of(kafka) as cluster:
        assert {segment.topic_id for segment in closed} == {cluster.topic(topic).topic_id}
        assert closed[-1].end_offset < cluster.end_offsets([(topic, 0)])[topic, 0]


def test_offsets_are_those_between_which_can_be_read(kafka: KafkaServer) -> None:
    one, two = make_topic(kafka, partitions=2), make_topic(kafka)
    produce(kafka, one, [Produced(None, b"")] * 5, partition=1)
    produce(kafka, two, [Produced(None, b"")] * 9)
    delete_records(kafka, two, 4)
    places = [(one, 0), (one, 1), (two, 0)]
    with cluster_of(kafka) as cluster:
        assert cluster.earliest_offsets(places) == {(one, 0): 0, (one, 1): 0, (two, 0): 4}
        assert cluster.end_offsets(places) == {(one, 0): 0, (one, 1): 5, (two, 0): 9}
        assert cluster.end_offsets([]) == {}
        assert cluster.offsets_for_times({}) == {}


def test_an_open_transaction_hides_what_is_behind_it(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    produce(kafka, topic, [Produced(None, b"", timestamp_ms=1_000)] * 2)
    Transaction(kafka).send(topic, [Produced(None, b"", timestamp_ms=2_000)])
    produce(kafka, topic, [Produced(None, b"", timestamp_ms=3_000)])
    place = (topic, 0)
    with cluster_of(kafka) as all_of_it, cluster_of(kafka, "read_committed") as committed:
        assert all_of_it.end_offsets([place]) == {place: 4}
        assert committed.end_offsets([place]) == {place: 2}
        assert all_of_it.offsets_for_times({place: 1_500}) == {place: 2}
        assert committed.offsets_for_times({place: 1_500}) == {place: None}


def test_times_are_looked_up_as_consumers_do(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    moments = [1_000, 5_000, 3_000, 8_000]
    for moment in moments:
        produce(kafka, topic, [Produced(None, b"", timestamp_ms=moment)])
    place = (topic, 0)
    with cluster_of(kafka) as cluster:
        for time, offset in {0: 0, 1_000: 0, 1_001: 1, 5_001: 3, 8_000: 3, 8_001: None, 2**62: None}.items():
            assert cluster.offsets_for_times({place: time}) == {place: offset}, time
        # Negative times have other meanings in the protocol: -1 is the end, -2 the beginning.
        assert [cluster.offsets_for_times({place: time})[place] for time in (-1, -2, -3, -(2**63))] == [0] * 4


def test_what_is_not_there_is_said(kafka: KafkaServer) -> None:
    topic = make_topic(kafka)
    properties = {"bootstrap.servers": kafka.bootstrap_servers}
    with LiveCluster(properties, isolation="read_uncommitted") as cluster:
        with pytest.raises(ResourceNotFoundError, match=f"^there is no nobody at {kafka.bootstrap_servers}$"):
            cluster.topic("nobody")

        def ask(call: Callable[[list[TopicPartition]], object], *places: TopicPartition) -> None:
            with pytest.raises(ResourceNotFoundError, match=f"^there is no {'-'.join(map(str, places[-1]))} at"):
                call([*places])

        # Ask in parallel, because a partition counts as absent only after 5 s.
        with ThreadPoolExecutor() as pool:
            asked = [
                pool.submit(ask, cluster.end_offsets, (topic, 0), (topic, 1)),
                pool.submit(ask, cluster.end_offsets, (topic, 1)),
                pool.submit(ask, cluster.earliest_offsets, ("nobody", 0)),
            ]
        for one in asked:
            one.result()


@pytest.mark.slow
def test_a_controller_that_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka waits for a dead controller until it gets an answer to another request, or until the timeout."""
    properties = {"bootstrap.servers": "127.0.0.1:1"}
    monkeypatch.setattr("tieredstore.live.cluster.LiveAdmin", DeadController)
    with LiveCluster(properties, isolation="read_committed", timeout_s=60) as cluster:
        assert cluster.describe(["orders"]) == {}
    monkeypatch.setattr("tieredstore.live.broker_state.LiveAdmin", DeadController)
    with BrokerState(properties, timeout_s=60) as state:
        assert state.topic_ids(["orders"]) == {"orders": None}
