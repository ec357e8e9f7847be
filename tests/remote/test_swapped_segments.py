"""Readers never return another segment's objects that lie under a segment's keys. If encryption is required, they never
return unencrypted objects.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.cli_process import tieredstore, write_settings
from tests.support.records.small_segments import ENC, memory_settings, new_metadata
from tests.support.records.small_segments import write_segment as write_small_segment
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.problems import ProblemKind
from tieredstore.catalog.stored import load_segment
from tieredstore.config import Settings, load_settings
from tieredstore.errors import SegmentCorruptError
from tieredstore.format.custom_metadata import CustomMetadata
from tieredstore.format.keys import Suffix, main_path
from tieredstore.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager
from tieredstore.spark.source.udf import StoredSegments, key_of_path
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

TINY = TopicIdPartition(Uuid(bytes(range(16))), "tiny", 0)
PAYROLL = TopicIdPartition(Uuid(bytes(range(1, 17))), "payroll", 0)
REFUSED = r"is refused: it is the manifest of another segment: it records the topic 'payroll', but its key says 'tiny'"


@dataclasses.dataclass(frozen=True)
class Swapped:
    """A store with payroll's objects under the keys of tiny's segment; the same key pair opens both."""

    settings_path: Path
    tiny: RemoteLogSegmentMetadata

    @property
    def settings(self) -> Settings:
        return load_settings(self.settings_path)


@pytest.fixture
def swapped(tmp_path: Path) -> Swapped:
    settings_path = write_settings(tmp_path, ENC)
    with RemoteStorageManager(load_settings(settings_path)) as manager:
        copied: list[RemoteLogSegmentMetadata] = []
        for partition in (TINY, PAYROLL):
            batch = build_batch([Record(value=partition.topic.encode())])
            segment = write_segment(tmp_path / "logs", [batch], partition=partition)
            copied.append(segment.to_metadata(Uuid.random()))
            manager.copy_log_segment_data(copied[-1], segment.files)
        for suffix in Suffix:
            theirs, ours = (tmp_path / "store" / manager.layout.key(each, suffix) for each in reversed(copied))
            shutil.copy(theirs, ours)
    return Swapped(settings_path, copied[0])


@pytest.mark.parametrize(
    "arguments", [["ls"], ["ls", "tiny", "-p", "0"], ["inspect", "tiny", "0", "0"], ["fetch", "tiny", "0", "0"],
                  ["inspect", "tiny", "0", "0", "--index", "offset"], ["cat", "tiny"], ["cat", "tiny", "--from", "0"]],
    ids=" ".join,
)  # fmt: skip
def test_no_command_serves_another_topics_segment(arguments: list[str], swapped: Swapped) -> None:
    done = tieredstore(arguments[0], "-c", swapped.settings_path, *arguments[1:])
    assert b"payroll" not in done.stdout.replace(b"payroll  ", b"")  # `ls` has a row for payroll itself
    assert "it records the topic 'payroll', but its key says 'tiny'" in done.stderr.replace("\n", " ")
    assert done.code in {3, 4}
    if arguments[0] != "cat":
        assert done.code == 4


def test_neither_manager_catalog_nor_spark_serve_it(swapped: Swapped) -> None:
    with RemoteStorageManager(swapped.settings) as manager:
        reads: list[Callable[[], Any]] = [
            lambda: manager.fetch_log_segment(swapped.tiny, 0),
            lambda: manager.open(swapped.tiny),
            lambda: manager.fetch_manifest(swapped.tiny),
            lambda: manager.fetch_index(swapped.tiny, IndexType.OFFSET),
            lambda: load_segment(manager.store, next(iter(list_segments(manager.store, "", Scope("tiny"))))),
            lambda: StoredSegments(manager, ReadSettings()).read(
                key_of_path(main_path(swapped.tiny.remote_log_segment_id, 0))
            ),
        ]
        for read in reads:
            with pytest.raises(SegmentCorruptError, match=REFUSED):
                read()
        catalog = load_catalog(manager)
        assert catalog.topics() == ("payroll",)
        assert [(problem.kind, problem.start_offset) for problem in catalog.problems] == [(ProblemKind.DAMAGED, 0)]


OTHERS = {
    "topic": ("remoteLogSegmentId.topicIdPartition.topicPartition.topic", "another"),
    "topicId": ("remoteLogSegmentId.topicIdPartition.topicId", str(Uuid(bytes(16)))),
    "partition": ("remoteLogSegmentId.topicIdPartition.topicPartition.partition", 8),
    "segment id": ("remoteLogSegmentId.id", str(Uuid(bytes(16)))),
    "startOffset": ("startOffset", 1235),
}


@pytest.fixture
def stored(tmp_path: Path) -> tuple[MemoryObjectStore, RemoteLogSegmentMetadata]:
    store, metadata = MemoryObjectStore(), new_metadata(300)
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_small_segment(tmp_path, b"x" * 300))
    return store, metadata


def _change(store: MemoryObjectStore, change: Callable[[dict[str, Any]], None]) -> None:
    (key,) = (info.key for info in store.list() if info.key.endswith(Suffix.MANIFEST.value))
    document = json.loads(store.get(key))
    change(document)
    store.put(key, json.dumps(document).encode())


def _set(document: dict[str, Any], path: str, value: object) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        document = document[folder]
    document[name] = value


@pytest.mark.parametrize("unusable", [False, True], ids=["usable", "unusable"])
@pytest.mark.parametrize("name", list(OTHERS))
def test_each_recorded_name_is_compared_by_itself(
    name: str, unusable: bool, stored: tuple[MemoryObjectStore, RemoteLogSegmentMetadata]
) -> None:
    store, metadata = stored
    path, value = OTHERS[name]

    def change(document: dict[str, Any]) -> None:
        _set(document["remoteLogSegmentMetadata"], path, value)
        if unusable:  # without this field, the metadata is unusable, but the error must still name the wrong segment
            del document["remoteLogSegmentMetadata"]["endOffset"]

    _change(store, change)
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        with pytest.raises(SegmentCorruptError, match=f"it records the {name} {value!r}, but its key says"):
            manager.fetch_log_segment(metadata, 0)
        with pytest.raises(SegmentCorruptError, match=f"it records the {name} {value!r}, but its key says"):
            load_segment(store, next(iter(list_segments(store))))


@pytest.mark.parametrize(
    "recorded", [None, "junk", [], {}, {"remoteLogSegmentId": None}, {"startOffset": "1"}], ids=str
)
def test_what_is_not_recorded_is_not_compared(
    recorded: object, stored: tuple[MemoryObjectStore, RemoteLogSegmentMetadata]
) -> None:
    store, metadata = stored
    _change(store, lambda document: document.update(remoteLogSegmentMetadata=recorded))
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        assert manager.open(metadata).read() == b"x" * 300
    _change(store, lambda document: document.pop("remoteLogSegmentMetadata"))
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        assert manager.open(metadata).read() == b"x" * 300


def test_objects_that_custom_metadata_leads_to_may_have_any_keys(
    stored: tuple[MemoryObjectStore, RemoteLogSegmentMetadata],
) -> None:
    store, metadata = stored
    path = main_path(metadata.remote_log_segment_id, metadata.start_offset)
    for suffix in (Suffix.LOG, Suffix.INDEXES):
        store.put(f"old/{path}-moved.{suffix.value}", store.get(f"{path}.{suffix.value}"))
    moved = dataclasses.replace(metadata, custom_metadata=CustomMetadata(1, "old/", f"{path}-moved").to_bytes())
    with RemoteStorageManager(memory_settings(), store=store) as manager:
        assert manager.open(moved).read() == b"x" * 300


def test_where_encryption_is_required_no_plain_segment_is_read(tmp_path: Path) -> None:
    plain = write_settings(tmp_path)
    batch = build_batch([Record(value=b"put there by somebody")])
    segment = write_segment(tmp_path / "logs", [batch], partition=TINY)
    metadata = segment.to_metadata(Uuid.random())
    with RemoteStorageManager(load_settings(plain)) as manager:
        manager.copy_log_segment_data(metadata, segment.files)
    migrated = write_settings(tmp_path, ENC)
    assert b"put there" in tieredstore("cat", "-c", migrated, "tiny").stdout
    strict = write_settings(tmp_path, {**ENC, "encryption.required": "true"})
    for arguments in (["ls"], ["inspect", "tiny", "0", "0"], ["fetch", "tiny", "0", "0"], ["cat", "tiny"]):
        done = tieredstore(arguments[0], "-c", strict, *arguments[1:])
        assert done.code in {3, 4}
        assert b"put there" not in done.stdout
        assert "the segment is not encrypted, but encryption.required is true" in done.stderr.replace("\n", " ")
    with RemoteStorageManager(load_settings(strict)) as manager:
        encrypted = dataclasses.replace(metadata, remote_log_segment_id=RemoteLogSegmentId(TINY, Uuid.random()))
        manager.copy_log_segment_data(encrypted, segment.files)
        assert manager.open(encrypted).read() == batch
        for read in (manager.open, manager.fetch_manifest, lambda of: manager.fetch_index(of, IndexType.OFFSET)):
            with pytest.raises(SegmentCorruptError, match=r"not encrypted, but encryption\.required is true"):
                read(metadata)
