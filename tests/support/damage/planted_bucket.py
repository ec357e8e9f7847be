"""Bucket of a few segments with every feature, and ways to plant one fault in it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support.records.small_segments import ENC, PLAIN, ZSTD, memory_settings
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import Settings
from tieredstore.format.keys import Suffix, main_path, object_key
from tieredstore.format.manifest import SegmentManifest
from tieredstore.kafka.batches import BatchHeader, read_batch_headers
from tieredstore.kafka.checkpoints import ProducerState
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.model import IndexType, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.ops.bucket import Bucket
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker, seal_batch
from tieredstore.testing.segments import write_segment

EVENTS: Final = TopicIdPartition(Uuid(bytes(range(16))), "events", 0)
OTHER: Final = TopicIdPartition(Uuid(bytes(range(1, 17))), "other", 3)
CHUNK: Final = 4096
MODES: Final[Mapping[str, dict[str, str]]] = {"plain": PLAIN, "enc": ENC, "zstd": ZSTD, "zstd+enc": ZSTD | ENC}
SEGMENTS: Final = 4
OFFSETS: Final = 32
"""Number of offsets in each segment: ten batches of three records, and two markers."""

_EPOCHS: Final = ((0, 0), (1, 45))
_ABORTING, _COMMITTING = Producer(7, 0, 0, transactional=True), Producer(8, 0, 0, transactional=True)


def batches_of(base: int) -> list[bytes]:
    """Return the batches of one segment: some plain, one of an aborted and one of a committed transaction."""
    batches: list[bytes] = []
    offset = base
    for number in range(10):
        who = {4: _ABORTING, 6: _COMMITTING}.get(number, Producer())
        records = [Record(b"%d " % at * 170, b"key", 1_700_000_000_000 + at) for at in range(offset, offset + 3)]
        batches.append(build_batch(records, offset, producer=who, leader_epoch=int(offset >= _EPOCHS[1][1])))
        offset += 3
    for who, is_commit in ((_ABORTING, False), (_COMMITTING, True)):
        marker = bytearray(build_end_marker(offset, who, commit=is_commit, timestamp_ms=1_700_000_000_000 + offset))
        marker[12:16] = int(offset >= _EPOCHS[1][1]).to_bytes(4, "big")
        batches.append(bytes(marker))
        offset += 1
    return batches


def stored_objects(mode: str) -> tuple[dict[str, bytes], list[RemoteLogSegmentMetadata]]:
    """Return the bucket's objects, and the segments of ``EVENTS`` in it."""
    store, metadata = MemoryObjectStore(), list[RemoteLogSegmentMetadata]()
    settings = memory_settings(CHUNK, mode=MODES[mode])
    with tempfile.TemporaryDirectory() as folder, RemoteStorageManager(settings, store=store) as manager:
        for where, count in ((EVENTS, SEGMENTS), (OTHER, 1)):
            for number in range(count):
                base = number * OFFSETS
                segment = write_segment(
                    Path(folder),
                    batches_of(base),
                    partition=where,
                    base_offset=base,
                    leader_epochs=_EPOCHS[: 1 + (base + OFFSETS > _EPOCHS[1][1])],
                    producers=[ProducerState(7, 0, 2, base + 14, 2, 0, 0, -1)],
                    aborted=[AbortedTransaction(7, base + 12, base + 30, base + 18)],
                )
                segment_id = Uuid(bytes([number + 1] * 16))
                described = segment.to_metadata(segment_id, event_timestamp_ms=1_700_000_100_000 + base)
                manager.copy_log_segment_data(described, segment.files)
                metadata += [described] if where == EVENTS else []
    return {info.key: store.get(info.key) for info in store.list()}, metadata


_stored_objects = cache(stored_objects)


@dataclass(frozen=True)
class PlantedBucket:
    """Private bucket that a test may damage."""

    settings: Settings
    store: ObjectStore
    segments: list[RemoteLogSegmentMetadata]

    @classmethod
    def of(cls, mode: str, store: ObjectStore | None = None) -> PlantedBucket:
        """Return the undamaged bucket, in memory unless a store is given."""
        objects, segments = _stored_objects(mode)
        store = MemoryObjectStore() if store is None else store
        for key, content in objects.items():
            store.put(key, content)
        return cls(memory_settings(CHUNK, mode=MODES[mode]), store, segments)

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.settings, self.store)

    def key(self, suffix: Suffix, number: int = 1) -> str:
        metadata = self.segments[number]
        return object_key("", main_path(metadata.remote_log_segment_id, metadata.start_offset), suffix)

    def get(self, suffix: Suffix, number: int = 1) -> bytes:
        return self.store.get(self.key(suffix, number))

    def put(self, suffix: Suffix, content: bytes, number: int = 1) -> None:
        self.store.put(self.key(suffix, number), content)

    def delete(self, *suffixes: Suffix, number: int = 1) -> None:
        self.store.delete([self.key(suffix, number) for suffix in suffixes])

    def manifest(self, number: int = 1) -> SegmentManifest:
        return SegmentManifest.from_bytes(self.get(Suffix.MANIFEST, number))

    def edit_manifest(self, change: Callable[[dict[str, Any]], object], number: int = 1) -> None:
        """Change the manifest's fields."""
        document = json.loads(self.get(Suffix.MANIFEST, number))
        change(document)
        self.put(Suffix.MANIFEST, json.dumps(document, separators=(",", ":")).encode(), number)

    def edit_metadata(self, number: int = 1, **fields: object) -> None:
        self.edit_manifest(lambda document: document["remoteLogSegmentMetadata"].update(fields), number)

    def patch(self, suffix: Suffix, position: int, content: bytes, number: int = 1) -> None:
        """Overwrite bytes of an object."""
        raw = bytearray(self.get(suffix, number))
        raw[position : position + len(content)] = content
        self.put(suffix, bytes(raw), number)

    def flip(self, suffix: Suffix, position: int, number: int = 1) -> None:
        """Flip a bit in a byte of an object."""
        self.patch(suffix, position, bytes([self.get(suffix, number)[position] ^ 4]), number)

    def patch_index(self, kind: IndexType, position: int, content: bytes) -> None:
        """Overwrite bytes of an index of a plain segment. A negative position counts from the index's end."""
        entry = self.manifest().segment_indexes.entry(kind)
        assert entry is not None
        self.patch(Suffix.INDEXES, entry.position + position + (entry.size if position < 0 else 0), content)

    def headers(self, number: int = 1) -> list[BatchHeader]:
        """Return the batches of a plain segment."""
        return list(read_batch_headers(self.get(Suffix.LOG, number)))

    def rebatch(self, which: int, change: Callable[[bytearray], object]) -> None:
        """Change a batch of the plain segment 1, and its CRC with it."""
        header, raw = self.headers(1)[which], bytearray(self.get(Suffix.LOG, 1))
        extent = slice(header.position, header.position + header.size_in_bytes)
        batch = raw[extent]
        change(batch)
        seal_batch(batch)
        raw[extent] = batch
        self.put(Suffix.LOG, bytes(raw), 1)
