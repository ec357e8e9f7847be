"""During rarer tasks, the process dies or fails at each store operation and at each change of its own files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.stores.doubles import Moment
from tests.support.stores.operation_sweep import Killed, OperationSweep, copies_of
from tests.support.uploader.uploader_disk import (
    BrokerDisk,
    SaidSettling,
    extents,
    run_once,
    stored,
    uploader_of,
    watermark_of,
)
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError
from tieredstore.testing.segments import PARTITION

WHOLE: Final = [(0, 9), (10, 19), (20, 29)]
_CHANGES: Final = ("link", "mkdir", "rename", "unlink", "rmdir", "open")


OTHER_WAYS: Final = [(False, "before"), (False, "during"), (True, "during"), (True, "after")]
EVERY: Final = [pytest.param(1, marks=pytest.mark.soak), 9]


def shipped(log_dir: Path) -> MemoryObjectStore:
    """Return a store with the three closed segments of a leader."""
    store = MemoryObjectStore()
    BrokerDisk(log_dir, segments=4)
    run_once(log_dir, store)
    return store


def check_moved_back(store: MemoryObjectStore) -> None:
    watermark = watermark_of(store)
    assert (watermark.next_offset, watermark.leader_epoch, watermark.holes) == (40, 4, ())
    assert [(move.from_offset, move.to_offset) for move in watermark.moved_back] == [(30, 20)]
    of_epochs = sorted((s.metadata.start_offset, s.metadata.segment_leader_epochs[-1][0]) for s in stored(store))
    assert of_epochs == [(0, 0), (10, 0), (20, 0), (20, 4), (30, 4)]


@pytest.mark.parametrize(
    ("dies", "moment"),
    [
        (False, "after"),
        (True, "before"),
        *(pytest.param(*way, marks=pytest.mark.soak) for way in OTHER_WAYS),
    ],
)
def test_an_unclean_election_at_each_operation(tmp_path: Path, dies: bool, moment: Moment) -> None:
    before = shipped(tmp_path / "old")
    new = BrokerDisk(tmp_path / "new", segments=2)
    new.lead(4)
    new.grow(3)
    # Skip the last operation, an empty listing of holes.
    sweep = OperationSweep(copies_of(before), lambda store: run_once(new.log_dir, store), numbers=slice(-1))
    names = {operation.name for operation in sweep.operations}
    assert {"head", "get", "list", "put", "replace"} <= names
    for _, inner, store in sweep.die(moment) if dies else sweep.fail(moment):
        if dies:
            with pytest.raises(Killed):
                run_once(new.log_dir, store)
        else:
            assert run_once(new.log_dir, store) == []
        assert run_once(new.log_dir, inner) == []
        check_moved_back(inner)


class Steps:
    """Counter of the changes below a folder. It kills the process before or after the change with the given number."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.count, self.die_at, self.is_behind = str(folder), 0, -1, False
        for name in _CHANGES:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            if not any(self.folder in str(argument) for argument in args):
                return real(*args, **options)
            self.count += 1
            if 0 <= self.die_at < self.count and not self.is_behind:
                raise Killed
            answer = real(*args, **options)
            if 0 <= self.die_at < self.count:
                if real is os_open:
                    os.close(answer)
                raise Killed
            return answer

        return watched


os_open: Final = os.open


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("is_behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["linking", "shipping from links"])
def test_dying_at_each_change_of_a_held_file(
    tmp_path: Path, is_deleted: bool, is_behind: bool, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies while making links leaves nothing that looks like a segment.

    If a process dies when only its links are left of a segment, the next process finds them. In the end, no file is
    left.
    """
    steps = Steps(tmp_path / "0" / "held", monkeypatch)
    for number in range(0, 1000, every):
        disk = BrokerDisk(tmp_path / str(number) / "logs", segments=4)
        held = tmp_path / str(number) / "held"
        held.mkdir()
        store = MemoryObjectStore()
        if is_deleted:
            with uploader_of(disk.log_dir, store, hold_dir=str(held)) as holding:
                holding.ask_leadership()
                holding.sweep()
            disk.delete(3)
        steps.folder, steps.count, steps.die_at, steps.is_behind = str(held), 0, number, is_behind
        try:
            run_once(disk.log_dir, store, hold_dir=str(held))
            died = False
        except Killed:
            died = True
        steps.die_at = -1
        assert run_once(disk.log_dir, store, hold_dir=str(held)) == []
        assert (extents(store), watermark_of(store).holes) == (WHOLE, ())
        assert [path for path in held.rglob("*") if path.is_file()] == []
        if not died:
            assert number > 20
            return
    raise AssertionError("it never came to an end")


_CALLS: Final = (*_CHANGES, "fstat", "listdir", "pread", "preadv", "scandir", "stat")


class FailingDisk:
    """Fails calls of the system for the files of a folder, from number ``fails_from`` up to ``last``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.count, self.fails_from, self.last = "/", 0, 0, 0
        for name in _CALLS:
            monkeypatch.setattr(os, name, self.failing(getattr(os, name)))

    def failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **options: Any) -> Any:
            named = str(Path("/proc/self/fd", str(file))) if isinstance(file, int) else str(file)
            if os.path.realpath(named).startswith(self.folder):
                self.count += 1
                if self.fails_from < self.count <= self.last:
                    raise OSError(errno.EIO, "Input/output error", named)
            return real(file, *args, **options)

        return call


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 11])
@pytest.mark.parametrize("is_once", [False, True])
def test_a_disk_may_fail_at_each_call_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_once: bool, every: int
) -> None:
    """The disk fails once, or until the process ends. Only links keep the first segments that are not shipped."""
    failing = FailingDisk(monkeypatch)
    for number in range(0, 10_000, every):
        folder = tmp_path.resolve() / str(number)
        disk, held, store = BrokerDisk(folder / "logs", segments=4), folder / "held", MemoryObjectStore()
        held.mkdir()
        run_once(disk.log_dir, store, SaidSettling(high=10), hold_dir=str(held))
        disk.delete(3)
        disk.grow(2)
        failing.folder, failing.count, failing.fails_from = str(folder), 0, number
        failing.last = number + 1 if is_once else 1_000_000
        with contextlib.suppress(ConfigError, OSError):  # a disk that fails at the start is refused
            run_once(disk.log_dir, store, hold_dir=str(held))
        failing.last = 0
        has_failed = failing.count > number
        assert run_once(disk.log_dir, store, hold_dir=str(held)) == []
        assert (extents(store), watermark_of(store).holes) == ([*WHOLE, (30, 39), (40, 49)], ())
        if not has_failed:
            assert number > 100
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("bad", [0, 1])
def test_links_without_a_folder_that_cannot_be_read_stop_no_links_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    log_dir, held, store = tmp_path / "logs", tmp_path / "held", MemoryObjectStore()
    held.mkdir()
    disks = [BrokerDisk(log_dir, replace(PARTITION, partition=number), segments=2) for number in range(2)]
    run_once(log_dir, store, SaidSettling(high=0), hold_dir=str(held))
    for disk in disks:
        shutil.rmtree(disk.folder)
    real = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.parent.parent == held and path.name == str(bad):
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with uploader_of(log_dir, store, hold_dir=str(held)) as shipping:
        shipping.disk.sweep()
        assert [one.where.partition for one in shipping.disk.partitions] == [1 - bad]


def test_a_link_that_cannot_be_read_stops_no_marks_of_replicated_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that asks for high watermarks makes the marks, and an error of a thread ends the uploader."""
    disk, held = BrokerDisk(tmp_path / "logs", segments=4), tmp_path / "held"
    held.mkdir()

    def refuse(_: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with uploader_of(disk.log_dir, MemoryObjectStore(), hold_dir=str(held)) as shipping:
        shipping.ask_leadership()
        shipping.sweep()
        (partition,) = shipping.disk.partitions
        partition.mark_replicated(10)
        monkeypatch.setattr(Path, "exists", refuse)
        partition.mark_replicated(20)
        assert [segment.is_replicated for segment in partition.pending()] == [True, True, False]
