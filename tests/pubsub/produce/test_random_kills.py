"""Producer processes on one topic are killed (kill -9) at any moment, one after the other, with each kind of queue."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from pathlib import Path

import pytest

from tests.support.pubsub.pubsub_topics import batch_keys, notified, read_values, topics_in, topics_later
from tests.support.servers.kafka import KafkaServer
from tieredstore.ops.steps import Outcome
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.garbage import GarbageCollection

LONG_S = 120.0
DAY_MS = 86_400_000
ID_SIZE = 10  # digits of each number in a value: the producer's and the record's


def produce_for_ever(topics: Topics, run: int, acks: int) -> None:
    """In the child process, send several records at once. Write each acknowledged value to the pipe."""
    producer = BatchProducer(topics, "orders")
    for number in range(1_000_000):
        value = b"%04d/%05d" % (run, number)
        future = producer.send(value)
        future.add_done_callback(lambda _, value=value: os.write(acks, value))  # type: ignore[misc]
        time.sleep(0.001)


def kill_after(topics: Topics, run: int, seconds: float) -> set[bytes]:
    """Kill a producer this long after its first acknowledgement. Return its acknowledged values."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            produce_for_ever(topics, run, writing)
        finally:
            os._exit(0)
    os.close(writing)
    if run % 4:  # the others are killed while they start
        assert select.select([reading], [], [], LONG_S)[0], "the producer is told of nothing"
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    with os.fdopen(reading, "rb") as pipe:
        acks = pipe.read()
    return {acks[at : at + ID_SIZE] for at in range(0, len(acks), ID_SIZE)}


def kill_and_read(topics: Topics, kills: int, most_s: float = 0.2) -> None:
    dice = random.Random(kills)
    topics.create("orders")
    acked: set[bytes] = set()
    for run in range(kills):
        acked |= kill_after(topics, run, dice.uniform(0.0, most_s))
    assert acked, "every producer was killed before its first acknowledgement"
    read = read_values(topics, len(acked))
    assert len(read) == len(set(read))
    assert acked <= set(read)
    # ``gc`` names exactly the objects without a notification.
    told = {notification.key for notification in notified(topics)}
    stored = set(batch_keys(topics))
    assert told <= stored
    found = list(GarbageCollection(BatchLog(topics_later(topics, 2), topics.get("orders")), min_age_ms=DAY_MS).run())
    assert {each.name for each in found if each.code == Outcome.DELETED} == stored - told


def on_kafka(kafka: KafkaServer, folder: Path) -> Topics:
    return topics_in(
        folder, queue="kafka", queue_topic=f"random-kills-{os.getpid()}-{time.time_ns()}",
        kafka_bootstrap_servers=kafka.bootstrap_servers, batch_ms="5",
    )  # fmt: skip


@pytest.mark.slow
def test_ten_producers_killed_at_any_moment_lose_no_ack_and_double_nothing(tmp_path: Path) -> None:
    kill_and_read(topics_in(tmp_path, batch_ms="5"), 10)


@pytest.mark.slow
@pytest.mark.broker
def test_ten_producers_of_a_queue_in_kafka_killed_at_any_moment(kafka: KafkaServer, tmp_path: Path) -> None:
    kill_and_read(on_kafka(kafka, tmp_path), 10)


@pytest.mark.soak
def test_two_hundred_producers_killed_at_any_moment(tmp_path: Path) -> None:
    kill_and_read(topics_in(tmp_path, batch_ms="5"), 200)


@pytest.mark.soak
@pytest.mark.broker
def test_two_hundred_producers_of_a_queue_in_kafka_killed_at_any_moment(kafka: KafkaServer, tmp_path: Path) -> None:
    kill_and_read(on_kafka(kafka, tmp_path), 200)
