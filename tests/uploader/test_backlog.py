"""Cost of each segment while many wait: the tests count requests and looks at files, and measure no time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import within
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import FaultyStore, Moment, Operation, ScriptedStore
from tests.support.uploader.uploader_disk import (
    BrokerDisk,
    SaidSettling,
    extents,
    run_once,
    shipped_to,
    still_clock,
    ticking_clock,
    uploader_of,
    watermark_of,
)
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import watermark_key
from tieredstore.errors import BrokerUnavailableError
from tieredstore.model import TopicIdPartition, TopicPartition
from tieredstore.process.stopping import Stop
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Uploader, service
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.service import Pauses, uploader_service
from tieredstore.uploader.settled import Settled
from tieredstore.uploader.shipping import Step

SEGMENTS = 40


@pytest.fixture
def disk(tmp_path: Path) -> BrokerDisk:
    disk = BrokerDisk(tmp_path / "logs")
    disk.grow(SEGMENTS + 1)
    return disk


def ship_all(uploader: Uploader) -> None:
    """Ship all segments step by step; retry at once after a failure."""
    for _ in range(20 * SEGMENTS):
        uploader.ask_leadership()
        uploader.sweep()
        uploader.ask_settled()
        for partition in uploader.disk.partitions:
            partition.turn.not_before_s = 0.0
        uploader.schedule.ring()
        ready = uploader.schedule.take(0)
        if ready is None:
            return
        uploader.ship(ready)
    raise AssertionError("it does not come to an end")


def manifests_read(store: FaultyStore) -> int:
    return sum(operation.name == "get" and ".rsm-manifest" in operation.keys[0] for operation in store.operations)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_moves_that_fail_cost_no_reading_of_all_that_is_stored(disk: BrokerDisk, moment: Moment) -> None:
    """If a store fails now and then, a single request soon succeeds, but a hundred in a row do not all succeed."""
    moves = 0

    def fails(operation: Operation) -> bool:
        nonlocal moves
        moves += operation.name == "replace"
        return operation.name == "replace" and moves % 3 == 0

    store = FaultyStore(MemoryObjectStore(), fails, moment=moment)
    with uploader_of(disk.log_dir, store, None, ticking_clock()) as uploader:
        ship_all(uploader)
        assert uploader.counts.segments == SEGMENTS
    assert len(store.failed) > SEGMENTS // 4
    assert manifests_read(store) == 0
    assert len(store.operations) < 12 * SEGMENTS
    watermark = watermark_of(store)
    assert (watermark.next_offset, watermark.holes) == (disk.bases[-1], ())


def test_a_partition_that_is_shipped_for_the_first_time_is_asked_for_once_and_its_watermark_written_once(
    disk: BrokerDisk,
) -> None:
    """Time stands still from the first upload on. So the watermark object is written once on a slow machine too."""
    stopped_s: list[float] = []

    def clock() -> float:
        return stopped_s[0] if stopped_s else time.monotonic()

    # Refresh leadership rarely. If the uploader led the partition only from the second refresh on, it would ask the
    # store for the partition once more.
    pauses = Pauses(leadership=20.0)
    store = ScriptedStore(MemoryObjectStore()).on("put", "*.log", lambda _: stopped_s.append(time.monotonic()))
    with uploader_of(disk.log_dir, store, None, clock) as uploader, within(uploader_service(uploader, pauses=pauses)):
        wait_until(lambda: uploader.counts.segments == SEGMENTS and not uploader.gauges()["lag_segments"])
    own = [operation.name for operation in store.operations if "/watermarks/" in operation.keys[0]]
    listings = [
        operation for operation in store.operations if operation.name == "list" and "events" in operation.keys[0]
    ]
    assert (own, len(listings)) == (["head", "put", "head", "get"], 1)
    assert watermark_of(store).next_offset == 10 * SEGMENTS


def test_after_a_kill_only_what_lies_behind_the_watermark_is_read(disk: BrokerDisk) -> None:
    store = FaultyStore(MemoryObjectStore())
    assert run_once(disk.log_dir, store) == []
    # Put back an older watermark, as after a kill. The broker has deleted the segments shipped after it.
    behind = watermark_of(store).behind(None, disk.bases[-4], 0, 1, 0)
    store.put(watermark_key("", disk.partition), behind.to_bytes())
    disk.delete(SEGMENTS)
    disk.grow(2)
    store.operations.clear()
    assert run_once(disk.log_dir, store) == []
    assert manifests_read(store) == 3
    assert (watermark_of(store).next_offset, watermark_of(store).holes) == (disk.bases[-1], ())
    assert len(extents(store)) == SEGMENTS + 2


def test_a_segment_of_other_borders_that_begins_before_the_watermark_joins_on(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    first, second = BrokerDisk(tmp_path / "1"), BrokerDisk(tmp_path / "2", end=5)
    first.grow(3)
    assert run_once(first.log_dir, store) == []
    watermark = watermark_of(store)
    second.grow(4)
    assert run_once(second.log_dir, store) == []
    assert extents(store)[-1] == (25, 34)
    # Put back the first disk's watermark, which is in the middle of a segment of the second disk.
    store.put(watermark_key("", first.partition), watermark.to_bytes())
    third = BrokerDisk(tmp_path / "3", end=35, segments=2)
    assert run_once(third.log_dir, store) == []
    assert (watermark_of(store).next_offset, watermark_of(store).holes) == (45, ())


def test_a_look_at_what_is_held_costs_no_file_of_it_a_look(disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = os.fstat

    def counted(descriptor: int) -> os.stat_result:
        nonlocal looks
        looks += 1
        return real(descriptor)

    with uploader_of(disk.log_dir, MemoryObjectStore()) as uploader:
        uploader.ask_leadership()
        assert uploader.sweep().files == 4 * SEGMENTS
        monkeypatch.setattr(os, "fstat", counted)
        uploader.disk.touch(disk.folder)
        uploader.sweep(only_touched=True)
        assert looks == 0
        disk.mark_deleted(2)
        uploader.disk.touch(disk.folder)
        uploader.sweep(only_touched=True)
        assert looks == 2


def test_who_notices_rests_longer_than_it_works(disk: BrokerDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that checks folders pauses longer than it works, so shipping threads get most of the interpreter."""
    clock = iter(range(1000))
    monkeypatch.setattr(time, "thread_time", lambda: 0.1 * next(clock))
    rests: list[float] = []

    class BusyDay(Stop):
        def wait(self, seconds: float) -> bool:
            rests.append(seconds)
            if len(rests) > 3:
                self.ask()
            return self.is_asked

    with uploader_of(disk.log_dir, MemoryObjectStore()) as uploader:
        uploader.ask_leadership()
        threads = service._Threads(uploader, Pauses())  # pyright: ignore[reportPrivateUsage]
        threads.notice(BusyDay(0.0))
    assert rests[0] == pytest.approx(0.4)


class HalfDead(SaidSettling):
    """Substitute in which one partition's leader does not answer. A request about that partition alone raises."""

    def __init__(self, dead: TopicPartition) -> None:
        super().__init__()
        self.dead: TopicPartition | None = dead
        self.rounds: list[set[TopicPartition]] = []

    def ask(self, partitions: Iterable[Partition]) -> Mapping[TopicPartition, Settled]:
        asked = list(partitions)
        self.rounds.append({partition.name for partition in asked})
        answers: dict[TopicPartition, Any] = {**super().ask(asked)}
        if self.dead is not None:
            answers.pop(self.dead, None)
        if not answers:
            raise BrokerUnavailableError("no answer for 10 s")
        return answers


def test_a_partition_whose_leader_answers_does_not_wait_for_that_of_a_dead_one(disk: BrokerDisk) -> None:
    BrokerDisk(disk.log_dir, TopicIdPartition(PARTITION.topic_id, PARTITION.topic, 1), segments=2)
    alive, dead = (PARTITION.topic, 0), (PARTITION.topic, 1)
    settling, clock = HalfDead(dead), SimulatedClock()
    with uploader_of(disk.log_dir, MemoryObjectStore(), settling, clock) as uploader:

        def ask(*, is_silent: bool) -> None:
            clock.sleep(6)  # an answer is new for five seconds
            uploader.ask_leadership()
            uploader.ask_leaders(is_silent=is_silent)

        uploader.ask_leadership()
        uploader.sweep()
        uploader.ask_settled()
        assert settling.rounds == [{alive, dead}]
        settling.rounds.clear()
        ask(is_silent=False)
        assert settling.rounds == [{alive}]
        ask(is_silent=True)
        assert settling.rounds == [{alive}, {dead}]
        assert "broker" not in uploader.health.reasons()
        settling.dead = None
        ask(is_silent=True)
        settling.rounds.clear()
        ask(is_silent=False)
        assert settling.rounds == [{alive, dead}]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_watermark_is_saved_though_truncation_removes_the_segments_left(
    tmp_path: Path, store: MemoryObjectStore, steps: int
) -> None:
    """An unclean election truncates the log at offset 10."""
    disk = BrokerDisk(tmp_path / "logs", segments=4)
    with uploader_of(disk.log_dir, store, None, still_clock) as shipping:
        shipping.sweep()
        shipping.ask_leadership()
        shipping.ask_topics()
        shipping.ask_settled()
        for _ in range(steps):
            partition = shipping.schedule.take(0.0)
            assert partition is not None
            assert shipping.ship(partition) is Step.SHIPPED
        assert shipped_to(store) == 0, "it is saved at most once a second"
        disk.cut(10)
        disk.lead(1)
        disk.grow()
        shipping.sweep()
        assert [one.first for one in shipping.disk.partitions] == [None]
        partition = shipping.schedule.take(0.0)
        assert partition is not None
        shipping.ship(partition)
        assert shipping.schedule.take(0.0) is None
    assert watermark_of(store).next_offset == 10
