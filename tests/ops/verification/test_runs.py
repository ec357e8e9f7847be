"""Tests of whole runs: changes during a run, its cost and memory, and the result of many findings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.damage.planted_bucket import CHUNK, EVENTS, OFFSETS, SEGMENTS, PlantedBucket
from tests.support.ops.tools import findings_of, found_in
from tests.support.records.record_reader import RecordReader
from tests.support.records.small_segments import memory_settings
from tests.support.stores.catalog_stores import MadeSegment, partition_of, run_of
from tests.support.stores.doubles import CountingStore, ScriptedStore
from tieredstore.api.verifying import Depth
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.planning import load_catalog
from tieredstore.catalog.watermark import MoveBack, ShippedSegment, Watermark, watermark_key
from tieredstore.errors import BatchCorruptError, DataLossError, ObjectArchivedError, StoreUnavailableError
from tieredstore.format.keys import Suffix
from tieredstore.kafka.batches import read_batch_headers
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import Uuid
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.verification.findings import FindingKind
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.verification import Narrow, verify
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.batches import Record, build_batch
from tieredstore.testing.segments import write_segment

K = FindingKind


@pytest.fixture
def planted() -> PlantedBucket:
    return PlantedBucket.of("plain")


def read_all(bucket: Bucket) -> None:
    """Read the records of the topic's partition."""
    with bucket.manager() as manager:
        reader = RecordReader(manager, load_catalog(manager), ReadSettings())
        with reader.read(EVENTS.topic, EVENTS.partition, None, None) as read:
            assert all(batch.num_rows for batch in read)


def starting(first: int, last: int) -> Narrow:
    """Return a function that selects the listed segments that begin at these offsets (inclusive)."""
    return lambda listed: (objects for objects in listed if first <= objects.start_offset <= last)


def kinds_in(bucket: Bucket, level: Level = Level.LISTING) -> list[FindingKind]:
    return [finding.kind for finding in findings_of(bucket, level)]


@pytest.mark.parametrize("level", Level)
def test_a_segment_that_is_deleted_meanwhile_is_no_finding_and_leaves_no_gap(
    planted: PlantedBucket, level: Level
) -> None:
    def delete_behind(infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        """Return a listing, and delete one of its segments right after it, as retention does."""
        listed = list(infos)
        planted.delete(*Suffix, number=1)
        return iter(listed)

    retained = ScriptedStore(planted.store).change("list", change=delete_behind)
    assert kinds_in(Bucket(planted.settings, retained), level) == []


def list_while_committing(infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Yield a listing that a copy overlaps: it has the manifest, half of the log, and no indexes."""
    offset = f"/{OFFSETS:020}-"
    for info in infos:
        if offset in info.key and info.key.endswith(".log"):
            yield dataclasses.replace(info, size=info.size // 2)
        elif offset not in info.key or not info.key.endswith(".indexes"):
            yield info


def test_an_object_listed_as_missing_or_short_is_requested_once_more(planted: PlantedBucket) -> None:
    committing = ScriptedStore(planted.store).change("list", change=list_while_committing)
    assert kinds_in(Bucket(planted.settings, committing), Level.DATA) == []


def test_objects_without_a_manifest_are_a_notice_beside_the_gap(planted: PlantedBucket) -> None:
    planted.delete(Suffix.MANIFEST)
    leftover, gap = findings_of(planted.bucket, Level.LISTING)
    assert (leftover.kind, gap.kind, gap.offsets) == (K.UNCOMMITTED, K.GAP, (OFFSETS, 2 * OFFSETS - 1))
    assert "objects without a manifest" in gap.detail


@pytest.mark.parametrize("level", [Level.INDEX, Level.DATA])
def test_a_log_that_ends_before_its_segment_is_a_notice(planted: PlantedBucket, level: Level) -> None:
    """Compaction may remove a segment's last records."""
    end = 2 * OFFSETS - 1
    planted.delete(*Suffix, number=2)
    planted.edit_metadata(1, endOffset=end + 3)
    early, gap = findings_of(planted.bucket, level)
    assert (early.kind, early.offsets) == (K.ENDS_EARLY, (end + 1, end + 3))
    assert (gap.kind, gap.offsets) == (K.GAP, (end + 4, 3 * OFFSETS - 1))


@pytest.mark.parametrize("level", [Level.INDEX, Level.DATA])
def test_a_log_that_ends_before_the_last_segment_does_is_damage_as_for_readers(
    planted: PlantedBucket, level: Level
) -> None:
    end = SEGMENTS * OFFSETS - 1
    planted.edit_metadata(SEGMENTS - 1, endOffset=end + 3)
    (finding,) = findings_of(planted.bucket, level)
    assert (finding.kind, finding.offsets) == (K.END_OFFSET, (end + 1, end + 3))
    with pytest.raises(DataLossError, match=f"offsets {end + 1} to {end + 3} are lost"):
        read_all(planted.bucket)

    # Neither a run from a certain offset on nor the remains of a failed upload hide the lost end.
    from_second = found_in(verify(planted.bucket, selection=Selection(level), narrow=starting(OFFSETS, MAX_OFFSET)))
    assert from_second == [finding]
    failed = MadeSegment(EVENTS, (SEGMENTS - 1) * OFFSETS, end + 3, number=1 << 60)
    planted.store.put(failed.key(Suffix.LOG), b"the log of another attempt")
    assert finding in findings_of(planted.bucket, level)


@pytest.mark.parametrize("level", [Level.INDEX, Level.DATA])
def test_a_run_up_to_an_offset_does_not_know_if_a_segment_follows(planted: PlantedBucket, level: Level) -> None:
    end = (SEGMENTS - 1) * OFFSETS - 1
    planted.edit_metadata(SEGMENTS - 2, endOffset=end + 3)
    narrow = starting(0, end)
    (cut,) = found_in(verify(planted.bucket, selection=Selection(level), narrow=narrow))
    assert (cut.kind, cut.offsets) == (K.ENDS_EARLY, (end + 1, end + 3))
    # If no segment follows, the same run knows the whole log.
    planted.delete(*Suffix, number=SEGMENTS - 1)
    (lost,) = found_in(verify(planted.bucket, selection=Selection(level), narrow=narrow))
    assert (lost.kind, lost.offsets) == (K.END_OFFSET, (end + 1, end + 3))


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("suffix", Suffix)
def test_an_archived_object_is_named_and_all_others_are_checked(
    planted: PlantedBucket, suffix: Suffix, level: Level
) -> None:
    planted.flip(Suffix.LOG, planted.headers(3)[2].position + 100, number=3)
    store = ScriptedStore(planted.store)
    store.on(("get", "get_into"), planted.key(suffix), ObjectArchivedError("restore it"))
    findings = findings_of(Bucket(planted.settings, store), level)
    is_read = level is not Level.LISTING or suffix is Suffix.MANIFEST
    kinds = [*([K.ARCHIVED] if is_read else []), *([K.BATCH_CRC] if level is Level.DATA else [])]
    assert [finding.kind for finding in findings] == kinds
    assert [finding.object_key for finding in findings[:is_read]] == [planted.key(suffix)] * is_read
    # A window by offsets reads the manifests before the checks.
    depth = Depth(level.value, 1, 1, None, None, timedelta(), None)
    bucket = Bucket(planted.settings, store)
    narrow = functools.partial(depth.narrow, bucket, is_only=False)
    assert found_in(verify(bucket, selection=Selection(level), narrow=narrow)) == findings


def test_a_log_that_is_valid_again_after_two_unclean_elections_is_not_left_behind() -> None:
    """The last leader has uploaded the first leader's records again. Only the watermark shows that they rule."""
    store, where = MemoryObjectStore(), partition_of()
    for start in (0, 10):
        MadeSegment(where, start, start + 9, ((1, start),), number=9).put(store)
    *_, last = [MadeSegment(where, start, start + 9, ((0, start),)).put(store) for start in (0, 10, 20)]
    bucket = Bucket(memory_settings(1024), store)
    assert (K.LEFT_BEHIND, (20, 29)) in [(one.kind, one.offsets) for one in findings_of(bucket, Level.LISTING)]
    shipped = ShippedSegment(str(last.metadata.remote_log_segment_id.id), 20, 29)
    mark = Watermark(where, 30, 2, segment=shipped, moved_back=(MoveBack(20, 0, 2, 0),))
    store.put(watermark_key("", where), mark.to_bytes())
    assert K.LEFT_BEHIND not in kinds_in(bucket)
    # A log that cannot be traced refutes nothing.
    refusing = ScriptedStore(store).on("get", watermark_key("", where), StoreUnavailableError("no answer"))
    assert K.LEFT_BEHIND in kinds_in(Bucket(bucket.settings, refusing))


@pytest.mark.parametrize("level", [Level.INDEX, Level.DATA])
def test_zeros_in_place_of_the_last_batch_are_damage_as_for_readers(tmp_path: Path, level: Level) -> None:
    """The indexes and the greatest timestamp may know nothing of the last batch."""
    store, settings = MemoryObjectStore(), memory_settings(CHUNK)
    batches = [build_batch([Record(b"v" * 50, timestamp_ms=1000)], offset) for offset in range(8)]
    segment = write_segment(tmp_path, batches, partition=EVENTS)
    with RemoteStorageManager(settings, store=store) as manager:
        manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=0), segment.files)
    (key,) = (info.key for info in store.list() if info.key.endswith(".log"))
    log = store.get(key)
    store.put(key, log[: -len(batches[-1])] + bytes(len(batches[-1])))
    damage = [one for one in findings_of(Bucket(settings, store), level) if one.kind is not K.TRAILING_ZEROS]
    assert [(one.kind, one.offsets) for one in damage] == [(K.BATCH_STRUCTURE, (7, 7))]
    with pytest.raises(BatchCorruptError, match="only zeros from offset 7 on"):
        read_all(Bucket(settings, store))


def test_of_many_findings_of_a_segment_a_hundred_are_listed(tmp_path: Path) -> None:
    store, settings = MemoryObjectStore(), memory_settings(CHUNK)
    batches = [build_batch([Record(b"v" * 50, timestamp_ms=offset)], offset) for offset in range(150)]
    segment = write_segment(tmp_path, batches, partition=EVENTS)
    with RemoteStorageManager(settings, store=store) as manager:
        manager.copy_log_segment_data(segment.to_metadata(Uuid.random(), event_timestamp_ms=0), segment.files)
    (key,) = (info.key for info in store.list() if info.key.endswith(".log"))
    log = bytearray(store.get(key))
    for header in read_batch_headers(bytes(log)):
        log[header.position + header.size_in_bytes - 3] ^= 1
    store.put(key, log)
    kinds = kinds_in(Bucket(settings, store), Level.DATA)
    assert kinds == [K.BATCH_CRC] * 100 + [K.MANY_MORE]


def test_batches_after_a_damaged_chunk_are_checked_too() -> None:
    planted = PlantedBucket.of("enc")
    stored = CHUNK + 28
    for chunk in (0, 2):
        planted.flip(Suffix.LOG, chunk * stored + 100)
    findings = findings_of(planted.bucket, Level.DATA)
    extents = [(finding.byte_range.start, finding.byte_range.stop) for finding in findings if finding.byte_range]
    assert [finding.kind for finding in findings] == [K.CHUNK_DAMAGED] * 2
    assert extents == [(0, stored), (2 * stored, 3 * stored)]


def test_batches_after_a_damaged_length_are_checked_too(planted: PlantedBucket) -> None:
    headers = planted.headers()
    planted.patch(Suffix.LOG, headers[2].position + 8, b"\xff\xff\xff\xff")
    planted.flip(Suffix.LOG, headers[8].position + 300)
    assert kinds_in(planted.bucket, Level.DATA) == [K.BATCH_STRUCTURE, K.BATCH_CRC]


def test_the_listing_is_taken_as_segments_are_checked_and_is_not_held() -> None:
    store = MemoryObjectStore()
    for segment in run_of(300, partition_of()):
        segment.put(store)
    taken: list[ObjectInfo] = []

    def take(infos: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in infos:
            taken.append(info)
            yield info

    counted = ScriptedStore(store).change("list", change=take)
    run = verify(Bucket(memory_settings(), counted), parallel=2)
    next(run)
    assert 3 <= len(taken) <= 3 * (4 * 2 + 4)
    run.close()


def test_level_listing_costs_a_listing_and_a_read_for_each_segment(planted: PlantedBucket) -> None:
    counted = CountingStore(planted.store)
    assert not kinds_in(Bucket(planted.settings, counted))
    assert dict(counted.requests) == {"list": 1, "get": SEGMENTS + 1}


def test_a_store_that_fails_ends_the_run(planted: PlantedBucket) -> None:
    failing = ScriptedStore(planted.store).on("get", do=StoreUnavailableError("it does not come"))
    with pytest.raises(StoreUnavailableError):
        findings_of(Bucket(planted.settings, failing), Level.LISTING)


def test_what_a_disk_cache_holds_says_nothing_of_the_store(planted: PlantedBucket, tmp_path: Path) -> None:
    cache = {
        "fetch.chunk.cache.class": "disk",
        "fetch.chunk.cache.size": "10000000",
        "fetch.chunk.cache.path": str(tmp_path),
    }
    settings = memory_settings(CHUNK, cache=cache)
    with RemoteStorageManager(settings, store=planted.store) as manager, manager.open(planted.segments[1]) as log:
        assert log.read() == planted.get(Suffix.LOG)
    planted.flip(Suffix.LOG, planted.headers()[5].position + 200)
    assert kinds_in(Bucket(settings, planted.store), Level.DATA) == [K.BATCH_CRC]
