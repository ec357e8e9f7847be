"""Followers hold the segments that the leader has not shipped. If the leader dies, a follower ships them."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.stores.doubles import CountingStore, FaultyStore
from tests.support.uploader.uploader_disk import STORE, BrokerDisk, extents, run_once, stored, uploader_of, watermark_of
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import Hole, hole_key, watermark_key
from tieredstore.config import settings_from
from tieredstore.errors import StoreUnavailableError
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT
from tieredstore.model import TopicIdPartition, TopicPartition, Uuid
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Uploader
from tieredstore.uploader.partition import Role
from tieredstore.uploader.roles import Roles
from tieredstore.uploader.settled import REPLICATION_CHECKPOINT

NAME = (PARTITION.topic, PARTITION.partition)


class Replica:
    """A broker's disk and its uploader, run as a service runs it. The test decides when it leads."""

    def __init__(self, folder: Path, store: ObjectStore, hold_dir: str = "", hold_max_files: str = "10000") -> None:
        self.disk = BrokerDisk(folder)
        self.led: list[TopicPartition] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.now_s = 0.0
        self.uploader: Uploader = uploader_of(
            folder, store, None, lambda: self.now_s, hold_dir=hold_dir, hold_max_files=hold_max_files
        )
        self.uploader.leadership.source.led = lambda: self.led  # type: ignore[method-assign]

    def look(self) -> None:
        """Let a minute pass, then check the folders and the store."""
        self.now_s += 1000.0
        if self.uploader.leadership.was_ever_known:
            self.uploader.ask_leadership()
        for partition in self.uploader.disk.partitions:
            if partition.folder is not None:
                self.uploader.disk.touch(partition.folder)
        self.uploader.sweep()
        self.uploader.follow()
        self.uploader.sweep()

    def lead(self) -> None:
        self.led.append(NAME)
        self.uploader.ask_leadership()
        self.uploader.sweep()

    def retire(self) -> None:
        self.led.clear()
        self.uploader.ask_leadership()
        self.uploader.sweep()

    def replicated(self, offset: int) -> None:
        """Write to the broker's checkpoint that everything before the offset is replicated."""
        line = f"{PARTITION.topic} {PARTITION.partition} {offset}"
        (self.disk.log_dir / REPLICATION_CHECKPOINT).write_text(f"0\n1\n{line}\n")

    @property
    def files(self) -> int:
        return self.uploader.held.files


def always(_: object) -> bool:
    return True


@pytest.fixture
def replica(tmp_path: Path, store: MemoryObjectStore) -> Iterator[Replica]:
    """Yield a follower with three closed segments, up to offset 29. Its leader has shipped 0 to 19."""
    leader = BrokerDisk(tmp_path / "leader", segments=3)
    run_once(leader.log_dir, store)
    replica = Replica(tmp_path / "replica", store)
    replica.disk.grow(4)
    replica.uploader.ask_leadership()
    with replica.uploader:
        yield replica


def retention(disk: BrokerDisk, segments: int) -> None:
    disk.delete(segments)


def test_segments_of_a_dead_leader_are_shipped_by_the_next_though_its_broker_has_deleted_them(
    replica: Replica, store: MemoryObjectStore
) -> None:
    replica.look()
    assert replica.files == 4, "only what the watermark has not passed"
    replica.disk.grow(2)
    replica.look()
    retention(replica.disk, 5)
    replica.look()
    replica.disk.lead(1)
    replica.disk.grow(1)
    replica.lead()
    assert replica.uploader.run_once() == []
    assert extents(store) == [(start, start + 9) for start in range(0, 60, 10)]
    assert (watermark_of(store).holes, replica.uploader.counts.holes) == ((), 0)
    assert replica.files == 0


def test_segments_that_the_leader_ships_are_let_go(replica: Replica, store: MemoryObjectStore, tmp_path: Path) -> None:
    replica.look()
    assert replica.files == 4
    leader = BrokerDisk(tmp_path / "leader again", segments=4)
    run_once(leader.log_dir, store)
    replica.look()
    assert replica.files == 0
    assert all(partition.first is None for partition in replica.uploader.disk.partitions)


def test_until_somebody_has_asked_only_what_is_about_to_be_deleted_is_held(replica: Replica) -> None:
    replica.uploader.sweep()
    assert replica.files == 0
    replica.disk.mark_deleted(1)
    replica.uploader.disk.touch(replica.disk.folder)
    replica.uploader.sweep()
    assert replica.files == 4


def test_a_partition_without_a_watermark_is_held_whole(tmp_path: Path, store: MemoryObjectStore) -> None:
    replica = Replica(tmp_path / "replica", store)
    replica.disk.grow(3)
    replica.uploader.ask_leadership()
    with replica.uploader:
        replica.look()
        assert replica.files == 8


def test_while_the_store_fails_nothing_is_let_go(tmp_path: Path) -> None:
    store = FaultyStore(MemoryObjectStore())
    replica = Replica(tmp_path / "replica", store)
    replica.disk.grow(3)
    replica.uploader.ask_leadership()
    with replica.uploader:
        replica.look()
        store.fail_at = always
        replica.disk.grow(1)
        replica.look()
        assert replica.files == 12


def test_a_damaged_watermark_lets_nothing_go(replica: Replica, store: MemoryObjectStore) -> None:
    store.put(watermark_key("", PARTITION), b"{")
    replica.look()
    assert replica.files == 12


def test_an_unreadable_checkpoint_of_epochs_shows_no_replication(replica: Replica) -> None:
    replica.look()
    (replica.disk.folder / LEADER_EPOCH_CHECKPOINT).write_bytes(b"0\n1\n0")
    replica.replicated(30)
    replica.look()
    (partition,) = replica.uploader.disk.partitions
    assert not any(segment.is_replicated for segment in partition.pending())
    replica.disk.write_epochs()
    replica.look()
    assert any(segment.is_replicated for segment in partition.pending())


def test_a_segment_rewritten_with_the_same_borders_is_shipped_as_it_is_now(
    replica: Replica, store: MemoryObjectStore
) -> None:
    """The broker has deleted the held files, and created others under the same names."""
    replica.disk.grow(1)
    replica.look()
    assert replica.files == 8
    replica.disk.cut(20)
    replica.disk.lead(3)
    replica.disk.grow(3)
    replica.lead()
    replica.disk.mark_deleted(4)
    assert replica.uploader.run_once() == []
    assert extents(store) == [(0, 9), (10, 19), (20, 29), (30, 39)]
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        logs = [manager.open(segment.metadata).read() for segment in stored(store)[2:]]
    assert [b"3 at 20" in logs[0], b"3 at 30" in logs[1]] == [True, True]


@pytest.mark.parametrize("is_replicated", [True, False])
def test_of_a_log_that_began_anew_under_a_later_leader_only_what_was_replicated_is_shipped(
    replica: Replica, store: MemoryObjectStore, is_replicated: bool
) -> None:
    replica.replicated(30 if is_replicated else 20)
    replica.look()
    replica.look()
    shutil.rmtree(replica.disk.folder)
    replica.disk.bases, replica.disk.end, replica.disk.epochs = [], 60, ((5, 60),)
    replica.disk.grow(2)
    replica.look()
    replica.replicated(80)
    replica.lead()
    assert replica.uploader.run_once() == []
    (*_, hole) = watermark_of(store).holes
    holes = [(hole.first_offset, hole.last_offset) for hole in watermark_of(store).holes]
    if is_replicated:
        assert extents(store) == [(0, 9), (10, 19), (20, 29), (60, 69)]
        assert holes == [(30, 59)]
    else:
        assert extents(store) == [(0, 9), (10, 19), (60, 69)]
        assert holes == [(20, 29), (30, 59)]
        assert "may have been truncated" in watermark_of(store).holes[0].reason
        assert watermark_of(store).holes[0].quarantine is not None
    assert hole.last_offset == 59


def test_who_is_deposed_goes_on_holding_what_it_had_not_shipped(replica: Replica, store: MemoryObjectStore) -> None:
    replica.lead()
    retention(replica.disk, 3)
    replica.uploader.disk.touch(replica.disk.folder)
    replica.uploader.sweep()
    replica.uploader.follow()
    replica.retire()
    replica.look()
    assert replica.files == 4
    replica.lead()
    assert replica.uploader.run_once() == []
    assert (extents(store)[-1], watermark_of(store).holes) == ((20, 29), ())


@pytest.mark.parametrize("leads_again", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_held_from_before_the_first_stored_segment_is_shipped(
    tmp_path: Path, store: MemoryObjectStore, is_restarted: bool, leads_again: bool
) -> None:
    """A leader's uploader could ship nothing before the leader was deposed. The next leader's log begins later, so the
    first segments come only from the uploader of the old leader.
    """
    (hold_dir := tmp_path / "held").mkdir()
    first = Replica(tmp_path / "replica", failing := FaultyStore(store, always), str(hold_dir))
    first.disk.grow(5)
    with contextlib.ExitStack() as opened:
        opened.callback(first.uploader.close)
        first.lead()
        assert first.uploader.run_once(tries=1) != []
        retention(first.disk, 2)
        first.uploader.disk.touch(first.disk.folder)
        first.uploader.sweep()
        first.retire()
        if is_restarted:
            opened.close()
            disk, first = first.disk, Replica(tmp_path / "replica", store, str(hold_dir))
            first.disk = disk
            first.uploader.ask_leadership()
            opened.callback(first.uploader.close)
        else:
            failing.fail_at = None
            first.uploader.replace_target(settings_from(STORE))
        (next_leader := BrokerDisk(tmp_path / "next", segments=5)).delete(2)
        run_once(next_leader.log_dir, store)
        assert (extents(store), watermark_of(store).next_offset) == ([(20, 29), (30, 39)], 40)
        if leads_again:
            first.lead()
        first.look()
        assert first.uploader.run_once() == []
        first.look()
        assert [partition.pending() for partition in first.uploader.disk.partitions] == [[]]
    assert extents(store) == [(0, 9), (10, 19), (20, 29), (30, 39)]
    assert (watermark_of(store).next_offset, watermark_of(store).holes) == (40, ())
    assert (last := watermark_of(store).segment) is not None
    assert last.end_offset == 39
    assert not any(path.is_file() for path in hold_dir.rglob("*"))


def test_a_log_truncated_while_another_broker_led_for_a_moment_is_listed_again(
    replica: Replica, store: MemoryObjectStore
) -> None:
    """The uploader does not list the folders while the other broker leads."""
    replica.look()
    replica.lead()
    replica.disk.grow()
    replica.uploader.disk.touch(replica.disk.folder)
    assert replica.uploader.sweep().files >= 8
    replica.led.clear()
    replica.uploader.ask_leadership()
    replica.disk.cut(20)
    replica.disk.lead(2)
    replica.disk.grow(2)
    replica.disk.lead(3)
    replica.lead()
    assert replica.uploader.run_once() == []
    assert stored(store)[-1].metadata.segment_leader_epochs == ((2, 20),)
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        assert b"2 at 20" in manager.open(stored(store)[-1].metadata).read()


def test_nothing_is_let_go_of_what_a_worker_reads(replica: Replica) -> None:
    replica.look()
    (partition,) = replica.uploader.disk.partitions
    first = partition.first
    assert first is not None
    with contextlib.closing(first.open()) as held:
        partition.turn.is_busy = True
        partition.pass_to(30)
        assert partition.first is None
        retention(replica.disk, 3)
        assert len(held.log.read_bytes()) == held.size_in_bytes > 0


def test_who_leads_is_asked_anew_before_a_new_leader_asks_for_an_end(replica: Replica) -> None:
    """If the client did not look up the leader again, it would ask the previous leader for the log's end. If that
    broker is dead, the client waits ten seconds for the answer.
    """
    replica.look()
    uploader, asked = replica.uploader, list[bool]()
    (partition,) = uploader.disk.partitions
    broker: Any = SimpleNamespace(look_anew=lambda: asked.append(partition.role is Role.FOLLOWED))
    uploader.roles = Roles(uploader.disk, uploader.leadership, uploader.topics, broker, time.monotonic)
    replica.lead()
    uploader.ask_leadership()
    assert asked == [True], "asked once, before the uploader counts the partition as led"
    assert partition.role is Role.LED


def lost_by_the_leader(replica: Replica, store: MemoryObjectStore) -> None:
    """Make the leader record 20 to 29 as a hole. The follower holds these offsets, and its broker has deleted them."""
    replica.look()
    retention(replica.disk, 3)
    hole = Hole(20, 29, "its disk was bad", 0, leader_epochs=((0, 20),))
    store.put(watermark_key("", PARTITION), watermark_of(store).over(hole, 0).to_bytes())
    store.put(hole_key("", PARTITION), b"it has holes")
    replica.look()


def test_holes_of_the_leader_are_filled_by_held_segments(replica: Replica, store: MemoryObjectStore) -> None:
    lost_by_the_leader(replica, store)
    assert replica.files == 4
    replica.uploader.fill_holes()
    assert (extents(store), watermark_of(store).holes) == ([(0, 9), (10, 19), (20, 29)], ())
    replica.look()
    assert replica.files == 0


def test_a_damaged_watermark_lets_nothing_go_that_may_fill_its_holes(
    replica: Replica, store: MemoryObjectStore
) -> None:
    lost_by_the_leader(replica, store)
    store.put(watermark_key("", PARTITION), b"{")
    replica.look()
    assert replica.files == 4


def test_segments_that_fill_no_hole_are_let_go(replica: Replica, store: MemoryObjectStore) -> None:
    lost_by_the_leader(replica, store)
    (partition,) = replica.uploader.disk.partitions
    (segment,) = [segment for segment in partition.pending() if segment.held is not None]
    assert segment.held is not None
    with open(f"/proc/self/fd/{segment.held.log.descriptor}", "r+b") as log:  # noqa: PTH123  the file has no path
        log.seek(-1, 2)
        log.write(b"\xff")
    replica.uploader.fill_holes()
    assert extents(store) == [(0, 9), (10, 19)]
    replica.look()
    assert replica.files == 0


def test_links_of_what_is_followed_go_when_it_is_shipped(tmp_path: Path, store: MemoryObjectStore) -> None:
    links = tmp_path / "links"
    links.mkdir()
    replica = Replica(tmp_path / "replica", store, hold_dir=str(links))
    replica.disk.grow(3)
    replica.uploader.ask_leadership()
    with replica.uploader:
        replica.look()
        assert len(list(links.glob("*/*/*"))) == 2
        leader = BrokerDisk(tmp_path / "leader", segments=3)
        run_once(leader.log_dir, store)
        replica.look()
        assert list(links.glob("*/*/*")) == []


def test_segments_of_followed_partitions_give_way_to_those_of_led_ones(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    replica = Replica(tmp_path / "replica", store, hold_max_files="10")
    other = BrokerDisk(tmp_path / "replica", TopicIdPartition(Uuid.random(), "led", 0))
    replica.disk.grow(4)
    replica.uploader.ask_leadership()
    with replica.uploader:
        replica.look()
        assert replica.files == 8
        other.grow(3)
        replica.led.append(("led", 0))
        replica.uploader.ask_leadership()
        other.mark_deleted(2)
        replica.look()
        held = {p.name: sum(s.held is not None for s in p.pending()) for p in replica.uploader.disk.partitions}
        assert held == {NAME: 0, ("led", 0): 2}


def test_an_idle_partition_is_asked_for_no_more_and_one_that_waits_less_and_less(tmp_path: Path) -> None:
    store = CountingStore(MemoryObjectStore())
    replica = Replica(tmp_path / "replica", store)
    replica.disk.grow(2)
    replica.uploader.ask_leadership()
    with replica.uploader:
        replica.uploader.follow()
        replica.uploader.sweep()
        for _ in range(3600):
            replica.now_s += 1.0
            replica.uploader.follow()
        # The uploader asks after 60 s (because the answer is new), then after 120, 240, ... up to 960 s. It shortens
        # each delay at random by up to a half.
        assert 4 <= store.requests.total() <= 12
        leader = BrokerDisk(tmp_path / "leader", segments=2)
        run_once(leader.log_dir, store)
        replica.look()
        store.reset()
        for _ in range(50):
            replica.look()
        assert store.requests.total() == 0


def test_an_outage_is_no_error_of_the_service(tmp_path: Path) -> None:
    store = FaultyStore(MemoryObjectStore(), fail_at=always, error=StoreUnavailableError)
    replica = Replica(tmp_path / "replica", store)
    replica.disk.grow(2)
    replica.uploader.ask_leadership()
    with replica.uploader:
        replica.look()
        assert replica.files == 0


def test_a_watermark_of_a_later_release_stays_and_nothing_is_shipped_past_it(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    disk = BrokerDisk(tmp_path / "log")
    disk.grow(2)
    run_once(disk.log_dir, store)
    key, before = watermark_key("", PARTITION), extents(store)
    later = store.get(key).replace(b'"version":1', b'"version":2', 1)
    store.put(key, later)
    disk.grow(2)
    (problem,) = run_once(disk.log_dir, store)
    assert "is a watermark of version 2" in str(problem)
    assert (store.get(key), extents(store)) == (later, before)
