"""Small closed segments on a made-up broker's disk, and a store for them."""

from __future__ import annotations

from pathlib import Path

from tests.support.records.small_segments import memory_settings
from tieredstore.backends.base import ObjectStore
from tieredstore.kafka.logdir import FoundSegment, discover
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import PARTITION, write_segment

RECORDS_IN_A_SEGMENT = 10


def write_segments(log_dir: Path, count: int, partition: TopicIdPartition = PARTITION) -> list[FoundSegment]:
    """Write ``count`` consecutive closed segments of a partition; return all segments of it in the log directory."""
    for number in range(count):
        base = number * RECORDS_IN_A_SEGMENT
        records = [Record(b"k", b"v%d" % offset, 1_000 + offset) for offset in range(base, base + RECORDS_IN_A_SEGMENT)]
        write_segment(log_dir, [build_batch(records, base)], partition=partition, base_offset=base)
    folder = log_dir / f"{partition.topic}-{partition.partition}"
    return list(discover(folder).segments)


def other_partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(Uuid(bytes([number] * 16)), "other", number)


def manager_of(store: ObjectStore) -> RemoteStorageManager:
    """Return a manager over this store, which the test keeps after the manager is closed."""
    return RemoteStorageManager(memory_settings(chunk_size=64), store=store)


def stored_keys(store: ObjectStore, suffix: str = "") -> list[str]:
    """Return the keys of a store's objects, in order."""
    return [info.key for info in store.list() if info.key.endswith(suffix)]
