"""Fairness and idle cost of a consumer of many partitions of a bucket, without a broker."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from confluent_kafka import TopicPartition

from tests.support.records.topic_buckets import Bucket
from tieredstore.consumer import Consumer

_TOPIC: Final = "orders"
_REFRESH_S: Final = 30.0
"""The default of ``tiered.storage.refresh.ms``, in seconds."""
_FAIR_PARTITIONS: Final = 8
_FAIR_RECORDS: Final = 20_000
_IDLE_S: Final = 60.0


def fairness(folder: Path) -> float:
    """Read eight equal partitions; return the records of the most served partition, divided by those of the least
    served.

    Each call asks for 500 records. The records are counted once half of all have been returned.
    """
    bucket = Bucket(folder)
    for number in range(_FAIR_PARTITIONS):
        for _ in range(4):
            bucket.write(_FAIR_RECORDS // 4, _TOPIC, number)
    given: Counter[int] = Counter()
    with Consumer(_properties(bucket, **{"tiered.storage.queued.max.kbytes": 1024})) as consumer:
        consumer.assign([TopicPartition(_TOPIC, number, 0) for number in range(_FAIR_PARTITIONS)])
        while given.total() < _FAIR_PARTITIONS * _FAIR_RECORDS // 2:
            given.update(message.partition() for message in consumer.consume(500, 1.0))
    bucket.close()
    return round(max(given.values()) / max(1, min(given[number] for number in range(_FAIR_PARTITIONS))), 2)


def idle(folder: Path, partitions: int = 500) -> dict[str, float]:
    """Return what a consumer of partitions without new data costs: its share of a core, and its listings per partition
    and refresh interval."""
    bucket = Bucket(folder)
    for number in range(partitions):
        bucket.write(20, _TOPIC, number)
    with Consumer(_properties(bucket, **{"tiered.storage.refresh.ms": int(_REFRESH_S * 1000)})) as consumer:
        consumer.assign([TopicPartition(_TOPIC, number, 0) for number in range(partitions)])
        read = 0
        while read < 20 * partitions:
            read += len(consumer.consume(500, 1.0))
        while any(one["phase"] != "waiting" for one in consumer.tiered_stats().values()):
            consumer.poll(0.1)
        inside: Any = consumer
        begun, processor, listings = time.monotonic(), time.process_time(), inside._parts.core.lookups.refreshes
        while time.monotonic() < begun + _IDLE_S:
            consumer.poll(1.0)
        seconds = time.monotonic() - begun
        figures = {
            "core_share": round((time.process_time() - processor) / seconds, 4),
            "listings_an_interval": round(
                (inside._parts.core.lookups.refreshes - listings) / partitions / (seconds / _REFRESH_S), 2
            ),
        }
    bucket.close()
    return figures


def _properties(bucket: Bucket, **own: Any) -> dict[str, Any]:
    return {
        "group.id": "bench", "tiered.storage.mode": "remote_only", "log_level": 2,
        "tiered.storage.settings": bucket.options | {"chunk.size": "1048576"}, **own,
    }  # fmt: skip
