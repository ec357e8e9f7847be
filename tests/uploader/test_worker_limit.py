"""How many workers ship at once, by clocks that the test moves."""

from __future__ import annotations

import threading
import time

from tieredstore.uploader.schedule import Schedule
from tieredstore.uploader.worker_limit import WorkerLimit


class Process:
    """A process with ten workers on a machine of two processors, and what it takes of them."""

    def __init__(self, workers: int = 10, processors: int = 2) -> None:
        self.now_s = self.taken_s = 0.0
        self.workers = workers
        self.worker_limit = WorkerLimit(
            workers, processors=processors, monotonic=lambda: self.now_s, processor_time=lambda: self.taken_s
        )

    def runs(self, seconds: float, share: float, step_s: float = 0.3) -> int:
        """For so long, with so much of a processor; how many may ship then."""
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
