"""Stored segments are deleted by age or size, in led partitions and from the oldest on. A dry run deletes none."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cli.cli_process import tieredstore
from tests.support.stores.doubles import Moment, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep, copies_of
from tests.support.uploader.uploader_disk import BrokerDisk, extents, run_once, stored, uploader_of, watermark_of
from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import SegmentObjects, list_segments
from tieredstore.errors import BrokerUnavailableError, StoreUnavailableError
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentId, TopicPartition, Uuid
from tieredstore.ops.garbage.holds import LegalHold, place_hold
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Leadership, Uploader
from tieredstore.uploader.retention import first_within

ALL = [(0, 9), (10, 19), (20, 29), (30, 39)]


@pytest.fixture
def disk(tmp_path: Path) -> BrokerDisk:
    """Return a disk with four closed segments. A record's timestamp is 1,000 ms plus its offset."""
    return BrokerDisk(tmp_path / "logs", segments=5)


@pytest.fixture
def store(disk: BrokerDisk) -> MemoryObjectStore:
    """Return a store that holds all four segments."""
    store = MemoryObjectStore()
    run_once(disk.log_dir, store)
    assert extents(store) == ALL
    return store


def keep_a_second(
    disk: BrokerDisk, store: ObjectStore, now_ms: int, dry_run: str = "true", leadership: str = "static"
) -> None:
    """Run an uploader that keeps records up to a second old; ``now_ms`` is its time."""
    with uploader_of(
        disk.log_dir, store, retention_ms="1000", retention_dry_run=dry_run, leadership=leadership
    ) as shipping:
        shipping.retention = replace(shipping.retention, now_ms=lambda: now_ms)
        shipping.run_once()


def test_records_that_are_too_old_go_and_the_watermark_stays(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    # The second segment's newest timestamp is 1,019 ms, and the third segment's is 1,029 ms.
    before = watermark_of(store)
    keep_a_second(disk, store, 2025)
    assert extents(store) == ALL, "retention is a dry run by default"
    keep_a_second(disk, store, 9999, dry_run="false", leadership="tests.uploader.test_filling.Follower")
    assert extents(store) == ALL, "another broker leads the partition"
    keep_a_second(disk, store, 2025, dry_run="false")
    assert extents(store) == ALL[2:]
    assert watermark_of(store) == before
    # Segments still on disk that were shipped before are not shipped again.
    disk.grow()
    keep_a_second(disk, store, 2025, dry_run="false")
    assert extents(store) == [*ALL[2:], (40, 49)]


def test_a_clock_that_jumps_ahead_deletes_nothing_too_early(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    """Retention uses the earlier of the machine's time and the store's time.

    A store may have no clock.
    """
    of_the_store = [2025]
    scripted = ScriptedStore(store).change("now_ms", change=lambda _: of_the_store[0])
    with uploader_of(disk.log_dir, scripted, retention_ms="1000", retention_dry_run="false") as shipping:
        shipping.retention = replace(shipping.retention, now_ms=lambda: 9_999_999)
        shipping.run_once()
        assert extents(store) == ALL[2:]
        of_the_store[0] = 9_999_999
        shipping.retention = replace(shipping.retention, now_ms=lambda: 2035)
        shipping.run_once()
        assert extents(store) == ALL[3:]
    clockless = ScriptedStore(store).change("now_ms", change=lambda _: None)
    keep_a_second(disk, clockless, 9999, dry_run="false")
    assert extents(store) == []


def test_a_segment_that_is_stored_after_it_expired_goes_with_the_next_deletion(
    tmp_path: Path, disk: BrokerDisk
) -> None:
    """The first uploader is suspended before its first segment is complete in the store. Meanwhile the next leader's
    uploader ships everything, and deletes the first two segments.
    """
    other, store = BrokerDisk(tmp_path / "other", segments=5), MemoryObjectStore()
    scripted = ScriptedStore(store)

    def lead(_: object) -> None:
        keep_a_second(other, store, 2025, dry_run="false")

    scripted.on("put", f"*{Suffix.MANIFEST.value}", lead, times=1)
    run_once(disk.log_dir, scripted)
    assert extents(store)[0] == ALL[0]
    keep_a_second(other, store, 2025, dry_run="false")
    assert sorted({*extents(store)}) == ALL[2:]


def test_a_topic_has_a_time_of_its_own(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    topic = PARTITION.topic
    for topics, left in ((f"{topic}=-1,other=0", ALL), ("other=0", ALL), (f"other=-1,{topic}=0", [])):
        with uploader_of(
            disk.log_dir, store, retention_ms="1000", retention_dry_run="false", retention_topics=topics
        ) as shipping:
            shipping.retention = replace(shipping.retention, now_ms=lambda: 1900)
            shipping.run_once()
        assert extents(store) == left


def test_what_is_too_much_goes_from_the_oldest_on(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    size = stored(store)[0].objects.find(Suffix.LOG)
    assert size is not None
    sizes = [info.size for segment in stored(store) if (info := segment.objects.find(Suffix.LOG)) is not None]
    run_once(disk.log_dir, store, retention_bytes=str(sum(sizes)), retention_dry_run="false")
    assert extents(store) == ALL
    run_once(disk.log_dir, store, retention_bytes=str(sum(sizes[2:])), retention_dry_run="false")
    assert extents(store) == ALL[2:]
    run_once(disk.log_dir, store, retention_bytes="0", retention_dry_run="false")
    assert extents(store) == ALL[3:], "the last one that is stored stays"


@pytest.mark.parametrize("is_held", [True, False])
def test_a_segment_that_stays_by_its_age_ends_the_limit_by_size_too(
    disk: BrokerDisk, store: MemoryObjectStore, *, is_held: bool
) -> None:
    if is_held:
        place_hold(store, "", LegalHold("case", PARTITION.topic, PARTITION.partition, 10, 19))
    else:
        store.put(f"{stored(store)[1].objects.main_path}.{Suffix.MANIFEST.value}", b"{")
    run_once(disk.log_dir, store, retention_ms="0", retention_bytes="0", retention_dry_run="false")
    assert [objects.start_offset for objects in list_segments(store)] == [10, 20, 30]


def test_topics_that_the_broker_may_tier_have_their_own_retention(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    run_once(disk.log_dir, store, retention_bytes="0", retention_dry_run="false", force_topics=PARTITION.topic)
    assert extents(store) == ALL


def test_nothing_goes_while_nobody_knows_who_leads(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    with uploader_of(disk.log_dir, store, retention_bytes="0", retention_dry_run="false") as shipping:
        shipping.sweep()
        shipping.ask_topics()
        assert list(shipping.expire()) == []
        shipping.ask_leadership()
        assert [(entry.status, entry.reason) for entry in shipping.expire()] == [
            ("done", "segments past uploader.retention: 3")
        ]
        assert (shipping.counts.expired_segments, shipping.counts.expired_bytes > 0) == (3, True)


def test_a_run_and_a_plan_ask_for_the_leaders_again_for_retention(tmp_path: Path) -> None:
    """A leader's answer is valid for half a minute. Each listing of this store takes longer."""
    log_dir, store = tmp_path / "logs", ScriptedStore(MemoryObjectStore())
    disks = [BrokerDisk(log_dir, replace(PARTITION, partition=number), segments=3) for number in range(2)]
    run_once(log_dir, store)

    def uploader() -> Uploader:
        limits = {"retention_bytes": "0", "retention_dry_run": "false"}
        return uploader_of(log_dir, store, None, lambda: 31.0 * store.requests["list"], **limits)

    with uploader() as shipping:
        assert sorted(one.partition or 0 for one in shipping.plan() if one.action == "remove") == [0, 1]
    with uploader() as shipping:
        assert shipping.run_once() == []
    assert [extents(store, one.partition) for one in disks] == [[(10, 19)], [(10, 19)]]


class Forgetful(Leadership):
    """Leadership that answers only the first question."""

    asked = 0

    def led(self) -> set[TopicPartition]:
        self.asked += 1
        if self.asked > 1:
            raise BrokerUnavailableError("nobody is there")
        return {(PARTITION.topic, PARTITION.partition)}


def test_a_run_that_loses_the_leaders_says_that_retention_stopped(
    disk: BrokerDisk, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    slow = ScriptedStore(store)
    limits = {"retention_bytes": "0", "retention_dry_run": "false"}
    leadership = f"{__name__}.{Forgetful.__name__}"
    run_once(disk.log_dir, slow, None, lambda: 31.0 * slow.requests["list"], leadership=leadership, **limits)
    assert extents(store) == ALL
    assert caplog.text.count("retention of stored segments stopped early: the partitions' leaders are unknown") == 1


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_store_that_fails_makes_no_hole(disk: BrokerDisk, store: MemoryObjectStore, moment: Moment) -> None:
    def expire(store: ObjectStore) -> None:
        with uploader_of(disk.log_dir, store, retention_bytes="0", retention_dry_run="false") as shipping:
            shipping.run_once()

    for _, inner, failing in OperationSweep(copies_of(store), expire).fail(moment):
        with contextlib.suppress(StoreUnavailableError):
            expire(failing)
        left = extents(inner)
        assert left == ALL[len(ALL) - len(left) :]
        run_once(disk.log_dir, inner, retention_bytes="0", retention_dry_run="false")
        assert extents(inner) == ALL[3:]


def test_a_check_says_what_would_go(disk: BrokerDisk, tmp_path: Path) -> None:
    settings = tmp_path / "uploader.properties"
    lines = {
        "storage.backend.class": "filesystem",
        "storage.root": str(tmp_path / "bucket"),
        "chunk.size": "256",
        "uploader.log.dirs": str(disk.log_dir),
        "uploader.leadership": "static",
        "uploader.retention.bytes": "0",
        "uploader.retention.dry.run": "false",
    }
    (tmp_path / "bucket").mkdir()
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    settings.write_text(text.replace("retention.dry.run=false", "retention.dry.run=true"))
    assert tieredstore("uploader", "-c", settings, "--once").code == 0
    settings.write_text(text)
    check = ("uploader", "-c", settings, "--dry-run")
    said = tieredstore(*check)
    assert f"of {PARTITION.topic}-{PARTITION.partition}: segments past uploader.retention: 3\n" in said.text
    (entry,), summary = tieredstore(*check, "--json").rows
    assert (entry["action"], entry["status"], entry["topic"]) == ("remove", "planned", PARTITION.topic)
    assert entry["reason"] == "segments past uploader.retention: 3"
    assert summary["stored_size"] == entry["stored_size"] > 0
    done = tieredstore("uploader", "-c", settings, "--once")
    assert done.code == 0
    assert [list(line) for line in tieredstore(*check, "--json").lines] == [["summary"]]


def segment(start: int, size: int) -> SegmentObjects:
    objects = tuple((suffix, ObjectInfo(f"{start}", size if suffix is Suffix.LOG else 7)) for suffix in Suffix)
    return SegmentObjects(RemoteLogSegmentId(PARTITION, Uuid.random()), start, objects, str(start))


@given(st.lists(st.integers(1, 50), max_size=8), st.integers(0, 300))
def test_what_is_kept_is_as_much_as_is_to_be_kept_and_no_segment_more(sizes: list[int], wanted: int) -> None:
    listed = [segment(10 * number, size) for number, size in enumerate(sizes)]
    offset = first_within(listed, wanted)
    if offset is None:
        assert sum(sizes) < max(1, wanted)
        return
    kept = [size for number, size in enumerate(sizes) if 10 * number >= offset]
    assert sum(kept) >= wanted
    assert sum(kept[1:]) < max(1, wanted)
