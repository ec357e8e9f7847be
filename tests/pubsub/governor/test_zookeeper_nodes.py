"""Topics and brokers as a broker learns of them: from the nodes of other brokers in ZooKeeper, and from the store."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import json
import random

import pytest

from tests.support.pubsub.pubsub_brokers import PacketClient, message_of, running_broker, write_of
from tests.support.pubsub.pubsub_topics import topics_on
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.errors import CorruptDataError
from tieredstore.pubsub.format.packets import (
    Code,
    MetadataAnswer,
    MetadataRequest,
    PacketType,
    RequestPayload,
    Response,
    TopicMetadata,
    response_bytes,
)
from tieredstore.pubsub.governor.directory import Directory, KnownTopic, StoreTopics
from tieredstore.pubsub.governor.zookeeper_nodes import load_of, parse_broker_node, parse_object
from tieredstore.pubsub.queue.queues import KAFKA
from tieredstore.pubsub.queue.topics import Topic, Topics

BROKER = {
    "brokerIP": "10.0.0.9", "brokerPort": 9092, "instanceType": "2xl", "locality": "us-east-1a",
    "assignedTopics": [{"topic": "clicks", "batchSizeMB": 4, "inputTrafficMB": "9.5", "assignmentTimestamp": 5}],
    "totalNetworkCapacity": 0, "brokerType": "READ_WRITE",
}  # fmt: skip
PATH = "/brokers/10.0.0.9"


def damaged(source: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(source.choice((1, 1, 2, 4))):
        at = source.randrange(len(changed))
        match source.randrange(3):
            case 0:
                changed[at] = source.choice(b'0-9"{}[],:e.')
            case 1:
                del changed[at : at + source.randrange(1, 9)]
            case _:
                changed[at:at] = source.choice((b"99999999999", b'"', b"null", b"1e400", b"NaN", b"-", b"\\ud800"))
    return bytes(changed)


def damaged_nodes(count: int) -> int:
    source, survived = random.Random(7), 0
    for _ in range(count):
        try:
            node = parse_broker_node(damaged(source, json.dumps(BROKER).encode()), PATH)
            loads = [load_of(topic, name, PATH) for name, topic in node.assigned.items()]
        except CorruptDataError:
            continue
        survived += 1
        assert all(load.partitions(1) >= 1 for load in loads)
        again = parse_broker_node(node.body_with(node.assigned.values()), PATH)
        assert (again.seat, again.assigned.keys()) == (node.seat, node.assigned.keys())
        metadata = TopicMetadata("clicks", (node.seat.address,), "s3", (), (node.seat.address,))
        response_bytes(Response(5, 1, PacketType.METADATA, Code.OK, payload=MetadataAnswer((metadata,))))
    return survived


def test_a_damaged_node_is_refused_or_can_be_told_of() -> None:
    assert 50 < damaged_nodes(600) < 550


@pytest.mark.soak
def test_ten_thousand_damaged_nodes() -> None:
    assert 800 < damaged_nodes(10_000) < 9_200


@pytest.mark.parametrize(
    "fields",
    [
        {"brokerIP": None}, {"brokerIP": 4}, {"brokerIP": "x" * 40_000}, {"brokerIP": "\ud800"}, {"brokerPort": "9"},
        {"brokerPort": 40_000}, {"brokerPort": True}, {"locality": [1]}, {"assignedTopics": {"x": 1}},
        {"assignedTopics": [3]}, {"assignedTopics": [{"topic": 3}]},
    ],
)  # fmt: skip
def test_what_no_broker_wrote(fields: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError, match=PATH):
        parse_broker_node(json.dumps({**BROKER, **fields}).encode(), PATH)


@pytest.mark.parametrize(
    "fields", [{"clusteringMultiplier": 0}, {"batchSizeBytes": -1}, {"inputTrafficMB": "x"}, {"inputTrafficMB": [1]},
               {"topic": "another"}],
)  # fmt: skip
def test_what_no_topic_is(fields: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError):
        load_of({"topic": "clicks", **fields}, "clicks", "/topics/clicks")


def test_noise_is_no_node() -> None:
    for raw in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(CorruptDataError):
            parse_object(raw, PATH)


def test_a_topic_that_cannot_be_read_keeps_no_other_from_being_known(caplog: pytest.LogCaptureFixture) -> None:
    topics = topics_on()
    for name in ("clicks", "orders"):
        topics.create(name)
    topics.store.put(topics.folder.key("topics", "damaged.json"), b"{")
    topics.store.put(topics.folder.key("topics", "not a name.json"), b"{}")
    directory = Directory(StoreTopics(topics))
    for _ in range(3):
        assert directory.try_refresh()
    assert [known.name for known in directory.all()] == ["clicks", "orders"]
    sentences = [record.message for record in caplog.records]
    assert len(sentences) == 2, "once each, though topics are read every ten seconds"
    assert all("topic" in sentence for sentence in sentences)


def test_clients_are_told_what_the_queue_is_called_and_no_secret() -> None:
    """MemQ's consumer asks a broker for the queue's name. It finds the Kafka brokers in a file on its own machine."""
    settings = settings_from({
        "storage.backend.class": "s3", "storage.s3.bucket.name": "logs", "storage.s3.region": "us-east-1",
        "storage.aws.access.key.id": "an-id", "storage.aws.secret.access.key": "a-secret", "chunk.size": "4194304",
        "pubsub.kafka.bootstrap.servers": "kafka-1:9092", "pubsub.kafka.sasl.password": "another-secret",
    })  # fmt: skip
    topics = Topics(MemoryObjectStore(), settings)
    source = StoreTopics(topics)
    known = source._make_known(Topic("orders", 1, "prod/topics/orders", True, KAFKA, "orders_notifications"))
    assert (known.handler, dict(known.properties)) == ("s3v2", {
        "bucket": "logs", "region": "us-east-1", "path": "prod/topics/orders", "enableHashing": "true",
        "notificationTopic": "orders_notifications",
    })  # fmt: skip
    stored = source._make_known(Topic("orders", 1, "prod/topics/orders", True))
    assert "notificationTopic" not in dict(stored.properties)


class Broken(StoreTopics):
    """A source with a bug."""

    def get(self, name: str) -> KnownTopic | None:
        raise ZeroDivisionError(name)


@pytest.mark.parametrize("payload", [write_of(message_of([b"v"])), MetadataRequest(("orders",))], ids=["write", "ask"])
def test_an_error_of_the_brokers_own_is_answered_and_keeps_no_room(
    payload: RequestPayload, caplog: pytest.LogCaptureFixture
) -> None:
    topics = topics_on()
    with running_broker(topics, directory=Directory(Broken(topics))) as running:
        for _ in range(2):
            with PacketClient(running.place) as client:
                answer = client.ask(payload)
                assert (answer.code, "ZeroDivisionError" in answer.error) == (Code.REQUEST_FAILED, True)
        assert running.broker.room.taken == 0
    assert "ZeroDivisionError" in caplog.text
