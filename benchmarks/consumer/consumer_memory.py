"""Peak memory of a consumer above its imports, in a separate process.

    python -m benchmarks.consumer.consumer_memory PROPERTIES TOPIC RECORDS   (as :func:`memory` starts it)

A consumer reads all partitions from bucket and broker by ``poll_arrow``, with pauses that let its queues fill. A second
consumer reads the same by ``consume``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import TopicPartition

from benchmarks.consumer.consumer_topic import TieredLog
from tests.support.servers.kafka import KafkaServer
from tieredstore.consumer import Consumer

_QUEUED_KIB: Final = 65_536
"""The limit of each of the two queues, which is the default."""

_STANDS_S: Final = 3.0
_MIB: Final = 1024 * 1024


def memory(server: KafkaServer, folder: Path, records: int, partitions: int) -> dict[str, float]:
    """Return how far the peak memory exceeds the memory after the imports, and the limit: both queues and 96 MiB."""
    config = {"internal.segment.bytes": str(max(200_000, (150 << 20) // (2 * partitions)))}
    # Compress segments, so that data in flight is in memory twice: compressed and decompressed.
    log = TieredLog(server, folder, records, compresses=True, partitions=partitions, config=config)
    properties = log.client(
        tiered_storage_mode="remote_preferred", tiered_storage_queued_max_kbytes=_QUEUED_KIB,
        queued_max_messages_kbytes=_QUEUED_KIB,
    )  # fmt: skip
    line = [sys.executable, "-m", __name__, json.dumps(properties), log.topic, str(partitions), str(records)]
    output = subprocess.run(line, check=True, stdout=subprocess.PIPE)
    most: dict[str, float] = json.loads(output.stdout)
    return {**most, "limit": 2 * _QUEUED_KIB / 1024 + 96}


def _read_all(properties: dict[str, Any], places: list[TopicPartition], records: int, *, in_columns: bool) -> None:
    with Consumer(properties) as consumer:
        consumer.assign(places)
        read, stands_at = 0, records // 2
        while read < records:
            if in_columns:
                batch = consumer.poll_arrow(1.0)
                read += 0 if batch is None else batch.records.num_rows
            else:
                read += len(consumer.consume(10_000, 1.0))
            # Pause twice, so that the queues fill: while reading the bucket, and while reading the broker.
            if read >= stands_at:
                time.sleep(_STANDS_S)
                stands_at += records * 45 // 100


def _main() -> None:
    properties, topic, partitions, records = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    places = [TopicPartition(topic, number, 0) for number in range(partitions)]
    before = _kib("VmRSS")
    figures: dict[str, float] = {}
    for name, in_columns in (("poll_arrow", True), ("consume", False)):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        _read_all(properties, places, records, in_columns=in_columns)
        figures[name] = round((_kib("VmHWM") - before) / 1024, 1)
    print(json.dumps(figures))


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    _main()
