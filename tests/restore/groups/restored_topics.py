"""Topics that a plain transactional producer restores, and the maps of their offsets."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

import tieredstore as ts
from tests.support.kafka.kafka_topics import TIMEOUT_S, make_topic
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.kafka_cluster import KafkaCluster
from tieredstore.restore.produce.offset_map import OffsetMap, OffsetMapFile
from tieredstore.restore.produce.runs import OffsetRun

Server = KafkaServer | KafkaCluster


@dataclass
class RestoredTopic:
    """Restored topic. ``offsets`` has each partition's source offsets; a record's value is its source PARTITION:OFFSET.

    ``bounds`` has each partition's first restored source offset, and the end (exclusive).
    """

    server: Server
    source: str
    target: str
    offsets: list[list[int]]
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def expected(self, partition: int, offset: int) -> bytes | None:
        """Return the value of the first record at or after a source offset; None if there is none."""
        offsets = self.offsets[partition]
        at = bisect_left(offsets, offset)
        return b"%d:%d" % (partition, offsets[at]) if at < len(offsets) else None

    def save_map(self, folder: Path, made: OffsetMap) -> None:
        """Write the map to a bucket in ``folder``."""
        folder.mkdir(exist_ok=True)
        with ts.open(folder) as bucket:
            file = OffsetMapFile(bucket.opened().store, "", made.run)
            file.map = made
            file.save()


def restore_topic(
    server: Server, folder: Path, source: random.Random, *, partitions: int, records: int, is_rehashed: bool = False
) -> RestoredTopic:
    """Produce about ``records`` records for each partition, with gaps in the source, and save the map as ``r1``.

    If ``is_rehashed``, the records go to random partitions. Some transactions are aborted and repeated.
    """
    of_server: Any = server
    names = make_topic(of_server, partitions=partitions), make_topic(of_server, partitions=partitions)
    made = OffsetMap("r1")
    made.add_topic(*names, is_rehashed=is_rehashed)
    topic = RestoredTopic(server, *names, [[] for _ in range(partitions)])
    for partition in range(partitions):
        offset = start = source.randrange(50)
        for _ in range(records if partition % 10 != 9 else 0):
            offset += source.choice([0] * 10 + [1, 3, 20])
            topic.offsets[partition].append(offset)
            offset += 1
        end = offset + source.randrange(3)
        topic.bounds[partition] = (start, end)
        made.begin((topic.source, partition), start)
    producer = Producer({
        "bootstrap.servers": server.bootstrap_servers, "transactional.id": topic.target, "linger.ms": 5,
    })  # fmt: skip
    producer.init_transactions(TIMEOUT_S)
    step = max(1, records // 3)
    for begin in range(0, records, step):
        for is_kept in (False, True) if source.random() < 0.5 else (True,):
            runs = _transaction(producer, topic, begin, begin + step, source if is_rehashed else None)
            if is_kept:
                producer.commit_transaction(TIMEOUT_S)
                made.extend(runs)
            else:
                producer.abort_transaction(TIMEOUT_S)
    for partition, (_, end) in topic.bounds.items():
        made.advance((topic.source, partition), end)
    topic.save_map(folder, made)
    return topic


def _transaction(
    producer: Producer, topic: RestoredTopic, begin: int, end: int, source: random.Random | None
) -> list[OffsetRun]:
    runs: list[OffsetRun] = []

    def deliver(partition: int, offset: int) -> Any:
        def note(error: Any, message: Any) -> None:
            assert error is None, error
            runs.append(OffsetRun(topic.source, partition, offset, message.partition(), message.offset(), 1))

        return note

    producer.begin_transaction()
    for partition, offsets in enumerate(topic.offsets):
        for offset in offsets[begin:end]:
            there = partition if source is None else source.randrange(len(topic.offsets))
            value = b"%d:%d" % (partition, offset)
            producer.produce(topic.target, value, partition=there, on_delivery=deliver(partition, offset))
            producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    return sorted(runs)


def read_values(server: Server, topic: str, partition: int) -> dict[int, bytes]:
    """Read all committed values of a partition by offset."""
    consumer, found = Consumer(_reading(server, "none")), dict[int, bytes]()
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            found[message.offset() or 0] = value
        assert message is not None
        return found
    finally:
        consumer.close()


def committed(server: Server, group: str, topic: str, partitions: int) -> dict[int, tuple[int, str | None]]:
    """Return a group's committed offsets with their metadata, and check that they have no leader epoch."""
    consumer = Consumer(_reading(server, group))
    try:
        places = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], TIMEOUT_S)
        assert {place.leader_epoch for place in places} == {None}
        return {place.partition: (place.offset, place.metadata) for place in places if place.offset >= 0}
    finally:
        consumer.close()


def commit(server: Server, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
    """Commit offsets and their metadata with a plain client."""
    consumer = Consumer(_reading(server, group))
    try:
        places = [TopicPartition(topic, number, offset, text) for number, (offset, text) in offsets.items()]
        for place in consumer.commit(offsets=places, asynchronous=False) or ():
            assert place.error is None, place.error
    finally:
        consumer.close()


def _reading(server: Server, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap_servers, "group.id": group, "isolation.level": "read_committed",
        "enable.partition.eof": True, "auto.offset.reset": "error", "enable.auto.commit": False,
        "fetch.wait.max.ms": 10,  # the broker reports the end only after this wait
    }  # fmt: skip
