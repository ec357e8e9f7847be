"""Contents of snapshots of real brokers (Kafka's newest release and 3.9) with an authorizer and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition, admin

from tests.support.kafka.kafka_topics import create_acls
from tests.support.kafka.other_groups import OTHER_GROUPS, make_other_groups
from tests.support.servers.kafka import PASSWORD, USER, start_kafka
from tests.support.servers.kafka_cluster import KAFKA_39, start_kafka_cluster
from tieredstore.errors import BrokerUnavailableError
from tieredstore.format.cluster_snapshot import AclEntry, CommittedOffset, GroupOffsets
from tieredstore.live.cluster import GroupClient
from tieredstore.live.cluster_state import ClusterState

_admin: Any = admin
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    **OTHER_GROUPS,
}
ACL = AclEntry("TOPIC", "ord", "PREFIXED", f"User:{USER}", "*", "DESCRIBE", "ALLOW")


@dataclass(frozen=True)
class Filled:
    """A cluster with two topics, an ACL and groups; ``servers`` are for its administrator."""

    servers: str
    login: dict[str, str]

    def state(self, **more: str) -> ClusterState:
        return ClusterState({"bootstrap.servers": self.servers, **more})


@pytest.fixture(scope="module")
def newest() -> Iterator[Filled]:
    with start_kafka(**AUTHORIZER) as server:
        fill(server.bootstrap_servers)
        create_acl(server.bootstrap_servers)
        consume(server.bootstrap_servers, "fresh", "consumer")
        make_other_groups(server.bootstrap_servers, "orders")
        login = {
            "bootstrap.servers": server.sasl_servers, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD,
        }  # fmt: skip
        yield Filled(server.bootstrap_servers, login)


def fill(servers: str) -> None:
    client = _admin.AdminClient({"bootstrap.servers": servers})
    topics = [
        _admin.NewTopic("orders", 3, 1, config={"retention.ms": "86400000", "cleanup.policy": "compact,delete"}),
        _admin.NewTopic("plain", 1, 1),
    ]
    for future in client.create_topics(topics).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(30):
        producer.produce("orders", b"x", key=b"k", partition=number % 3)
    assert producer.flush(60) == 0
    consume(servers, "billing", "classic")


def consume(servers: str, group: str, protocol: str) -> None:
    """Read all, and commit 10 in partition 0 and 7 in partition 1, the latter with metadata."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": group, "group.protocol": protocol, "enable.auto.commit": False}
    )
    with closing(consumer):
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(1)
        places = [TopicPartition("orders", 0, 10), TopicPartition("orders", 1, 7, "a note")]
        consumer.commit(offsets=places, asynchronous=False)


def create_acl(servers: str) -> None:
    binding = _admin.AclBinding(
        _admin.ResourceType.TOPIC, "ord", _admin.ResourcePatternType.PREFIXED, f"User:{USER}", "*",
        _admin.AclOperation.DESCRIBE, _admin.AclPermissionType.ALLOW,
    )  # fmt: skip
    create_acls(servers, binding)


def offsets_of(group: str, protocol: Any) -> GroupOffsets:
    return GroupOffsets(group, protocol, (CommittedOffset("orders", 0, 10), CommittedOffset("orders", 1, 7, "a note")))


@pytest.mark.slow
def test_everything_is_read_that_the_login_may_read(newest: Filled) -> None:
    with newest.state() as state:
        topics, not_held = state.topic_settings()
        groups, groups_not_held = state.groups(topics)
        assert state.acls() == (ACL,)
    assert [(each.topic, each.partition_count, each.replication_factor, each.settings) for each in topics] == [
        ("orders", 3, 1, {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}),
        ("plain", 1, 1, {}),
    ]
    assert not not_held
    assert groups == [offsets_of("billing", "classic"), offsets_of("fresh", "consumer")]
    assert [(each.kind, each.name) for each in groups_not_held] == [("group", "shared"), ("group", "streaming")]
    assert all("share and streams" in each.reason for each in groups_not_held)


@pytest.mark.slow
def test_what_a_login_may_not_read_is_named(newest: Filled) -> None:
    with newest.state(**newest.login) as state:
        topics, not_held = state.topic_settings()
        assert state.acls() is None
        assert state.groups(topics) == ([], [])
    assert not topics
    assert [(each.kind, each.name) for each in not_held] == [("topic", "orders")]
    assert "authorization failed" in not_held[0].reason.lower()


@pytest.mark.slow
def test_brokers_of_39_without_an_authorizer() -> None:
    with (
        start_kafka_cluster(1, libs=KAFKA_39) as cluster,
        ClusterState({"bootstrap.servers": cluster.bootstrap_servers}) as state,
    ):
        fill(cluster.bootstrap_servers)
        topics, not_held = state.topic_settings()
        assert state.acls() == ()
        groups, groups_not_held = state.groups(topics)
    assert [each.topic for each in topics] == ["orders", "plain"]
    assert topics[0].settings == {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}
    assert groups == [offsets_of("billing", "classic")]
    assert not not_held + groups_not_held


@pytest.mark.slow
def test_a_group_with_a_hanging_transaction_is_named_and_the_others_are_read(
    newest: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = GroupClient.fetch_commits

    def hurried(client: GroupClient, places: Sequence[tuple[str, int]], doing: str, timeout_s: float) -> Any:
        return committed(client, places, doing, 1.0 if "group pending" in doing else timeout_s)

    monkeypatch.setattr(GroupClient, "fetch_commits", hurried)
    producer = Producer({"bootstrap.servers": newest.servers, "transactional.id": "hanging"})
    producer.init_transactions(60)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": newest.servers, "group.id": "pending"})
    producer.send_offsets_to_transaction([TopicPartition("orders", 0, 3)], consumer.consumer_group_metadata(), 60)
    try:
        with ClusterState({"bootstrap.servers": newest.servers}, group_s=60.0) as state:
            topics, _ = state.topic_settings()
            groups, not_held = state.groups(topics)
    finally:
        producer.abort_transaction(60)
        consumer.close()
    assert groups == [offsets_of("billing", "classic"), offsets_of("fresh", "consumer")]
    assert [each.name for each in not_held] == ["shared", "streaming", "pending"]
    assert "the offsets of the group pending" in not_held[-1].reason


@pytest.mark.slow
def test_brokers_that_do_not_answer_are_an_error() -> None:
    with (
        ClusterState({"bootstrap.servers": "127.0.0.1:9"}, timeout_s=0.5) as state,
        pytest.raises(BrokerUnavailableError, match=r"the cluster 127\.0\.0\.1:9 cannot be described"),
    ):
        state.cluster_id()
