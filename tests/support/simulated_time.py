"""Thread pools on a simulated clock: concurrent tasks together take as long as the longest, and nothing sleeps."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from tieredstore.remote.manager import Pools

P = ParamSpec("P")
T = TypeVar("T")


class SimulatedClock:
    """Simulated time in seconds, as the running code sees it. It passes in ``sleep``, or when a test sets ``now``."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class SimulatedFuture(Future[T]):
    """Future that is done at a simulated time. Waiting for it advances the clock to that time."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self.clock = clock
        self.done_at = 0.0

    def result(self, timeout: float | None = None) -> T:
        self.clock.now = max(self.clock.now, self.done_at)
        return super().result(0)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        before, self.clock.now = self.clock.now, max(self.clock.now, self.done_at)
        super().add_done_callback(fn)
        self.clock.now = before


class SimulatedPool(Executor):
    """Pool that runs each task at once on this thread. During the task, the clock shows the time at which a simulated
    worker would be free to run it.
    """

    def __init__(self, clock: SimulatedClock, workers: int) -> None:
        self._clock = clock
        self._free_at = [0.0] * workers

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = SimulatedFuture[T](self._clock)
        before = self._clock.now
        self._clock.now = max(before, heapq.heappop(self._free_at))
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  a future carries any error
            future.set_exception(error)
        heapq.heappush(self._free_at, self._clock.now)
        future.done_at, self._clock.now = self._clock.now, before
        return future

    def shutdown(self, *_: Any, **__: Any) -> None:
        """Do nothing: no task is running."""


def simulated_pools(clock: SimulatedClock) -> Pools:
    return Pools(SimulatedPool(clock, 2), SimulatedPool(clock, 8), SimulatedPool(clock, 2))
