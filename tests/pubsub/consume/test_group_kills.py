"""Members of a group, each in its own process, are killed, stopped, woken and added while records arrive, with either
queue. Each acknowledged record is read, and committed positions never decrease.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.pubsub.pubsub_topics import topics_in
from tests.support.servers.kafka import KafkaServer
from tests.support.waiting import wait_until
from tieredstore.errors import FencedError, TieredStoreError
from tieredstore.pubsub.consume import consumer as consuming
from tieredstore.pubsub.produce.futures import RecordPlace
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.groups import StoreGroup
from tieredstore.pubsub.queue.queues import Position
from tieredstore.pubsub.queue.topics import Topics

pytestmark = pytest.mark.soak

LONG_S = 300.0
PARTITIONS = 3
MOST_MEMBERS = 4


def be_a_member(topics: Topics, log: Path) -> None:
    """In a child process, read and commit forever. Log each value before committing it."""
    # Intervals are shorter than in production, since the test needs many deaths.
    patch.object(consuming, "StoreGroup", partial(StoreGroup, beat_s=0.3, patience_s=2.0)).start()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with consuming.BatchConsumer(topics, "orders", group="g") as consumer:
        while True:
            with suppress(TieredStoreError):
                rows: Any = consumer.poll(0.1)
                if rows is not None:
                    values: list[bytes] = rows.column("value").to_pylist()
                    os.write(output, b"".join(value + b"\n" for value in values))
                if time.monotonic_ns() % 3:
                    commit(consumer, output)


def commit(consumer: consuming.BatchConsumer, output: int) -> None:
    try:
        consumer.commit()
    except FencedError:
        os.write(output, b"fenced\n")


class Members:
    """Processes, each of which may be dead or stopped."""

    def __init__(self, topics: Topics, folder: Path, seed: int) -> None:
        self.topics, self.folder = topics, folder
        self.source = random.Random(seed)
        self.living: list[int] = []
        self.stopped: set[int] = set()
        self.count = 0

    def add(self) -> None:
        self.count += 1
        child = os.fork()
        if not child:
            try:
                be_a_member(self.topics, self.folder / f"member-{self.count}")
            finally:
                os._exit(1)
        self.living.append(child)

    def fault(self) -> None:
        running = [each for each in self.living if each not in self.stopped]
        faults: list[Callable[[], None]] = [self.wake] * len(self.stopped)
        if len(self.living) < MOST_MEMBERS:
            faults += [self.add] * 2
        if len(running) > 1:
            faults += [self.stop, self.kill]
        self.source.choice(faults)()

    def stop(self) -> None:
        child = self.source.choice([each for each in self.living if each not in self.stopped])
        os.kill(child, signal.SIGSTOP)
        self.stopped.add(child)

    def wake(self) -> None:
        child = self.source.choice(sorted(self.stopped))
        os.kill(child, signal.SIGCONT)
        self.stopped.discard(child)

    def kill(self) -> None:
        self.end(self.source.choice(self.living))

    def end(self, child: int) -> None:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it had ended by itself"
        self.living.remove(child)
        self.stopped.discard(child)

    def given(self) -> list[bytes]:
        lines = [line for log in self.folder.glob("member-*") for line in log.read_bytes().splitlines()]
        return [line for line in lines if line != b"fenced"]

    @property
    def fenced(self) -> int:
        return sum(log.read_bytes().count(b"fenced\n") for log in self.folder.glob("member-*"))


@contextmanager
def records(topics: Topics) -> Generator[set[bytes]]:
    """Send a record every few milliseconds; yield the acknowledged records."""
    acked: set[bytes] = set()
    is_over = threading.Event()

    def send() -> None:
        with BatchProducer(topics, "orders") as producer:
            number = 0
            while not is_over.wait(0.01):
                value = b"%07d" % number
                producer.send(value).add_done_callback(partial(note, value))
                number += 1

    def note(value: bytes, done: Future[RecordPlace]) -> None:
        if done.exception() is None:
            acked.add(value)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield acked
    finally:
        is_over.set()
        thread.join(LONG_S)


def positions(topics: Topics) -> dict[int, Position]:
    states = topics.groups(topics.get("orders")).get("g", ())
    return {state.partition: state.position for state in states if state.position is not None}


def play(topics: Topics, folder: Path, seed: int, faults: int, pause_s: float) -> None:
    topics.create("orders", PARTITIONS)
    members = Members(topics, folder, seed)
    members.add()
    members.add()
    latest: dict[int, Position] = {}

    def look() -> None:
        for partition, position in positions(topics).items():
            assert position >= latest.get(partition, Position(0)), "what was committed has gone back"
            latest[partition] = position

    try:
        with records(topics) as acked:
            for _ in range(faults):
                end_s = time.monotonic() + members.source.uniform(0, 2 * pause_s)
                while time.monotonic() < end_s:
                    look()
                    time.sleep(0.1)
                members.fault()
        while members.stopped:
            members.wake()
        with topics.queue(topics.get("orders")) as queue:
            ends = {partition: queue.end(partition) for partition in range(PARTITIONS)}
            wait_until(
                lambda: not any(queue.read(partition, latest.get(partition, Position(0)).offset) for partition in ends),
                what=(latest, ends),
                meanwhile=look,
            )
    finally:
        for child in list(members.living):
            members.end(child)
    given = members.given()
    assert len(acked) > faults
    assert acked <= set(given)
    print(f"{len(acked)} records, {len(given) - len(set(given))} again, {members.fenced} commits fenced")


@pytest.fixture
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the members' logs."""
    return tmp_path_factory.mktemp("logs")


@pytest.mark.parametrize("seed", range(3))
def test_members_of_a_group_in_the_store(tmp_path: Path, logs: Path, seed: int) -> None:
    play(topics_in(tmp_path, batch_ms="20"), logs, seed, 30, 2.0)


@pytest.mark.broker
@pytest.mark.parametrize("seed", range(2))
def test_members_of_a_group_of_kafkas(kafka: KafkaServer, tmp_path: Path, logs: Path, seed: int) -> None:
    topics = topics_in(
        tmp_path, queue="kafka", queue_topic=f"group-kills-{os.getpid()}-{time.time_ns()}", batch_ms="20",
        kafka_bootstrap_servers=kafka.bootstrap_servers, kafka_session_timeout_ms="6000",
        kafka_heartbeat_interval_ms="500",
    )  # fmt: skip
    play(topics, logs, seed, 15, 5.0)
