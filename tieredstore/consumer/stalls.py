"""Partitions of which the client gives nothing though the broker has more: they are assigned anew."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tieredstore.consumer.partition import Partition

_logger: Final = logging.getLogger(__name__)

_SILENT_S: Final = 10.0
"""How long nothing may come of a partition since it was assigned; of one that has given before, it is the time-out."""


class Stalls:
    """Notices what stands still. For the polling thread.

    librdkafka has been seen to fetch nothing of a partition for minutes after its broker was away: it waited for an
    answer about the leader epoch that nobody was to give any more. An assignment ends that.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._drained_at = 0.0

    def note_drained(self) -> None:
        """The client has given all that it had: what waits in it is the caller's delay, and no standstill."""
        self._drained_at = self._clock()

    def stands_still(self, partition: Partition, end: int | None, *, is_silent: bool) -> bool:
        """Whether it has not moved for too long though records up to ``end`` can be read, as the broker says now.

        Said once of a position and an end: behind the last record there may be markers alone, which nobody is given.
        """
        position = partition.position
        if end is None or position is None or position >= end or partition.paused or partition.held:
            partition.stands_at = None
            return False
        now = self._clock()
        if partition.stands_at is None or partition.stands_at[0] != position:
            partition.stands_at = position, now
            return False
        most = min(_SILENT_S, self._timeout_s) if is_silent else self._timeout_s
        late = partition.stands_at[1] + most
        if now < late or self._drained_at < late or partition.revived_at == (position, end):
            return False
        partition.stands_at, partition.revived_at = None, (position, end)
        _logger.info(
            "nothing comes of %s-%d from offset %d on, and the broker has records up to %d: it is assigned anew",
            *partition.where, position, end - 1,
        )  # fmt: skip
        return True
