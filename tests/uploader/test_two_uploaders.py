"""Two uploaders on one store, which both believe that they lead. Their operations, in any order, do no harm."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.support.examples import SOAK
from tests.support.golden.records import rows_of
from tests.support.records.record_reader import read_records
from tests.support.records.topic_reads import read_topic
from tests.support.stores.doubles import FaultyStore
from tests.support.stores.operation_sweep import STRIDE
from tests.support.uploader.uploader_disk import RECORDS, STORE, BrokerDisk, holes_of, run_once, watermark_of
from tests.uploader.test_two_machine import TwoUploaders
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import watermark_key
from tieredstore.config import settings_from
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import PARTITION

_DEADLINE_S: Final = 120.0
UNIT_OF_WORK: Final = "test"


class Turns:
    """Random turns of two uploaders. If one has finished, all turns are the other's."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        self._changed = threading.Condition()
        self._ended: set[int] = set()
        self._next = self._source.randrange(2)

    def wait(self, who: int) -> bool:
        """Wait for this uploader's turn. A FaultyStore calls this before an operation. The result False lets the
        operation succeed.
        """
        with self._changed:
            assert self._changed.wait_for(lambda: self._next == who or 1 - who in self._ended, _DEADLINE_S)
            self._next = self._source.randrange(2)
            self._changed.notify_all()
        return False

    def end(self, who: int) -> None:
        with self._changed:
            self._ended.add(who)
            self._changed.notify_all()


def same(disk: BrokerDisk) -> None:
    disk.grow(4)


def other_borders(disk: BrokerDisk) -> None:
    disk.end = 5
    disk.grow(5)


def later_leader(disk: BrokerDisk) -> None:
    disk.grow(3)
    disk.lead(1)
    disk.grow(3)


def unclean_leader(disk: BrokerDisk) -> None:
    disk.grow(2)
    disk.lead(1)
    disk.grow(3)


def at_once(disks: tuple[BrokerDisk, BrokerDisk], inner: MemoryObjectStore, seed: int) -> None:
    turns = Turns(seed)

    def run(who: int) -> None:
        try:
            run_once(disks[who].log_dir, FaultyStore(inner, fail_at=lambda _: turns.wait(who)))
        finally:
            turns.end(who)

    threads = [threading.Thread(target=run, args=(who,)) for who in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_DEADLINE_S)
        assert not thread.is_alive()


def ship_at_once(folder: Path, second_log: Callable[[BrokerDisk], None], seed: int) -> None:
    first, second = BrokerDisk(folder / "1"), BrokerDisk(folder / "2")
    first.grow(4)
    second_log(second)
    inner = MemoryObjectStore()
    at_once((first, second), inner, seed)
    # The leader finishes, whatever the other uploader did.
    assert run_once(second.log_dir, inner) == []
    watermark = watermark_of(inner)
    assert (watermark.next_offset, watermark.holes) == (second.bases[-1], ())
    if second_log is not unclean_leader:
        assert watermark.moved_back == ()
    with RemoteStorageManager(settings_from(STORE), store=inner) as manager:
        rows = rows_of(read_records(manager, "events", 0, 0, second.bases[-1], on_data_loss="report"))
    expected = {offset: value for base in first.bases for offset, value in enumerate(first.values(base, 0), base)}
    for base in second.bases[:-1]:
        epoch = max(epoch for epoch, began in second.epochs if began <= base or not epoch)
        expected |= dict(enumerate(second.values(base, epoch), base))
    earliest = rows[0]["offset"]
    assert earliest in {0, second.bases[0]}
    assert [(row["offset"], row["key"]) for row in rows] == [
        (offset, expected[offset]) for offset in range(earliest, second.bases[-1])
    ]


LOGS: Final = [same, other_borders, later_leader, unclean_leader]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("second_log", LOGS)
def test_two_at_once_do_no_harm(tmp_path: Path, second_log: Callable[[BrokerDisk], None], seed: int) -> None:
    ship_at_once(tmp_path, second_log, seed)


@pytest.mark.soak
@pytest.mark.parametrize("second_log", LOGS)
def test_two_at_once_do_no_harm_in_many_orders(tmp_path: Path, second_log: Callable[[BrokerDisk], None]) -> None:
    for seed in range(60):
        ship_at_once(tmp_path / str(seed), second_log, seed)


def at_each_operation(scenario: Callable[[TwoUploaders, int], bool], first: int = 0, *, stride: int = STRIDE) -> None:
    """Repeat a scenario, which stops an uploader before its operation with this number, until the uploader ends
    before that. The scenario returns False then.

    `make test` goes from ``first`` on in steps of ``stride``. `make soak` takes all operations.
    """
    begin = 0 if SOAK else first
    for number in range(begin, 1000, 1 if SOAK else stride):
        machine = TwoUploaders()
        try:
            has_stopped = scenario(machine, number)
            # Close a segment of the last leader, because its uploader does nothing before it has one.
            machine.grow(2)
            machine.shrink_isr()
        finally:
            machine.teardown()
        if not has_stopped:
            assert number > begin, "no operation: the test would check nothing"
            return


@pytest.mark.parametrize("faults", ["suspended", "failing", "answers lost"])
@pytest.mark.parametrize(("old_count", "new_count", "is_clean"), [(1, 3, True), (1, 3, False), (3, 1, False)])
@pytest.mark.parametrize("lacks", [None, "old", "new"])
def test_a_deposed_leader_meets_the_next_one_at_each_operation(
    faults: str, old_count: int, new_count: int, is_clean: bool, lacks: str | None
) -> None:
    """The deposed leader is suspended, or its store fails from one operation on. Meanwhile the next leader ships. One
    of the two disks may lack a segment that the other one has. The deposed leader's log may end after the next one's.
    """

    def scenario(machine: TwoUploaders, number: int) -> bool:
        machine.begin(ships=True)
        old, new = machine.leader, 1 - machine.leader
        machine.replicate(100, 0)
        base = machine.brokers[old].disk.end - RECORDS
        machine.grow(old_count)
        if is_clean:
            machine.replicate(old_count, 0)
        if lacks is None and old_count > new_count:
            machine.work(old, "sweep", "ship")  # nothing that is not replicated yet
            machine.check()
        machine.shrink_isr()
        if lacks is not None:
            machine.lose_log(old if lacks == "old" else new, base)
        machine.believe(old, knows=True)
        machine.act(old, "sweep", None, None, is_lost=False)
        if faults == "suspended":
            machine.act(old, "ship", number, None, is_lost=False)
            has_stopped = machine.brokers[old].is_stopped
        else:
            machine.act(old, "ship", None, number, is_lost=faults == "answers lost")
            has_stopped = machine.brokers[old].count > number
        machine.elect_anyhow()
        machine.grow(new_count)
        machine.shrink_isr()
        machine.work(new, "sweep", "ship", "ship")
        machine.check()
        machine.check_holes()
        machine.go_on(old, None, 0.0)
        machine.check()
        # Before it learns of its deposal, the old leader goes on for a while.
        for what in ("ship", "sweep", "ship", "fill_holes"):
            machine.act(old, what, None, None, is_lost=False)
            machine.check()
        machine.work(new, "fill_holes", "ship")
        machine.check()
        return has_stopped

    # The 27 cases differ in where they begin, so that each operation is taken in several of them.
    stride = 2 * STRIDE
    at_each_operation(scenario, (old_count + is_clean + len(faults) + len(lacks or "")) % stride, stride=stride)


@pytest.mark.parametrize("counts", [(3, 1, 1), (1, 2, 2), (2, 3, 1)])
@pytest.mark.parametrize("lacks", [None, 0, 1])
def test_uncleanly_elected_leaders_in_turn_ship_one_log(counts: tuple[int, int, int], lacks: int | None) -> None:
    """The second leader is suspended while it ships. Then the first broker leads again, with its own records that the
    second broker never had.
    """

    def scenario(machine: TwoUploaders, number: int) -> bool:
        machine.begin(ships=True)
        first, second = machine.leader, 1 - machine.leader
        machine.replicate(100, 0)
        base = machine.brokers[first].disk.end - RECORDS
        machine.grow(counts[0])
        machine.shrink_isr()
        if lacks is not None:
            machine.lose_log(lacks, base)
        machine.work(first, "sweep", "ship")
        machine.elect_anyhow()
        machine.grow(counts[1])
        machine.shrink_isr()
        machine.work(second, "sweep")
        machine.act(second, "ship", number, None, is_lost=False)
        has_stopped = machine.brokers[second].is_stopped
        machine.elect_anyhow()
        machine.grow(counts[2])
        machine.shrink_isr()
        machine.work(first, "sweep", "ship", "ship")
        machine.check()
        machine.go_on(second, None, 0.0)
        machine.check()
        machine.act(second, "ship", None, None, is_lost=False)
        machine.check()
        return has_stopped

    at_each_operation(scenario, sum(counts) % STRIDE)


@pytest.mark.parametrize("what", ["fill_holes", "follow"])
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_follower_is_suspended_at_each_operation(what: str, is_clean: bool) -> None:
    """The follower fills a hole, or reads how far the leader's uploader is. Meanwhile the roles change."""

    def scenario(machine: TwoUploaders, number: int) -> bool:
        machine.begin(ships=True)
        leader, follower = machine.leader, 1 - machine.leader
        machine.replicate(100, 0)
        base = machine.brokers[leader].disk.end - RECORDS
        machine.grow(3)
        machine.replicate(2 if is_clean else 0, 0)
        machine.shrink_isr()
        machine.lose_log(leader, base)
        machine.work(leader, "sweep", "ship", "ship")
        machine.work(follower, "sweep")
        machine.act(follower, what, number, None, is_lost=False)
        has_stopped = machine.brokers[follower].is_stopped
        machine.take_by_retention(leader, 4, are_gone=True)
        machine.grow(1)
        machine.shrink_isr()
        machine.work(leader, "sweep", "ship")
        machine.check()
        machine.go_on(follower, None, 0.0)
        machine.check()
        machine.take_by_retention(follower, 4, are_gone=True)
        machine.act(follower, "sweep", None, None, is_lost=False)
        machine.elect_anyhow()
        machine.grow(2)
        machine.shrink_isr()
        machine.work(follower, "sweep", "ship", "fill_holes", "follow", "ship")
        machine.check()
        return has_stopped

    at_each_operation(scenario, is_clean if what == "fill_holes" else 0)


@pytest.mark.parametrize("stops", ["old", "new"])
def test_two_leaders_begin_at_each_operation(stops: str) -> None:
    """The store is empty. The first leader's log begins after the next leader's. One of them is suspended."""

    def scenario(machine: TwoUploaders, number: int) -> bool:
        machine.begin(ships=False)
        old, new = machine.leader, 1 - machine.leader
        machine.grow(2)
        machine.replicate(100, 0)
        machine.shrink_isr()
        machine.work(new, "sweep")
        machine.brokers[old].disk.delete(2)
        first, second = (old, new) if stops == "old" else (new, old)
        machine.work(old, "sweep", *(() if stops == "old" else ("ship",)))
        if stops == "new":
            machine.elect_anyhow()
            machine.grow(1)
            machine.shrink_isr()
            machine.work(new, "sweep")
        machine.act(first, "ship", number, None, is_lost=False)
        has_stopped = machine.brokers[first].is_stopped
        if stops == "old":
            machine.elect_anyhow()
            machine.grow(1)
            machine.shrink_isr()
        machine.work(second, "sweep", "ship", "ship")
        machine.go_on(first, None, 0.0)
        machine.check()
        machine.act(first, "ship", None, None, is_lost=False)
        machine.check()
        return has_stopped

    at_each_operation(scenario)


def test_the_watermark_names_no_segment_that_a_later_unclean_election_removed(
    tmp_path: Path, store: MemoryObjectStore
) -> None:
    """The second broker was elected uncleanly at offset 30, the third one at offset 50. Then a replica of the second
    one is elected, whose records up to the watermark are stored.
    """
    brokers: list[tuple[int, list[tuple[int, int]]]] = [(4, []), (3, [(1, 4)]), (5, [(5, 0)]), (3, [(1, 1), (6, 1)])]
    for number, (segments, epochs) in enumerate(brokers):
        disk = disk_of(tmp_path / str(number), segments, epochs)
        assert run_once(disk.log_dir, store) == []
    watermark = watermark_of(store)
    assert [(move.to_offset, move.leader_epoch) for move in watermark.moved_back] == [(30, 5)]
    assert (watermark.next_offset, watermark.leader_epoch, watermark.segment) == (40, 6, None)
    assert keys_of(store) == [b"0 at %d" % offset for offset in range(30)]


@pytest.mark.parametrize(
    ("brokers", "move", "end"),
    [
        ([(6, []), (3, [(1, 1)])], (50, 30, 1), 30),
        ([(5, []), (3, [(1, 4)]), (5, [(2, 0)])], (60, 30, 2), 40),
        ([(6, []), (6, [(1, 0)])], None, 50),
    ],
    ids=["one unclean election", "two unclean elections", "clean"],
)
def test_a_lost_watermark_is_rebuilt_with_the_offset_where_the_log_left_the_stored_one(
    tmp_path: Path,
    store: MemoryObjectStore,
    brokers: list[tuple[int, list[tuple[int, int]]]],
    move: tuple[int, int, int] | None,
    end: int,
) -> None:
    """The last leader has no closed segment of its own epoch yet. All its closed segments are of epoch 0."""
    for number, (segments, epochs) in enumerate(brokers):
        if number == len(brokers) - 1:
            store.delete([watermark_key("", PARTITION)])
        assert run_once(disk_of(tmp_path / str(number), segments, epochs).log_dir, store) == []
    watermark = watermark_of(store)
    moves = [(one.from_offset, one.to_offset, one.leader_epoch) for one in watermark.moved_back]
    assert (watermark.next_offset, moves) == (end, [] if move is None else [move])
    assert keys_of(store) == [b"0 at %d" % offset for offset in range(end)]


def disk_of(folder: Path, segments: int, epochs: Iterable[tuple[int, int]]) -> BrokerDisk:
    """Return a disk with segments of epoch 0, then, for each further epoch, so many segments."""
    disk = BrokerDisk(folder, segments=segments)
    for epoch, count in epochs:
        disk.lead(epoch)
        disk.grow(count)
    return disk


def keys_of(store: MemoryObjectStore) -> list[bytes]:
    """Return the keys of all records that a reader without a broker reads."""
    with RemoteStorageManager(settings_from(STORE), store=store) as manager:
        return [row["key"] for batch in read_topic(manager, "events") for row in batch.to_pylist()]


@pytest.mark.parametrize(("segments", "holes"), [(4, [(30, 39)]), (8, [])])
def test_records_of_a_later_leader_from_before_the_log_are_not_part_of_it(
    tmp_path: Path, store: MemoryObjectStore, segments: int, holes: list[tuple[int, int]]
) -> None:
    """The second broker was elected uncleanly at offset 30, the third one at offset 50. The third broker has deleted
    its records before offset 40. Its checkpoint shows that they were of epoch 0, so those of epoch 1 are others.
    """
    first, second = BrokerDisk(tmp_path / "first", segments=segments), BrokerDisk(tmp_path / "second", segments=3)
    run_once(first.log_dir, store)
    second.lead(1)
    second.grow(4)
    run_once(second.log_dir, store)
    third = BrokerDisk(tmp_path / "third", segments=5)
    third.lead(2)
    third.grow(2)
    third.delete(4)
    assert third.epochs == ((0, 40), (2, 50))
    assert run_once(third.log_dir, store) == []
    move = watermark_of(store).moved_back[-1]
    assert (move.from_offset, move.to_offset, move.leader_epoch) == (60, 30, 2)
    assert (watermark_of(store).next_offset, holes_of(store)) == (60, holes)
