"""Measurement of a producer's waits for a local broker, and appends to logs that an uploader watches."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.servers.kafka import KafkaServer

TOPIC: Final = "produced"
PARTITIONS: Final = 12
_TIMEOUT_S: Final = 60.0
_VALUE: Final = os.urandom(1000)
_APPENDS: Final = """
import os, sys, time
rate, seconds, *logs = sys.argv[1:]
rate, logs = int(rate), [os.open(log, os.O_WRONLY | os.O_APPEND) for log in logs]
began, done = time.monotonic(), 0
while (passed := time.monotonic() - began) < float(seconds):
    for _ in range(int(rate * passed) - done):
        os.write(logs[done % len(logs)], b"1234567890123456")
        done += 1
    time.sleep(0.002)
print(done / passed)
"""


def make_topic(server: KafkaServer, segment_bytes: int) -> None:
    """Create a topic whose segments close repeatedly while it is written."""
    admin: Any = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": "2"})
    topic = NewTopic(TOPIC, PARTITIONS, config={"segment.bytes": str(segment_bytes)})
    admin.create_topics([topic])[TOPIC].result(_TIMEOUT_S)


def produce_waits(server: KafkaServer, rate: int, seconds: float) -> list[float]:
    """Send messages of 1 kB at this rate; return for each the milliseconds until all replicas have it."""
    waits: list[float] = []
    producer: Any = Producer(
        {"bootstrap.servers": server.bootstrap_servers, "acks": "all", "linger.ms": "0", "log_level": "2"}
    )

    def sent_at(started: float) -> Any:
        def delivered(error: object, _: object) -> None:
            if error is not None:
                raise RuntimeError(str(error))
            waits.append(1000 * (time.perf_counter() - started))

        return delivered

    began, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        for _ in range(int(rate * passed) - sent):
            producer.produce(TOPIC, _VALUE, partition=sent % PARTITIONS, on_delivery=sent_at(time.perf_counter()))
            sent += 1
        producer.poll(0.001)
    producer.flush(_TIMEOUT_S)
    return waits


def append(logs: list[Path], rate: int, seconds: float) -> float:
    """Write to the ends of logs in another process; return the writes per second."""
    command = [sys.executable, "-c", _APPENDS, str(rate), str(seconds), *map(str, logs)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
