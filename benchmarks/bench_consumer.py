"""Throughput of a consumer of bucket and broker, compared with the reader that it uses and with the plain client.

    python -m benchmarks.bench_consumer [--records N] [--runs N] [--memory-records N]

Topics of the same JSON records in a local broker, whose closed segments are copied into a folder. Within a round all
jobs read the same records, each with a new consumer:

- read_records: the columns, by the reader that a consumer's streams use. This is the consumer's limit.
- poll_arrow: the same columns by our consumer, remote_only.
- plain: confluent-kafka, consume(10000) in a loop, value lengths added up, from the broker.
- bucket: the same loop over our consumer, remote_only. live: the same, kafka_preferred, all from the broker.

The records are stored in four ways. In all except the third, our consumer and the plain client read the very same
stored bytes:

- uncompressed: batches without a codec, plain segments.
- zstd_batches: the producer's codec is zstd, plain segments.
- zstd_segments: batches without a codec, compressed in the bucket only (compression.enabled). Our consumer must
  decompress data that the plain client receives uncompressed.
- zstd_batches_of_4_partitions: like zstd_batches, in four partitions. read_records reads one partition after the
  other; the consumers read all four at once.

Ratios compare wall-clock time. Those named ``_by_cpu`` compare processor time including the broker's, because a loaded
machine affects it less. Also measured: the switch of sides (from the bucket's last record to the broker's first, 50
times), fairness among eight equal partitions, the cost of 500 idle partitions, and memory with 1, 4 and 500 partitions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka import TopicPartition

from benchmarks.consumer.consumer_memory import memory
from benchmarks.consumer.consumer_topic import TieredLog
from benchmarks.consumer.consumer_waiting import fairness, idle
from benchmarks.measuring import Job, Taken, interleaved, machine
from benchmarks.process_tree import ProcessTree
from tests.support.servers.kafka import KafkaServer, start_kafka
from tieredstore.catalog.planning import load_catalog
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.records.partition import PartitionRead
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager

_CONSUME: Final = 10_000
_LIMITS: Final = {
    ("poll_arrow", "read_records"): 0.85,
    ("poll_arrow", "plain"): 4.0,
    ("bucket", "plain"): 1.5,
    ("live", "plain"): 0.95,
}
"""Minimum of each reported ratio when both sides read the same stored bytes."""

_STORED: Final[Mapping[str, dict[str, Any]]] = {
    "uncompressed": {"codec": "none", "compresses": False},
    "zstd_batches": {"codec": "zstd", "compresses": False},
    "zstd_segments": {"codec": "none", "compresses": True},
    "zstd_batches_of_4_partitions": {"codec": "zstd", "compresses": False, "partitions": 4},
}
_PARTITIONS: Final = (1, 4, 500)
_library: Final[Any] = confluent_kafka.Consumer


class Contest:
    """The jobs to compare, over one log."""

    def __init__(self, log: TieredLog) -> None:
        self._log = log

    def jobs(self) -> dict[str, Job]:
        """Return the jobs by name."""
        return {
            "read_records": self._read_records,
            "poll_arrow": self._poll_arrow,
            "plain": lambda: self._loop(lambda: _library(self._log.client())),
            "bucket": lambda: self._loop(lambda: Consumer(self._log.client(tiered_storage_mode="remote_only"))),
            "live": lambda: self._loop(lambda: Consumer(self._log.client(tiered_storage_mode="kafka_preferred"))),
        }

    def _read_records(self) -> None:
        log, rows = self._log, 0
        with RemoteStorageManager(settings_from(log.settings)) as manager:
            for partition, seam in log.seams.items():
                lineage = load_catalog(manager, topic=log.topic, partition=partition).lineage(log.topic, partition)
                read = PartitionRead(manager, lineage, 0, seam, ReadSettings(isolation="read_committed"))
                rows += sum(batch.num_rows for batch in read)
        assert rows == log.copied

    def _poll_arrow(self) -> None:
        rows = 0
        with Consumer(self._log.client(tiered_storage_mode="remote_only")) as consumer:
            consumer.assign(self._log.places())
            while rows < self._log.copied:
                batch = consumer.poll_arrow(1.0)
                rows += 0 if batch is None else batch.records.num_rows

    def _loop(self, opened: Callable[[], Any]) -> None:
        consumer, read, lengths, copied = opened(), 0, 0, self._log.copied
        consumer.assign(self._log.places())
        while read < copied:
            for message in consumer.consume(min(_CONSUME, copied - read), 1.0):
                lengths += len(message.value())
                read += 1
        consumer.close()
        assert lengths


def changes_of_side(log: TieredLog, count: int = 50) -> dict[str, float]:
    """Return how long the consumer waits, in seconds, between the bucket's last record and the broker's first one."""
    waits: list[float] = []
    with Consumer(log.client(tiered_storage_mode="remote_preferred")) as consumer:
        for _ in range(count):
            consumer.assign([TopicPartition(log.topic, 0, log.seam - 100)])
            read, last = 0, 0.0
            while read <= 100:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    read += 1
                    if read == 101:
                        waits.append(time.monotonic() - last)
                    last = time.monotonic()
    waits.sort()
    return {"median": statistics.median(waits), "p99": waits[len(waits) * 99 // 100]}


def ratio(taken: Mapping[str, list[Taken]], job: str, other: str, of: Callable[[Taken], float]) -> float:
    """Return how many times as fast ``job`` is as ``other``: the median of the rounds' ratios."""
    pairs = zip(taken[other], taken[job], strict=True)
    return round(statistics.median(of(theirs) / of(ours) for theirs, ours in pairs), 2)


def speeds(server: KafkaServer, folder: Path, records: int, runs: int) -> dict[str, Any]:
    """Return records per second and ratios for each way of storing the records, and the switches between sides."""
    figures: dict[str, Any] = {}
    tree = ProcessTree(os.getpid())
    for stored, how in _STORED.items():
        log = TieredLog(server, folder / stored, records, **how)
        taken = interleaved(Contest(log).jobs(), runs, processor_seconds=lambda: sum(tree.cpu_seconds()))
        seconds = {name: statistics.median(run.seconds for run in took) for name, took in taken.items()}
        figures[stored] = {
            "records": log.copied,
            "value_bytes": log.written_bytes,
            "bucket_bytes": log.stored_bytes,
            "records_per_second": {name: round(log.copied / each) for name, each in seconds.items()},
            **{f"{job}_to_{other}": ratio(taken, job, other, lambda run: run.seconds) for job, other in _LIMITS},
            **{
                f"{job}_to_{other}_by_cpu": ratio(taken, job, other, lambda run: run.cpu_seconds)
                for job, other in _LIMITS
            },
        }
        figures.setdefault("change_of_side_s", changes_of_side(log))
    return figures


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory-records", type=int, default=600_000)
    parser.add_argument("--only", choices=("speed", "waiting", "memory"))
    arguments = parser.parse_args()
    figures: dict[str, Any] = {
        "machine": machine(),
        "wanted_of_the_same_stored_bytes": {f"{job}_to_{other}": least for (job, other), least in _LIMITS.items()},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.only in (None, "speed", "memory"):
            with start_kafka() as server:
                if arguments.only != "memory":
                    figures |= speeds(server, folder, arguments.records, arguments.runs)
                if arguments.only != "speed":
                    figures["memory_mib"] = {
                        f"{count}_partitions": memory(server, folder / f"{count}", arguments.memory_records, count)
                        for count in _PARTITIONS
                    }
        if arguments.only in (None, "waiting"):
            figures["eight_partitions_most_to_least"] = fairness(folder / "fair")
            figures["idle_with_500"] = idle(folder / "idle")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
