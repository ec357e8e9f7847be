"""Partitions that move to another log directory or to other brokers keep their held segments."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.uploader.uploader_disk import (
    BrokerDisk,
    SaidSettling,
    extents,
    logs_of,
    run_once,
    uploader_of,
    watermark_of,
)
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import BrokerUnavailableError, ConfigError
from tieredstore.kafka import held_segment
from tieredstore.kafka.log_scan import LogSummary, scan_log
from tieredstore.model import TopicIdPartition, TopicPartition, Uuid
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Leadership, Uploader
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.settled import Settled

WHOLE = [(0, 9), (10, 19), (20, 29)]
NAME = (PARTITION.topic, PARTITION.partition)


@pytest.fixture(params=["held", "linked"])
def hold_dir(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path / "links"
    folder.mkdir()
    return str(folder) if request.param == "linked" else ""


@pytest.fixture
def settling() -> SaidSettling:
    """Return answers by which no record is settled, so that segments wait as if the store were unavailable."""
    return SaidSettling(high=0)


@pytest.fixture
def uploader(
    disk: BrokerDisk, store: MemoryObjectStore, settling: SaidSettling, hold_dir: str, tmp_path: Path
) -> Iterator[Uploader]:
    """Yield the uploader of a broker with two log directories. All closed segments are pinned."""
    (tmp_path / "two").mkdir()
    log_dirs = f"{disk.log_dir},{tmp_path / 'two'}"
    with uploader_of(disk.log_dir, store, settling, log_dirs=log_dirs, hold_dir=hold_dir) as uploader:
        uploader.ask_leadership()
        uploader.sweep()
        yield uploader


def only(uploader: Uploader) -> Partition:
    (partition,) = uploader.disk.partitions
    return partition


def pinned(uploader: Uploader) -> list[int]:
    return [segment.base_offset for segment in only(uploader).pending() if segment.is_pinned]


def links(hold_dir: str) -> int:
    return len(list(Path(hold_dir).glob("*/*/*")))


def look(uploader: Uploader, *disks: BrokerDisk) -> None:
    for disk in disks:
        uploader.disk.touch(disk.folder)
    uploader.sweep()


ORDERS = ("both are there", "none is there", "at once")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("is_gone", [True, False], ids=["deleted", "marked"])
def test_a_move_between_log_directories_keeps_what_retention_has_taken(
    uploader: Uploader,
    disk: BrokerDisk,
    store: MemoryObjectStore,
    settling: SaidSettling,
    tmp_path: Path,
    order: str,
    is_gone: bool,
) -> None:
    written = [(disk.folder / f"{base:020d}.log").read_bytes() for base in (0, 10, 20)]
    disk.mark_deleted(2)
    if is_gone:
        disk.delete()
    look(uploader, disk)
    assert pinned(uploader) == [0, 10, 20]
    future = disk.copy_to(tmp_path / "future")
    there = BrokerDisk(tmp_path / "two", disk.partition, disk.epochs, disk.end, disk.bases)
    if order == "both are there":
        future.folder.rename(there.folder)
        look(uploader, disk, there)
        disk.leave()
    elif order == "none is there":
        disk.leave()
        look(uploader)
        assert only(uploader).role is Role.LEAVING
        future.folder.rename(there.folder)
    else:
        disk.leave()
        future.folder.rename(there.folder)
    look(uploader, there)
    assert only(uploader).folder == there.folder
    assert pinned(uploader) == [0, 10, 20]
    for doomed in disk.log_dir.iterdir():
        shutil.rmtree(doomed)
    there.delete(1)
    look(uploader, there)
    settling.high = 100
    assert uploader.run_once() == []
    assert (extents(store), watermark_of(store).holes) == (WHOLE, ())
    assert logs_of(store) == written


def test_a_move_leaves_the_links_of_what_is_live(
    uploader: Uploader, disk: BrokerDisk, hold_dir: str, store: MemoryObjectStore, tmp_path: Path
) -> None:
    """One sweep sees both the old folder and the new one."""
    there = disk.copy_to(tmp_path / "two")
    look(uploader, disk, there)
    disk.leave()
    look(uploader, there)
    assert pinned(uploader) == [0, 10, 20]
    if not hold_dir:
        return
    assert links(hold_dir) == 3
    uploader.close()
    there.delete(3)
    shutil.rmtree(disk.log_dir)
    assert run_once(there.log_dir, store, hold_dir=hold_dir) == []
    assert (extents(store), links(hold_dir)) == (WHOLE, 0)


def test_a_copy_with_other_borders_is_shipped_as_well(
    uploader: Uploader, disk: BrokerDisk, store: MemoryObjectStore, settling: SaidSettling, tmp_path: Path
) -> None:
    """The segments of the two folders have different boundaries. Those that only the old folder has are shipped too."""
    disk.delete(1)
    look(uploader, disk)
    there = BrokerDisk(tmp_path / "two", disk.partition, disk.epochs, 5, segments=4)
    disk.leave()
    look(uploader, there)
    settling.high = 100
    assert uploader.run_once() == []
    assert extents(store) == [(0, 9), (5, 14), (15, 24), (25, 34)]
    assert watermark_of(store).holes == ()


def test_a_log_that_is_made_anew_from_the_front_takes_nothing_away(
    uploader: Uploader, disk: BrokerDisk, store: MemoryObjectStore, settling: SaidSettling
) -> None:
    """A replica has a new disk. Its log first is empty and begins at 0, and then begins where the leader's log does."""
    disk.leave()
    look(uploader)
    anew = BrokerDisk(disk.log_dir, disk.partition, ())
    anew.epochs = disk.epochs
    anew.grow()
    for path in anew.files(0):
        path.unlink()
    (anew.folder / f"{0:020d}.log").write_bytes(b"")
    look(uploader, anew)
    assert pinned(uploader) == [0, 10, 20]
    (anew.folder / f"{0:020d}.log").rename(anew.folder / f"{0:020d}.log.deleted")
    anew.bases, anew.end, anew.epochs = [], 30, ((0, 30),)
    anew.grow(2)
    look(uploader, anew)
    settling.high = 100
    assert uploader.run_once() == []
    assert (extents(store), watermark_of(store).holes) == ([*WHOLE, (30, 39)], ())


class Assigned(Leadership):
    """Leadership in a cluster whose leaders and topics the test sets."""

    leads = True
    ids: Mapping[str, Uuid | None] | None = None

    def led(self) -> Collection[TopicPartition]:
        return {NAME} if self.leads else set()

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, Uuid | None]:
        if self.ids is None:
            raise BrokerUnavailableError("nobody is there")
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}


class Reassigned:
    """Partition that the cluster gave to another broker. Its old leader shipped 0 to 19 and holds 20 to 29."""

    def __init__(self, tmp_path: Path, store: MemoryObjectStore, hold_dir: str, *, first: bool = False) -> None:
        self.store, self.hold_dir, self.now_s = store, hold_dir, 0.0
        self.old, self.new = BrokerDisk(tmp_path / "old"), BrokerDisk(tmp_path / "new")
        self.settling = SaidSettling()
        self.settling.high = 0 if first else 20
        self.old.grow(4)
        Assigned.leads, Assigned.ids = True, {PARTITION.topic: PARTITION.topic_id}
        self.uploader = self.start()
        self.uploader.run_once()
        self.old.delete(3)
        look(self.uploader, self.old)
        # The other broker's log begins at 30, where this log began when that broker joined. That broker leads from 40
        # on, in the next epoch.
        self.new.epochs, self.new.end = ((0, 30), (1, 40)), 30
        self.new.grow(3)
        Assigned.leads = False
        self.old.leave()
        look(self.uploader)

    def start(self) -> Uploader:
        own = {"leadership": f"{__name__}.Assigned", "hold_dir": self.hold_dir}

        def clock() -> float:
            return time.monotonic() + self.now_s

        return uploader_of(self.old.log_dir, self.store, self.settling, clock, **own)

    def step(self) -> None:
        """Let a minute pass, then run the uploader of the broker that lost the partition."""
        self.now_s += 61.0
        self.uploader.ask_leadership()
        self.uploader.sweep()
        self.uploader.fill_holes()
        self.uploader.follow()


@pytest.mark.parametrize("is_restarted", [False, True], ids=["runs on", "restarted"])
@pytest.mark.parametrize("first", [False, True], ids=["begun", "nothing stored"])
def test_a_reassigned_partition_keeps_what_it_holds_until_the_store_has_it(
    tmp_path: Path, store: MemoryObjectStore, hold_dir: str, first: bool, is_restarted: bool
) -> None:
    run = Reassigned(tmp_path, store, hold_dir, first=first)
    assert only(run.uploader).role is Role.LEAVING
    if is_restarted and hold_dir:
        run.uploader.close()
        run.uploader = run.start()
        run.step()
    run.step()
    assert only(run.uploader).has_pins
    assert run_once(run.new.log_dir, store, broker_id="2") == []
    run.step()
    run.step()
    assert extents(store) == [*WHOLE, (30, 39), (40, 49)]
    assert watermark_of(store).holes == ()
    assert run.uploader.disk.partitions == []
    assert run.uploader.counts.abandoned_segments == 0
    assert not hold_dir or links(hold_dir) == 0
    run.uploader.close()


def test_segments_shipped_by_the_new_leader_are_let_go(tmp_path: Path, store: MemoryObjectStore, hold_dir: str) -> None:
    run = Reassigned(tmp_path, store, hold_dir)
    other = BrokerDisk(tmp_path / "other", segments=3)
    other.lead(1)
    other.grow(2)
    run_once(other.log_dir, store, broker_id="2")
    run.step()
    run.step()
    assert run.uploader.disk.partitions == []
    assert run.uploader.counts.abandoned_segments == 0
    assert extents(store) == [*WHOLE, (30, 39)]
    run.uploader.close()


@pytest.mark.parametrize("epoch", [0, 1])
def test_other_records_of_a_later_leader_are_not_filled_with_what_is_held(
    tmp_path: Path, store: MemoryObjectStore, hold_dir: str, epoch: int
) -> None:
    """If the new log begins with the held segments' epoch, the segments belong to it. If the log begins with a later
    epoch, they may belong to another log.
    """
    run = Reassigned(tmp_path, store, hold_dir)
    shutil.rmtree(run.new.folder)
    run.new.bases, run.new.end, run.new.epochs = [], 30, ((epoch, 30), (2, 40))
    run.new.grow(3)
    run_once(run.new.log_dir, store, broker_id="2")
    run.step()
    run.step()
    assert ((20, 29) in extents(store)) == (epoch == 0)
    assert run.uploader.counts.abandoned_segments == epoch
    assert run.uploader.disk.partitions == []
    run.uploader.close()


@pytest.mark.parametrize(
    ("ids", "is_kept"),
    [
        (None, True),
        ({}, True),
        ({PARTITION.topic: PARTITION.topic_id}, True),
        ({PARTITION.topic: Uuid(bytes(16))}, True),
        ({PARTITION.topic: None}, False),
        ({PARTITION.topic: Uuid(bytes([9] * 16))}, False),
    ],
    ids=["no answer", "not told", "there", "no ids", "unknown", "made again"],
)
def test_only_a_topic_that_the_cluster_does_not_know_is_let_go_unshipped(
    tmp_path: Path,
    store: MemoryObjectStore,
    hold_dir: str,
    caplog: pytest.LogCaptureFixture,
    ids: Mapping[str, Uuid | None] | None,
    is_kept: bool,
) -> None:
    run = Reassigned(tmp_path, store, hold_dir)
    Assigned.ids = ids
    run.uploader.follow()
    # A broker that has just started knows no topic. So one answer that does not have the topic drops nothing, but one
    # answer with another topic id drops the segments.
    assert bool(run.uploader.disk.partitions) == (is_kept or ids == {PARTITION.topic: None})
    run.step()
    assert bool(run.uploader.disk.partitions) == is_kept
    assert run.uploader.counts.abandoned_segments == (0 if is_kept else 1)
    assert ("dropped without shipping them: partition (offsets) 0 (20 to 29)" in caplog.text) != is_kept
    assert not hold_dir or links(hold_dir) == int(is_kept)
    run.uploader.close()


def test_segments_may_be_let_go_while_the_cluster_is_asked_if_their_topic_is_deleted(
    tmp_path: Path, store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Reassigned(tmp_path, store, "")

    def topic_ids(_: object, topics: Collection[str]) -> Mapping[str, Uuid | None]:
        only(run.uploader).close()
        return dict.fromkeys(topics, Uuid(bytes([9] * 16)))

    monkeypatch.setattr(Assigned, "topic_ids", topic_ids)
    with run.uploader:
        run.uploader.follow()
        assert run.uploader.disk.partitions == []


def test_a_partition_that_comes_back_is_led_with_what_was_held(
    tmp_path: Path, store: MemoryObjectStore, hold_dir: str
) -> None:
    run = Reassigned(tmp_path, store, hold_dir)
    back = run.new.copy_to(run.old.log_dir)
    back.lead(2)
    back.grow()
    Assigned.leads = True
    run.uploader.ask_leadership()
    look(run.uploader, back)
    assert only(run.uploader).role is Role.LED
    run.settling.high = 1000
    run.uploader.inquiries._answers.clear()  # pyright: ignore[reportPrivateUsage]
    assert run.uploader.run_once() == []
    assert extents(store) == [*WHOLE, (30, 39), (40, 49), (50, 59)]
    assert watermark_of(store).holes == ()
    run.uploader.close()


def test_a_listing_of_a_folder_on_its_way_elsewhere_takes_nothing_away(
    uploader: Uploader, disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is renamed between reading its checkpoint and listing its names."""
    disk.mark_deleted(2)
    real = os.listdir

    def listdir(path: str | Path) -> list[str]:
        return [] if Path(path) == disk.folder else real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    look(uploader, disk)
    assert pinned(uploader) == [0, 10, 20]


def test_a_topic_made_again_while_its_folder_is_listed_is_another_one(
    uploader: Uploader, disk: BrokerDisk, store: MemoryObjectStore, settling: SaidSettling
) -> None:
    """Listing the folder of a known partition also checks its topic id."""
    shutil.rmtree(disk.folder)
    again = BrokerDisk(disk.log_dir, TopicIdPartition(Uuid.random(), *NAME), ((0, 0),), 0, segments=6)
    uploader.disk.relist(only(uploader))
    assert [segment.base_offset for segment in only(uploader).pending()] == [0, 10, 20]
    settling.high = 1000
    uploader.run_once()
    assert len(extents(store, again.partition)) == 5


@pytest.mark.parametrize("failures", [1, 9])
def test_a_segment_that_only_pins_keep_is_dropped_only_if_the_disk_keeps_failing(
    tmp_path: Path, store: MemoryObjectStore, hold_dir: str, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    run = Reassigned(tmp_path, store, hold_dir)
    run_once(run.new.log_dir, store, broker_id="2")
    left = [failures]

    def scan(descriptor: int, size: int, base: int, name: str, *, check_crcs: bool = False) -> LogSummary:
        if base == 20 and left[0]:
            left[0] -= 1
            raise OSError(errno.EIO, "Input/output error")
        return scan_log(descriptor, size, base, name, check_crcs=check_crcs)

    monkeypatch.setattr(held_segment, "scan_log", scan)
    for _ in range(8):
        run.step()
    assert ((20, 29) in extents(store)) == (failures == 1)
    assert run.uploader.counts.abandoned_segments == (failures != 1)
    assert run.uploader.disk.partitions == []
    run.uploader.close()


def test_a_partition_whose_log_directory_failed_is_shipped_from_another_one(
    uploader: Uploader, disk: BrokerDisk, store: MemoryObjectStore, settling: SaidSettling, tmp_path: Path
) -> None:
    """The broker was restarted without the failed log directory, and has copied the partition from other brokers."""
    there, elsewhere = disk.copy_to(tmp_path / "two"), tmp_path / "unmounted"
    disk.log_dir.rename(elsewhere)
    there.grow(2)
    look(uploader, there)
    assert only(uploader).folder == there.folder
    assert f"cannot be listed: {disk.log_dir}" in uploader.health.reasons()["folders"]
    settling.high = 100
    (left,) = uploader.run_once()
    assert (left.status, left.name) == ("failed", str(disk.log_dir))
    assert (extents(store), watermark_of(store).holes) == ([*WHOLE, (30, 39), (40, 49)], ())
    # The disk is back, but the partition stays where the broker writes it.
    elsewhere.rename(disk.log_dir)
    there.grow()
    look(uploader, there)
    assert only(uploader).folder == there.folder
    assert uploader.run_once() == []
    assert extents(store)[-1] == (50, 59)


def fail_disk(path: Path) -> Path:
    """Make each access to the folder fail with an error that says nothing about its contents. Return its new path."""
    elsewhere = path.rename(path.with_name(f"{path.name} on the failed disk"))
    path.symlink_to(path)
    return elsewhere


def repair_disk(path: Path, elsewhere: Path) -> None:
    path.unlink()
    elsewhere.rename(path)


@pytest.mark.parametrize("is_whole", [True, False], ids=["folder", "one file"])
def test_a_partition_whose_folder_failed_is_shipped_from_another_log_directory(
    uploader: Uploader,
    disk: BrokerDisk,
    store: MemoryObjectStore,
    settling: SaidSettling,
    tmp_path: Path,
    is_whole: bool,
) -> None:
    BrokerDisk(disk.log_dir, TopicIdPartition(Uuid.random(), "other", 0), segments=1)
    there, failed = disk.copy_to(tmp_path / "two"), disk.folder / "partition.metadata"
    if is_whole:
        failed = disk.folder
    elsewhere = fail_disk(failed)
    there.grow(2)
    for _ in range(3):
        look(uploader, disk, there)
    partition = next(one for one in uploader.disk.partitions if one.where == disk.partition)
    assert partition.folder == there.folder
    assert "folders" not in uploader.health.reasons()
    settling.high = 100
    assert uploader.run_once() == []
    assert (extents(store), watermark_of(store).holes) == ([*WHOLE, (30, 39), (40, 49)], ())
    repair_disk(failed, elsewhere)
    look(uploader, disk, there)
    assert partition.folder == there.folder


def test_a_log_directory_that_failed_before_the_start_holds_up_no_other(
    disk: BrokerDisk, store: MemoryObjectStore, tmp_path: Path
) -> None:
    """A broker goes on with its other log directories. With all of them failed, it does not start."""
    other = BrokerDisk(tmp_path / "two", replace(PARTITION, partition=1), segments=4)
    held = [tmp_path / "held on one", tmp_path / "held on two"]
    for folder in held:
        folder.mkdir()
    own = {"log_dirs": f"{disk.log_dir},{other.log_dir}", "hold_dir": ",".join(map(str, held))}
    elsewhere = [fail_disk(path) for path in (disk.log_dir, held[0])]
    with uploader_of(disk.log_dir, store, **own) as uploader:
        (left,) = uploader.run_once()
        assert (left.status, left.name) == ("failed", str(disk.log_dir))
        assert f"cannot be listed: {disk.log_dir}" in uploader.health.reasons()["folders"]
        assert (extents(store), extents(store, other.partition)) == ([], WHOLE)
        # Another folder may be at this path before the disk is back, so only a restart uses it.
        for path, away in zip((disk.log_dir, held[0]), elsewhere, strict=True):
            repair_disk(path, away)
        uploader.sweep()
        assert f"cannot be listed: {disk.log_dir}" in uploader.health.reasons()["folders"]
    assert run_once(disk.log_dir, store, None, **own) == []
    assert extents(store) == WHOLE
    for path in (disk.log_dir, other.log_dir):
        fail_disk(path)
    with pytest.raises(ConfigError, match=f"{disk.log_dir} cannot be read: .*; repair its disk, or remove it from"):
        uploader_of(disk.log_dir, store, **own)


@pytest.mark.parametrize("is_before", [False, True], ids=["while it runs", "before the start"])
def test_a_topic_of_a_failed_log_directory_is_not_taken_as_deleted(
    disk: BrokerDisk, store: MemoryObjectStore, tmp_path: Path, is_before: bool
) -> None:
    """Without a broker, the log directories show which topics exist."""
    (tmp_path / "two").mkdir()
    (tmp_path / "links").mkdir()
    own = {"log_dirs": f"{disk.log_dir},{tmp_path / 'two'}", "hold_dir": str(tmp_path / "links")}
    run_once(disk.log_dir, MemoryObjectStore(), SaidSettling(high=0), **own)
    now_s, elsewhere = [0.0], fail_disk(tmp_path / "two")
    if not is_before:
        repair_disk(tmp_path / "two", elsewhere)
    shutil.rmtree(disk.folder)
    with uploader_of(disk.log_dir, store, SaidSettling(high=0), lambda: now_s[0], **own) as uploader:
        uploader.ask_leadership()
        uploader.sweep()
        if not is_before:
            assert only(uploader).role is Role.LEAVING
            fail_disk(tmp_path / "two")
        for _ in range(3):
            uploader.sweep()
            uploader.follow()
            now_s[0] += 100.0
    assert links(str(tmp_path / "links")) == 3


def test_an_answer_about_an_earlier_topic_settles_nothing_of_a_re_created_one(
    uploader: Uploader, disk: BrokerDisk, store: MemoryObjectStore, settling: SaidSettling
) -> None:
    """Both topics have the same leader epoch. The high watermark of the new topic is lower."""
    settling.high = 1000
    uploader.ask_settled()
    assert only(uploader).replicated_to == 1000
    shutil.rmtree(disk.folder)
    again = BrokerDisk(disk.log_dir, TopicIdPartition(Uuid.random(), *NAME), segments=4)
    settling.high = 10
    uploader.run_once()
    (partition,) = (one for one in uploader.disk.partitions if one.where == again.partition)
    assert (extents(store, again.partition), partition.replicated_to) == ([(0, 9)], 10)


def test_an_answer_about_an_earlier_topic_hides_no_outage(
    uploader: Uploader, disk: BrokerDisk, settling: SaidSettling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> Mapping[TopicPartition, Settled]:
        raise BrokerUnavailableError("no answer for 10 s")

    uploader.ask_settled()
    shutil.rmtree(disk.folder)
    again = BrokerDisk(disk.log_dir, TopicIdPartition(Uuid.random(), *NAME), segments=4)
    monkeypatch.setattr(settling, "ask", refuse)
    look(uploader, again)
    uploader.ask_settled()
    assert "no answer for 10 s" in uploader.health.reasons()["broker"]
