"""How many workers may ship at the same time, adapted to the processor time that the process takes.

With a distant store, workers mostly wait and many can run at once. With a fast one they compete for the interpreter and
the processors, and slow each other down.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from tieredstore.process.forks import ForkSafeLock

_LOOK_S: Final = 0.25
_LONG_S: Final = 2.0
"""Older samples are stale; ignore them."""

_SPARE: Final = 2
"""More workers than processors keep these busy while some wait for a disk."""

_BUSY: Final = 0.9
_IDLE: Final = 0.8


class WorkerLimit:
    """Admit workers by number, the first ones always. Thread-safe.

    One worker fewer after each interval in which the process used a whole processor (all that the interpreter lock
    allows), one more after each interval in which it did not.
    """

    def __init__(
        self,
        workers: int,
        *,
        processors: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        processor_time: Callable[[], float] = time.process_time,
    ) -> None:
        """``processors`` are those of the machine unless they are given."""
        self._workers = workers
        self._least = min(workers, (processors or os.cpu_count() or 1) + _SPARE)
        self._allowed = self._least
        self._monotonic, self._processor_time = monotonic, processor_time
        self._looked_s, self._taken_s = monotonic(), processor_time()
        self._lock = ForkSafeLock()

    def admits(self, number: int) -> bool:
        """Return whether the worker with this number, counted from 0, may ship now."""
        if number < self._least and self._least == self._workers:
            return True
        with self._lock:
            self._look()
            return number < self._allowed

    def _look(self) -> None:
        passed_s = self._monotonic() - self._looked_s
        if passed_s < _LOOK_S:
            return
        taken_s = self._processor_time() - self._taken_s
        self._looked_s, self._taken_s = self._looked_s + passed_s, self._taken_s + taken_s
        if passed_s > _LONG_S:
            return
        if taken_s > _BUSY * passed_s:
            self._allowed = max(self._least, self._allowed - 1)
        elif taken_s < _IDLE * passed_s:
            self._allowed = min(self._workers, self._allowed + 1)
