"""Hard links outlive the process: the next uploader ships segments that the broker deletes while no uploader runs."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.uploader.uploader_disk import (
    STORE,
    BrokerDisk,
    SaidSettling,
    extents,
    holes_of,
    logs_of,
    run_once,
    still_clock,
    stored,
    uploader_of,
    watermark_of,
)
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import Watermark, watermark_key
from tieredstore.config import settings_from
from tieredstore.errors import ConfigError
from tieredstore.kafka.checkpoints import format_partition_metadata
from tieredstore.model import IndexType, TopicIdPartition, Uuid
from tieredstore.ops.listing import QUARANTINE
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import pins


@pytest.fixture
def hold_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "hold"
    folder.mkdir()
    return folder


def hold_only(disk: BrokerDisk, hold_dir: Path, *, high: int = 0, **settings: str) -> list[str]:
    """Run an uploader that holds the closed segments but ships nothing; return the linked segments."""
    settling = SaidSettling(high=high, stable=0)
    run_once(disk.log_dir, MemoryObjectStore(), settling, hold_dir=str(hold_dir), **settings)
    return links(hold_dir)


def links(hold_dir: Path) -> list[str]:
    return sorted(path.name for path in hold_dir.glob("*/*/*"))


def named(*extents: tuple[int, int]) -> list[str]:
    return [f"{first:020d}-{last + 1:020d}" for first, last in extents]


@pytest.mark.parametrize("others", [[], ["new", "hold/"]], ids=["the only folder", "one of several"])
def test_segments_deleted_while_no_uploader_ran_are_shipped(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore, tmp_path: Path, others: list[str]
) -> None:
    (tmp_path / "new").mkdir()
    folders = ",".join(f"{tmp_path}/{name}" for name in [*others, "hold"])
    assert hold_only(disk, hold_dir) == named((0, 9), (10, 19), (20, 29))
    written = [(disk.folder / f"{base:020d}.log").read_bytes() for base in (0, 10, 20)]
    disk.delete(3)
    disk.grow(2)
    assert run_once(disk.log_dir, store, hold_dir=folders) == []
    assert extents(store) == [(0, 9), (10, 19), (20, 29), (30, 39), (40, 49)]
    assert logs_of(store)[:3] == written
    assert watermark_of(store).holes == ()
    # Shipped segments no longer take space.
    assert list(hold_dir.iterdir()) == []


def test_without_links_the_same_is_a_hole(disk: BrokerDisk, store: MemoryObjectStore, tmp_path: Path) -> None:
    run_once(disk.log_dir, store)
    disk.grow(2)
    disk.delete(5)
    disk.grow()
    assert run_once(disk.log_dir, store) == []
    assert holes_of(store) == [(30, 49)]


def test_epochs_that_retention_has_cut_are_those_that_were_linked(
    tmp_path: Path, hold_dir: Path, store: MemoryObjectStore
) -> None:
    disk = BrokerDisk(tmp_path / "logs")
    for epoch in (2, 4, 6):
        disk.grow()
        disk.lead(epoch)
    disk.grow(2)
    hold_only(disk, hold_dir)
    disk.delete(4)
    run_once(disk.log_dir, store, hold_dir=str(hold_dir))
    in_force = [segment.metadata.segment_leader_epochs for segment in stored(store)]
    assert in_force == [((0, 0),), ((2, 10),), ((4, 20),), ((6, 30),)]
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        checkpoint = manager.fetch_index(stored(store)[-1].metadata, IndexType.LEADER_EPOCH).read().decode()
    assert checkpoint.split("\n")[2:-1] == ["0 0", "2 10", "4 20", "6 30"]


def test_a_segment_that_still_exists_is_linked_once(disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore) -> None:
    hold_only(disk, hold_dir)
    log = disk.folder / f"{0:020d}.log"
    inode = log.stat()
    assert hold_only(disk, hold_dir) == named((0, 9), (10, 19), (20, 29))
    assert log.stat().st_nlink == inode.st_nlink == 2
    disk.mark_deleted()  # the files are renamed, but not removed yet
    assert run_once(disk.log_dir, store, hold_dir=str(hold_dir)) == []
    assert extents(store) == [(0, 9), (10, 19), (20, 29)]
    assert links(hold_dir) == []


def test_truncated_and_rewritten_segments_are_not_taken_from_the_links(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore
) -> None:
    hold_only(disk, hold_dir, high=10)
    disk.cut(10)
    disk.lead(7)
    disk.grow(3)
    run_once(disk.log_dir, store, hold_dir=str(hold_dir))
    assert [segment.metadata.segment_leader_epochs for segment in stored(store)] == [((0, 0),), ((7, 10),), ((7, 20),)]
    assert links(hold_dir) == []


def test_a_segment_that_may_have_been_truncated_is_quarantined_and_a_hole(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore
) -> None:
    """The checkpoint lost all epochs up to a later leader's, so no file shows where that epoch began."""
    hold_only(disk, hold_dir, high=20)
    disk.lead(7)
    disk.grow(2)
    disk.delete(4)
    assert disk.epochs[0][0] == 7
    run_once(disk.log_dir, store, hold_dir=str(hold_dir))
    # The links show that the first two segments were replicated. No link shows that the third one was.
    assert extents(store)[:2] == [(0, 9), (10, 19)]
    (hole,) = watermark_of(store).holes[:1]
    assert hole.first_offset == 20
    assert "other leaders" in hole.reason
    assert hole.quarantine == QUARANTINE
    assert [segment.metadata.start_offset for segment in stored(store, prefix=QUARANTINE)] == [20]
    assert links(hold_dir) == []


def test_more_is_linked_than_may_be_open(disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore) -> None:
    disk.grow(4)
    settling = SaidSettling(high=0)
    with uploader_of(disk.log_dir, store, settling, hold_dir=str(hold_dir), hold_max_files="10") as shipping:
        shipping.ask_leadership()
        assert shipping.sweep().files <= 10
        assert len(links(hold_dir)) == 7
        disk.delete(7)
        shipping.disk.touch(disk.folder)
        shipping.sweep()
        settling.high = 100
        assert shipping.run_once() == []
    assert len(extents(store)) == 7
    assert watermark_of(store).holes == ()


def test_where_the_disk_is_full_the_oldest_links_go_and_are_told(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_only(disk, hold_dir)
    disk.delete(3)
    free = iter([9.0, 9.0, 50.0])
    monkeypatch.setattr(pins, "free_percent", lambda _: next(free, 50.0))
    run_once(disk.log_dir, store, hold_dir=str(hold_dir))
    assert extents(store) == [(20, 29)]
    (hole,) = watermark_of(store).holes
    assert (hole.first_offset, hole.last_offset) == (0, 19)
    assert "nearly full" in hole.reason
    assert links(hold_dir) == []


def test_a_check_links_and_removes_nothing(disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore) -> None:
    with uploader_of(disk.log_dir, store, hold_dir=str(hold_dir)) as shipping:
        assert len(shipping.plan()) == 3
    assert list(hold_dir.iterdir()) == []
    hold_only(disk, hold_dir)
    disk.cut(20)
    with uploader_of(disk.log_dir, store, SaidSettling(high=20), hold_dir=str(hold_dir)) as shipping:
        shipping.plan()
        assert links(hold_dir) == named((0, 9), (10, 19), (20, 29))
        disk.grow(3)
        shipping.run_once()  # makes and removes links again
    assert links(hold_dir) == named((20, 29), (30, 39))


def test_links_stay_when_another_broker_leads_until_it_has_shipped_them(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore
) -> None:
    led = [PARTITION_NAME]
    with uploader_of(disk.log_dir, store, hold_dir=str(hold_dir)) as shipping:
        shipping.sweep()
        assert links(hold_dir) == [], "nobody knows yet who leads"
        shipping.leadership.source.led = lambda: led  # type: ignore[method-assign]
        shipping.ask_leadership()
        shipping.sweep()
        assert len(links(hold_dir)) == 3
        led.clear()
        shipping.ask_leadership()
        shipping.sweep()
        shipping.follow()
        assert len(links(hold_dir)) == 3
        watermark = Watermark(PARTITION, 20, 0)
        store.put(watermark_key("", PARTITION), watermark.to_bytes())
        shipping._followed_partitions._asked.clear()  # pyright: ignore[reportPrivateUsage]
        shipping.follow()
        assert links(hold_dir) == named((20, 29))


PARTITION_NAME = (PARTITION.topic, PARTITION.partition)


def test_before_it_is_known_who_leads_the_links_of_before_stay(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore
) -> None:
    before = hold_only(disk, hold_dir)
    with uploader_of(disk.log_dir, store, hold_dir=str(hold_dir)) as shipping:
        shipping.sweep()
        assert links(hold_dir) == before


def test_links_of_a_topic_that_was_made_again_go_and_those_that_are_excluded_stay(
    tmp_path: Path, hold_dir: Path, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    disks = {name: BrokerDisk(tmp_path / "logs", TopicIdPartition(Uuid.random(), name, 0)) for name in ("one", "two")}
    for disk in disks.values():
        disk.grow(2)
    assert len(hold_only(disks["one"], hold_dir)) == 2
    shutil.rmtree(disks["one"].folder)
    again = BrokerDisk(tmp_path / "logs", TopicIdPartition(Uuid.random(), "one", 0), segments=2)
    settling = SaidSettling(high=0)
    run_once(tmp_path / "logs", store, settling, hold_dir=str(hold_dir), topics_exclude="two")
    kept = sorted(path.name for path in hold_dir.iterdir())
    assert kept == sorted(f"{disk.partition.topic}-{disk.partition.topic_id}" for disk in (again, disks["two"]))
    assert "to free the space: two" in caplog.text


@pytest.mark.parametrize("is_re_created", [False, True])
def test_an_unidentified_folder_holds_up_no_links_of_other_partitions(
    tmp_path: Path, hold_dir: Path, store: MemoryObjectStore, is_re_created: bool
) -> None:
    """Without a broker, an unidentified folder also shows that its topic may still exist."""
    log_dir, now_s = tmp_path / "logs", [0.0]
    disks = [BrokerDisk(log_dir, replace(PARTITION, partition=number), segments=4) for number in range(2)]
    assert len(hold_only(disks[0], hold_dir)) == 6
    metadata = disks[0].folder / "partition.metadata"
    whole = metadata.read_bytes()
    metadata.unlink()
    shutil.rmtree(disks[1].folder)
    with uploader_of(log_dir, store, SaidSettling(high=0), lambda: now_s[0], hold_dir=str(hold_dir)) as shipping:
        shipping.ask_leadership()
        for _ in range(3):
            shipping.sweep()
            shipping.follow()
            assert [one.where for one in shipping.disk.partitions] == [disks[1].partition]
            now_s[0] += 100.0
        again = Uuid.random()
        metadata.write_bytes(format_partition_metadata(again) if is_re_created else whole)
        shipping.sweep()
        known = {disks[0].partition, disks[1].partition}
        if is_re_created:
            known.add(replace(PARTITION, topic_id=again))
        assert {one.where for one in shipping.disk.partitions} == known
        assert len(links(hold_dir)) >= 6


def test_the_longest_topic_names_have_links(tmp_path: Path, hold_dir: Path, store: MemoryObjectStore) -> None:
    """A name in a file system has at most 255 bytes, but a topic's name may have 249, and a topic id 22."""
    log_dir = tmp_path / "logs"
    names = ("t" * 249, "t" * 248 + "u", "t" * 231, "t" * 232)
    disks = [BrokerDisk(log_dir, TopicIdPartition(Uuid.random(), name, 0), segments=4) for name in names]
    assert len(hold_only(disks[0], hold_dir)) == 12
    asides = [disk.folder.rename(tmp_path / f"aside {number}") for number, disk in enumerate(disks)]
    with uploader_of(log_dir, store, SaidSettling(high=0), hold_dir=str(hold_dir)) as shipping:
        shipping.sweep()
        found = {one.where for one in shipping.disk.partitions}
        assert found == {disks[2].partition, disks[3].partition}, "cut names tell no topic"
    for aside, disk in zip(asides, disks, strict=True):
        aside.rename(disk.folder)
    for disk in disks:
        disk.delete(3)
    assert run_once(log_dir, store, hold_dir=str(hold_dir)) == []
    for disk in disks:
        assert extents(store, disk.partition) == [(0, 9), (10, 19), (20, 29)]
    assert list(hold_dir.iterdir()) == []


def leave_halves(hold_dir: Path) -> None:
    (whole, *_) = hold_dir.glob("*/*/*")
    for suffix in (".part", ".gone"):
        shutil.copytree(whole, whole.with_name(f"{99:020d}-{109:020d}{suffix}"))


def remove_logs(hold_dir: Path) -> None:
    for log in hold_dir.glob("*/*/*/*.log"):
        log.unlink()


@pytest.mark.parametrize("spoil", [leave_halves, remove_logs])
def test_half_a_link_is_none(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore, spoil: Callable[[Path], None]
) -> None:
    hold_only(disk, hold_dir)
    spoil(hold_dir)
    assert run_once(disk.log_dir, store, hold_dir=str(hold_dir)) == []
    assert (extents(store), holes_of(store)) == ([(0, 9), (10, 19), (20, 29)], [])
    assert list(hold_dir.iterdir()) == []


def test_where_links_are_refused_files_are_held_and_it_is_said_once(
    disk: BrokerDisk,
    hold_dir: Path,
    store: MemoryObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert run_once(disk.log_dir, store, hold_dir=str(hold_dir)) == []
    assert extents(store) == [(0, 9), (10, 19), (20, 29)]
    assert caplog.text.count("run the uploader as the broker's user") == 1


def links_of(hold_dir: Path, disk: BrokerDisk) -> int:
    return len([*hold_dir.glob(f"*/{disk.partition.partition}/*")])


def test_a_failed_disk_for_links_stops_no_links_on_other_disks(
    tmp_path: Path, other_disk: Path, hold_dir: Path, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    log_dirs, other_hold_dir = (other_disk / "logs", tmp_path / "logs"), other_disk / "hold"
    other_hold_dir.mkdir()
    first, second = (
        BrokerDisk(log_dir, replace(PARTITION, partition=number), segments=5) for number, log_dir in enumerate(log_dirs)
    )
    settings = {"log_dirs": ",".join(map(str, log_dirs)), "hold_dir": f"{hold_dir},{other_hold_dir}"}
    with uploader_of(tmp_path, store, SaidSettling(high=0), still_clock, hold_max_files="10", **settings) as shipping:
        other_hold_dir.rmdir()
        other_hold_dir.touch()
        shipping.ask_leadership()
        for _ in range(3):
            shipping.sweep()
            assert links_of(hold_dir, second) == 4
        assert caplog.text.count("cannot make links") == 1
        other_hold_dir.unlink()
        other_hold_dir.mkdir()
        shipping.sweep()
        shipping.sweep()
        assert links_of(other_hold_dir, first) == 4


def test_a_partition_on_another_disk_than_its_log_directory_stops_no_links_of_others(
    tmp_path: Path, other_disk: Path, hold_dir: Path, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder of the first partition is a symbolic link."""
    log_dir = tmp_path / "logs"
    first, second = (BrokerDisk(log_dir, replace(PARTITION, partition=number), segments=5) for number in range(2))
    shutil.copytree(first.folder, other_disk / "aside")
    shutil.rmtree(first.folder)
    first.folder.symlink_to(other_disk / "aside")
    settling = SaidSettling(high=0)
    with uploader_of(log_dir, store, settling, still_clock, hold_dir=str(hold_dir), hold_max_files="10") as shipping:
        hold_dir.rmdir()
        hold_dir.touch()
        shipping.ask_leadership()
        shipping.sweep()
        hold_dir.unlink()
        hold_dir.mkdir()
        for _ in range(3):
            shipping.sweep()
        assert (links_of(hold_dir, first), links_of(hold_dir, second)) == (0, 4)
        assert caplog.text.count("cannot make links") == 2
        settling.high = 100
        assert shipping.run_once() == []
    assert extents(store, first.partition) == extents(store, second.partition) == [(0, 9), (10, 19), (20, 29), (30, 39)]


def test_a_partition_whose_links_fail_stops_no_links_of_others(
    tmp_path: Path, hold_dir: Path, store: MemoryObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    log_dir, obstacle = tmp_path / "logs", hold_dir / f"{PARTITION.topic}-{PARTITION.topic_id}" / "0"
    obstacle.parent.mkdir()
    obstacle.touch()
    first, second = (BrokerDisk(log_dir, replace(PARTITION, partition=number), segments=5) for number in range(2))
    settling = SaidSettling(high=0)
    with uploader_of(log_dir, store, settling, still_clock, hold_dir=str(hold_dir), hold_max_files="10") as shipping:
        shipping.ask_leadership()
        for _ in range(3):
            shipping.sweep()
            assert (links_of(hold_dir, first), links_of(hold_dir, second)) == (0, 4)
        assert caplog.text.count("cannot make links") == 1
        obstacle.unlink()
        shipping.sweep()
        assert links_of(hold_dir, first) == 4


@pytest.mark.parametrize("depth", [2, 3], ids=["partition", "segment"])
def test_links_that_cannot_be_read_are_no_hole(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    run_once(disk.log_dir, store, SaidSettling(high=10), hold_dir=str(hold_dir))
    disk.delete(3)
    disk.grow(2)
    real = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.is_relative_to(hold_dir) and len(path.relative_to(hold_dir).parts) == depth:
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    with monkeypatch.context() as failing:
        failing.setattr(Path, "iterdir", iterdir)
        left = run_once(disk.log_dir, store, hold_dir=str(hold_dir))
    assert (extents(store), holes_of(store)) == ([(0, 9)], [])
    assert "Input/output error" in left[0]
    assert run_once(disk.log_dir, store, hold_dir=str(hold_dir)) == []
    assert extents(store) == [(0, 9), (10, 19), (20, 29), (30, 39), (40, 49)]
    assert holes_of(store) == []


def test_a_folder_that_cannot_be_locked_is_not_in_use(
    disk: BrokerDisk, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"logs cannot be locked: No locks available"):
        uploader_of(disk.log_dir, store)


@pytest.mark.parametrize("kind", ["absent", "inside", "the same", "by a link"])
def test_a_folder_that_cannot_be_one_is_refused(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore, kind: str
) -> None:
    (disk.log_dir / "inside").mkdir()
    (hold_dir / "link").symlink_to(disk.log_dir / "inside")
    folder = {
        "absent": hold_dir / "none",
        "inside": disk.log_dir / "inside",
        "the same": disk.log_dir,
        "by a link": hold_dir / "link",
    }[kind]
    with pytest.raises(ConfigError, match=r"hold\.dir.* (does not exist|inside the log directory)"):
        uploader_of(disk.log_dir, store, hold_dir=str(folder))


def test_another_file_system_and_another_uploader_are_refused(
    tmp_path: Path, other_disk: Path, disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore
) -> None:
    with pytest.raises(ConfigError, match="has no folder on the file system of log directory"):
        uploader_of(disk.log_dir, store, hold_dir=str(other_disk))
    other = BrokerDisk(tmp_path / "other", segments=1)
    with (
        uploader_of(disk.log_dir, store, hold_dir=str(hold_dir)),
        pytest.raises(ConfigError, match="another uploader uses"),
    ):
        uploader_of(other.log_dir, store, hold_dir=str(hold_dir))


def test_a_link_that_is_made_after_the_answer_says_that_it_is_replicated(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore
) -> None:
    """The broker writes the snapshot at a segment's end only after the next segment's log. The leader's answer arrives
    between the two, so the uploader makes the link after the answer.
    """
    snapshot = disk.folder / f"{30:020d}.snapshot"
    raw = snapshot.read_bytes()
    snapshot.unlink()
    settling = SaidSettling(high=30, stable=0)
    with uploader_of(disk.log_dir, MemoryObjectStore(), settling, hold_dir=str(hold_dir)) as shipping:
        shipping.ask_leadership()
        assert shipping.sweep().incomplete == 1
        shipping.ask_settled()
        snapshot.write_bytes(raw)
        shipping.sweep()
        # Close another segment between two answers.
        disk.grow()
        shipping.disk.touch(disk.folder)
        settling.high = 40
        shipping.inquiries._answers.clear()  # pyright: ignore[reportPrivateUsage]
        shipping.ask_settled()
        shipping.sweep()
    assert links(hold_dir) == named((0, 9), (10, 19), (20, 29), (30, 39))
    assert [path.parent.name for path in sorted(hold_dir.glob("*/*/*/settled"))] == links(hold_dir)
    # The checkpoint no longer shows where a later leader began; only the links do.
    disk.lead(7)
    disk.grow(2)
    disk.delete(5)
    run_once(disk.log_dir, store, hold_dir=str(hold_dir))
    assert extents(store)[:4] == [(0, 9), (10, 19), (20, 29), (30, 39)]
    # The segment of 40 to 49 was not closed when an uploader last ran.
    assert holes_of(store) == [(40, 49)]


def test_a_full_disk_has_its_bytes_back_when_they_are_let_go(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hard links take no disk space, but the small checkpoint file beside them does."""
    real, is_full, free = Path.write_bytes, [True], [50.0]

    def write_bytes(path: Path, data: bytes) -> int:
        if is_full[0] and path.is_relative_to(hold_dir):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    monkeypatch.setattr(pins, "free_percent", lambda _: free[0])
    logs_held = [(disk.folder / f"{base:020d}.log").open("rb") for base in (0, 10, 20)]
    settling = SaidSettling(high=0)
    with uploader_of(disk.log_dir, store, settling, hold_dir=str(hold_dir)) as shipping:
        shipping.ask_leadership()
        assert shipping.sweep().files == 12
        assert list(hold_dir.glob("*/*/*")) == [], "half a link keeps the log's bytes"
        disk.delete(2)
        shipping.disk.touch(disk.folder)
        assert shipping.sweep().unlinked_bytes > 0
        free[0] = 5.0
        shipping.sweep()
        assert [os.fstat(log.fileno()).st_nlink for log in logs_held] == [0, 0, 1]
        assert shipping.sweep().unlinked_bytes == 0
        # As soon as there is space again, held segments are linked too.
        is_full[0], free[0] = False, 50.0
        shipping.sweep()
        assert links(hold_dir) == named((20, 29))
        settling.high = 100
        assert shipping.run_once() == []
    assert extents(store) == [(20, 29)]
    assert holes_of(store) == [(0, 19)]
    for log in logs_held:
        log.close()


def test_links_go_where_a_full_disk_has_no_room_for_another_name(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_only(disk, hold_dir)
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if str(target).endswith(".gone"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    assert run_once(disk.log_dir, store, hold_dir=str(hold_dir)) == []
    assert list(hold_dir.iterdir()) == []
    assert (disk.folder / f"{0:020d}.log").stat().st_nlink == 1


@pytest.mark.parametrize("is_linked", [False, True])
def test_open_files_that_a_network_file_system_has_made_stale_are_opened_by_their_names(
    disk: BrokerDisk, hold_dir: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch, is_linked: bool
) -> None:
    own = {"check_crcs": "false", "hold_dir": str(hold_dir) if is_linked else ""}
    with uploader_of(disk.log_dir, store, **own) as uploader:
        uploader.ask_leadership()
        uploader.sweep()
        (partition,) = uploader.disk.partitions
        stale = {file.descriptor for one in partition.pending() if one.held for file in one.held.files}
        assert len(stale) == 12
        real_dup, real_close = os.dup, os.close

        def refuse_stale(name: str) -> Callable[..., Any]:
            real = getattr(os, name)

            def call(descriptor: Any, *rest: Any, **named: Any) -> Any:
                if descriptor in stale:
                    raise OSError(errno.ESTALE, "Stale file handle")
                return real(descriptor, *rest, **named)

            return call

        def dup(descriptor: int) -> int:
            new = real_dup(descriptor)
            stale.update({new} if descriptor in stale else ())
            return new

        def close(descriptor: int) -> None:
            stale.discard(descriptor)
            real_close(descriptor)

        for name in ("fstat", "pread", "preadv"):
            monkeypatch.setattr(os, name, refuse_stale(name))
        monkeypatch.setattr(os, "dup", dup)
        monkeypatch.setattr(os, "close", close)
        assert uploader.run_once() == []
    assert (extents(store), holes_of(store), stale) == ([(0, 9), (10, 19), (20, 29)], [], set())
