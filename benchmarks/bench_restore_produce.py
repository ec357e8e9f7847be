"""``restore produce`` compared with a plain transactional producer that is fed from memory.

    python -m benchmarks.bench_restore --only produce [--records N] [--runs N]

Both write the same records into one partition of a local broker, in transactions of the same size, with the same client
properties. The plain producer has its records as Python objects in a list, and notes the offset from each delivery
report. ``restore produce`` reads them from a bucket (a folder, zstd in chunks), and proves their offsets. Every run has
a new topic. ``by_cpu`` is the ratio by processor time, without the broker's; its target is 0.8.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks.measuring import interleaved
from tests.support.kafka.kafka_topics import make_topic
from tests.support.servers.kafka import KafkaServer, start_kafka
from tieredstore.config import settings_from
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.restore.produce.producing import ProduceRun
from tieredstore.restore.produce.runs import ProduceOptions
from tieredstore.restore.produce.source import BucketTopics
from tieredstore.testing.segments import Record, build_batch, write_segment

_WHERE: Final = TopicIdPartition(Uuid(bytes(range(16))), "orders", 0)
_IN_BATCH: Final = 500
_IN_SEGMENT: Final = 100_000
_IN_TRANSACTION: Final = 100_000
_LEAST: Final = 0.8
_CLIENT: Final = {
    "compression.type": "lz4",
    "linger.ms": "20",
    "queue.buffering.max.kbytes": "32768",
    "message.max.bytes": "1000000000",
}
_S: Final = 120.0


def _records(count: int, size: int) -> list[Record]:
    filler = "x" * (size - 80)
    return [
        Record(
            json.dumps({"id": number, "customer": number * 7919 % 10_000, "note": filler}).encode().ljust(size),
            b"%d" % (number % 1000),
            1_700_000_000_000 + number,
        )
        for number in range(count)
    ]


def _fill(folder: Path, records: list[Record]) -> RemoteStorageManager:
    (folder / "bucket").mkdir()
    options = {"storage.backend.class": "filesystem", "storage.root": str(folder / "bucket"), "chunk.size": "4194304"}
    manager = RemoteStorageManager(settings_from(options | {"compression.enabled": "true"}))
    for start in range(0, len(records), _IN_SEGMENT):
        stop = min(start + _IN_SEGMENT, len(records))
        batches = [build_batch(records[at : min(at + _IN_BATCH, stop)], at) for at in range(start, stop, _IN_BATCH)]
        segment = write_segment(folder / str(start), batches, partition=_WHERE, base_offset=start, end_offset=stop - 1)
        manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=start), segment.files)
    return manager


def _plain(server: KafkaServer, rows: list[tuple[bytes | None, bytes | None, int]], name: str) -> None:
    topic, offsets = make_topic(server), list[int]()

    def note(error: object, message: Any) -> None:
        assert error is None
        offsets.append(message.offset())

    producer: Any = Producer({"bootstrap.servers": server.bootstrap_servers, "transactional.id": name, **_CLIENT})
    producer.init_transactions(_S)
    for at in range(0, len(rows), _IN_TRANSACTION):
        producer.begin_transaction()
        for number, (key, value, timestamp) in enumerate(rows[at : at + _IN_TRANSACTION]):
            while True:
                try:
                    producer.produce(topic, value, key, 0, note, None, timestamp)
                except BufferError:
                    producer.poll(0.05)
                else:
                    break
            if number % 1000 == 0:
                producer.poll(0)
        producer.flush(_S)
        producer.commit_transaction(_S)
    assert len(offsets) == len(rows)


def _ours(server: KafkaServer, manager: RemoteStorageManager, name: str) -> None:
    options = ProduceOptions(topics={"orders": make_topic(server)}, name=name)
    properties = {"bootstrap.servers": server.bootstrap_servers, **_CLIENT}
    with BucketTopics(manager, options) as source:
        for outcome in ProduceRun(source, properties).outcomes():
            assert outcome.status == "done"


def measure(count: int, size: int, runs: int) -> dict[str, Any]:
    """Return both producers' records per second of wall-clock and processor time, and our rates divided by the plain
    producer's."""
    records, names = _records(count, size), (f"bench-{number}" for number in itertools.count())
    rows = [(record.key, record.value, record.timestamp_ms) for record in records]
    with tempfile.TemporaryDirectory() as folder, start_kafka() as server:
        manager = _fill(Path(folder), records)
        taken = interleaved(
            {
                "plain": lambda: _plain(server, rows, next(names)),
                "restore_produce": lambda: _ours(server, manager, next(names)),
            },
            runs,
        )
        manager.close()
    wall = {name: min(run.seconds for run in of) for name, of in taken.items()}
    cpu = {name: min(run.cpu_seconds for run in of) for name, of in taken.items()}
    by_cpu = [plain.cpu_seconds / ours.cpu_seconds for plain, ours in zip(*taken.values(), strict=True)]
    return {
        "records": count,
        "bytes": size,
        "per_second": {name: round(count / seconds) for name, seconds in wall.items()},
        "per_cpu_second": {name: round(count / seconds) for name, seconds in cpu.items()},
        "ratio": round(wall["plain"] / wall["restore_produce"], 2),
        "by_cpu": round(cpu["plain"] / cpu["restore_produce"], 2),
        "median_by_cpu": round(statistics.median(by_cpu), 2),
        "least_by_cpu": _LEAST,
    }
