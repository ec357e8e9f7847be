"""Writing the raw layout: a segment's three files are written once, the log last, and never overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.places.test_raw_reading import raw_settings
from tests.support.golden.records import rows_of
from tests.support.records.record_reader import read_records
from tests.support.stores.doubles import CountingStore, Moment, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep
from tests.support.uploader.uploader_disk import BrokerDisk, SaidSettling, skipping_uploader
from tieredstore.api.outcomes import Outcome
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.planning import load_catalog
from tieredstore.errors import ConfigError, SegmentConflictError
from tieredstore.kafka.logdir import PARTITION_METADATA, LogSegment, describe, discover
from tieredstore.model import Isolation, TopicIdPartition, Uuid
from tieredstore.partitions.selections import Subscribe
from tieredstore.places.opening import place_store
from tieredstore.reading.query import LogQuery
from tieredstore.reading.survey import survey_logs
from tieredstore.remote import RemoteStorageManager
from tieredstore.uploader.settings import uploader_settings_from

FOLDER = "p/kafkaCluster1/events-0/"


def run_once(disk: BrokerDisk, store: ObjectStore, bits: int = 0) -> list[str]:
    return [str(left.reason) for left in what_is_left(disk, store, bits)]


def what_is_left(disk: BrokerDisk, store: ObjectStore, bits: int = 0) -> list[Outcome]:
    own = {"leadership": "static", "log.dirs": str(disk.log_dir), "broker.id": "1"}
    texts = {f"uploader.{name}": text for name, text in own.items()}
    settings = raw_settings(bits)
    places, uploader = place_store(store, settings), uploader_settings_from(texts)
    with skipping_uploader(settings, uploader, places, SaidSettling()) as running:
        return running.run_once(tries=3)


def values_read(store: MemoryObjectStore, bits: int = 0) -> list[bytes]:
    settings = raw_settings(bits)
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        return [row["key"] for row in rows_of(read_records(manager, "events", 0))]


def names_in(store: MemoryObjectStore) -> list[str]:
    return [info.key.removeprefix(FOLDER) for info in store.list(FOLDER)]


def sweep_of(disk: BrokerDisk, numbers: slice) -> OperationSweep[MemoryObjectStore]:
    return OperationSweep(MemoryObjectStore, lambda store: run_once(disk, store), numbers=numbers)


def whole(disk: BrokerDisk) -> list[bytes]:
    return [value for base in (0, 10, 20) for value in disk.values(base, 0)]


def log_segments(disk: BrokerDisk) -> list[LogSegment]:
    return [describe(segment) for segment in discover(disk.folder).segments[:3]]


@pytest.mark.parametrize("bits", [0, 5])
def test_shipped_segments_are_the_brokers_files_and_are_read_back(disk: BrokerDisk, bits: int) -> None:
    store = MemoryObjectStore()
    counting = CountingStore(store)
    assert run_once(disk, counting, bits) == []
    written = [key.rpartition("/")[2] for key in counting.keys_of("put")]
    folder = (
        FOLDER
        if not bits
        else next(info.key for info in store.list("p/") if "events-0/0" in info.key)[
            : -len("00000000000000000000.index")
        ]
    )
    for base in (0, 10, 20):
        for ending in ("index", "timeindex", "log"):
            assert store.get(f"{folder}{base:020d}.{ending}") == (disk.folder / f"{base:020d}.{ending}").read_bytes()
        order = [written.index(f"{base:020d}.{ending}") for ending in ("index", "timeindex", "log")]
        assert order == sorted(order)
    assert store.get(f"{folder}offset.wm") == b"%020d" % 20
    assert [info.key for info in store.list("p/!tieredstore/watermarks/")] == [
        "p/!tieredstore/watermarks/events/0.json"
    ]
    assert values_read(store, bits) == whole(disk)
    counting.reset()
    assert run_once(disk, counting, bits) == []
    assert counting.keys_of("put") == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_each_request_may_fail_and_all_is_stored_once(disk: BrokerDisk, moment: Moment) -> None:
    for number, store, faulty in sweep_of(disk, slice(None, None, 3)).fail(moment):
        run_once(disk, faulty)
        assert run_once(disk, store) == []
        assert values_read(store) == whole(disk), number
        assert store.get(f"{FOLDER}offset.wm") == b"%020d" % 20, number


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_pinterests_watermark_is_moved_behind_each_log_whatever_was_killed_before(
    disk: BrokerDisk, is_forgotten: bool
) -> None:
    """Pinterest's watermark reaches the last stored segment, although no segment follows. It does so even after our own
    watermark was lost and rebuilt from a listing.
    """
    was_behind = False
    for number, store, faulty in sweep_of(disk, slice(int(is_forgotten), None, 2)).fail(for_good=True):
        run_once(disk, faulty)
        names = names_in(store)
        logs = [name for name in names if name.endswith(".log")]
        if logs and (not_yet := "offset.wm" not in names or store.get(f"{FOLDER}offset.wm").decode() < max(logs)[:20]):
            was_behind = was_behind or not_yet
        if is_forgotten:
            store.delete([info.key for info in store.list("p/!tieredstore/watermarks/")])
        assert run_once(disk, store) == []
        assert store.get(f"{FOLDER}offset.wm") == b"%020d" % 20, number
    assert was_behind


def test_other_bytes_are_a_hole_and_stay(disk: BrokerDisk, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryObjectStore()
    key = f"{FOLDER}{10:020d}.log"
    store.put(key, b"another log")
    assert run_once(disk, store) == []
    assert store.get(key) == b"another log"
    assert b'"first_offset":10' in store.get("p/!tieredstore/watermarks/events/0.json")
    assert [info.key for info in store.list("p/!tieredstore/quarantine/") if info.key.endswith(".log")] != []
    assert "a different .log file exists under its key" in caplog.text


def test_the_index_of_another_replica_is_no_conflict_and_a_foreign_one_is(disk: BrokerDisk) -> None:
    settings = raw_settings()
    segment = log_segments(disk)[0]
    metadata = segment.to_metadata(Uuid.random(), 1, 1000)
    for content, is_conflict in ((b"", False), (b"\0\0\0\x01\0\0\0\x05", True), (b"\x7f" * 8, True), (b"x", True)):
        store = MemoryObjectStore()
        store.put(f"{FOLDER}{0:020d}.index", content)
        with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
            if is_conflict:
                with pytest.raises(SegmentConflictError, match=r"a different \.index"):
                    manager.copy_log_segment_data(metadata, segment.files)
                assert names_in(store) == [f"{0:020d}.index"]
            else:
                manager.copy_log_segment_data(metadata, segment.files)
                assert len(load_catalog(manager).lineage("events", 0).spans) == 1


def test_the_watermark_only_grows_whoever_else_moves_it(disk: BrokerDisk) -> None:
    settings = raw_settings()
    first, second, _ = log_segments(disk)
    store = MemoryObjectStore()
    racing = ScriptedStore(store)
    racing.on("replace", "*offset.wm", lambda operation: store.put(operation.keys[0], b"%020d\n" % 5), times=1)
    with RemoteStorageManager(settings, store=place_store(racing, settings)) as manager:
        # Copy the later segment first, as other uploaders have done.
        manager.copy_log_segment_data(second.to_metadata(Uuid.random(), 1, 1), second.files)
        manager.copy_log_segment_data(first.to_metadata(Uuid.random(), 1, 1), first.files)
        assert store.get(f"{FOLDER}offset.wm") == b"%020d" % 10
        store.put(f"{FOLDER}offset.wm", b"%020d" % 0)
        manager.copy_log_segment_data(second.to_metadata(Uuid.random(), 1, 1), second.files)
    assert store.get(f"{FOLDER}offset.wm") == b"%020d" % 10


def test_a_broker_without_topic_ids_is_shipped(disk: BrokerDisk) -> None:
    (disk.folder / PARTITION_METADATA).unlink()
    store = MemoryObjectStore()
    assert run_once(disk, store) == []
    assert values_read(store) == whole(disk)


def test_compression_and_encryption_are_refused_in_the_raw_layout() -> None:
    with pytest.raises(ConfigError, match="never encrypted or compressed"):
        raw_settings(**{"compression.enabled": "true"})  # type: ignore[arg-type]


def test_what_lies_on_disk_before_the_first_stored_segment_is_shipped(disk: BrokerDisk) -> None:
    """Only the third segment is stored. Pinterest's uploader was stopped while it shipped segments out of order."""
    store, first = MemoryObjectStore(), MemoryObjectStore()
    run_once(disk, first)
    for ending in ("index", "timeindex", "log"):
        store.put(f"{FOLDER}{20:020d}.{ending}", first.get(f"{FOLDER}{20:020d}.{ending}"))
    counting = CountingStore(store)
    assert run_once(disk, counting) == []
    assert values_read(store) == whole(disk)
    assert [key for key in counting.keys_of("put") if f"{20:020d}" in key] == [], "it is there already"
    assert (watermark_in(store)["next_offset"], watermark_in(store)["holes"]) == (30, [])


def test_what_was_deleted_before_the_first_stored_segment_is_named_no_loss_and_what_is_between_is(
    disk: BrokerDisk,
) -> None:
    store, first = MemoryObjectStore(), MemoryObjectStore()
    run_once(disk, first)
    disk.grow()
    for ending in ("index", "timeindex", "log"):
        store.put(f"{FOLDER}{20:020d}.{ending}", first.get(f"{FOLDER}{20:020d}.{ending}"))
    # Delete offsets 0 to 9 from the disk; 10 to 19 are still there.
    for path in disk.files(0):
        path.unlink()
    disk.bases.pop(0)
    assert run_once(disk, store) == []
    assert values_read(store) == [*whole(disk)[10:], *disk.values(30, 0)]
    assert watermark_in(store)["holes"] == []


def watermark_in(store: MemoryObjectStore) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(store.get("p/!tieredstore/watermarks/events/0.json"))
    return document


def test_a_topic_that_was_created_again_is_named_and_nothing_of_it_is_shipped(disk: BrokerDisk, tmp_path: Path) -> None:
    store = MemoryObjectStore()
    assert run_once(disk, store) == []
    again = BrokerDisk(tmp_path / "again", TopicIdPartition(Uuid(bytes([3] * 16)), "events", 0))
    again.epochs = ((5, 0),)
    again.grow(6)
    before = {info.key: store.get(info.key) for info in store.list()}
    (left,) = what_is_left(again, store)
    reason = str(left.reason)
    assert isinstance(left.error, ConfigError)
    for word in (str(again.partition.topic_id), str(disk.partition.topic_id), "created again", "key.prefix"):
        assert word in reason
    assert {info.key: store.get(info.key) for info in store.list()} == before
    # The old topic's uploader continues.
    disk.grow()
    assert run_once(disk, store) == []
    assert watermark_in(store)["next_offset"] == 40


def test_a_broker_that_knows_topic_ids_since_now_goes_on_where_it_did_not(disk: BrokerDisk) -> None:
    metadata = disk.folder / PARTITION_METADATA
    raw = metadata.read_bytes()
    metadata.unlink()
    store = MemoryObjectStore()
    assert run_once(disk, store) == []
    for content in (raw, None):
        disk.grow()
        if content is None:
            metadata.unlink()
        else:
            metadata.write_bytes(content)
        assert run_once(disk, store) == []
        assert watermark_in(store)["next_offset"] == disk.bases[-1]
        assert watermark_in(store)["holes"] == []


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_where_its_watermark_was_moved_back_another_log_goes_on(disk: BrokerDisk, isolation: Isolation) -> None:
    store, settings = MemoryObjectStore(), raw_settings(0)
    assert run_once(disk, store) == []
    key = "p/!tieredstore/watermarks/events/0.json"
    document: dict[str, Any] = json.loads(store.get(key))
    document["moved_back"] = [{"from_offset": 30, "to_offset": 15, "leader_epoch": 90, "at_ms": 0}]
    document["segment"] = None
    store.put(key, json.dumps(document).encode())
    with RemoteStorageManager(settings, store=place_store(store, settings)) as manager:
        log = survey_logs(manager, LogQuery(Subscribe(("events",)), isolation)).logs["events", 0]
    assert (log.earliest, log.end, log.cut is None) == (0, 15, False)
