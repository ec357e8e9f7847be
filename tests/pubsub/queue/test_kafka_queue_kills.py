"""A producer process is killed (kill -9) around each put of an object and each record of a queue in Kafka."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import pytest

from tests.support.pubsub.pubsub_topics import topics_in, topics_later, values_of
from tests.support.servers.kafka import KafkaServer
from tests.support.stores.doubles import DelegatingObjectStore
from tieredstore.backends.base import Body
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.live.clients import LiveProducer
from tieredstore.ops.steps import Outcome
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.format.notifications import parse_notification
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.kafka_queue import KafkaQueue
from tieredstore.pubsub.queue.queues import NotificationQueue, QueueSite
from tieredstore.pubsub.queue.topics import BatchLog, Topic, Topics
from tieredstore.pubsub.upkeep.garbage import GarbageCollection
from tieredstore.testing.notification_queue_tests import read_all

pytestmark = [pytest.mark.slow, pytest.mark.broker]
LONG_S = 120.0
BATCHES = 3
Moment = Literal["before", "during", "after"]
Result = TypeVar("Result")
_names = itertools.count()


class Reaper:
    """Counter of operations that kills this process before, during or after operation ``at``."""

    def __init__(self, at: int, moment: Moment) -> None:
        self.at, self.moment = at, moment
        self.count = itertools.count()

    def around(self, operation: Callable[[], Result]) -> Result:
        is_it = next(self.count) == self.at
        if is_it and self.moment == "before":
            self.kill()
        if is_it and self.moment == "during":
            threading.Thread(target=operation, daemon=True).start()
            time.sleep(0.002)
            self.kill()
        result = operation()
        if is_it:
            self.kill()
        return result

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # other threads may run for a moment; this one stops here


class ReapedStore(DelegatingObjectStore):
    def __init__(self, folder: Path, reaper: Reaper) -> None:
        super().__init__(FilesystemObjectStore(folder))
        self.reaper = reaper

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        self.reaper.around(lambda: super(ReapedStore, self).put(key, body, if_absent=if_absent))


class ReapedQueue(KafkaQueue):
    reaper: Reaper

    def _send(self, partition: int, raw: bytes, deadline: Deadline) -> int:
        if self.reaper.moment == "during":
            # Kill while the record is in the client, or on its way to the broker, and no answer has arrived.
            if next(self.reaper.count) == self.reaper.at:
                producer: LiveProducer = self._producer.get()
                producer.produce(self._name, raw, partition=partition)
                producer.poll(0.005)
                self.reaper.kill()
            return super()._send(partition, raw, deadline)
        return self.reaper.around(lambda: super(ReapedQueue, self)._send(partition, raw, deadline))


class ReapedTopics(Topics):
    def queue(self, topic: Topic) -> NotificationQueue:
        return ReapedQueue.open(QueueSite(self.folder, topic.name, topic.partitions, topic.queue_name, self.batches))


def produce_until_killed(topics: Topics, folder: Path, reaper: Reaper, acks: int) -> None:
    """In the child process, send batches one after the other. Write each acknowledged value to the pipe."""
    ReapedQueue.reaper = reaper
    producer = BatchProducer(ReapedTopics(ReapedStore(folder, reaper), topics.settings), "orders")
    for number in range(BATCHES):
        producer.send(b"%d" % number).result(LONG_S)
        os.write(acks, b"%d" % number)
    producer.close()


def kill_and_read(kafka: KafkaServer, folder: Path, at: int, moment: Moment) -> None:
    topics = topics_in(
        folder, queue="kafka", queue_topic=f"killed-{os.getpid()}-{time.time_ns()}-{next(_names)}",
        kafka_bootstrap_servers=kafka.bootstrap_servers, batch_ms="5",
    )  # fmt: skip
    topics.create("orders")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            produce_until_killed(topics, folder, Reaper(at, moment), writing)
        finally:
            os._exit(0)
    os.close(writing)
    acked = {bytes([byte]) for byte in _whole(reading)}
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if at < 2 * BATCHES else 0)
    with BatchConsumer(topics, "orders") as consumer:
        read = values_of(consumer, at_least=len(acked), timeout_s=1.5)
    assert len(read) == len(set(read))
    assert acked <= set(read) <= {b"%d" % number for number in range(BATCHES)}
    # ``gc`` names exactly the objects without a notification. With an empty queue, it deletes nothing, because
    # the queue may have been re-created, and the old queue may have had notifications of the objects.
    with topics.queue(topics.get("orders")) as queue:
        notified = {parse_notification(entry.raw, "q").key for entry in read_all(queue, 0)}
    stored = {info.key for info in topics.store.list() if "!tieredstore" not in info.key}
    assert notified <= stored
    assert len(stored - notified) <= 1
    found = list(GarbageCollection(BatchLog(topics_later(topics, 2), topics.get("orders"))).run())
    expected = Outcome.DELETED if notified else Outcome.FORGOTTEN
    assert {each.name for each in found if each.code == expected} == stored - notified


def _whole(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read()


@pytest.mark.parametrize(("at", "moment"), [(2, "after"), (3, "during")])
def test_a_killed_producer_loses_no_ack_and_doubles_nothing(
    kafka: KafkaServer, tmp_path: Path, at: int, moment: Moment
) -> None:
    kill_and_read(kafka, tmp_path, at, moment)


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("at", range(2 * BATCHES + 1))
def test_a_producer_killed_at_any_operation(kafka: KafkaServer, tmp_path: Path, at: int, moment: Moment) -> None:
    kill_and_read(kafka, tmp_path, at, moment)
