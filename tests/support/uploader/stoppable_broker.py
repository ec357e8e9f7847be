"""Broker's disk and its uploader, which may stop before any operation of the store and go on much later."""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import threading
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import ClassVar, Final

from tests.support.stores.doubles import Operation, ScriptedStore
from tests.support.stores.operation_sweep import Killed
from tests.support.uploader.uploader_disk import BrokerDisk, SaidSettling, uploader_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import StoreUnavailableError
from tieredstore.model import TopicPartition
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Uploader
from tieredstore.uploader.leadership import Leadership
from tieredstore.uploader.partition import Partition

NAME: Final = (PARTITION.topic, PARTITION.partition)

_DEADLINE_S: Final = 60.0
_EPOCH_AT: Final = 12
"""Position of the leader epoch in a record batch."""


class Belief(Leadership):
    """Leadership as each uploader believes it, by the broker's id."""

    leads: ClassVar[dict[int, bool]] = {}

    def led(self) -> Collection[TopicPartition]:
        return (NAME,) if self.leads[self.environment.broker_id] else ()


class StoppableBroker:
    """A broker's disk and its uploader, whose work may be suspended before any operation of the store."""

    def __init__(self, number: int, folder: Path, store: MemoryObjectStore) -> None:
        self.number, self.store = number, store
        self.disk = BrokerDisk(folder / str(number), segments=3)
        self.hold_dir = folder / "held" if number else None
        """A folder for hard links, which stay if the uploader is killed. Only the second broker's uploader makes them.
        """
        if self.hold_dir is not None:
            self.hold_dir.mkdir()
        self.epoch_of = dict.fromkeys(self.disk.bases, 0)
        self.settling = SaidSettling(high=0)
        self.high = 0
        """The high watermark that the broker itself knows."""
        self.misses = -1
        """The next listing of the folder misses the log with this number, counted from 0; -1 for none."""
        self._missed: set[int] = set()
        self.now_s = 0.0
        self._news: queue.Queue[bool] = queue.Queue()
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        Belief.leads[number] = False
        self.start()

    def start(self) -> None:
        """Start a new process of the uploader."""
        self.is_stopped = self.is_dead = False
        self._stop_at = self._fail_at = -1
        self._moment, self.count, self._goes_on = "before", 0, threading.Event()
        scripted = ScriptedStore(self.store)
        scripted.on(do=lambda operation: self._reach(operation, "before"))
        scripted.on(do=lambda operation: self._reach(operation, "after"), moment="after")
        self.uploader: Uploader = uploader_of(
            self.disk.log_dir, scripted, self.settling, lambda: self.now_s,
            leadership=f"{Belief.__module__}.{Belief.__name__}", broker_id=str(self.number),
            hold_dir=str(self.hold_dir or ""),
        )  # fmt: skip
        self.uploader.sweep()
        self.uploader.ask_leadership()
        self.uploader.ask_topics()

    def _reach(self, _: Operation, moment: str) -> None:
        with self._lock:
            self.count += moment == "before"
            stops = moment == "before" and self.count - 1 == self._stop_at
        if stops:
            self._goes_on.clear()
            self._news.put(False)
            assert self._goes_on.wait(_DEADLINE_S)
        if self.is_dead:
            raise Killed
        if 0 <= self._fail_at < self.count and moment == self._moment:
            raise StoreUnavailableError("the machine lets it fail")

    def run(self, work: Callable[[], object], stop_at: int = -1, fail_at: int = -1, moment: str = "before") -> None:
        """Run ``work`` until it ends, or until it is suspended before its operation with this number."""
        self._stop_at, self._fail_at, self._moment, self.count = stop_at, fail_at, moment, 0
        if stop_at < 0:
            work()
            return
        errors: list[BaseException] = []

        def work_on() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  raised again below
                errors.append(error)
            self._news.put(True)

        self._errors = errors
        threading.Thread(target=work_on, daemon=True).start()
        self._wait()

    def go_on(self, stop_at: int = -1) -> None:
        """Continue suspended work, until it ends or is suspended again after this many further operations."""
        self._stop_at = self.count + stop_at if stop_at >= 0 else -1
        self._goes_on.set()
        self._wait()

    def _wait(self) -> None:
        self.is_stopped = not self._news.get(timeout=_DEADLINE_S)
        if not self.is_stopped and self._errors and not self.is_dead:
            raise self._errors[0]

    def kill(self) -> None:
        """Kill the process: no operation of the store succeeds any more, and open files are closed."""
        self.is_dead = True
        if self.is_stopped:
            self.go_on()
        self.uploader.close()

    def ship(self) -> None:
        """Make steps of the partition, as a worker does, if it is ready."""
        self.uploader.ask_leadership()
        self.uploader.ask_settled()
        partition = self.uploader.schedule.take(0.0)
        if partition is not None:
            self.uploader.ship(partition, goes_on=True)

    @contextlib.contextmanager
    def hide_one(self) -> Generator[None]:
        """Give one log neither of its names, as if the broker renamed it during a listing. A broker renames a log
        once, so hide each log only once.
        """
        logs = sorted(self.disk.folder.glob("*.log*"))[:-1]
        chosen, self.misses = logs[self.misses : self.misses + 1] if self.misses >= 0 else [], -1
        if not chosen or int(chosen[0].name[:20]) in self._missed:
            yield
            return
        self._missed.add(int(chosen[0].name[:20]))
        aside = chosen[0].rename(self.disk.log_dir / "aside")
        try:
            yield
        finally:
            aside.rename(chosen[0])

    @property
    def partition(self) -> Partition | None:
        return next(iter(self.uploader.disk.partitions), None)

    def holds(self, base: int, epoch: int) -> bool:
        """Return True if the disk, an open file or a link has the segment with the records of this epoch."""
        log = f"{self.disk.folder}/{base:020d}.log"  # sweeps ask thousands of times, and pathlib would take most of it
        for name in (log, f"{log}.deleted"):
            with contextlib.suppress(FileNotFoundError):
                if _epoch_of(name) == epoch:
                    return True
        return self.pins(base, epoch)

    def pins(self, base: int, epoch: int) -> bool:
        """Return True if an open file or a link keeps the segment with the records of this epoch."""
        segment = None if self.partition is None else self.partition.segments.get(base)
        if segment is None or not segment.is_pinned:
            return False
        if segment.held is not None:
            return _epoch_of(f"/proc/self/fd/{segment.held.log.descriptor}") == epoch
        return segment.link is not None and _epoch_of(segment.link.log) == epoch


def _epoch_of(log: Path | str) -> int:
    descriptor = os.open(log, os.O_RDONLY)
    try:
        epoch: int = struct.unpack(">i", os.pread(descriptor, 4, _EPOCH_AT))[0]
        return epoch
    finally:
        os.close(descriptor)
