"""Bucket in a folder, with growing topics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tieredstore.config import settings_from
from tieredstore.kafka.checkpoints import LeaderEpochs, ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Producer, Record, build_batch, build_end_marker, write_segment

FIRST_ID = Uuid(bytes(range(16)))
SECOND_ID = Uuid(bytes(range(16, 32)))
ORDERS, PAYMENTS = FIRST_ID, Uuid(bytes(range(32, 48)))
MARKED = Uuid(bytes(range(48, 64)))


class Bucket:
    """Topics with consecutive segments. Each record's value names its topic, partition and offset."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "bucket"
        self.root.mkdir(parents=True)
        self.options = {"storage.backend.class": "filesystem", "storage.root": str(self.root)}
        self.manager = RemoteStorageManager(settings_from(self.options | {"chunk.size": "16384"}))
        self.ends: defaultdict[tuple[str, int, Uuid], int] = defaultdict(int)
        self._logs = folder / "logs"
        self._copied = 0

    def write(
        self,
        count: int,
        topic: str = "orders",
        partition: int = 0,
        *,
        topic_id: Uuid = FIRST_ID,
        skip: int = 0,
        epochs: LeaderEpochs = ((0, 0),),
    ) -> RemoteLogSegmentMetadata:
        """Copy a segment of the next ``count`` offsets, after a gap of ``skip`` offsets, with ten records per batch."""
        start = self.ends[topic, partition, topic_id] + skip
        offsets = range(start, start + count)
        batches: list[bytes] = []
        for at in range(0, count, 10):
            records = [Record(value_of(topic, partition, offset)) for offset in offsets[at : at + 10]]
            epoch = max(epoch for epoch, first in epochs if first <= offsets[at])
            batches.append(build_batch(records, offsets[at], leader_epoch=epoch))
        return self.copy(TopicIdPartition(topic_id, topic, partition), batches, offsets, epochs=epochs)

    def copy(
        self,
        where: TopicIdPartition,
        batches: Sequence[bytes],
        offsets: range,
        *,
        producers: Sequence[ProducerState] = (),
        aborted: Sequence[AbortedTransaction] = (),
        epochs: LeaderEpochs = ((0, 0),),
    ) -> RemoteLogSegmentMetadata:
        """Copy a segment of these batches."""
        self._copied += 1
        segment = write_segment(
            self._logs / str(self._copied),
            batches,
            partition=where,
            base_offset=offsets.start,
            end_offset=offsets.stop - 1,
            producers=producers,
            aborted=aborted,
            leader_epochs=epochs,
        )
        metadata = segment.to_metadata(Uuid.random(), event_timestamp_ms=1000 + self._copied)
        self.manager.copy_log_segment_data(metadata, segment.files)
        self.ends[where.topic, where.partition, where.topic_id] = offsets.stop
        return metadata

    def delete(self, *segments: RemoteLogSegmentMetadata) -> None:
        """Delete segments, as retention or data loss would."""
        for metadata in segments:
            self.manager.delete_log_segment_data(metadata)

    def close(self) -> None:
        self.manager.close()


def value_of(topic: str, partition: int, offset: int) -> bytes:
    return f"{topic}-{partition}@{offset}".encode()


def values(bucket_range: range, topic: str = "orders", partition: int = 0) -> list[bytes]:
    return [value_of(topic, partition, offset) for offset in bucket_range]


def fill(bucket: Bucket) -> None:
    """Create topic ``orders`` with two partitions, ``payments`` with two segments, and ``marked`` with transactions.

    A record's timestamp is a hundred times its offset, and it has headers.
    """
    for topic, topic_id, partition, extents in (
        ("orders", ORDERS, 0, [range(100)]),
        ("orders", ORDERS, 1, [range(50)]),
        ("payments", PAYMENTS, 0, [range(1000), range(1000, 2000)]),
    ):
        for offsets in extents:
            batches = [build_batch(records(offsets[at : at + 10]), offsets[at]) for at in range(0, len(offsets), 10)]
            bucket.copy(TopicIdPartition(topic_id, topic, partition), batches, offsets)
    copy_transactions(bucket)


def records(offsets: range) -> list[Record]:
    return [Record(b"v%d" % at, b"k%d" % at, at * 100, (("h", b"%d" % at),)) for at in offsets]


def copy_transactions(bucket: Bucket) -> None:
    """Copy records 0 to 9 (committed), 11 to 20 (aborted), 22 to 31 (no transaction) and 32 to 41 (undecided)."""
    one = Producer(1, 0, 0, transactional=True)
    batches = [
        build_batch(records(range(10)), 0, producer=one),
        build_end_marker(10, one, commit=True),
        build_batch(records(range(11, 21)), 11, producer=one),
        build_end_marker(21, one, commit=False),
        build_batch(records(range(22, 32)), 22),
        build_batch(records(range(32, 42)), 32, producer=one),
    ]
    bucket.copy(
        TopicIdPartition(MARKED, "marked", 0),
        batches,
        range(42),
        producers=[ProducerState(1, 0, 0, 41, 9, 0, 0, 32)],
        aborted=[AbortedTransaction(1, 11, 21, 22)],
    )
