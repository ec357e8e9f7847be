"""The benchmark's topic in a local broker, and a loop by which a Kafka client reads it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.spark.spark_topic import SparkTopic
from tests.support.servers.kafka import KafkaServer, start_kafka
from tieredstore.kafka.logdir import PARTITION_METADATA

CONSUME: Final = 10_000
"""The number of messages in one request to the client."""

TUNED: Final = {
    "fetch.queue.backoff.ms": "2",
    "queued.max.messages.kbytes": str(256 << 10),
    "queued.min.messages": "1000000",
    "fetch.message.max.bytes": str(16 << 20),
    "fetch.max.bytes": str(64 << 20),
}
"""The client settings that were fastest in trials."""

_BROKER: Final = {"log.retention.ms": "-1", "log.retention.bytes": "-1", "log.segment.bytes": str(2**30)}
_JVM: Final = ("-Xms512m", "-Xmx512m", "-Xshare:auto")
_TIMEOUT_S: Final = 60.0
_RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic in a running broker."""

    name: str
    records: int
    server: KafkaServer = field(repr=False)

    def consume(self) -> None:
        """Read all records in a plain loop, adding up the lengths of their values."""
        config = {
            "bootstrap.servers": self.server.bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "log_level": "2",
        }
        # Untyped: confluent-kafka's messages have no types.
        consumer: Any = Consumer({**config, **TUNED})
        consumer.assign([TopicPartition(self.name, 0, 0)])
        read = lengths = 0
        while read < self.records:
            # A request for more records than remain would wait for the whole timeout.
            messages = consumer.consume(min(CONSUME, self.records - read), _TIMEOUT_S)
            if not messages or messages[0].error():
                raise RuntimeError(f"the consumer stopped after {read} records: {messages[:1]}")
            lengths += sum([len(message.value()) for message in messages])
            read += len(messages)
        consumer.close()


@contextmanager
def topic_on_broker(topic: SparkTopic) -> Generator[KafkaTopic]:
    """Run a broker with the topic's segments, which are copied into its log directory instead of being produced
    again."""
    home = topic.folder / "broker"
    shutil.rmtree(home, ignore_errors=True)
    overrides = _BROKER | {"log.dirs": str(home)}
    try:
        with start_kafka(_JVM, **overrides) as server:
            _create(topic, server)
        _plant(topic, home)
        with start_kafka(_JVM, **overrides) as server:
            yield KafkaTopic(topic.name, topic.records, server)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _create(topic: SparkTopic, server: KafkaServer) -> None:
    admin: Any = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": "2"})
    admin.create_topics([NewTopic(topic.name, 1)])[topic.name].result(_TIMEOUT_S)
    end = time.monotonic() + _TIMEOUT_S
    while not (server.folder(topic.name) / PARTITION_METADATA).exists():
        if time.monotonic() > end:
            raise RuntimeError("the broker did not make the folder of the partition")
        time.sleep(0.05)


def _plant(topic: SparkTopic, home: Path) -> None:
    """Put the segments into the partition of a stopped broker, as if it had written them itself.

    The topic keeps the broker's topic id. Write a recovery point, so that the broker does not read the segments at
    startup.
    """
    target = home / f"{topic.name}-0"
    for path in target.iterdir():
        if path.name != PARTITION_METADATA:
            path.unlink()
    for path in topic.partition_folder.iterdir():
        if path.suffix == ".log":
            os.link(path, target / path.name)
        elif path.name != PARTITION_METADATA:
            shutil.copyfile(path, target / path.name)
    points = home / _RECOVERY_POINTS
    lines = points.read_text().splitlines()[2:] if points.exists() else []
    others = [line for line in lines if not re.fullmatch(rf"{re.escape(topic.name)} 0 \d+", line)]
    entries = [*others, f"{topic.name} 0 {topic.records}"]
    points.write_text("\n".join(["0", str(len(entries)), *entries, ""]))
