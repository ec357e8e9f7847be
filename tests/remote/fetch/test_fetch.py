"""Fetch and delete: Kafka's ranges, absent and corrupt objects, and keys from custom metadata."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.records.small_segments import ENC, MODES, ZSTD, memory_settings, new_metadata, write_segment
from tests.support.stores.doubles import Operation, ScriptedStore
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import (
    IndexesCorruptError,
    IndexNotRecordedError,
    InvalidRangeError,
    ManifestCorruptError,
    SegmentCorruptError,
    SegmentNotFoundError,
    UnknownKeyError,
)
from tieredstore.format.chunk_index import FixedChunkIndex
from tieredstore.format.custom_metadata import CustomMetadata
from tieredstore.format.keys import Suffix, main_path
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest
from tieredstore.limits import MAX_INT32
from tieredstore.model import IndexType, RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager

LOG = bytes(range(256)) * 5


@dataclasses.dataclass
class Copied:
    """A segment of 13 chunks, copied into its own store."""

    store: MemoryObjectStore
    manager: RemoteStorageManager
    metadata: RemoteLogSegmentMetadata

    def key(self, suffix: Suffix) -> str:
        return self.manager.layout.key(self.metadata, suffix)


@pytest.fixture(params=list(MODES))
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copied]:
    store = MemoryObjectStore()
    with RemoteStorageManager(memory_settings(mode=MODES[request.param]), store=store) as manager:
        metadata = new_metadata(len(LOG))
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG))
        yield Copied(store, manager, metadata)


@pytest.mark.parametrize("bounds", [(-1, None), (1280, None), (1280, 2000), (5, 4), (0, -1), (-5, -1), (9999, 10000)])
def test_ranges_that_hold_no_byte_are_invalid(copied: Copied, bounds: tuple[int, int | None]) -> None:
    with pytest.raises(InvalidRangeError, match="are not in a-topic"):
        copied.manager.fetch_log_segment(copied.metadata, *bounds)


@pytest.mark.parametrize("size", [1, 7, 100, 101, 350, 5000])
def test_a_stream_gives_the_same_bytes_in_any_pieces(copied: Copied, size: int) -> None:
    with copied.manager.fetch_log_segment(copied.metadata, 3, 1270) as stream:
        assert b"".join(iter(lambda: stream.read(size), b"")) == LOG[3:1271]
        assert stream.read(1) == stream.read() == b""
        assert stream.readinto(bytearray(5)) == 0


def test_a_stream_is_a_raw_file_that_buffers_and_closes(copied: Copied) -> None:
    stream = copied.manager.fetch_log_segment(copied.metadata, 0)
    assert stream.readable()
    assert stream.remaining == 1280
    with io.BufferedReader(stream) as buffered:
        assert buffered.read(10) == LOG[:10]
        assert buffered.read() == LOG[10:]
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)


def test_no_manifest_is_absent(copied: Copied) -> None:
    copied.store.delete([copied.key(Suffix.MANIFEST)])
    with pytest.raises(SegmentNotFoundError, match=r"a-topic.*-7 at offset 1234 .*rsm-manifest does not exist"):
        copied.manager.fetch_log_segment(copied.metadata, 0)
    with pytest.raises(SegmentNotFoundError):
        copied.manager.fetch_index(copied.metadata, IndexType.OFFSET)
    with pytest.raises(SegmentNotFoundError):
        copied.manager.fetch_all_indexes(copied.metadata)


def test_a_manifest_that_does_not_parse_is_corrupt_and_named(copied: Copied) -> None:
    copied.store.put(copied.key(Suffix.MANIFEST), b'{"version":"2"}')
    with pytest.raises(ManifestCorruptError, match=r"rsm-manifest is damaged: "):
        copied.manager.fetch_log_segment(copied.metadata, 0)


def test_a_missing_log_under_a_manifest_is_corrupt_and_not_absent(copied: Copied) -> None:
    copied.store.delete([copied.key(Suffix.LOG)])
    with pytest.raises(SegmentCorruptError, match=r"\.log is missing, and its manifest exists"):
        copied.manager.fetch_log_segment(copied.metadata, 0).read()


def test_a_truncated_log_is_corrupt_at_the_chunk_that_is_short(copied: Copied) -> None:
    stored = copied.store.get(copied.key(Suffix.LOG))
    copied.store.put(copied.key(Suffix.LOG), stored[:-1])
    with copied.manager.fetch_log_segment(copied.metadata, 0) as stream:
        assert stream.read(1200) == LOG[:1200]
        with pytest.raises(SegmentCorruptError, match=r"\.log is shorter than its manifest says"):
            stream.read(1)


@pytest.mark.parametrize("damage", ["missing", "short", "empty"])
def test_missing_or_short_indexes_are_corrupt_and_not_absent(copied: Copied, damage: str) -> None:
    key = copied.key(Suffix.INDEXES)
    stored = copied.store.get(key)
    if damage == "missing":
        copied.store.delete([key])
    else:
        copied.store.put(key, stored[:-1] if damage == "short" else b"")
    with pytest.raises(IndexesCorruptError, match="and its manifest exists: the segment is damaged"):
        copied.manager.fetch_all_indexes(copied.metadata)
    with pytest.raises(IndexesCorruptError):
        copied.manager.fetch_index(copied.metadata, IndexType.TRANSACTION)


def test_a_segment_deleted_while_it_is_read_is_absent_and_not_corrupt(tmp_path: Path) -> None:
    inner = MemoryObjectStore()

    def delete(_: Operation) -> None:
        """Delete the segment just after its manifest was read."""
        inner.delete([info.key for info in inner.list()])

    store = ScriptedStore(inner).on("get", "*rsm-manifest", delete, moment="after")
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        for read in (
            lambda segment: manager.fetch_log_segment(segment, 0).read(),
            lambda segment: manager.fetch_index(segment, IndexType.OFFSET),
        ):
            metadata = new_metadata(len(LOG))
            manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG))
            with pytest.raises(SegmentNotFoundError, match="deleted while it was read"):
                read(metadata)


def test_metadata_that_claims_more_than_the_manifest_has_is_corrupt(copied: Copied) -> None:
    grown = dataclasses.replace(copied.metadata, segment_size_in_bytes=2000)
    with pytest.raises(
        SegmentCorruptError, match="1280 bytes according to its manifest, but 2000 according to its metadata"
    ):
        copied.manager.fetch_log_segment(grown, 0)
    assert copied.manager.fetch_log_segment(grown, 0, 1279).read() == LOG


def test_an_encrypted_segment_without_key_ring_says_which_settings_are_missing(tmp_path: Path) -> None:
    store, metadata = MemoryObjectStore(), new_metadata(len(LOG))
    with RemoteStorageManager(memory_settings(mode=ENC), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG))
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        with pytest.raises(UnknownKeyError, match=r"'key1'.*encryption\.enabled"):
            manager.fetch_log_segment(metadata, 0)
        with pytest.raises(UnknownKeyError):
            manager.fetch_index(metadata, IndexType.OFFSET)
        assert manager.fetch_manifest(metadata).encryption is not None


def test_plain_segments_are_read_with_encryption_enabled(tmp_path: Path) -> None:
    store, metadata = MemoryObjectStore(), new_metadata(len(LOG))
    with RemoteStorageManager(memory_settings(mode=ZSTD), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG))
    with RemoteStorageManager(memory_settings(mode=ENC), store=store) as manager:
        assert manager.fetch_log_segment(metadata, 0).read() == LOG


def test_an_index_not_recorded_is_absent_from_the_map_and_an_empty_one_is_not(tmp_path: Path) -> None:
    store, metadata = MemoryObjectStore(), new_metadata(len(LOG))
    with RemoteStorageManager(memory_settings(mode=ENC), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG, transactions=None))
        assert set(manager.fetch_all_indexes(metadata)) == set(IndexType) - {IndexType.TRANSACTION}
        with pytest.raises(IndexNotRecordedError):
            manager.fetch_index(metadata, IndexType.TRANSACTION)
        assert manager.fetch_indexes(metadata, [IndexType.TRANSACTION]) == {}
        store.delete([manager.layout.key(metadata, Suffix.INDEXES)])
        assert manager.fetch_index(metadata, IndexType.TIMESTAMP).read() == b""  # an empty range needs no request


def test_an_empty_transaction_index_is_recorded(tmp_path: Path) -> None:
    store, metadata = MemoryObjectStore(), new_metadata(len(LOG))
    with RemoteStorageManager(memory_settings(mode=ENC), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG, transactions=b""))
        manifest = json.loads(store.get(manager.layout.key(metadata, Suffix.MANIFEST)))
        assert manifest["segmentIndexes"]["transaction"]["size"] == 0
        assert manager.fetch_index(metadata, IndexType.TRANSACTION).read() == b""


def test_custom_metadata_says_where_log_and_indexes_lie(tmp_path: Path) -> None:
    """After a change of the prefix, only the manifests were moved to the new one."""
    store = MemoryObjectStore()
    fields = {"custom.metadata.fields.include": "OBJECT_PREFIX,OBJECT_KEY", "key.prefix": "old/"}
    metadata = new_metadata(len(LOG))
    with RemoteStorageManager(memory_settings(fields=fields), store=store) as manager:
        custom = manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG))
        old = manager.layout.key(metadata, Suffix.MANIFEST)
    with RemoteStorageManager(memory_settings(prefix={"key.prefix": "new/"}), store=store) as manager:
        store.put(manager.layout.key(metadata, Suffix.MANIFEST), store.get(old))
        recorded = dataclasses.replace(metadata, custom_metadata=custom)
        assert manager.fetch_log_segment(recorded, 0).read() == LOG
        assert manager.fetch_index(recorded, IndexType.OFFSET).read() == b"i" * 16
        with pytest.raises(SegmentCorruptError, match=r"new/.*\.log is missing"):
            manager.fetch_log_segment(metadata, 0).read()


def test_each_custom_metadata_field_works_alone(copied: Copied) -> None:
    for suffix in (Suffix.LOG, Suffix.INDEXES):
        copied.store.put(f"moved.{suffix.value}", copied.store.get(copied.key(suffix)))
        copied.store.put(f"under/{copied.key(suffix)}", copied.store.get(copied.key(suffix)))
    copied.store.delete([copied.key(Suffix.LOG), copied.key(Suffix.INDEXES)])
    path = main_path(copied.metadata.remote_log_segment_id, copied.metadata.start_offset)
    for custom in (
        CustomMetadata(object_key="moved"),
        CustomMetadata(object_prefix="under/"),
        CustomMetadata(object_prefix="under/", object_key=path),
    ):
        recorded = dataclasses.replace(copied.metadata, custom_metadata=custom.to_bytes())
        assert copied.manager.fetch_log_segment(recorded, 0).read() == LOG


@pytest.mark.parametrize("gone", [(), (Suffix.MANIFEST,), (Suffix.LOG, Suffix.INDEXES), tuple(Suffix)])
def test_delete_is_idempotent_whatever_is_left(copied: Copied, gone: tuple[Suffix, ...]) -> None:
    copied.store.put("another", b"stays")
    copied.store.delete([copied.key(suffix) for suffix in gone])
    for _ in range(2):
        copied.manager.delete_log_segment_data(copied.metadata)
        assert [info.key for info in copied.store.list()] == ["another"]


def huge(
    root: Path, chunk_size: int, marks: dict[int, bytes]
) -> tuple[RemoteLogSegmentMetadata, FilesystemObjectStore]:
    """Write a plain segment of 2^31-1 bytes into a sparse file; the plugin could write such a segment."""
    metadata = new_metadata(MAX_INT32)
    log = root / f"{main_path(metadata.remote_log_segment_id, metadata.start_offset)}.log"
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        file.truncate(MAX_INT32)
        for position, mark in marks.items():
            file.seek(position)
            file.write(mark)
    none = IndexEntry(0, 0)
    last = MAX_INT32 % chunk_size or chunk_size
    chunks = FixedChunkIndex(chunk_size, MAX_INT32, chunk_size, last)
    manifest = SegmentManifest(chunks, SegmentIndexes(none, none, none, none, None), compression=False)
    log.with_suffix(".rsm-manifest").write_bytes(manifest.to_bytes())
    return metadata, FilesystemObjectStore(root)


@pytest.mark.parametrize("chunk_size", [4 << 20, pytest.param(1 << 30, marks=pytest.mark.soak), 3_000_001])
def test_the_end_that_the_plugin_cannot_read_is_read(tmp_path: Path, chunk_size: int) -> None:
    marks = {MAX_INT32 - 9: b"last bytes", MAX_INT32 - (4 << 20) + 1: b"last chunk", 2**30 - 2: b"middle"}
    marks = {position: mark[: MAX_INT32 - position] for position, mark in marks.items()}
    metadata, store = huge(tmp_path, chunk_size, marks)
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        for position, mark in marks.items():
            end = position + len(mark) - 1
            assert manager.fetch_log_segment(metadata, position, end).read() == mark
