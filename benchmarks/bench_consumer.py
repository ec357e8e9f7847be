"""How fast a consumer of bucket and broker gives records, beside what it is made of and beside the plain client.

    python -m benchmarks.bench_consumer [--records N] [--runs N]

One topic of JSON records in a local broker, whose closed segments are copied into a folder (zstd). All jobs read the
same offsets of one partition, in one run, each with a consumer of its own:

read_records: the columns, by the reader that a consumer's streams are made of: the limit.
poll_arrow: the same columns by a consumer, remote_only.
plain: confluent-kafka, consume(10000) in a loop, value lengths added up, from the broker.
bucket: the same loop over ours, remote_only. live: the same loop over ours, kafka_preferred, all from the broker.

Ratios are of the wall and, with ``_by_cpu``, of processor time, which a loaded machine changes less (the broker's is
not in it). Beside them: how long the change of sides takes (from the last record of the bucket to the first one of the
broker, 50 times), how evenly eight equal partitions are served, and what 500 partitions that wait cost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka import TopicPartition

from benchmarks.consumer_waiting import fairness, idle
from benchmarks.measuring import Job, Taken, interleaved, machine
from tests.support.kafka_topics import make_topic, producer_of
from tests.support.servers.kafka import KafkaServer, start_kafka
from tieredstore.config import settings_from
from tieredstore.consumer import Consumer
from tieredstore.kafka.logdir import describe, discover
from tieredstore.model import Uuid
from tieredstore.records import read_records
from tieredstore.remote import RemoteStorageManager

_CONSUME: Final = 10_000
_RATIOS: Final = (("poll_arrow", "read_records"), ("poll_arrow", "plain"), ("bucket", "plain"), ("live", "plain"))
_library: Final[Any] = confluent_kafka.Consumer


class Contest:
    """The topic in both places, and what reads it."""

    def __init__(self, server: KafkaServer, folder: Path, records: int) -> None:
        self._servers = server.bootstrap_servers
        self._topic = make_topic(server, {"segment.bytes": str(16 << 20), "retention.ms": "-1"})
        self._settings = {
            "storage.backend.class": "filesystem", "storage.root": str(folder), "chunk.size": str(4 << 20),
            "compression.enabled": "true",
        }  # fmt: skip
        self._write(server, records)
        self.seam = self._copy(server)

    def _write(self, server: KafkaServer, records: int) -> None:
        producer = producer_of(server, **{"batch.size": "65536"})
        for at in range(records):
            value = json.dumps({"order": at, "customer": at * 7919 % 100_003, "note": f"{at:x}" * 60, "paid": True})
            producer.produce(self._topic, value.encode(), b"%d" % at, partition=0)
            if at % 10_000 == 0:
                producer.flush(60)
        producer.flush(60)

    def _copy(self, server: KafkaServer) -> int:
        seam = 0
        with RemoteStorageManager(settings_from(self._settings)) as manager:
            for segment in map(describe, discover(server.log_dir, topics=[self._topic]).segments):
                if not segment.active:
                    manager.copy_log_segment_data(segment.to_metadata(Uuid.random()), segment.files)
                    seam = max(seam, segment.end_offset + 1)
        return seam

    def jobs(self) -> dict[str, Job]:
        """By name."""
        remote, preferred = {"tiered.storage.mode": "remote_only"}, {"tiered.storage.mode": "kafka_preferred"}
        return {
            "read_records": self._read_records,
            "poll_arrow": lambda: self._poll_arrow(remote),
            "plain": lambda: self._loop(lambda: _library(self._client({}))),
            "bucket": lambda: self._loop(lambda: Consumer(self._client(remote))),
            "live": lambda: self._loop(lambda: Consumer(self._client(preferred))),
        }

    def _client(self, own: Mapping[str, str]) -> dict[str, Any]:
        store = {"tiered.storage.settings": self._settings} if own else {}
        return {
            "bootstrap.servers": self._servers, "group.id": "bench", "enable.auto.commit": False, "log_level": 2,
            "fetch.queue.backoff.ms": 2, **own, **store,
        }  # fmt: skip

    def _read_records(self) -> None:
        with RemoteStorageManager(settings_from(self._settings)) as manager:
            read = read_records(manager, self._topic, 0, 0, self.seam, isolation="read_committed")
            assert sum(batch.num_rows for batch in read) == self.seam

    def _poll_arrow(self, own: Mapping[str, str]) -> None:
        rows = 0
        with Consumer(self._client(own)) as consumer:
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            while rows < self.seam:
                batch = consumer.poll_arrow(1.0)
                rows += 0 if batch is None else batch.records.num_rows

    def changes_of_side(self, count: int = 50) -> list[float]:
        """Seconds between the last record of the bucket and the first one of the broker, ascending."""
        waits: list[float] = []
        with Consumer(self._client({"tiered.storage.mode": "remote_preferred"})) as consumer:
            for _ in range(count):
                consumer.assign([TopicPartition(self._topic, 0, self.seam - 100)])
                read, last = 0, 0.0
                while read <= 100:
                    message = consumer.poll(1.0)
                    if message is not None and message.error() is None:
                        read += 1
                        if read == 101:
                            waits.append(time.monotonic() - last)
                        last = time.monotonic()
        return sorted(waits)

    def _loop(self, opened: Callable[[], Any]) -> None:
        consumer, read, lengths = opened(), 0, 0
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while read < self.seam:
            for message in consumer.consume(min(_CONSUME, self.seam - read), 1.0):
                lengths += len(message.value())
                read += 1
        consumer.close()
        assert lengths


def ratio(taken: Mapping[str, list[Taken]], job: str, other: str) -> float:
    """How many times as fast a job is as another one: the median of the rounds' ratios."""
    pairs = zip(taken[other], taken[job], strict=True)
    return round(statistics.median(theirs.seconds / ours.seconds for theirs, ours in pairs), 2)


def ratio_by_cpu(taken: Mapping[str, list[Taken]], job: str, other: str) -> float:
    """The same by processor time."""
    pairs = zip(taken[other], taken[job], strict=True)
    return round(statistics.median(theirs.cpu_seconds / ours.cpu_seconds for theirs, ours in pairs), 2)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with start_kafka() as server, tempfile.TemporaryDirectory() as folder:
        contest = Contest(server, Path(folder), arguments.records)
        taken = interleaved(contest.jobs(), arguments.runs)
        seconds = {name: statistics.median(run.seconds for run in runs) for name, runs in taken.items()}
        figures: dict[str, Any] = {
            "machine": machine(),
            "records": contest.seam,
            "records_per_second": {name: round(contest.seam / each) for name, each in seconds.items()},
            **{f"{job}_to_{other}": ratio(taken, job, other) for job, other in _RATIOS},
            **{f"{job}_to_{other}_by_cpu": ratio_by_cpu(taken, job, other) for job, other in _RATIOS},
        }
        waits = contest.changes_of_side()
        figures["change_of_side_s"] = {"median": statistics.median(waits), "p99": waits[len(waits) * 99 // 100]}
    with tempfile.TemporaryDirectory() as folder:
        figures["eight_partitions_most_to_least"] = fairness(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        figures["idle_with_500"] = idle(Path(folder))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
