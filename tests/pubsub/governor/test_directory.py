"""The topics that a broker knows: what clients are told of them, and one that cannot be read."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import pytest

from tests.support.pubsub.pubsub_brokers import PacketClient, message_of, running_broker, write_of
from tests.support.pubsub.pubsub_topics import topics_on
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.pubsub.format.packets import Code, MetadataRequest, RequestPayload
from tieredstore.pubsub.governor.directory import Directory, KnownTopic, StoreTopics, refresh_known
from tieredstore.pubsub.queue.queues import KAFKA
from tieredstore.pubsub.queue.topics import Topic, Topics


def test_a_topic_that_cannot_be_read_keeps_no_other_from_being_known(caplog: pytest.LogCaptureFixture) -> None:
    topics = topics_on()
    for name in ("clicks", "orders"):
        topics.create(name)
    topics.store.put(topics.folder.key("topics", "damaged.json"), b"{")
    topics.store.put(topics.folder.key("topics", "not a name.json"), b"{}")
    directory = Directory(StoreTopics(topics))
    for _ in range(3):
        assert refresh_known(directory)
    assert [known.name for known in directory.all()] == ["clicks", "orders"]
    sentences = [record.message for record in caplog.records]
    assert len(sentences) == 2, "once each, though topics are read every ten seconds"
    assert all("topic" in sentence for sentence in sentences)


def test_clients_are_told_what_the_queue_is_called_and_no_secret() -> None:
    """MemQ's consumer asks a broker for it; where Kafka is it knows by a file of its own machine."""
    settings = settings_from({
        "storage.backend.class": "s3", "storage.s3.bucket.name": "logs", "storage.s3.region": "us-east-1",
        "storage.aws.access.key.id": "an-id", "storage.aws.secret.access.key": "a-secret", "chunk.size": "4194304",
        "pubsub.kafka.bootstrap.servers": "kafka-1:9092", "pubsub.kafka.sasl.password": "another-secret",
    })  # fmt: skip
    topics = Topics(MemoryObjectStore(), settings)
    source = StoreTopics(topics)
    known = source._known(Topic("orders", 1, "prod/topics/orders", True, KAFKA, "orders_notifications"))
    assert (known.handler, dict(known.properties)) == ("s3v2", {
        "bucket": "logs", "region": "us-east-1", "path": "prod/topics/orders", "enableHashing": "true",
        "notificationTopic": "orders_notifications",
    })  # fmt: skip
    stored = source._known(Topic("orders", 1, "prod/topics/orders", True))
    assert "notificationTopic" not in dict(stored.properties)


class Broken(StoreTopics):
    """A source with an error of its own."""

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
