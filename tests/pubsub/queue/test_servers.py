"""The queue's contract, and a topic from end to end, on real servers: who wins a race is theirs to say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.pubsub.pubsub_topics import topics_on, values_of
from tests.support.servers.s3_server import S3Server
from tests.support.stores.s3_stores import options_for
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.pubsub.consume.consumer import Consumer
from tieredstore.pubsub.produce.producer import Producer
from tieredstore.pubsub.queue.queues import NotificationQueue
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.testing.notification_queue_tests import NotificationQueueTests


class OnAServer(NotificationQueueTests):
    @pytest.fixture
    def topics(self, server: S3Server) -> Iterator[Topics]:
        with closing(S3ObjectStore(options_for(server, server.make_bucket()))) as store:
            yield topics_on(store)

    @pytest.fixture
    def queue(self, topics: Topics) -> NotificationQueue:
        return topics.queue(topics.create("orders", 2))

    def test_records_from_a_producer_to_a_group(self, topics: Topics) -> None:
        topics.create("orders", 2)
        with Producer(topics, "orders") as producer:
            futures = [producer.send(b"%d" % number) for number in range(500)]
            producer.flush()
            assert all(future.exception(0) is None for future in futures)
        for values in ([b"%d" % number for number in range(500)], []):
            with Consumer(topics, "orders", group="g") as consumer:
                assert values_of(consumer, at_least=len(values)) == values
                consumer.commit()


class TestMinio(OnAServer):
    @pytest.fixture
    def server(self, minio: S3Server) -> S3Server:
        return minio


class TestSeaweedFS(OnAServer):
    @pytest.fixture
    def server(self, seaweedfs: S3Server) -> S3Server:
        return seaweedfs
