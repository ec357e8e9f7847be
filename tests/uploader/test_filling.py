"""Holes that one broker's uploader recorded are filled by another replica's uploader, which leads nothing."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.doubles import FaultyStore, Moment, ScriptedStore
from tests.support.stores.operation_sweep import OperationSweep, copies_of
from tests.support.uploader.uploader_disk import (
    BrokerDisk,
    extents,
    holes_of,
    run_once,
    stored,
    uploader_of,
    watermark_of,
)
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import Hole, Watermark, hole_key, partition_of_hole, watermark_key
from tieredstore.kafka import held_segment
from tieredstore.kafka.log_scan import LogSummary, scan_log
from tieredstore.kafka.logdir import FoundSegment, discover_deleted
from tieredstore.model import TopicPartition, Uuid
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Leadership, holes
from tieredstore.uploader.settled import REPLICATION_CHECKPOINT

FOLLOWER = "tests.uploader.test_filling.Follower"


class Follower(Leadership):
    """Leadership of a broker that leads nothing."""

    def led(self) -> set[TopicPartition]:
        return set()


def replicas(folder: Path, segments: int = 4, *, lead_at: int | None = None) -> tuple[BrokerDisk, BrokerDisk]:
    """Return two disks with the same records."""
    disks = BrokerDisk(folder / "leader"), BrokerDisk(folder / "follower")
    for disk in disks:
        for number in range(segments):
            if number == lead_at:
                disk.lead(7)
            disk.grow()
    return disks


def damage(disk: BrokerDisk, base: int) -> None:
    log = disk.folder / f"{base:020d}.log"
    raw = bytearray(log.read_bytes())
    raw[-1] ^= 1
    log.write_bytes(raw)


def replicas_with_hole(
    folder: Path, store: MemoryObjectStore, *, lead_at: int | None = None
) -> tuple[BrokerDisk, BrokerDisk]:
    """Return two disks with the same records, after the leader has shipped all of them but a damaged segment."""
    leader, follower = replicas(folder, lead_at=lead_at)
    damage(leader, 10)
    run_once(leader.log_dir, store)
    assert holes_of(store) == [(10, 19)]
    return leader, follower


def fill(disk: BrokerDisk, store: ObjectStore) -> None:
    run_once(disk.log_dir, store, leadership=FOLLOWER, broker_id="2")


def test_a_replica_that_leads_nothing_fills_what_the_leader_could_not_read(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    leader, follower = replicas_with_hole(tmp_path, store)
    assert extents(store) == [(0, 9), (20, 29)]
    before = watermark_of(store)
    fill(follower, store)
    assert extents(store) == [(0, 9), (10, 19), (20, 29)]
    after = watermark_of(store)
    assert after == dataclasses.replace(before, holes=())
    assert stored(store)[1].metadata.broker_id == 2
    assert list(store.list("!tieredstore/holes/")) == []
    # The leader continues after the filled holes, and neither uploader sends anything twice.
    leader.grow()
    run_once(leader.log_dir, store)
    fill(follower, store)
    assert extents(store) == [(0, 9), (10, 19), (20, 29), (30, 39)]


def test_a_hole_of_a_segment_deleted_before_it_was_shipped_is_filled_too(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    leader, follower = replicas(tmp_path, 2)
    run_once(leader.log_dir, store)
    for disk in (leader, follower):
        disk.grow(4)
    leader.delete(4)
    run_once(leader.log_dir, store)
    assert holes_of(store) == [(10, 39)]
    fill(follower, store)
    assert extents(store) == [(0, 9), (10, 19), (20, 29), (30, 39), (40, 49)]
    assert holes_of(store) == []


def test_what_only_a_part_of_is_here_is_filled_in_part(tmp_path: Path, store: MemoryObjectStore) -> None:
    leader, follower = replicas(tmp_path, 2)
    run_once(leader.log_dir, store)
    for disk in (leader, follower):
        disk.grow(4)
    leader.delete(4)
    run_once(leader.log_dir, store)
    follower.delete(3)
    damage(follower, 40)
    fill(follower, store)
    assert holes_of(store) == [(10, 29)]
    assert len(list(store.list("!tieredstore/holes/"))) == 1


@pytest.mark.parametrize("kind", ["older leader", "other records", "not replicated", "damaged", "active"])
def test_a_segment_that_may_have_other_records_fills_no_hole(
    tmp_path: Path, store: MemoryObjectStore, kind: str
) -> None:
    _, follower = replicas_with_hole(tmp_path, store, lead_at=1)
    if kind in ("older leader", "other records"):
        shutil.rmtree(follower.log_dir)
        follower = BrokerDisk(tmp_path / "follower", segments=1)
        if kind == "other records":
            follower.lead(5)
        follower.grow(3)
    elif kind == "not replicated":
        (follower.log_dir / REPLICATION_CHECKPOINT).write_text(f"0\n1\n{PARTITION.topic} {PARTITION.partition} 19\n")
    elif kind == "damaged":
        damage(follower, 10)
    else:
        follower.cut(20)
    fill(follower, store)
    assert holes_of(store) == [(10, 19)]
    assert extents(store) == [(0, 9), (20, 29)]
    if kind == "not replicated":
        (follower.log_dir / REPLICATION_CHECKPOINT).write_text(f"0\n1\n{PARTITION.topic} {PARTITION.partition} 20\n")
        fill(follower, store)
        assert holes_of(store) == []


def test_two_replicas_that_fill_at_once_do_no_harm(tmp_path: Path, store: MemoryObjectStore) -> None:
    _, follower = replicas_with_hole(tmp_path, store)
    third = BrokerDisk(tmp_path / "third", segments=4)
    sweep = OperationSweep(copies_of(store), partial(fill, follower))
    for _, inner, meeting in sweep.sleep(partial(fill, third)):
        fill(follower, meeting)
        fill(follower, inner)
        assert holes_of(inner) == []
        assert set(extents(inner)) == {(0, 9), (10, 19), (20, 29)}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_each_operation_of_filling_may_fail(tmp_path: Path, store: MemoryObjectStore, moment: Moment) -> None:
    _, follower = replicas_with_hole(tmp_path, store)
    for _, inner, faulty in OperationSweep(copies_of(store), partial(fill, follower)).fail(moment):
        fill(follower, faulty)
        fill(follower, inner)
        assert holes_of(inner) == []
        assert extents(inner) == [(0, 9), (10, 19), (20, 29)]
        assert list(inner.list("!tieredstore/holes/")) == []


def test_the_leader_is_ready_again_once_its_holes_are_filled(tmp_path: Path, store: MemoryObjectStore) -> None:
    leader, follower = replicas(tmp_path)
    damage(leader, 10)
    with uploader_of(leader.log_dir, store) as shipping:
        shipping.run_once()
        shipping.sweep()
        assert "offsets 10 to 19" in shipping.health.reasons()["holes"]
        shipping.fill_holes()
        shipping.sweep()
        assert "holes" in shipping.health.reasons()
        fill(follower, store)
        shipping.fill_holes()
        shipping.sweep()
        assert "holes" not in shipping.health.reasons()
        # The other uploader has moved the watermark. The leader reads it again and continues.
        leader.grow()
        shipping.disk.touch(leader.folder)
        shipping.run_once()
    assert watermark_of(store).next_offset == 40
    assert holes_of(store) == []


def test_nothing_is_read_of_a_store_without_holes(tmp_path: Path) -> None:
    _, follower = replicas(tmp_path)
    quiet = FaultyStore(MemoryObjectStore())
    fill(follower, quiet)
    assert [operation.name for operation in quiet.operations] == ["list"]


def test_a_hole_whose_mark_was_lost_is_marked_again_when_its_leader_starts(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    leader, follower = replicas_with_hole(tmp_path, store)
    store.delete([hole_key("", PARTITION)])
    fill(follower, store)
    assert holes_of(store) == [(10, 19)]
    leader.grow()
    run_once(leader.log_dir, store)
    fill(follower, store)
    assert holes_of(store) == []


def test_a_running_leader_marks_its_hole_again_and_is_not_ready_before_it_is_filled(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    """A follower removes the mark, and is killed before it finds the hole and marks it again."""
    leader, follower = replicas(tmp_path)
    damage(leader, 10)
    with uploader_of(leader.log_dir, store) as shipping:
        shipping.run_once()
        store.delete([hole_key("", PARTITION)])
        shipping.fill_holes()
        shipping.sweep()
        assert "offsets 10 to 19" in shipping.health.reasons()["holes"]
        fill(follower, store)
        assert holes_of(store) == []
        shipping.fill_holes()
        shipping.sweep()
        assert "holes" not in shipping.health.reasons()
    assert list(store.list("!tieredstore/holes/")) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_hole_recorded_while_another_replica_removes_the_mark_stays_marked(
    tmp_path: Path, store: MemoryObjectStore, moment: Moment
) -> None:
    leader, follower = replicas_with_hole(tmp_path, store)
    leader.grow()
    damage(leader, 30)
    leader.grow()
    scripted = ScriptedStore(store)
    scripted.on("delete", hole_key("", PARTITION), lambda _: run_once(leader.log_dir, store), moment=moment, times=1)
    fill(follower, scripted)
    assert holes_of(store) == [(30, 39)]
    assert [info.key for info in store.list("!tieredstore/holes/")] == [hole_key("", PARTITION)]


def test_a_mark_removed_before_its_hole_is_recorded_is_set_again(tmp_path: Path, store: MemoryObjectStore) -> None:
    leader, follower = replicas(tmp_path)
    damage(leader, 10)
    scripted = ScriptedStore(store)
    scripted.on("put", hole_key("", PARTITION), lambda _: fill(follower, store), moment="after", times=1)
    run_once(leader.log_dir, scripted)
    assert scripted.keys_of("put").count(hole_key("", PARTITION)) == 2
    assert holes_of(store) == [(10, 19)]
    fill(follower, store)
    assert holes_of(store) == []


def test_a_hole_that_another_uploader_has_stored_meanwhile_is_removed(
    tmp_path: Path, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Both uploaders believe that they lead. The other uploader stores the segment just before the leader records the
    hole, and is stopped before it can move the watermark. The hole is removed although the leader's copy of the segment
    is damaged.
    """
    leader, other = replicas(tmp_path)
    damage(leader, 10)

    def run_other(_: object) -> None:
        stopped = FaultyStore(store, lambda operation: "watermarks" in operation.keys[0] and operation.name != "head")
        run_once(other.log_dir, stopped)

    scripted = ScriptedStore(store)
    scripted.on("put", hole_key("", PARTITION), run_other, times=1)
    run_once(leader.log_dir, scripted)
    assert "offsets 10 to 19 are not shipped" in caplog.text
    assert (set(extents(store)), holes_of(store)) == ({(0, 9), (10, 19), (20, 29)}, [])
    assert list(store.list("!tieredstore/holes/")) == []


def test_a_replica_whose_log_is_replaced_fills_the_hole_after_all(tmp_path: Path, store: MemoryObjectStore) -> None:
    """The follower's log is damaged too, and then incomplete, until the broker copies the partition again."""
    leader, follower = replicas(tmp_path)
    for disk in (leader, follower):
        damage(disk, 10)
    run_once(leader.log_dir, store)
    with uploader_of(follower.log_dir, store, leadership=FOLLOWER, broker_id="2") as uploader:
        uploader.run_once()
        (follower.folder / f"{20:020d}.snapshot").rename(aside := tmp_path / "aside")
        uploader.fill_holes()
        assert holes_of(store) == [(10, 19)]
        log = follower.folder / f"{10:020d}.log"
        log.unlink()
        log.write_bytes(b"".join(follower.batches(10, 0)))
        uploader.fill_holes()
        assert holes_of(store) == [(10, 19)]
        aside.rename(follower.folder / f"{20:020d}.snapshot")
        uploader.fill_holes()
    assert (extents(store), holes_of(store)) == ([(0, 9), (10, 19), (20, 29)], [])


def test_a_replica_fills_a_hole_whose_epochs_the_leader_does_not_know(tmp_path: Path, store: MemoryObjectStore) -> None:
    """The first leader records a hole. The log of the next leader begins later, and in a later epoch."""
    names = ("first", "second", "follower")
    first, second, follower = (BrokerDisk(tmp_path / name, segments=2) for name in names)
    first.grow()
    (first.folder / f"{10:020d}.log").unlink()
    run_once(first.log_dir, store)
    for disk in (second, follower):
        disk.lead(2)
        disk.grow()
        disk.lead(5)
        disk.grow(3)
    second.delete(3)
    assert second.epochs == ((5, 30),)
    run_once(second.log_dir, store)
    assert sum(last + 1 - begin for begin, last in holes_of(store)) == 20
    run_once(follower.log_dir, store, leadership=FOLLOWER, broker_id="3")
    assert holes_of(store) == []
    assert extents(store) == [(0, 9), (10, 19), (20, 29), (30, 39), (40, 49)]


def test_a_hole_before_an_epoch_that_the_log_does_not_have_is_no_agreement(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    """The hole names only the epoch after its records, because the log of the leader that recorded it begins later."""
    names = ("first", "second", "third")
    first, second, third = (BrokerDisk(tmp_path / name, segments=1 + (name != "third")) for name in names)
    run_once(first.log_dir, store)
    second.lead(2)
    second.grow(3)
    second.delete(2)
    run_once(second.log_dir, store)
    assert holes_of(store) == [(10, 19)]
    third.lead(1)
    third.grow(2)
    third.lead(4)
    third.grow(4)
    assert run_once(third.log_dir, store) == []
    watermark = watermark_of(store)
    assert [(move.from_offset, move.to_offset) for move in watermark.moved_back] == [(40, 10)]
    assert (watermark.next_offset, watermark.holes) == (60, ())


def test_keys_of_marks() -> None:
    assert partition_of_hole("p/", hole_key("p/", PARTITION)) == PARTITION
    for odd in (
        "p/!tieredstore/holes/",
        "p/!tieredstore/holes/x/1",
        "p/!tieredstore/holes/t-AAAA/1",
        watermark_key("p/", PARTITION),
    ):
        assert partition_of_hole("p/", odd) is None


ranges = st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(ranges, max_size=4), st.lists(ranges, max_size=4))
def test_holes_less_what_was_shipped(missing: list[tuple[int, int]], shipped: list[tuple[int, int]]) -> None:
    before = Watermark(PARTITION, 100, 0, holes=tuple(Hole(first, last, "gone", 0) for first, last in missing))
    after = before.fill(shipped)
    covered = {offset for first, last in shipped for offset in range(first, last + 1)}
    for hole in before.holes:
        left = [
            offset
            for part in after.holes
            if hole.first_offset <= part.first_offset and part.last_offset <= hole.last_offset
            for offset in range(part.first_offset, part.last_offset + 1)
        ]
        assert set(left) >= set(range(hole.first_offset, hole.last_offset + 1)) - covered
    lost = {offset for hole in before.holes for offset in range(hole.first_offset, hole.last_offset + 1)}
    still = {offset for hole in after.holes for offset in range(hole.first_offset, hole.last_offset + 1)}
    assert still == lost - covered


def test_a_segment_that_only_seems_to_reach_into_a_hole_is_not_stored(tmp_path: Path, store: MemoryObjectStore) -> None:
    """Both replicas lack the segment 10 to 19. The follower's segment before the gap ends earlier than the leader's."""
    leader, follower = replicas(tmp_path)
    for disk in (leader, follower):
        (disk.folder / f"{10:020d}.log").unlink()
    (follower.folder / f"{0:020d}.log").write_bytes(b"".join(follower.batches(0, 0)[:4]))
    run_once(leader.log_dir, store)
    fill(follower, store)
    assert (extents(store), holes_of(store)) == ([(0, 9), (20, 29)], [(10, 19)])


def test_links_that_only_seem_to_reach_into_a_hole_are_not_kept_for_ever(
    tmp_path: Path, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower linked the first segment while a listing missed the second one. Then the partition moved."""
    leader, follower = replicas(tmp_path)
    for disk in (leader, follower):
        (disk.folder / f"{10:020d}.log").unlink()
    follower.mark_deleted(3)
    (hold := tmp_path / "hold").mkdir()
    settings = {"leadership": FOLLOWER, "broker_id": "2", "hold_dir": str(hold)}
    run_once(follower.log_dir, store, None, **settings)
    assert len(list(hold.glob("*/*/*"))) == 2
    run_once(leader.log_dir, store)
    shutil.rmtree(follower.folder)
    run_once(follower.log_dir, store, None, **settings)
    assert list(hold.iterdir()) == []
    assert (extents(store), holes_of(store)) == ([(0, 9), (20, 29)], [(10, 19)])
    assert "without shipping" not in caplog.text


@pytest.mark.parametrize("is_topic_new", [False, True])
def test_files_of_a_log_that_has_changed_since_it_was_listed_fill_no_hole(
    tmp_path: Path, store: MemoryObjectStore, is_topic_new: bool
) -> None:
    """Since the follower's uploader listed the folder, the broker has truncated the log, and a leader of a later epoch
    has written other records. Or the topic was created again.
    """
    _, follower = replicas_with_hole(tmp_path, store)
    with uploader_of(follower.log_dir, store, leadership=FOLLOWER, broker_id="2") as uploader:
        uploader.ask_leadership()
        uploader.sweep()
        if is_topic_new:
            shutil.rmtree(follower.folder)
            again = dataclasses.replace(PARTITION, topic_id=Uuid.random())
            BrokerDisk(follower.log_dir, again, segments=4)
        else:
            follower.cut(10)
            follower.lead(1)
            follower.grow(3)
        uploader.fill_holes()
    assert (extents(store), holes_of(store)) == ([(0, 9), (20, 29)], [(10, 19)])


@pytest.mark.parametrize("kept", [slice(5), slice(1, 3)])
def test_a_hole_is_not_filled_by_the_segment_before_a_missed_one(
    tmp_path: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch, kept: slice
) -> None:
    """The follower's only listing for holes misses the second of two missing segments. In one case, the follower's log
    is compacted.
    """
    leader, follower = BrokerDisk(tmp_path / "leader", segments=5), BrokerDisk(tmp_path / "follower", segments=5)
    for base in (10, 20):
        (leader.folder / f"{base:020d}.log").unlink()
    run_once(leader.log_dir, store)
    assert holes_of(store) == [(10, 29)]
    for base in (10, 20):
        (follower.folder / f"{base:020d}.log").write_bytes(b"".join(follower.batches(base, 0)[kept]))
    missed, real = list[int](), discover_deleted

    def discover(folder: Path) -> tuple[FoundSegment, ...]:
        found = list(real(folder))
        if not missed:
            missed.append(found.pop(2).base_offset)
            found[1] = dataclasses.replace(found[1], next_base_offset=30)
        return tuple(found)

    monkeypatch.setattr(holes, "discover_deleted", discover)
    for _ in range(2):
        run_once(follower.log_dir, store, leadership=FOLLOWER, broker_id="2")
    assert missed == [20]
    assert (extents(store), holes_of(store)) == ([(0, 9), (10, 19), (20, 29), (30, 39)], [])


def test_a_disk_that_fails_for_a_while_fills_the_hole_later(
    tmp_path: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, follower = replicas_with_hole(tmp_path, store)
    is_failing = [True]

    def scan(descriptor: int, size: int, base: int, name: str, *, check_crcs: bool = False) -> LogSummary:
        if base == 10 and is_failing[0]:
            raise OSError(errno.EIO, "Input/output error")
        return scan_log(descriptor, size, base, name, check_crcs=check_crcs)

    monkeypatch.setattr(held_segment, "scan_log", scan)
    with uploader_of(follower.log_dir, store, leadership=FOLLOWER, broker_id="2") as uploader:
        uploader.run_once()
        for _ in range(9):
            uploader.fill_holes()
        assert holes_of(store) == [(10, 19)]
        is_failing[0] = False
        uploader.fill_holes()
    assert (extents(store), holes_of(store)) == ([(0, 9), (10, 19), (20, 29)], [])
