"""Topics with everything that a restore must keep, and processes that restore them into a cluster and may die."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

import tieredstore as ts
from tests.support.kafka.kafka_topics import make_topic
from tests.support.records.topic_buckets import Bucket
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.kafka_cluster import KafkaCluster
from tieredstore.api.outcomes import Outcome
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.restore.cli.produce import open_backup
from tieredstore.restore.produce.offset_map import OffsetMap, load_map
from tieredstore.restore.produce.producing import ProduceRun
from tieredstore.restore.produce.runs import ProduceOptions
from tieredstore.restore.produce.source import BackupTopics, BucketTopics
from tieredstore.restore.produce.time_cut import TimeCut
from tieredstore.testing.segments import Producer, Record, build_batch, build_end_marker

TIME_MS: Final = 1_700_000_000_000
TIMEOUT_S: Final = 90.0
STEPS: Final = ("begin", "produce", "flush", "positions", "commit", "committed", "map", "tombstone")
"""Names of a run's operations, as ``on_step`` gets them."""

Kept = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]
"""Offset, timestamp, key, value and headers of a record."""


@dataclass
class SourceBucket:
    """A bucket, and the committed records of its partitions."""

    bucket: Bucket
    committed: dict[tuple[str, int], list[Kept]] = field(default_factory=dict[tuple[str, int], list[Kept]])

    @property
    def topics(self) -> dict[str, int]:
        """The number of partitions of each topic."""
        return {
            topic: 1 + max(number for name, number in self.committed if name == topic) for topic, _ in self.committed
        }

    def write(self, where: TopicIdPartition, offsets: range, source: random.Random) -> None:
        """Copy a segment: an aborted transaction, its records again in a committed one, plain records with gaps."""
        one = Producer(7, 0, 0, transactional=True)
        third = len(offsets) // 3
        aborted, again, plain = offsets[: third - 1], offsets[third : 2 * third - 1], offsets[2 * third + 1 :: 2]
        records = [_record(source) for _ in range(max(len(aborted), len(plain)))]
        batches = [
            build_batch(records[: len(aborted)], aborted[0], producer=one),
            build_end_marker(aborted[-1] + 1, one, commit=False),
            build_batch(records[: len(again)], again[0], producer=one),
            build_end_marker(again[-1] + 1, one, commit=True),
            *(build_batch([record], offset) for record, offset in zip(records, plain, strict=False)),
        ]
        self.bucket.copy(
            where,
            batches,
            offsets,
            producers=[ProducerState(7, 0, 0, again[-1], 0, 0, 0, -1)],
            aborted=[AbortedTransaction(7, aborted[0], aborted[-1] + 1, aborted[-1] + 2)],
        )
        kept = self.committed.setdefault((where.topic, where.partition), [])
        for offset, record in [*zip(again, records, strict=False), *zip(plain, records, strict=False)]:
            kept.append((offset, record.timestamp_ms, record.key, record.value, list(record.headers) or None))


def _record(source: random.Random) -> Record:
    def content() -> bytes | None:
        return source.choice([None, b"", b"k%d" % source.randrange(5), source.randbytes(source.randrange(400))])

    headers = source.choice([(), (), (("h", b"1"), ("h", None), ("", b""), ("ключ", b"\xff"), ("h", b"1"))])
    return Record(content(), content(), TIME_MS + source.randrange(10**6), headers)


def mixed_topics(folder: Path, *names: str, partitions: int = 2, segments: int = 3, seed: int = 1) -> SourceBucket:
    """Return a bucket with topics of these names."""
    made, source = SourceBucket(Bucket(folder)), random.Random(seed)
    for topic in names:
        for number in range(partitions):
            for segment in range(segments):
                where = TopicIdPartition(Uuid(topic.encode().ljust(16)[-16:]), topic, number)
                made.write(where, range(5 + 60 * segment, 65 + 60 * segment), source)
    return made


def committed(server: KafkaServer | KafkaCluster, topic: str, partition: int) -> list[Kept]:
    """Read a partition of the target by a plain client, up to its end."""
    configuration = {
        "bootstrap.servers": server.bootstrap_servers, "group.id": "none", "isolation.level": "read_committed",
        "enable.partition.eof": True, "auto.offset.reset": "error", "enable.auto.commit": False, "log_level": 0,
        "fetch.wait.max.ms": 10,  # the broker reports the end only after this wait
    }  # fmt: skip
    consumer, found = Consumer(configuration), list[Kept]()
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        consumer.assign([TopicPartition(topic, partition, low)])
        while (message := consumer.poll(TIMEOUT_S)) is not None:
            if error := message.error():
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                assert not error.fatal(), error  # others, such as a lost connection, end by themselves
                continue
            offset, headers = message.offset(), message.headers()
            assert offset is not None
            found.append((offset, message.timestamp()[1], message.key(), message.value(), headers))  # type: ignore[arg-type]
        raise AssertionError(f"no answer about {topic}-{partition} within {TIMEOUT_S} s")
    finally:
        consumer.close()


def interrupt_at(step: str, number: int) -> Callable[[str], None]:
    """Return a callback for ``on_step`` that ends the run before the ``number``-th operation of this name."""
    left = number

    def on_step(name: str) -> None:
        nonlocal left
        left -= name == step
        if left == 0:
            raise InterruptedError

    return on_step


def mapped(offsets: OffsetMap, topic: str, partition: int) -> list[tuple[int, int]]:
    """Return each mapped record's offsets in source and target, in order."""
    runs = [run for run in offsets.mapped_runs((topic, partition)) if run.target_partition == partition]
    return [(run.start + at, run.target_start + at) for run in runs for at in range(run.length)]


@dataclass
class Restore:
    """A restore of topics into a cluster under new names."""

    source: SourceBucket
    server: KafkaServer | KafkaCluster
    topics: Mapping[str, str]
    backup: Path | None = None
    """Settings of a backup to restore from instead of the bucket."""

    @classmethod
    def into(cls, server: KafkaServer, source: SourceBucket) -> Restore:
        """Create empty target topics."""
        topics = {topic: make_topic(server, partitions=count) for topic, count in source.topics.items()}
        return cls(source, server, topics)

    def run(self, *, cut: TimeCut | None = None, **more: Any) -> list[Outcome]:
        """Restore in this process."""
        properties = {"bootstrap.servers": self.server.bootstrap_servers, **more.pop("properties", {})}
        options = ProduceOptions(topics=dict(self.topics), **more.pop("options", {}))
        with BucketTopics(self.source.bucket.manager, options) as source:
            source.end_at(cut)
            return list(ProduceRun(source, properties, **more).outcomes())

    @property
    def name(self) -> str:
        """The run's default name."""
        return ProduceOptions(topics=dict(self.topics)).run

    def check(self) -> None:
        """Assert that the target has each committed record once, in order, where the map says."""
        offsets = load_map(self.source.bucket.manager.store, "", self.name)
        for (topic, partition), expected in self.source.committed.items():
            found = committed(self.server, self.topics[topic], partition)
            assert [record[1:] for record in found] == [record[1:] for record in expected], (topic, partition)
            pairs = [(old[0], new[0]) for old, new in zip(expected, found, strict=True)]
            assert mapped(offsets, topic, partition) == pairs, (topic, partition)

    def spawn(self, step: str = "", number: int = 1) -> BaseProcess:
        """Start a process that restores, and that kills itself before the ``number``-th operation of this name."""
        places = str(self.source.bucket.root), self.backup, self.server.bootstrap_servers, dict(self.topics)
        process = _PROCESSES.Process(target=_restore, args=(*places, step, number))
        process.start()
        return process

    def die(self, step: str, number: int = 1) -> bool:
        """Run a process that dies before an operation; return False if it ended before it came to the operation."""
        process = self.spawn(step, number)
        process.join(TIMEOUT_S)
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode != 0

    def die_before_each_step(self) -> None:
        """Run processes that die before each operation in turn, then one that completes."""
        for step in STEPS[:-2]:
            assert self.die(step, 2), step
        assert self.die("map")
        assert self.die("tombstone")
        assert not self.die("")


def _restore(store: str, backup: Path | None, servers: str, topics: dict[str, str], step: str, number: int) -> None:
    left = number

    def on_step(name: str) -> None:
        nonlocal left
        left -= name == step
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    kept = nullcontext() if backup is None else open_backup(backup, list(topics))
    with ts.open(store) as bucket, kept as opened:
        options = ProduceOptions(topics=topics)
        properties = {"bootstrap.servers": servers}
        # ``most_records=1`` makes a transaction for each batch.
        here = (
            BucketTopics(bucket.manager, options) if opened is None else BackupTopics(bucket.manager, options, opened)
        )
        with here as source:
            list(ProduceRun(source, properties, on_step=on_step, most_records=1).outcomes())


_PROCESSES: Final = multiprocessing.get_context("forkserver")
# The import takes a second or more, so do it once, in the fork server, which has no clients yet.
_PROCESSES.set_forkserver_preload([__name__])
