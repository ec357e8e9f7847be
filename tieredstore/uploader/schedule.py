"""The order in which workers take partitions, and the number of workers that upload in parallel."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from tieredstore.errors import AccessDeniedError, StoreUnavailableError
from tieredstore.process.forks import ForkSafeLock, begin_again_after_fork
from tieredstore.uploader.partition import Partition

_logger: Final = logging.getLogger(__name__)

WAIT_S: Final = 0.25
"""Pause before the next check of a partition that must wait, for example for replication."""

_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0


class Schedule:
    """The queue of partitions with something to upload. Thread-safe. ``may_ship`` decides if a partition enters the
    queue.

    :meth:`ring` makes the queue check all partitions again. Between two calls of ``ring``, only two heaps are checked:
    ready and delayed partitions. Partitions without work are in neither heap, so thousands of them cost nothing.
    """

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        may_ship: Callable[[Partition], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partitions, self._may_ship, self._monotonic = partitions, may_ship, monotonic
        self._something = threading.Condition()
        self._numbers = itertools.count()
        self._ready: list[tuple[tuple[int, float], int, Partition]] = []
        self._later: list[tuple[float, int, Partition]] = []
        self._is_rung = True
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Replace the lock in a forked child, because no thread there would release a lock that the parent held."""
        self._something = threading.Condition()

    def ring(self) -> None:
        """Make the queue check all partitions again, and wake all workers."""
        with self._something:
            self._is_rung = True
            self._something.notify_all()

    def wake(self) -> None:
        """Wake waiting workers, so that they notice a stop."""
        with self._something:
            self._something.notify_all()

    def take(self, timeout_s: float) -> Partition | None:
        """Return the next ready partition, marked busy; None if there is none within ``timeout_s``."""
        with self._something:
            partition = self._next()
            if partition is None:
                self._something.wait(self._until_next(timeout_s))
                partition = self._next()
            if partition is not None:
                partition.turn.is_busy = True
            return partition

    def take_all(self, is_wanted: Callable[[Partition], bool]) -> list[Partition]:
        """Return all ready partitions that are wanted, the most urgent first, and mark them busy."""
        with self._something:
            now_s = self._monotonic()
            ready = sorted((p for p in self._partitions() if self._is_ready(p, now_s) and is_wanted(p)), key=_urgency)
            for partition in ready:
                partition.turn.is_busy = True
            return ready

    def take_again(self, partition: Partition) -> bool:
        """If the partition has more to upload, mark it busy again and return True."""
        with self._something:
            if partition.turn.is_busy or not self._may_ship(partition):
                return False
            partition.turn.is_busy = True
            return True

    def goes_on(self, partition: Partition) -> bool:
        """Return True if the worker should make another step. The partition then stays busy.

        Return False if a more urgent partition is ready, or if all partitions must be checked again.
        """
        with self._something:
            if self._is_rung or not self._may_ship(partition):
                return False
            if self._ready and self._ready[0][0][0] < _urgency(partition)[0]:
                return False
            partition.turn.failures, partition.turn.error = 0, None
            return True

    def finish(self, partition: Partition, *, waits: bool) -> None:
        """Record a successful upload step. With ``waits``, the partition's next step comes after a short pause."""
        with self._something:
            partition.turn.failures, partition.turn.error = 0, None
            partition.turn.not_before_s = self._monotonic() + (WAIT_S if waits else 0.0)
            self._give_back(partition)

    def fail(self, partition: Partition, error: Exception) -> None:
        """Record a failed upload step. Wait about 1 s before the next step. Double this pause at each further failure,
        up to a minute."""
        with self._something:
            partition.turn.failures += 1
            delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(partition.turn.failures - 1, 16))
            # Add random jitter, so that partitions that failed together are not retried together.
            partition.turn.not_before_s = self._monotonic() + delay_s * (0.5 + random.random() / 2)  # noqa: S311
            said, partition.turn.error = partition.turn.error, error.with_traceback(None)
            self._give_back(partition)
        # Do not log here if the store is unavailable or denies access, because all partitions then fail with the same
        # error, which the health check logs once.
        if str(said) != str(error) and not isinstance(error, StoreUnavailableError | AccessDeniedError):
            _logger.warning("%s: %s; retrying until it succeeds", partition.where, error)

    def _give_back(self, partition: Partition) -> None:
        partition.turn.is_busy = False
        self._line_up(partition, self._monotonic())
        self._something.notify()

    def _next(self) -> Partition | None:
        now_s = self._monotonic()
        if self._is_rung:
            self._is_rung = False
            self._ready, self._later = [], []
            for partition in self._partitions():
                self._line_up(partition, now_s)
        while self._later and self._later[0][0] <= now_s:
            self._line_up(heapq.heappop(self._later)[2], now_s)
        while self._ready:
            partition = heapq.heappop(self._ready)[2]
            # Check again that the partition has work, because its segments or role may have changed since it was
            # queued.
            if self._is_ready(partition, now_s):
                return partition
        return None

    def _line_up(self, partition: Partition, now_s: float) -> None:
        if partition.turn.is_busy or not self._may_ship(partition):
            return
        if partition.turn.not_before_s > now_s:
            heapq.heappush(self._later, (partition.turn.not_before_s, next(self._numbers), partition))
        else:
            heapq.heappush(self._ready, (_urgency(partition), next(self._numbers), partition))

    def _is_ready(self, partition: Partition, now_s: float) -> bool:
        is_free = not partition.turn.is_busy and partition.turn.not_before_s <= now_s
        return is_free and self._may_ship(partition)

    def _until_next(self, timeout_s: float) -> float:
        """Return the time until the next delayed partition is ready. No event announces that a delayed partition is
        ready, so the worker waits for this time."""
        if not self._later:
            return timeout_s
        return min(timeout_s, max(0.0, self._later[0][0] - self._monotonic()))


def _urgency(partition: Partition) -> tuple[int, float]:
    """Return the partition's rank in the queue, lowest first, and its first segment's time as a tiebreaker."""
    first = partition.first
    if first is None:
        return 2, 0.0
    if first.is_gone or first.place.is_deleted:
        return 0, first.noticed_s
    # Partitions of unknown progress come first, so that the lag is soon known even with a long backlog.
    return 1 if partition.shipped is None else 2, first.noticed_s


_LOOK_S: Final = 0.25
_LONG_S: Final = 2.0
"""Ignore the processor time of an interval longer than this many seconds, because it says nothing about the present
load."""

_SPARE: Final = 2
"""Number of workers beyond the number of processors. They keep the processors busy while others wait for a disk."""

_BUSY: Final = 0.9
_IDLE: Final = 0.8


class WorkerLimit:
    """Limits the number of workers. Thread-safe.

    The interpreter lock lets the process use at most one whole processor. If the process used a whole processor during
    an interval, the limit falls by one worker. Otherwise, the limit rises by one.
    """

    def __init__(
        self,
        workers: int,
        *,
        processors: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        processor_time: Callable[[], float] = time.process_time,
    ) -> None:
        """Begin with ``processors`` + 2 workers. The limit never falls below this number, and never exceeds
        ``workers``."""
        self._workers = workers
        self._least = min(workers, (processors or os.cpu_count() or 1) + _SPARE)
        self._allowed = self._least
        self._monotonic, self._processor_time = monotonic, processor_time
        self._looked_s, self._taken_s = monotonic(), processor_time()
        self._lock = ForkSafeLock()

    def admits(self, number: int) -> bool:
        """Return True if the worker with this number, counted from 0, may upload now."""
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
