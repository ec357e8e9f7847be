"""Uploaders as processes next to real brokers, and the producers' delivery reports."""

from __future__ import annotations

import random
import subprocess
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.support.cli.cli_process import command, environment, measured_command
from tests.support.kafka.kafka_topics import TIMEOUT_S
from tests.support.paths import REPOSITORY
from tests.support.waiting import END_S

Place = tuple[str, int]


class Written:
    """Delivery reports: the value at each offset, and the offsets of aborted transactions."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self.values: dict[Place, dict[int, bytes]] = defaultdict(dict)
        self.aborted: dict[Place, set[int]] = defaultdict(set)
        self.failed: list[object] = []

    def write(self, producer: Producer, topic: str, source: random.Random, count: int, outcome: str | None) -> None:
        """Write records to random partitions, in a transaction with this ``outcome`` if it is given."""
        if outcome is not None:
            producer.begin_transaction()
        for _ in range(count):
            value = source.randbytes(source.randrange(400))
            self.send(producer, topic, source.randrange(self._partitions), value, outcome)
        assert producer.flush(TIMEOUT_S) == 0
        if outcome == "commit":
            producer.commit_transaction(TIMEOUT_S)
        elif outcome == "abort":
            producer.abort_transaction(TIMEOUT_S)

    def send(self, producer: Producer, topic: str, partition: int, value: bytes, outcome: str | None) -> None:
        """Write one record; note its offset as aborted if ``outcome`` says that its transaction will be aborted."""
        producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, message: self._note(error, message, outcome),
        )

    def _note(self, error: object, message: Any, outcome: str | None) -> None:
        if error:
            self.failed.append(error)
            return
        place = (message.topic(), message.partition())
        self.values[place][message.offset()] = message.value()
        if outcome == "abort":
            self.aborted[place].add(message.offset())


@contextmanager
def uploader_process(settings: Path, log: Path, *, measured: bool = False) -> Generator[subprocess.Popen[bytes]]:
    """Run an uploader, at most until the block ends; ``measured`` collects the coverage of one that ends by itself."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            (measured_command if measured else command)("uploader", "-c", settings),
            env=environment(PYTHONPATH=str(REPOSITORY)),
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(END_S)
