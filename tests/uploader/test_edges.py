"""Edge cases in which the uploader of Pinterest's tiered storage loses or repeats something.

The second column names the modules that test an edge, with words of their tests' names. "Here" is this module.

| edge | test |
|---|---|
| segment N+1 up before N | ``test_failures``: the process may die in each operation of the store |
| an index that fails after its log | ``test_failures``: each operation of the store may fail |
| two that move the watermark | ``test_failures``: two that both believe to lead; others move it all the time |
| ``.deleted`` before and during a read | ``test_failures``: renamed at any opening; ``test_uploader``: what is held |
| events that are lost | ``test_running``: by sweeps |
| a folder deleted, and made again | here; ``test_uploader``: a topic made again is another one |
| a full disk | ``test_failures`` and ``test_hold_dir``: where the disk is full |
| a file that cannot be opened, or read | ``test_failures``: tried again and again; here |
| a clock that jumps | here |
| a second instance | ``test_uploader``: is refused; ``test_hold_dir``: another uploader |
| a store that hangs | ``test_running``: a thread that a store does not let go; ``test_failures``: given up |
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.doubles import FaultyStore, Moment
from tests.support.stores.operation_sweep import Killed, OperationSweep
from tests.support.uploader.uploader_disk import (
    BrokerDisk,
    extents,
    holes_of,
    logs_of,
    run_once,
    stored,
    uploader_of,
    watermark_of,
)
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import watermark_key
from tieredstore.kafka import held_segment
from tieredstore.kafka.log_scan import LogSummary, scan_log
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Uploader
from tieredstore.uploader import uploader as uploader_module
from tieredstore.uploader.settled import REPLICATION_CHECKPOINT

WHOLE = [(0, 9), (10, 19), (20, 29)]


def test_a_log_that_the_disk_cannot_read_is_a_hole_after_some_tries(
    disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = (disk.folder / f"{10:020d}.log").stat().st_ino
    real, tries = os.preadv, itertools.count()

    def preadv(descriptor: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        if os.fstat(descriptor).st_ino == bad and not flags:
            next(tries)
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store, check_crcs="false") as shipping:
        assert shipping.run_once(tries=20) == []
    assert extents(store) == [(0, 9), (20, 29)]
    (hole,) = watermark_of(store).holes
    assert (hole.first_offset, hole.last_offset, hole.quarantine) == (10, 19, None)
    assert "cannot be read" in hole.reason
    assert next(tries) > 5, "a disk that fails once is tried again"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EINTR])
def test_what_may_pass_is_never_taken_for_a_disk_that_cannot_read(
    disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real, left = os.preadv, itertools.count()

    def preadv(descriptor: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        if not flags and next(left) < 60:
            raise OSError(number, os.strerror(number))
        return real(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store, check_crcs="false") as shipping:
        assert shipping.run_once(tries=60) == []
        assert shipping.counts.holes == 0, "a hole that was filled since"
    assert extents(store) == WHOLE


def test_a_disk_that_fails_once_while_checksums_are_looked_at_is_tried_again(
    disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = list[int]()

    def failing(descriptor: int, size: int, base: int, name: str, *, check_crcs: bool = False) -> LogSummary:
        if base == 10 and len(failed) < 3:
            failed.append(base)
            raise OSError(errno.EIO, "Input/output error")
        return scan_log(descriptor, size, base, name, check_crcs=check_crcs)

    monkeypatch.setattr(held_segment, "scan_log", failing)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store) as shipping:
        assert shipping.run_once(tries=20) == []
        assert shipping.counts.holes == 0, "a hole that was filled since"
    assert extents(store) == WHOLE


def test_tries_that_the_store_let_fail_are_none_of_the_disks(disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = os.preadv, list[int]()
    store = FaultyStore(MemoryObjectStore())

    def is_away(_: object) -> bool:
        return len(store.operations) in range(3, 25)

    # The store is unavailable for a while; then a disk fails once.
    store.fail_at = is_away

    def preadv(descriptor: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        if not flags and len(store.operations) >= 25 and not failed:
            failed.append(offset)
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    with uploader_of(disk.log_dir, store, check_crcs="false") as shipping:
        assert shipping.run_once(tries=60) == []
        assert shipping.counts.holes == 0, "a hole that was filled since"
    assert failed
    assert extents(store.inner) == WHOLE


def test_a_log_directory_that_cannot_be_listed_for_a_while_loses_nothing(
    disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_away = os.scandir, [False]

    def scandir(path: Any) -> Any:
        if is_away[0] and Path(path) == disk.log_dir:
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store) as shipping:
        assert shipping.ask_leadership() is False
        held = shipping.sweep().files
        assert held > 0
        is_away[0] = True
        assert shipping.sweep().files == held
        assert "cannot be listed" in shipping.health.reasons()["folders"]
        disk.delete(2)
        is_away[0] = False
        shipping.sweep()
        assert "folders" not in shipping.health.reasons()
        assert shipping.run_once() == []
    assert extents(store) == WHOLE


def test_an_empty_folder_where_a_disk_was_unmounted_is_not_what_the_disk_has(disk: BrokerDisk) -> None:
    store, elsewhere = MemoryObjectStore(), disk.log_dir.with_name("elsewhere")
    with uploader_of(disk.log_dir, store) as shipping:
        assert shipping.ask_leadership() is False
        held = shipping.sweep().files
        assert held > 0
        disk.log_dir.rename(elsewhere)
        disk.log_dir.mkdir()
        for _ in range(3):
            assert shipping.sweep().files == held
        assert "cannot be listed" in shipping.health.reasons()["folders"]
        disk.log_dir.rmdir()
        elsewhere.rename(disk.log_dir)
        shipping.sweep()
        assert "folders" not in shipping.health.reasons()
        assert shipping.run_once() == []
    assert extents(store) == WHOLE


@pytest.mark.parametrize("jump_s", [86_400, -86_400], ids=["forward", "back"])
def test_a_clock_that_jumps_changes_nothing(disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
    real_ns, real_s, jumps = time.time_ns, time.time, itertools.count()
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + next(jumps) * jump_s * 1_000_000_000)
    monkeypatch.setattr(time, "time", lambda: real_s() + next(jumps) * jump_s)
    store = MemoryObjectStore()
    with uploader_of(disk.log_dir, store) as shipping:
        shipping.ask_leadership()
        shipping.sweep()
        assert shipping.gauges()["oldest_segment_age_seconds"] >= 0
        assert shipping.run_once() == []
        disk.grow()
        shipping.disk.touch(disk.folder)
        assert shipping.run_once() == []
    assert extents(store) == [*WHOLE, (30, 39)]
    watermark = watermark_of(store)
    assert (watermark.next_offset, watermark.holes) == (40, ())
    assert run_once(disk.log_dir, store) == []
    assert len(extents(store)) == 4


def deletion(disk: BrokerDisk, store: FaultyStore, number: int) -> Callable[[object], bool]:
    """Delete the topic during the operation with this number, as a broker does."""

    def delete(_: object) -> bool:
        if len(store.operations) == number + 1:
            doomed = disk.folder.with_name(f"{disk.folder.name}.0123456789abcdef0123456789abcdef-delete")
            disk.folder.rename(doomed)
            shutil.rmtree(doomed)
        return False

    return delete


def test_a_folder_that_is_deleted_while_it_is_shipped_is_no_loss_and_comes_again_as_another(tmp_path: Path) -> None:
    quiet = FaultyStore(MemoryObjectStore())
    inner = MemoryObjectStore()
    for number in itertools.count():
        disk = BrokerDisk(tmp_path / str(number), segments=4)
        inner = MemoryObjectStore()
        store = FaultyStore(inner)
        store.fail_at = deletion(disk, store, number)
        assert run_once(disk.log_dir, store) == []
        shipped = extents(inner)
        assert shipped == WHOLE[: len(shipped)]
        again = BrokerDisk(disk.log_dir, TopicIdPartition(Uuid.random(), PARTITION.topic, PARTITION.partition))
        if disk.folder.exists():
            quiet = store
            break
        again.grow(4)
        assert run_once(disk.log_dir, inner) == []
        assert extents(inner, again.partition) == WHOLE
        assert [hole for where in (again.partition,) for hole in watermark_of(inner, where).holes] == []
    assert len(quiet.operations) > 10, "the topic was deleted in hardly any operation"
    assert len(stored(inner)) == 3


def test_a_log_that_is_cut_while_it_is_shipped_is_no_loss_and_its_new_records_are_shipped(tmp_path: Path) -> None:
    """During each operation of the store, another leader truncates this log. Later this broker leads again."""
    cuts = 0
    for number in itertools.count():
        disk = BrokerDisk(tmp_path / str(number), segments=4)
        inner = MemoryObjectStore()
        store = FaultyStore(inner)
        with uploader_of(disk.log_dir, store) as shipping:
            store.fail_at = cut(disk, store, shipping, number)
            shipping.run_once()
            if len(store.operations) <= number:
                break
            # The uploader soon checks the segment in progress and the ones shipped before it again.
            assert [shipping.run_once() for _ in range(3)][-1] == []
            assert shipping.counts.holes == 0
        segments = [segment.metadata for segment in stored(inner)]
        new = [(segment.start_offset, segment.segment_leader_epochs) for segment in segments]
        assert {(10, ((4, 10),)), (20, ((4, 20),)), (30, ((4, 30),))} <= set(new)
        assert watermark_of(inner).next_offset == 40
        cuts += 1
    assert cuts > 10


def cut(disk: BrokerDisk, store: FaultyStore, shipping: Uploader, number: int) -> Callable[[object], bool]:
    def truncate(_: object) -> bool:
        if len(store.operations) == number + 1:
            disk.cut(10)
            disk.lead(4)
            disk.grow(4)
            shipping.disk.touch(disk.folder)
            shipping.sweep()
        return False

    return truncate


@pytest.mark.parametrize("is_topic_new", [False, True])
def test_files_that_are_opened_by_name_are_those_that_were_listed(
    disk: BrokerDisk, store: MemoryObjectStore, is_topic_new: bool
) -> None:
    """The uploader may not keep more files open. Since it listed the folder, the broker has truncated the log, or the
    topic was created again.
    """
    where = dataclasses.replace(PARTITION, topic_id=Uuid.random()) if is_topic_new else PARTITION
    with uploader_of(disk.log_dir, store, hold_max_files="10") as uploader:
        uploader.ask_leadership()
        uploader.sweep()
        uploader.ask_topics()
        uploader.ask_settled()
        if is_topic_new:
            shutil.rmtree(disk.folder)
            BrokerDisk(disk.log_dir, where, ((4, 0),)).grow(4)
        else:
            disk.cut(10)
            disk.lead(4)
            disk.grow(3)
        for _ in range(4):
            for partition in uploader.schedule.take_all(lambda _: True):
                uploader.ship(partition)
                partition.turn.not_before_s = 0.0
    epochs = [one.metadata.segment_leader_epochs for one in stored(store) if one.metadata.start_offset == 20]
    assert epochs in ([], [((4, 20),)]), "the third segment was not held"
    assert run_once(disk.log_dir, store) == []
    assert sorted({*extents(store, where)}) == WHOLE
    assert not is_topic_new or extents(store) == WHOLE[:2]


@pytest.mark.parametrize("call", range(20))
def test_a_segment_that_is_deleted_while_it_is_opened_is_shipped_with_its_transaction_index_or_not_at_all(
    disk: BrokerDisk, store: MemoryObjectStore, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the index of aborted transactions, readers would take aborted records for committed ones."""
    monkeypatch.setattr(uploader_module, "INCOMPLETE_S", 0.0)
    (disk.folder / f"{0:020d}.txnindex").write_bytes(bytes(34))
    disk.mark_deleted()
    for path in disk.folder.glob("*.txnindex"):
        path.rename(f"{path}.deleted")
    opens, real = iter(range(10_000)), os.open

    def open_(path: Any, *args: Any, **options: Any) -> int:
        if f"{0:020d}." in str(path) and next(opens) == call:
            # A broker deletes the files in this order, and the snapshot later.
            for suffix in ("log", "index", "timeindex", "txnindex"):
                (disk.folder / f"{0:020d}.{suffix}.deleted").unlink(missing_ok=True)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", open_)
    with uploader_of(disk.log_dir, store) as uploader:
        for _ in range(3):
            uploader.disk.touch(disk.folder)
            uploader.run_once()
    assert extents(store)[-2:] == WHOLE[1:]
    for segment in stored(store)[:-2]:
        assert not segment.metadata.txn_idx_empty


def test_a_high_watermark_newer_than_the_listing_settles_no_truncated_records(
    disk: BrokerDisk, store: MemoryObjectStore
) -> None:
    """The uploader takes high watermarks from the broker's file. Since it listed the folder, the broker has followed
    another leader, which replaced records that were not replicated.
    """
    checkpoint = disk.log_dir / REPLICATION_CHECKPOINT
    checkpoint.write_text(f"0\n1\n{PARTITION.topic} {PARTITION.partition} 20\n")
    now_s = [0.0]
    with uploader_of(disk.log_dir, store, None, lambda: now_s[0]) as uploader:
        uploader.ask_leadership()
        uploader.sweep()

        def ship() -> None:
            now_s[0] += 100.0
            uploader.leadership.refresh()
            uploader.ask_settled()
            for partition in uploader.schedule.take_all(lambda _: True):
                uploader.ship(partition)

        for _ in range(4):
            ship()
        assert extents(store) == WHOLE[:2]
        disk.cut(20)
        disk.lead(2)
        disk.grow(2)
        checkpoint.write_text(f"0\n1\n{PARTITION.topic} {PARTITION.partition} 40\n")
        ship()
        assert extents(store) == WHOLE[:2]
    assert run_once(disk.log_dir, store) == []
    assert [one.metadata.segment_leader_epochs for one in stored(store)][2:] == [((2, 20),)]
    assert watermark_of(store).next_offset == 30


def miss(disk: BrokerDisk, uploader: Uploader, base: int = 10) -> None:
    """Let a listing of the folder miss one segment's log, as can happen if the broker then renames the log."""
    (log,) = disk.folder.glob(f"{base:020d}.log*")
    aside = log.rename(disk.log_dir / "aside")
    uploader.ask_leadership()
    uploader.sweep()
    aside.rename(log)


@pytest.mark.parametrize("marked", [0, 1, 3])
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("kept", [slice(5), slice(1, 3)])
def test_a_segment_that_one_listing_missed_is_shipped(
    tmp_path: Path,
    disk: BrokerDisk,
    store: MemoryObjectStore,
    marked: int,
    is_deleted: bool,
    is_linked: bool,
    kept: slice,
) -> None:
    """To the uploader, the segment before the missed one seems to reach up to the end of the missed one. In some cases,
    the log is compacted.
    """
    (tmp_path / "hold").mkdir()
    settings = {"hold_dir": str(tmp_path / "hold")} if is_linked else {}
    logs = {base: b"".join(disk.batches(base, 0)[kept]) for base, _ in WHOLE}
    for base, log in logs.items():
        (disk.folder / f"{base:020d}.log").write_bytes(log)
    disk.mark_deleted(marked)
    with uploader_of(disk.log_dir, store, **settings) as uploader:
        miss(disk, uploader)
        uploader.disk.touch(disk.folder)
        uploader.sweep()
        if is_deleted:
            disk.delete(3 - marked)
        if not is_linked:
            assert uploader.run_once() == []
    if is_linked:
        assert run_once(disk.log_dir, store, None, **settings) == []
    assert (extents(store), holes_of(store)) == (WHOLE, [])
    assert logs_of(store) == list(logs.values())


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("kept", [slice(5), slice(1, 3)])
def test_a_missed_segment_is_shipped_if_it_is_found_while_the_segment_before_it_is_shipped(
    disk: BrokerDisk, store: MemoryObjectStore, is_deleted: bool, kept: slice
) -> None:
    """The uploader may not keep more files open, so it lists the folder again after it has opened the segment."""
    with uploader_of(disk.log_dir, store, hold_max_files="10") as uploader:
        assert uploader.run_once() == []
        disk.grow(4)
        for base in disk.bases[3:]:
            (disk.folder / f"{base:020d}.log").write_bytes(b"".join(disk.batches(base, 0)[kept]))
        if is_deleted:
            disk.mark_deleted(len(disk.bases) - 1)
        uploader.disk.touch(disk.folder)
        miss(disk, uploader, 60)
        uploader.ask_settled()
        for _ in range(8):
            for partition in uploader.schedule.take_all(lambda _: True):
                uploader.ship(partition)
                partition.turn.not_before_s = 0.0
    disk.grow()
    assert run_once(disk.log_dir, store) == []
    assert (extents(store), holes_of(store)) == ([(base, base + 9) for base in range(0, 80, 10)], [])


def without(disk: BrokerDisk, base: int) -> None:
    (disk.folder / f"{base:020d}.log").unlink()


def check_hole(store: ObjectStore) -> None:
    assert (extents(store), holes_of(store)) == ([(0, 9), (20, 29)], [(10, 19)])
    assert watermark_of(store).next_offset == 30


def test_a_segment_that_is_missing_between_two_others_is_a_hole(
    disk: BrokerDisk, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    without(disk, 10)
    assert run_once(disk.log_dir, store) == []
    check_hole(store)
    assert caplog.text.count("offsets 10 to 19 are not shipped") == 1
    assert run_once(disk.log_dir, store) == []
    check_hole(store)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("dies", [False, True])
def test_the_hole_of_a_missing_segment_is_named_whatever_operation_fails(
    disk: BrokerDisk, dies: bool, moment: Moment
) -> None:
    without(disk, 10)
    sweep = OperationSweep(MemoryObjectStore, lambda store: run_once(disk.log_dir, store), numbers=slice(-1))
    for _, inner, store in sweep.die(moment) if dies else sweep.fail(moment):
        with contextlib.suppress(Killed):
            run_once(disk.log_dir, store)
        assert run_once(disk.log_dir, inner) == []
        check_hole(inner)


def test_a_missing_segment_that_another_uploader_has_stored_is_no_hole(tmp_path: Path, disk: BrokerDisk) -> None:
    other = BrokerDisk(tmp_path / "other", segments=4)
    run_once(other.log_dir, store := MemoryObjectStore())
    store.delete([info.key for info in store.list() if f"/{10:020d}-" not in info.key])
    assert extents(store) == [(10, 19)]
    without(disk, 10)
    assert run_once(disk.log_dir, store) == []
    assert (extents(store), holes_of(store)) == (WHOLE, [])


@pytest.mark.parametrize(("kept", "end"), [(slice(0, 3), 5), (slice(1, 3), 9)], ids=["whole", "compacted"])
def test_offsets_that_compaction_removed_are_no_hole(
    disk: BrokerDisk, store: MemoryObjectStore, kept: slice, end: int
) -> None:
    """A log without gaps that ends before the next segment lacks records, but a compacted log may end there."""
    (disk.folder / f"{0:020d}.log").write_bytes(b"".join(disk.batches(0, 0)[kept]))
    assert run_once(disk.log_dir, store) == []
    assert extents(store) == [(0, end), *WHOLE[1:]]
    assert holes_of(store) == ([(6, 9)] if end == 5 else [])


def test_an_empty_log_is_a_hole(disk: BrokerDisk, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    (disk.folder / f"{10:020d}.log").write_bytes(b"")
    assert run_once(disk.log_dir, store) == []
    assert (
        "offsets 10 to 19 are not shipped: segment events-0 at offset 10 is closed, but its log is empty" in caplog.text
    )
    check_hole(store)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_lost_segment_takes_no_later_one_with_it(
    disk: BrokerDisk, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """A listing missed the second segment, so the first one seems to end where the second one ends."""
    monkeypatch.setattr(uploader_module, "INCOMPLETE_S", 0.0)
    first, snapshot = disk.folder / f"{0:020d}.log.deleted", disk.folder / f"{20:020d}.snapshot.deleted"
    disk.mark_deleted(2)
    if is_damaged:
        first.write_bytes(first.read_bytes()[:-1] + b"?")
    late = snapshot.read_bytes()
    if not is_damaged:
        snapshot.unlink()  # without the snapshot, the uploader cannot hold the first segment
    with uploader_of(disk.log_dir, store, check_crcs="true") as uploader:
        miss(disk, uploader)
        snapshot.write_bytes(late)
        if not is_damaged:
            first.unlink()
        for _ in range(2):
            uploader.disk.touch(disk.folder)
            uploader.sweep()
        disk.delete()
        assert uploader.run_once() == []
    assert (extents(store), holes_of(store)) == (WHOLE[1:], [(0, 9)])


def test_a_segment_that_is_gone_after_it_was_stored_is_no_hole(
    disk: BrokerDisk, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed between the upload and the save of the watermark."""
    monkeypatch.setattr(uploader_module, "INCOMPLETE_S", 0.0)
    run_once(disk.log_dir, store)
    behind = dataclasses.replace(watermark_of(store), next_offset=10)
    store.put(watermark_key("", PARTITION), behind.to_bytes())
    disk.mark_deleted(2)
    (disk.folder / f"{20:020d}.snapshot.deleted").unlink()  # without its snapshot, the uploader cannot hold the segment
    with uploader_of(disk.log_dir, store) as uploader:
        uploader.ask_leadership()
        uploader.sweep()
        disk.delete()
        for _ in range(2):
            uploader.disk.touch(disk.folder)
            uploader.sweep()
        assert uploader.run_once() == []
        assert uploader.counts.holes == 0
    assert (extents(store), holes_of(store)) == (WHOLE, [])


def test_a_partition_that_moves_before_its_end_is_closed_has_no_hole(
    tmp_path: Path, disk: BrokerDisk, store: MemoryObjectStore
) -> None:
    """The uploader cannot list the partition's old folder, so it must not record the segment that it missed there as a
    hole.
    """
    (elsewhere := tmp_path / "elsewhere").mkdir()
    with uploader_of(disk.log_dir, store, log_dirs=f"{disk.log_dir},{elsewhere}") as uploader:
        miss(disk, uploader)
        disk.copy_to(elsewhere)
        disk.leave()
        uploader.ask_settled()
        (partition,) = uploader.schedule.take_all(lambda _: True)
        assert uploader.ship(partition) is None
        assert "cannot be listed" in str(partition.turn.error)
        uploader.sweep()
        partition.turn.not_before_s = 0.0
        assert uploader.run_once() == []
        assert uploader.counts.holes == 0
    assert (extents(store), holes_of(store)) == (WHOLE, [])
