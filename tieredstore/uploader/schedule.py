"""Which partition a worker takes next: one worker at a time for each, those first whose segments go first."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tieredstore.process.forks import begin_again_after_fork
from tieredstore.uploader.partition import Partition

_logger: Final = logging.getLogger(__name__)

WAIT_S: Final = 0.25
"""How long a partition that waits for an answer is left alone."""

_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0


class Schedule:
    """Thread-safe. ``may_ship`` says of a partition whether it is to be looked at at all."""

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        may_ship: Callable[[Partition], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partitions, self._may_ship, self._monotonic = partitions, may_ship, monotonic
        self._something = threading.Condition()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child: a lock that no thread of the parent holds."""
        self._something = threading.Condition()

    def ring(self) -> None:
        """There may be something to do."""
        with self._something:
            self._something.notify_all()

    def take(self, timeout_s: float) -> Partition | None:
        """The partition that is next, marked busy; None if there is none within that time."""
        with self._something:
            partition = self._next()
            if partition is None:
                self._something.wait(timeout_s)
                partition = self._next()
            if partition is not None:
                partition.is_busy = True
            return partition

    def take_all(self, is_wanted: Callable[[Partition], bool]) -> list[Partition]:
        """All that are ready now, marked busy, those first whose segments go first."""
        with self._something:
            ready = sorted((partition for partition in self._ready() if is_wanted(partition)), key=_urgency)
            for partition in ready:
                partition.is_busy = True
            return ready

    def take_again(self, partition: Partition) -> bool:
        """Whether the partition whose step was just made is ready for another one; it is busy then."""
        with self._something:
            if partition.is_busy or partition.is_dropped or not self._may_ship(partition):
                return False
            partition.is_busy = True
            return True

    def done(self, partition: Partition, *, waits: bool) -> None:
        """The worker has made its step; a partition that ``waits`` is looked at again in a moment."""
        with self._something:
            partition.failures, partition.error = 0, None
            partition.not_before_s = self._monotonic() + (WAIT_S if waits else 0.0)
            self._give_back(partition)

    def failed(self, partition: Partition, error: BaseException) -> None:
        """The step has failed: the next one comes after 1 s, and later and later up to a minute."""
        with self._something:
            partition.failures += 1
            delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(partition.failures - 1, 16))
            # Jitter: partitions that failed together do not come back together.
            partition.not_before_s = self._monotonic() + delay_s * (0.5 + random.random() / 2)  # noqa: S311
            said, partition.error = partition.error, str(error)
            self._give_back(partition)
        if said != partition.error:
            _logger.warning("%s: %s; tried again until it succeeds", partition.where, error)

    def _give_back(self, partition: Partition) -> None:
        partition.is_busy = False
        if partition.is_dropped:
            partition.give_up()
        self._something.notify()

    def _next(self) -> Partition | None:
        return min(self._ready(), key=_urgency, default=None)

    def _ready(self) -> Iterator[Partition]:
        now_s = self._monotonic()
        for partition in self._partitions():
            if (
                not partition.is_busy
                and not partition.is_dropped
                and partition.not_before_s <= now_s
                and self._may_ship(partition)
            ):
                yield partition


def _urgency(partition: Partition) -> tuple[bool, float]:
    first = partition.first
    return not partition.is_marked, 0.0 if first is None else first.noticed_s
