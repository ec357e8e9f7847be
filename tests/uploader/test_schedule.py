"""The queue of partitions, with a clock that the test sets."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.uploader.uploader_disk import BrokerDisk, run_once, uploader_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.kafka.logdir import FoundSegment
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.schedule import WAIT_S, Schedule, WorkerLimit
from tieredstore.uploader.segment import Segment

_ID = Uuid(bytes([7] * 16))


def partition_of(number: int, noticed_s: float, *, is_deleted: bool = False, shipped: int | None = 0) -> Partition:
    where = TopicIdPartition(_ID, "events", number)
    partition = Partition(where, Path("nowhere"), Role.LED, shipped=shipped)
    place = FoundSegment(Path("nowhere"), "events", number, 0, 10, is_deleted=is_deleted)
    partition.segments[0] = Segment(place, noticed_s, ((0, 0),))
    return partition


class Line:
    """A schedule of partitions that counts how often each is checked."""

    def __init__(self, *partitions: Partition) -> None:
        self.partitions, self.now_s, self.looks = partitions, 100.0, 0
        self.schedule = Schedule(lambda: self.partitions, self.may_ship, lambda: self.now_s)

    def may_ship(self, partition: Partition) -> bool:
        self.looks += 1
        return partition.first is not None and partition.role is Role.LED

    def take(self) -> int | None:
        partition = self.schedule.take(0)
        return None if partition is None else partition.where.partition


def test_those_next_to_be_deleted_go_first_then_unread_ones_then_those_that_wait_the_longest() -> None:
    line = Line(
        partition_of(0, 3),
        partition_of(1, 1),
        partition_of(2, 9, is_deleted=True),
        partition_of(3, 2),
        partition_of(4, 8, shipped=None),
    )
    assert [line.take() for _ in range(6)] == [2, 4, 1, 3, 0, None]


def test_a_partition_whose_step_is_made_stands_in_line_again() -> None:
    one, two = partition_of(1, 1), partition_of(2, 2)
    line = Line(one, two)
    assert line.take() == 1
    line.schedule.finish(one, waits=False)
    assert [line.take(), line.take(), line.take()] == [1, 2, None]
    one.segments.clear()
    line.schedule.finish(one, waits=False)
    assert line.take() is None


def test_a_worker_goes_on_with_its_partition_unless_others_are_to_be_looked_at_first() -> None:
    one, other, urgent = partition_of(1, 1), partition_of(2, 2), partition_of(3, 3, is_deleted=True)
    line = Line(one, other)
    assert line.take() == 1
    one.turn.failures = 3
    assert line.schedule.goes_on(one)
    assert (one.turn.failures, one.turn.is_busy) == (0, True)
    assert line.take() == 2
    # ``ring`` may announce a more urgent partition.
    line.partitions = (*line.partitions, urgent)
    line.schedule.ring()
    assert not line.schedule.goes_on(one)
    line.schedule.finish(one, waits=False)
    assert line.take() == 3
    # Only a more urgent partition would interrupt this one.
    assert line.schedule.goes_on(urgent)
    line.schedule.finish(other, waits=False)
    urgent.segments.clear()
    assert not line.schedule.goes_on(urgent)
    assert line.take() == 1
    urgent.segments = partition_of(3, 3, is_deleted=True).segments
    line.schedule.finish(urgent, waits=False)
    assert not line.schedule.goes_on(one)


def test_who_waits_or_has_failed_comes_when_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.uploader.schedule.random.random", lambda: 1.0)
    one, two = partition_of(1, 1), partition_of(2, 2)
    line = Line(one, two)
    assert [line.take(), line.take()] == [1, 2]
    line.schedule.finish(one, waits=True)
    line.schedule.fail(two, OSError("no"))
    assert line.take() is None
    line.now_s += WAIT_S
    assert [line.take(), line.take()] == [1, None]
    line.now_s += 1.0
    assert line.take() == 2
    # The delay doubles after each failure, up to a minute.
    for delay_s in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        line.schedule.fail(two, OSError("no"))
        line.now_s += delay_s - 0.01
        assert line.take() is None
        line.now_s += 0.02
        assert line.take() == 2


def test_what_a_ring_tells_of_is_seen_and_what_has_changed_since_is_passed_over() -> None:
    one, two, three = (partition_of(number, number) for number in (1, 2, 3))
    line = Line(one, two)
    assert line.take() == 1
    line.partitions = (one, two, three)
    two.leave()
    assert line.take() is None
    line.schedule.ring()
    assert [line.take(), line.take()] == [3, None]


def test_thousands_that_have_nothing_to_ship_are_looked_at_once() -> None:
    line = Line(*(partition_of(number, 1) for number in range(2000)))
    for partition in line.partitions:
        partition.segments.clear()
    assert [line.take() for _ in range(100)] == [None] * 100
    assert line.looks == 2000


def test_a_step_of_one_of_thousands_does_not_look_at_the_others() -> None:
    line = Line(*(partition_of(number, number) for number in range(2000)))
    for number in range(500):
        assert line.take() == number
        partition = line.partitions[number]
        partition.segments.clear()
        line.schedule.finish(partition, waits=False)
    assert line.looks < 2000 + 3 * 500


def test_a_forked_child_goes_on_with_a_lock_of_its_own() -> None:
    line = Line(partition_of(0, 1))
    with line.schedule._something:  # pyright: ignore[reportPrivateUsage]
        line.schedule.begin_again()
        assert line.take() == 0


def test_a_touched_folder_alone_is_listed_and_what_left_it_is_seen_by_the_next_sweep(tmp_path: Path) -> None:
    disk = BrokerDisk(tmp_path, segments=2)
    other = BrokerDisk(tmp_path, TopicIdPartition(_ID, "other", 0), segments=2)
    store = MemoryObjectStore()
    with uploader_of(tmp_path, store) as uploader:
        assert uploader.run_once() == []
        disk.grow()
        other.grow()
        uploader.disk.touch(disk.folder)
        uploader.sweep(only_touched=True)
        by_topic = {partition.where.topic: partition for partition in uploader.disk.partitions}
        assert [sorted(by_topic[topic].segments) for topic in ("events", "other")] == [[10], []]
        uploader.sweep()
        assert sorted(by_topic["other"].segments) == [10]
        # Report changes in an unknown folder, and in a folder that no longer exists.
        uploader.disk.touch(tmp_path / "unknown-0")
        disk.folder.rename(tmp_path / "events-0.0123-delete")
        uploader.disk.touch(disk.folder)
        uploader.sweep(only_touched=True)
        assert len(uploader.disk.partitions) == 2
        uploader.sweep()
        assert {one.where.topic: one.role for one in uploader.disk.partitions} == {
            "events": Role.LEAVING,
            "other": Role.LED,
        }
    assert run_once(tmp_path, store) == []


class Process:
    """Simulated process: ten workers on a machine with two processors, and the processor time that they take."""

    def __init__(self, workers: int = 10, processors: int = 2) -> None:
        self.now_s = self.taken_s = 0.0
        self.workers = workers
        self.worker_limit = WorkerLimit(
            workers, processors=processors, monotonic=lambda: self.now_s, processor_time=lambda: self.taken_s
        )

    def runs(self, seconds: float, share: float, step_s: float = 0.3) -> int:
        """Simulate some seconds with this share of a processor; return how many workers may ship after them."""
        for _ in range(round(seconds / step_s)):
            self.now_s += step_s
            self.taken_s += step_s * share
            self.worker_limit.admits(self.workers - 1)
        return sum(self.worker_limit.admits(number) for number in range(self.workers))


def test_all_ship_where_shipping_is_waiting_and_few_where_it_is_work() -> None:
    process = Process()
    assert process.runs(0, 0) == 4
    assert process.runs(30, 0.3) == 10
    assert process.runs(0.3, 1.2) == 9
    assert process.runs(30, 1.2) == 4
    assert process.runs(30, 0.85) == 4
    assert process.runs(0.6, 0.5) == 6


def test_what_was_long_ago_tells_nothing_and_what_is_too_short_neither() -> None:
    process = Process()
    assert process.runs(60, 1.0, step_s=20) == 4
    assert process.runs(60, 0.0, step_s=20) == 4
    assert process.runs(0.2, 0.0, step_s=0.1) == 4
    assert process.runs(0.3, 0.0) == 5


def test_where_there_are_processors_for_all_nobody_is_sent_away() -> None:
    assert Process(processors=8).runs(30, 8.0) == 10
    assert Process(workers=1).runs(30, 2.0) == 1


def test_workers_that_wait_are_told_when_the_service_ends() -> None:
    schedule, came_back = Schedule(list, lambda _: True), threading.Event()

    def wait() -> None:
        schedule.take(120)
        came_back.set()

    worker = threading.Thread(target=wait, daemon=True)
    worker.start()
    end = time.monotonic() + 60
    while not came_back.wait(0.05) and time.monotonic() < end:
        schedule.wake()
    assert came_back.is_set()
