"""Stores with many small made-up segments: real keys, manifests and leader-epoch indexes, no records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.records.small_segments import memory_settings
from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.format.chunk_index import FixedChunkIndex
from tieredstore.format.keys import Suffix, main_path, object_key
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest
from tieredstore.kafka.batches import FRAME_SIZE
from tieredstore.kafka.checkpoints import LeaderEpochs, format_leader_epochs
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import build_batch

TOPIC_ID = Uuid(bytes(range(16)))
OTHER_ID = Uuid(bytes(range(16, 32)))


def partition_of(topic: str = "events", partition: int = 0, topic_id: Uuid = TOPIC_ID) -> TopicIdPartition:
    return TopicIdPartition(topic_id, topic, partition)


@dataclass(frozen=True)
class MadeSegment:
    """Description of a made-up segment of a store."""

    where: TopicIdPartition
    start: int
    end: int
    epochs: LeaderEpochs = ()
    history: LeaderEpochs | None = None
    number: int = 0
    copied_ms: int = 1000
    newest_ms: int | None = None

    @property
    def metadata(self) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            RemoteLogSegmentId(self.where, Uuid((self.number * 2**64 + self.start).to_bytes(16, "big"))),
            self.start,
            self.end,
            1000,
            max_timestamp_ms=self.end if self.newest_ms is None else self.newest_ms,
            broker_id=1,
            event_timestamp_ms=self.copied_ms,
            segment_leader_epochs=self.epochs or ((0, self.start),),
            txn_idx_empty=True,
        )

    @property
    def path(self) -> str:
        return main_path(self.metadata.remote_log_segment_id, self.start)

    def key(self, suffix: Suffix = Suffix.MANIFEST, prefix: str = "") -> str:
        return object_key(prefix, self.path, suffix)

    @property
    def log(self) -> bytes:
        """Return one batch without records that covers all offsets."""
        header = bytearray(build_batch([], self.start, leader_epoch=self.metadata.segment_leader_epochs[-1][0]))
        header[8:12] = (1000 - FRAME_SIZE).to_bytes(4, "big")
        header[23:27] = (self.end - self.start).to_bytes(4, "big")
        return bytes(header).ljust(1000, b"l")

    @property
    def index(self) -> bytes:
        return format_leader_epochs(self.history or self.metadata.segment_leader_epochs)

    def manifest(self, **changes: object) -> bytes:
        entry = IndexEntry(0, 0)
        segment_manifest = SegmentManifest(
            FixedChunkIndex(1024, 1000, 1024, 1000),
            SegmentIndexes(entry, entry, entry, IndexEntry(0, len(self.index)), None),
            compression=False,
            metadata=dataclasses.replace(self.metadata, **changes),  # type: ignore[arg-type]  # field names
        )
        return segment_manifest.to_bytes()

    def put(self, store: ObjectStore, prefix: str = "") -> MadeSegment:
        store.put(self.key(Suffix.LOG, prefix), self.log)
        store.put(self.key(Suffix.INDEXES, prefix), self.index)
        store.put(self.key(Suffix.MANIFEST, prefix), self.manifest())
        return self


def run_of(count: int, where: TopicIdPartition, *, first: int = 0) -> list[MadeSegment]:
    """Return ``count`` consecutive segments of ten offsets."""
    return [MadeSegment(where, i * 10, i * 10 + 9) for i in range(first, first + count)]


def manager_of(store: ObjectStore, prefix: str = "") -> RemoteStorageManager:
    return RemoteStorageManager(memory_settings(1024, prefix={"key.prefix": prefix}), store=store)


def commit_between_pages(store: ScriptedStore, torn: MadeSegment, last: MadeSegment) -> ScriptedStore:
    """End a page of each listing at the log of ``torn``, and then commit both segments."""

    def with_next_page(infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        page = list(infos)
        yield from page
        if torn.key(Suffix.LOG) in {info.key for info in page}:
            for segment in (torn, last):
                segment.put(store.inner)
            yield from store.inner.list("", torn.key(Suffix.LOG))

    return store.change("list", change=with_next_page)
