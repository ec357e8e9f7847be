"""The edges at which the uploader of Pinterest's tiered storage loses or repeats something, one by one.

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

import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.uploader_disk import BrokerDisk, extents, run_once, stored, uploader_of, watermark_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.testing.faults import FaultyStore
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import once, schedule

WHOLE = [(0, 9), (10, 19), (20, 29)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow on each other."""
    monkeypatch.setattr(schedule, "_FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(once, "_AGAIN_S", 0.001)


@pytest.fixture
def disk(tmp_path: Path) -> BrokerDisk:
    """Three closed segments, of 0 to 29, and an active one."""
    disk = BrokerDisk(tmp_path)
    disk.grow(4)
    return disk


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
        shipping.folders.touch(disk.folder)
        assert shipping.run_once() == []
    assert extents(store) == [*WHOLE, (30, 39)]
    watermark = watermark_of(store)
    assert (watermark.next_offset, watermark.holes) == (40, ())
    assert run_once(disk.log_dir, store) == []
    assert len(extents(store)) == 4


def deletion(disk: BrokerDisk, store: FaultyStore, number: int) -> Callable[[object], bool]:
    """In the operation of this number the topic is deleted, as a broker does it."""

    def delete(_: object) -> bool:
        if len(store.operations) == number + 1:
            doomed = disk.folder.with_name(f"{disk.folder.name}.0123456789abcdef0123456789abcdef-delete")
            disk.folder.rename(doomed)
            shutil.rmtree(doomed)
        return False

    return delete


def test_a_folder_that_is_deleted_while_it_is_shipped_is_no_loss_and_comes_again_as_another(tmp_path: Path) -> None:
    quiet = FaultyStore(MemoryObjectStore())
    for number in itertools.count():
        disk = BrokerDisk(tmp_path / str(number))
        disk.grow(4)
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
