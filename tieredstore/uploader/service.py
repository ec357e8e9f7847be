"""The uploader as a service: its threads and their loops.

This is a separate module because a single run (``--once``) needs no threads, signals or HTTP endpoint.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tieredstore.errors import StoreUnavailableError, TieredStoreError
from tieredstore.process.service import Service
from tieredstore.process.stopping import Stop, nothing_under_way
from tieredstore.uploader.disk import FolderWatch
from tieredstore.uploader.metrics import CountsCollector
from tieredstore.uploader.partition import Role
from tieredstore.uploader.schedule import WorkerLimit
from tieredstore.uploader.uploader import Uploader

_logger: Final = logging.getLogger(__name__)

_SETTLED_S: Final = 0.25
_TOPICS_S: Final = 1.0
_ADVICE_S: Final = 3600.0
_INCOMPLETE_S: Final = 0.05
_IDLE_S: Final = 0.5
_LOOK_S: Final = 0.05
_CREW_S: Final = 0.1
_BEAT_S: Final = 120.0
_RESTS: Final = 4.0
_LONGEST_REST_S: Final = 1.0


class Pauses(NamedTuple):
    """Seconds between two rounds of the service's loops."""

    leadership: float = 1.0
    holes: float = 60.0
    snapshots: float = 600.0
    follow: float = 5.0
    first_expiry: float = 60.0


def uploader_service(
    uploader: Uploader, *, reload: Callable[[], None] | None = None, pauses: Pauses | None = None
) -> Service:
    """Return a service that uploads until it is stopped. The caller closes the uploader afterwards."""
    pauses = pauses or Pauses()
    threads = _Threads(uploader, pauses)
    workers = {f"ship-{number}": partial(threads.ship, number) for number in range(uploader.own.concurrent_uploads)}
    return Service(
        "uploader",
        {
            "notice": threads.notice,
            "leadership": lambda stop: threads.again("leadership", stop, threads.lead, pauses.leadership),
            # With two threads, partitions whose leaders answer do not wait for partitions whose leaders are silent.
            "settled": threads.ask_loop("settled", is_silent=False),
            "silent": threads.ask_loop("silent", is_silent=True),
            "topics": threads.advise,
            "follow": lambda stop: threads.again("follow", stop, uploader.follow, pauses.follow),
            "holes": threads.fill,
            "retention": threads.expire,
            "snapshots": threads.snapshot,
            "time": threads.watch_time,
            **workers,
        },
        drain_s=uploader.own.drain_ms / 1000,
        health=uploader.health,
        listen=uploader.own.listen,
        pages={"/lag": uploader.lag},
        reload=reload,
    )


class _Threads:
    """Loops of the service's threads: each method is a loop that one thread runs until ``stop``."""

    def __init__(self, uploader: Uploader, pauses: Pauses) -> None:
        self._uploader, self._pauses = uploader, pauses
        self._changed = threading.Event()
        self._worker_limit = WorkerLimit(uploader.own.concurrent_uploads)

    def again(self, name: str, stop: Stop, work: Callable[[], None], pause_s: float) -> None:
        """Repeat ``work`` with a pause. At a stop, the service does not wait for ``work`` (see
        ``nothing_under_way``)."""
        health = self._uploader.health
        while True:
            with nothing_under_way():
                work()
            health.beat(name, within_s=_BEAT_S)
            if stop.wait(pause_s):
                health.rest(name)
                return

    def ask_loop(self, name: str, *, is_silent: bool) -> Callable[[Stop], None]:
        """Return a loop that asks about partitions whose leaders did not answer last time (``is_silent``), or about all
        others."""
        ask = partial(self._uploader.ask_leaders, is_silent=is_silent)
        return lambda stop: self.again(name, stop, ask, _SETTLED_S)

    def lead(self) -> None:
        """Refresh leadership. If this broker leads a new partition, check the folders at once, so that the partition's
        files are opened before the broker deletes them.
        """
        if self._uploader.ask_leadership():
            self._changed.set()

    def notice(self, stop: Stop) -> None:
        """Check folders after events of the file system, and all folders at each scan interval."""
        uploader = self._uploader
        watch = FolderWatch(self._take_touched)
        collector = CountsCollector(uploader.counts, uploader.gauges, uploader.lag_by_topic)
        try:
            scan_s = uploader.own.scan_interval_ms / 1000
            whole_at_s = 0.0
            while not stop.is_asked:
                self._changed.clear()
                is_whole = time.monotonic() >= whole_at_s
                began_s = time.thread_time()
                held = uploader.sweep(only_touched=not is_whole)
                spent_s = time.thread_time() - began_s
                if is_whole:
                    whole_at_s = time.monotonic() + scan_s
                uploader.health.beat("notice", within_s=_BEAT_S)
                led = [
                    partition.folder
                    for partition in uploader.disk.partitions
                    if partition.role is Role.LED and partition.folder
                ]
                if watch.watch(led):
                    whole_at_s = 0.0
                    continue
                # Pause in proportion to the check's own time. Otherwise, under constant events, checks would take the
                # interpreter from the upload threads.
                stop.wait(min(_LONGEST_REST_S, _RESTS * spent_s))
                self._pause(stop, _INCOMPLETE_S if held.incomplete else whole_at_s - time.monotonic())
        finally:
            uploader.health.rest("notice")
            collector.close()
            watch.close()

    def advise(self, stop: Stop) -> None:
        """Read the settings of new topics each second, and of all topics each hour."""
        rounds = 0
        while not stop.wait(_TOPICS_S if rounds else 0.0):
            rounds += 1
            if rounds % int(_ADVICE_S / _TOPICS_S) == 0:
                self._uploader.topics.forget()
            with nothing_under_way():
                self._uploader.ask_topics()

    def fill(self, stop: Stop) -> None:
        """Look for holes about once a minute, at random times, so that replicas look at different times and do not
        repeat work.
        """
        while not stop.wait(self._pauses.holes * (0.5 + random.random())):  # noqa: S311
            self._uploader.fill_holes()

    def expire(self, stop: Stop) -> None:
        """If retention has a limit, delete expired segments at each interval. Wait a minute before the first time, so
        that leadership is probably known.
        """
        uploader = self._uploader
        pause_s = self._pauses.first_expiry
        while uploader.retention.is_on and not stop.wait(pause_s):
            pause_s = uploader.own.retention_interval_ms / 1000
            try:
                for _ in uploader.expire():
                    if stop.is_asked:
                        break
            except TieredStoreError as error:
                _logger.warning("retention of stored segments stopped early; it is retried later: %s", error)

    def snapshot(self, stop: Stop) -> None:
        """Write the cluster's snapshot of each hour, unless another uploader has written it. Look every few minutes, at
        random times, so that two uploaders rarely write the same snapshot.
        """
        hourly = self._uploader.snapshots
        while hourly is not None and not stop.wait(self._pauses.snapshots * random.random()):  # noqa: S311
            with nothing_under_way():
                hourly.write()

    def watch_time(self, stop: Stop) -> None:
        """End the process if a thread is stuck in a store, because a thread cannot be killed. The restarted process
        continues the work.
        """
        while not stop.wait(1.0):
            lost = self._uploader.tries.find_lost()
            if lost is not None:
                raise StoreUnavailableError(f"{lost}: the process ends, so that its supervisor restarts it")
        self._uploader.schedule.wake()

    def ship(self, number: int, stop: Stop) -> None:
        """Upload from one partition after another, while the limit of workers admits this worker."""
        schedule = self._uploader.schedule
        while not stop.is_asked:
            if not self._worker_limit.admits(number):
                stop.wait(_CREW_S)
                continue
            partition = schedule.take(_IDLE_S)
            if partition is not None:
                self._uploader.ship(partition, goes_on=True)

    def _take_touched(self, folder: Path) -> None:
        self._uploader.disk.touch(folder)
        self._changed.set()

    def _pause(self, stop: Stop, seconds: float) -> None:
        """Wait for ``seconds``. End the wait early at a stop, or if a folder has changed."""
        waited_s = 0.0
        while waited_s < seconds and not self._changed.is_set() and not stop.wait(_LOOK_S):
            waited_s += _LOOK_S
