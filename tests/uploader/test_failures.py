"""After any failure, each closed segment is stored whole and in order in the end, and no hole is recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
from collections.abc import Callable, Collection, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.doubles import FaultyStore, Moment, ScriptedStore
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tests.support.uploader.uploader_disk import (
    STORE,
    BrokerDisk,
    SaidSettling,
    extents,
    holes_of,
    logs_of,
    stored,
    uploader_of,
    watermark_of,
)
from tests.support.uploader.uploader_disk import run_once as run_uploader_once
from tests.uploader.test_edges import miss, without
from tests.uploader.test_filling import FOLLOWER
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import watermark_key
from tieredstore.config import settings_from
from tieredstore.kafka.checkpoints import format_offset_checkpoint
from tieredstore.kafka.held_segment import OpenSegment, open_segment
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT, FoundSegment
from tieredstore.model import TopicIdPartition, TopicPartition, Uuid
from tieredstore.ops.listing import QUARANTINE
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Leadership, pins
from tieredstore.uploader import segment as segment_module
from tieredstore.uploader import uploader as module

WHOLE = [(0, 9), (10, 19), (20, 29)]


def run_once(log_dir: Path, store: ObjectStore, settling: SaidSettling | None = None, **settings: str) -> list[str]:
    """Run a new uploader once, on a clock that only the store's operations move. So the uploader also saves the
    watermark between segments, and the number of operations does not depend on the machine.
    """
    counted = ScriptedStore(store)
    return run_uploader_once(log_dir, counted, settling, lambda: 1.1 * len(counted.operations), **settings)


def sweep_of(disk: BrokerDisk, numbers: slice = slice(None)) -> OperationSweep[MemoryObjectStore]:
    return OperationSweep(MemoryObjectStore, lambda store: run_once(disk.log_dir, store), numbers=numbers)


def check_whole(store: ObjectStore, disk: BrokerDisk) -> None:
    watermark = watermark_of(store)
    assert (watermark.next_offset, watermark.holes, watermark.moved_back) == (30, (), ())
    logs = [path.read_bytes() for path in sorted(disk.folder.glob("*.log"))[:3]]
    assert sorted(set(extents(store))) == WHOLE
    assert sorted(set(logs_of(store))) == sorted(logs)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_each_operation_of_the_store_may_fail(disk: BrokerDisk, moment: Moment) -> None:
    # Make the folder old, so that it is not listed again, because a listing would find the pending segments anew.
    os.utime(disk.folder, (1, 1))
    for _, inner, store in sweep_of(disk).fail(moment):
        assert run_once(disk.log_dir, store) == []
        check_whole(inner, disk)
        # The failed attempt may have stored its object. The next attempt finds it, so nothing is stored twice.
        assert len(extents(inner)) == 3


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_the_process_may_die_in_each_operation_of_the_store(disk: BrokerDisk, moment: Moment) -> None:
    # Skip the last operation, an empty listing of holes, because no process can die in its middle.
    for _, inner, store in sweep_of(disk, slice(-1)).die(moment):
        with pytest.raises(Killed):
            run_once(disk.log_dir, store)
        before = extents(inner)
        assert before == WHOLE[: len(before)], "a later segment stands before an earlier one"
        assert run_once(disk.log_dir, inner) == []
        check_whole(inner, disk)
        assert len(extents(inner)) == 3


def rename_and_roll(disk: BrokerDisk) -> None:
    disk.mark_deleted(2)
    disk.grow()


@pytest.mark.parametrize(
    "event",
    [BrokerDisk.mark_deleted, lambda disk: disk.mark_deleted(2), rename_and_roll],
    ids=["rename", "rename two", "rename and roll"],
)
@pytest.mark.parametrize("call", range(12))
def test_files_may_be_renamed_at_any_opening(
    disk: BrokerDisk, event: Callable[[BrokerDisk], None], call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = iter(range(10_000))
    real = os.open

    def open_(path: Any, *args: Any, **options: Any) -> int:
        if str(path).startswith(str(disk.folder)) and next(opens) == call:
            event(disk)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", open_)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store) as shipping:
        assert shipping.run_once() == []
        shipping.disk.touch(disk.folder)
        assert shipping.run_once() == []
    assert extents(store)[:3] == WHOLE
    assert watermark_of(store).holes == ()


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_a_damaged_segment_is_kept_aside_and_the_next_ones_are_shipped(
    disk: BrokerDisk, caplog: pytest.LogCaptureFixture
) -> None:
    damage(disk.folder / f"{10:020d}.log")
    store = MemoryObjectStore()
    assert run_once(disk.log_dir, store) == []
    assert extents(store) == [(0, 9), (20, 29)]
    (hole,) = watermark_of(store).holes
    assert (hole.first_offset, hole.last_offset, hole.quarantine) == (10, 19, QUARANTINE)
    assert "is damaged" in hole.reason
    assert "offsets 10 to 19 are not shipped" in caplog.text
    (kept,) = stored(store, prefix=QUARANTINE)
    with RemoteStorageManager(settings_from(STORE | {"key.prefix": QUARANTINE}), store=store) as manager:
        assert manager.open(kept.metadata).read() == (disk.folder / f"{10:020d}.log").read_bytes()
    # A later run continues after the hole and does not retry it.
    disk.grow()
    assert run_once(disk.log_dir, store) == []
    assert (extents(store)[-1], len(watermark_of(store).holes)) == ((30, 39), 1)


def test_of_a_segment_whose_index_the_disk_cannot_read_the_log_is_kept_aside(
    disk: BrokerDisk, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = (disk.folder / f"{10:020d}.index").stat().st_ino
    with uploader_of(disk.log_dir, store) as shipping:
        shipping.ask_leadership()
        shipping.sweep()
        real = os.pread

        def pread(descriptor: int, size: int, offset: int) -> bytes:
            if os.fstat(descriptor).st_ino == bad:
                raise OSError(errno.EIO, "Input/output error")
            return real(descriptor, size, offset)

        monkeypatch.setattr(os, "pread", pread)
        assert shipping.run_once(tries=20) == []
    assert extents(store) == [(0, 9), (20, 29)]
    (hole,) = watermark_of(store).holes
    assert (hole.first_offset, hole.last_offset, hole.quarantine) == (10, 19, QUARANTINE)
    with RemoteStorageManager(settings_from(STORE | {"key.prefix": QUARANTINE}), store=store) as manager:
        (kept,) = stored(store, prefix=QUARANTINE)
        assert manager.open(kept.metadata).read() == (disk.folder / f"{10:020d}.log").read_bytes()


def test_checksums_are_not_looked_at_where_the_settings_say_so(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    damage(disk.folder / f"{10:020d}.log")
    assert run_once(disk.log_dir, store, check_crcs="false") == []
    assert extents(store) == WHOLE


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_store_may_fail_while_a_segment_is_kept_aside(disk: BrokerDisk, moment: Moment) -> None:
    damage(disk.folder / f"{10:020d}.log")
    for _, inner, store in sweep_of(disk).fail(moment):
        assert run_once(disk.log_dir, store) == []
        assert extents(inner) == [(0, 9), (20, 29)]
        assert len(watermark_of(inner).holes) == 1
        assert stored(inner, prefix=QUARANTINE)


@pytest.fixture
def snapshot(disk: BrokerDisk) -> Path:
    """Return the path of a snapshot that the broker has not written yet; ``late`` in the log directory has its data."""
    path = disk.folder / f"{20:020d}.snapshot"
    path.rename(disk.log_dir / "late")
    return path


def test_a_snapshot_that_never_comes_is_a_hole_after_a_while(
    disk: BrokerDisk, snapshot: Path, store: MemoryObjectStore
) -> None:
    """The run waits for 30 s, and an answer about the leaders holds for as long."""
    assert run_once(disk.log_dir, store) == []
    assert extents(store) == [(0, 9), (20, 29)]
    (hole,) = watermark_of(store).holes
    assert (hole.first_offset, hole.quarantine) == (10, QUARANTINE)
    assert snapshot.name in hole.reason


def test_a_snapshot_that_comes_late_is_waited_for(disk: BrokerDisk, snapshot: Path, store: MemoryObjectStore) -> None:
    with uploader_of(disk.log_dir, store) as shipping:
        shipping.ask_leadership()
        shipping.sweep()
        assert shipping.sweep().incomplete == 1
        (disk.log_dir / "late").rename(snapshot)
        assert shipping.run_once() == []
    assert extents(store) == WHOLE


def test_a_snapshot_that_comes_after_it_was_given_up_and_before_its_turn_is_no_loss(
    disk: BrokerDisk, snapshot: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "INCOMPLETE_S", -1.0)
    monkeypatch.setattr(module, "INCOMPLETE_S", 0.05)
    settling = SaidSettling(high=10)
    with uploader_of(disk.log_dir, store, settling) as shipping:
        assert len(shipping.run_once()) == 1
        (partition,) = shipping.disk.partitions
        assert [segment.lost is None for segment in partition.segments.values()] == [False, True]
        (disk.log_dir / "late").rename(snapshot)
        settling.high = 30
        partition.turn.not_before_s = 0.0
        shipping.ask_settled()
        shipping.run_once()
        assert shipping.counts.holes == 0
    assert extents(store)[:2] == WHOLE[:2]


def test_a_log_that_cannot_be_opened_is_tried_again_and_again(
    disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_denied = os.open, True

    def open_(path: Any, *args: Any, **options: Any) -> int:
        if is_denied and str(path).endswith(f"{10:020d}.log"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", open_)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store) as shipping:
        (left,) = shipping.run_once(tries=3)
        assert isinstance(left.error, PermissionError)
        assert "Permission denied" in str(left.reason)
        assert extents(store) == [(0, 9)]
        is_denied = False
        assert shipping.run_once(tries=10) == []
    assert extents(store) == WHOLE
    assert watermark_of(store).holes == ()


def test_too_many_files_are_held_one_after_the_other(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    with uploader_of(disk.log_dir, store, hold_max_files="10") as shipping:
        shipping.ask_leadership()
        assert shipping.sweep().files == 8
        assert shipping.held.unheld == 1
        assert shipping.run_once() == []
    assert extents(store) == WHOLE


def test_what_is_about_to_be_deleted_takes_the_place_of_what_is_not(disk: BrokerDisk) -> None:
    settling = SaidSettling(high=0)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store, settling, hold_max_files="10") as shipping:
        shipping.ask_leadership()
        shipping.sweep()
        disk.mark_deleted(3)
        shipping.disk.touch(disk.folder)
        assert shipping.sweep().files == 8
        disk.delete()
        # The last segment was never held. It counts as gone after two listings without it.
        shipping.disk.touch(disk.folder)
        shipping.sweep()
        shipping.disk.touch(disk.folder)
        shipping.sweep()
        settling.high = 100
        assert shipping.run_once() == []
    assert extents(store) == [(0, 9), (10, 19)]
    (hole,) = watermark_of(store).holes
    assert (hole.first_offset, hole.last_offset) == (20, 29)


def test_where_the_disk_is_full_the_oldest_deleted_files_are_let_go_and_told(
    disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([9.0, 9.0, 50.0])

    def free_percent(_: Path) -> float:
        return next(free, 50.0)

    monkeypatch.setattr(pins, "free_percent", free_percent)
    settling = SaidSettling(high=0)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store, settling) as shipping:
        shipping.ask_leadership()
        shipping.sweep()
        disk.delete(3)
        shipping.sweep()
        settling.high = 100
        assert shipping.run_once() == []
    assert extents(store) == [(20, 29)]
    (hole,) = watermark_of(store).holes
    assert (hole.first_offset, hole.last_offset) == (0, 19)
    assert "nearly full" in hole.reason


def test_a_try_that_takes_too_long_is_given_up(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    waits: list[float] = []
    # The upload takes longer than an attempt may, but ends within the grace period.
    slow = ScriptedStore(store).on("put", "*.log", lambda _: waits.append(61.0))
    with uploader_of(disk.log_dir, slow, None, lambda: sum(waits, 0.0), upload_timeout_ms="60000") as shipping:
        (left,) = shipping.run_once(tries=2)
    assert len(waits) == 2
    assert "uploader.upload.timeout.ms" in str(left.reason)
    assert extents(store) == []
    assert list(store.list()) == []


def test_two_that_both_believe_to_lead_do_no_harm(tmp_path: Path, disk: BrokerDisk) -> None:
    """The second uploader ships everything while the first is still shipping."""
    twin = BrokerDisk(tmp_path / "twin", segments=4)
    for _, inner, store in sweep_of(disk).sleep(partial(run_once, twin.log_dir)):
        assert run_once(disk.log_dir, store) == []
        check_whole(inner, disk)


def test_a_watermark_that_others_move_all_the_time_is_moved_in_the_end(disk: BrokerDisk) -> None:
    inner = MemoryObjectStore()
    run_once(disk.log_dir, inner)
    disk.grow()
    key = watermark_key("", disk.partition)
    moves = iter(range(3))

    def meanwhile(operation: Any) -> bool:
        if operation.name == "replace" and next(moves, None) is not None:
            inner.put(key, inner.get(key))
        return False

    store = FaultyStore(inner, fail_at=meanwhile)
    with uploader_of(disk.log_dir, store) as shipping:
        assert shipping.run_once(tries=10) == []
    assert watermark_of(inner).next_offset == 40
    assert len(extents(inner)) == 4


def test_an_outage_of_the_store_is_two_lines_for_all_partitions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("orders", "clicks", "views"):
        BrokerDisk(tmp_path, TopicIdPartition(Uuid.random(), name, 0)).grow(2)
    store = FaultyStore(MemoryObjectStore(), lambda operation: operation.name == "put" and len(store.failed) < 3)
    with uploader_of(tmp_path, store) as shipping:
        assert shipping.run_once() == []
    lost, regained = caplog.messages
    assert lost.startswith("store: lost; retrying until it answers: ")
    assert regained.startswith("store: available again after ")


@pytest.mark.parametrize("is_topic_new", [False, True])
@pytest.mark.parametrize("is_led", [False, True])
def test_files_that_changed_between_listing_and_opening_are_not_stored(
    disk: BrokerDisk, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch, is_topic_new: bool, is_led: bool
) -> None:
    """The uploader holds the files of another log. A worker, or the search for holes, comes before the next listing.

    Since the listing, another leader has truncated the log, or the topic was created again.
    """
    where = dataclasses.replace(PARTITION, topic_id=Uuid.random()) if is_topic_new else PARTITION
    if not is_led:
        without(disk, 10)
        run_once(disk.log_dir, store)
        shutil.rmtree(disk.folder)
        disk = BrokerDisk(disk.log_dir, segments=4)
        disk.mark_deleted(3)
    before, real = extents(store), open_segment
    replaced: list[BrokerDisk] = []

    def open_later(place: FoundSegment) -> OpenSegment:
        if not replaced:
            if is_topic_new:
                shutil.rmtree(disk.folder)
                replaced.append(BrokerDisk(disk.log_dir, where))
                replaced[0].grow(4)
            else:
                disk.cut(0)
                for path in disk.folder.glob("*.deleted"):
                    path.unlink()
                disk.epochs = ((4, 0),)
                disk.write_epochs()
                disk.grow(4)
                replaced.append(disk)
        return real(place)

    with uploader_of(disk.log_dir, store, leadership="static" if is_led else FOLLOWER) as uploader:
        uploader.ask_leadership()
        uploader.ask_topics()
        monkeypatch.setattr(segment_module, "open_segment", open_later)
        uploader.sweep()
        uploader.ask_settled()
        for partition in uploader.schedule.take_all(lambda _: True):
            uploader.ship(partition)
        uploader.fill_holes()
        assert replaced
        if is_led and not is_topic_new:
            assert {one.metadata.segment_leader_epochs[0][0] for one in stored(store)} <= {4}
        else:
            assert extents(store) == before
    monkeypatch.undo()
    if is_led:
        assert run_once(disk.log_dir, store) == []
        assert extents(store, where) == WHOLE
        assert is_topic_new or {one.metadata.segment_leader_epochs[0][0] for one in stored(store)} == {4}


@pytest.mark.parametrize("kept", [slice(5), slice(1, 3)])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_segment_that_the_only_listing_missed_is_shipped(
    disk: BrokerDisk, store: MemoryObjectStore, kept: slice, is_deleted: bool
) -> None:
    """A worker ships the held segment before the next listing. In some cases, the log is compacted."""
    with uploader_of(disk.log_dir, store) as uploader:
        assert uploader.run_once() == []
        disk.grow(4)
        for base in disk.bases[3:]:
            (disk.folder / f"{base:020d}.log").write_bytes(b"".join(disk.batches(base, 0)[kept]))
        disk.mark_deleted(len(disk.bases) - 1 if is_deleted else 0)
        uploader.disk.touch(disk.folder)
        miss(disk, uploader, 40)
        uploader.ask_settled()
        for _ in range(2):
            for partition in uploader.schedule.take_all(lambda _: True):
                uploader.ship(partition)
                partition.turn.not_before_s = 0.0
        assert extents(store)[3:4] == [(30, 39)]
        disk.grow()
        assert uploader.run_once() == []
    assert (extents(store), holes_of(store)) == ([(base, base + 9) for base in range(0, 80, 10)], [])


@pytest.mark.parametrize("cleaned_to", [0, 9, 10, 20])
@pytest.mark.parametrize("is_filled", [False, True])
def test_the_last_offsets_of_a_log_that_the_broker_has_compacted_are_no_hole(
    tmp_path: Path, disk: BrokerDisk, store: MemoryObjectStore, cleaned_to: int, is_filled: bool
) -> None:
    """The log cleaner's checkpoint proves that compaction may have removed these offsets."""
    for base, _ in WHOLE[:2]:
        (disk.folder / f"{base:020d}.log").write_bytes(b"".join(disk.batches(base, 0)[:3]))
    checkpoint = {(PARTITION.topic, PARTITION.partition): cleaned_to}
    (disk.log_dir / "cleaner-offset-checkpoint").write_bytes(format_offset_checkpoint(checkpoint))
    if is_filled:
        leader = BrokerDisk(tmp_path / "leader", segments=4)
        for base, _ in WHOLE[:2]:
            (leader.folder / f"{base:020d}.log").write_bytes(b"")
        run_once(leader.log_dir, store)
        assert holes_of(store) == [(0, 9), (10, 19)]
        run_once(disk.log_dir, store, leadership=FOLLOWER, broker_id="2")
    else:
        assert run_once(disk.log_dir, store) == []
    ends = [9 if cleaned_to >= 10 else 5, 19 if cleaned_to == 20 else 15]
    assert extents(store) == [(0, ends[0]), (10, ends[1]), *WHOLE[2:]]
    assert holes_of(store) == [hole for hole, end in (((6, 9), ends[0]), ((16, 19), ends[1])) if end < hole[1]]


def test_a_log_that_the_broker_deleted_after_another_one_is_a_hole_also_if_compacted(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    """The log cleaner's checkpoint says nothing of a segment between a deleted one and the log's start."""
    disk = BrokerDisk(tmp_path / "logs", segments=5)
    checkpoint = {(PARTITION.topic, PARTITION.partition): 40}
    (disk.log_dir / "cleaner-offset-checkpoint").write_bytes(format_offset_checkpoint(checkpoint))
    disk.mark_deleted(3)
    (disk.folder / f"{20:020d}.log.deleted").unlink()
    run_once(disk.log_dir, store)
    assert (extents(store), holes_of(store)) == ([(0, 9), (10, 19), (30, 39)], [(20, 29)])


def test_a_partition_whose_folder_cannot_be_read_is_not_shipped_in_silence(
    disk: BrokerDisk, store: MemoryObjectStore, tmp_path: Path
) -> None:
    """A copy of a disk lacks a file, or a full disk has cut it off."""
    metadata = "partition.metadata"
    for name, raw in (
        (metadata, None), (metadata, b"vers"), (LEADER_EPOCH_CHECKPOINT, b"0\n"), (LEADER_EPOCH_CHECKPOINT, b""),
    ):  # fmt: skip
        path = disk.folder / name
        whole = path.read_bytes()
        path.unlink()
        if raw is not None:
            path.write_bytes(raw)
        watching = f"{Watching.__module__}.{Watching.__name__}"
        for leadership, is_led in (("static", True), (FOLLOWER, False), (watching, True)):
            with uploader_of(disk.log_dir, store, leadership=leadership) as uploader:
                left = uploader.run_once()
                assert [(one.topic, one.partition, one.status) for one in left] == [("events", 0, "failed")] * is_led
                assert all(f"cannot ship {disk.folder} now" in str(one.reason) for one in left)
                assert ("cannot ship" in uploader.health.reasons().get("folders", "")) is is_led
                path.write_bytes(whole)
                uploader.disk.touch(disk.folder)
                uploader.sweep()
                assert "folders" not in uploader.health.reasons()
            path.write_bytes(raw or b"")
        path.write_bytes(whole)
    assert extents(store) == []
    assert run_once(disk.log_dir, store) == []
    assert extents(store) == WHOLE


def test_a_broker_that_writes_no_topic_ids_is_told_with_a_way_out(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    (disk.folder / "partition.metadata").unlink()
    (reason,) = run_once(disk.log_dir, store)
    assert "it has no partition.metadata: set the brokers' inter.broker.protocol.version to 2.8 or later" in reason


class Watching(Leadership):
    """Leadership that, as ZooKeeper's, only tells of the partitions that the uploader has named."""

    watched: Collection[TopicPartition] = ()

    def watch(self, partitions: Collection[TopicPartition]) -> None:
        self.watched = partitions

    def led(self) -> Collection[TopicPartition]:
        return self.watched


def test_a_replica_without_records_is_no_failure(disk: BrokerDisk, store: MemoryObjectStore) -> None:
    """A broker creates the leader epoch checkpoint empty. A follower writes it with its first record."""
    folder = disk.folder.with_name("events-1")
    folder.mkdir()
    for name, raw in (
        (f"{0:020d}.log", b""),
        (LEADER_EPOCH_CHECKPOINT, b""),
        ("partition.metadata", (disk.folder / "partition.metadata").read_bytes()),
    ):
        (folder / name).write_bytes(raw)
    with uploader_of(disk.log_dir, store) as uploader:
        assert list(uploader.run_once()) == []
        assert "folders" not in uploader.health.reasons()


class UnreadableEntry:
    """Entry of a log directory whose inode the disk cannot read."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name = entry.name

    def is_dir(self) -> bool:
        return True

    def stat(self) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")


def test_one_folder_that_the_disk_cannot_read_holds_up_no_other(
    disk: BrokerDisk, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = BrokerDisk(disk.log_dir, dataclasses.replace(PARTITION, partition=1), segments=4)
    real, bad = os.scandir, {other.folder.name}

    @contextlib.contextmanager
    def listed() -> Generator[list[Any]]:
        with real(disk.log_dir) as entries:
            yield [UnreadableEntry(entry) if entry.name in bad else entry for entry in entries]

    monkeypatch.setattr(os, "scandir", lambda path: listed() if path == disk.log_dir else real(path))
    metadata = other.folder / "partition.metadata"
    aside = metadata.rename(disk.log_dir / "aside")
    with uploader_of(disk.log_dir, store) as uploader:
        (left,) = uploader.run_once()
        assert f"cannot ship {other.folder} now" in str(left.reason)
        assert f"cannot ship {other.folder} now" in uploader.health.reasons()["folders"]
        assert (extents(store), extents(store, other.partition)) == (WHOLE, [])
        aside.rename(metadata)
        # Each check lists the folder, because its modification time is unknown.
        for segments in (3, 4):
            assert uploader.run_once() == []
            assert len(extents(store, other.partition)) == segments
            other.grow()
        bad.add(disk.folder.name)
        uploader.sweep()
        assert "cannot be listed" in uploader.health.reasons()["folders"]
