"""Stored segments made of batches, and their catalogs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.records.record_reader import RecordReader
from tests.support.records.small_segments import PLAIN, memory_settings
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.planning import load_catalog
from tieredstore.kafka.checkpoints import LeaderEpochs, ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records.columns import int64_values
from tieredstore.model import AtTime, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION, Record, build_batch, write_segment


class StoredTopic:
    """Segments copied into a store in memory that counts operations."""

    def __init__(self, folder: Path, chunk_size: int = 16 * 1024, mode: Mapping[str, str] = PLAIN) -> None:
        self.folder = folder
        self.store = CountingStore(MemoryObjectStore())
        self.manager = RemoteStorageManager(memory_settings(chunk_size, mode=dict(mode)), store=self.store)
        self.copied: list[RemoteLogSegmentMetadata] = []

    def copy(
        self,
        base_offset: int,
        batches: Sequence[bytes],
        *,
        end_offset: int | None = None,
        producers: Sequence[ProducerState] = (),
        aborted: Sequence[AbortedTransaction] = (),
        partition: TopicIdPartition = PARTITION,
        leader_epochs: LeaderEpochs = ((0, 0),),
        broker_id: int = 1,
    ) -> RemoteLogSegmentMetadata:
        segment = write_segment(
            self.folder / str(len(self.copied)),
            batches,
            partition=partition,
            base_offset=base_offset,
            end_offset=end_offset,
            producers=producers,
            aborted=aborted,
            leader_epochs=leader_epochs,
        )
        metadata = segment.to_metadata(Uuid.random(), broker_id, event_timestamp_ms=1000 + len(self.copied))
        self.manager.copy_log_segment_data(metadata, segment.files)
        self.copied.append(metadata)
        return metadata

    def copy_plain(self, base_offset: int, count: int, *, batch: int = 10, size: int = 1000) -> None:
        """Copy records whose timestamps equal their offsets."""
        offsets = range(base_offset, base_offset + count)
        groups = (offsets[at : at + batch] for at in range(0, count, batch))
        self.copy(base_offset, [plain_batch(group, size) for group in groups])

    def catalog(self) -> Catalog:
        """Load the catalog, then reset counters and caches."""
        catalog = load_catalog(self.manager)
        self.manager.close()
        self.manager = RemoteStorageManager(self.manager.settings, store=self.store)
        self.store.reset()
        return catalog

    def reader(self, settings: ReadSettings) -> RecordReader:
        catalog = self.catalog()
        return RecordReader(self.manager, catalog, settings)

    def offsets(
        self, settings: ReadSettings, start: int | AtTime | None = None, stop: int | AtTime | None = None
    ) -> list[int]:
        """Read with these settings; return the records' offsets."""
        with self.reader(settings).read("events", 0, start, stop) as read:
            return [offset for batch in read for offset in int64_values(batch, "offset")]

    def keys(self, suffix: str) -> list[str]:
        """Return the keys with this suffix, in order."""
        return sorted(info.key for info in self.store.list() if info.key.endswith(suffix))

    def overwrite(self, suffix: str, change: bytes, at: int = 0) -> None:
        """Overwrite bytes of the only object with this suffix."""
        (key,) = self.keys(suffix)
        stored = bytearray(self.store.get(key))
        stored[at : at + len(change)] = change
        self.store.put(key, bytes(stored))

    def close(self) -> None:
        self.manager.close()

    def requests(self, suffix: str) -> int:
        """Return the number of requests for objects with this suffix."""
        asked = self.store.keys_of("get") + self.store.keys_of("get_into")
        return sum(key.endswith(suffix) for key in asked)


def plain_batch(offsets: range, size: int = 1000) -> bytes:
    records = [Record(b"%d" % offset + b"v" * size, timestamp_ms=offset) for offset in offsets]
    return build_batch(records, offsets.start)
