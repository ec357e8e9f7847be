"""Limits of a stream's trigger: how many unread offsets it reads, and how long it waits for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicPartition
from tieredstore.partitions.log import OffsetWindow

Windows = dict[TopicPartition, OffsetWindow]
"""Offsets to read, by partition."""

DEFAULT_DELAY_MS: Final = 15 * 60 * 1000
"""Default of ``maxTriggerDelay``."""

IN_OPTIONS: Final = ReadMaxRows(MAX_OFFSET)
"""Default read limit of a stream reader, whose limits are in the options, because a ReadLimit cannot express several.
Spark passes this object, or its own ReadAllAvailable for ``Trigger.Once``."""

BytesBetween = Callable[[TopicPartition, int, int], int]
"""Returns the approximate bytes of a partition's offsets from a start to an end (exclusive). A larger range never has
fewer bytes.
"""


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Limits of one trigger. A limit that is not set is None. Limits of offsets also count offsets without a record. In
    a topic of batches, a batch counts as an offset.
    """

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_DELAY_MS

    def under(self, limit: ReadLimit) -> TriggerLimits:
        """Return the limits that apply to a trigger when Spark passes ``limit``: none for ``Trigger.Once``."""
        return TriggerLimits() if is_once(limit) else self

    def admit(self, windows: Windows, bytes_between: BytesBetween) -> dict[TopicPartition, int]:
        """Return the end of each window for this trigger.

        Each window gets a share of the limit in proportion to its size, but at least one offset. So a small partition
        never waits for a large one, and the stream always progresses. A trigger exceeds the limit only if a share is
        less than one offset.
        """
        ends = {where: stop for where, (_, stop) in windows.items()}
        if self.max_offsets is not None:
            waiting = {where: stop - start for where, (start, stop) in windows.items() if stop > start}
            for where, share in shares(waiting, self.max_offsets).items():
                ends[where] = windows[where][0] + share
        if self.max_bytes is not None:
            # If both limits are set, apply the byte limit to the ranges that the first limit allows.
            ends = _within_bytes(
                {where: (windows[where][0], ends[where]) for where in ends}, self.max_bytes, bytes_between
            )
        return ends


def is_once(limit: ReadLimit) -> bool:
    """Return True if the trigger is ``Trigger.Once``. The only sign is that Spark passes its own limit and not the
    limit of this reader.
    """
    return isinstance(limit, ReadAllAvailable)


def shares(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide ``limit`` in proportion to ``waiting``, at least 1 each. Return ``waiting`` itself if it is within the
    limit.
    """
    if sum(waiting.values()) <= limit:
        return dict(waiting)
    rest = dict(waiting)
    # Each small partition gets 1 offset, which leaves less for the other partitions. This may reduce the shares of
    # further partitions to less than 1, so repeat the step.
    while small := _below_one(rest, limit):
        limit -= len(small)
        for where in small:
            del rest[where]
    return dict.fromkeys(waiting, 1) | _in_proportion(rest, limit)


def _below_one(waiting: Mapping[TopicPartition, int], limit: int) -> list[TopicPartition]:
    """Return the partitions whose share of the limit is less than one offset."""
    total = sum(waiting.values())
    return [where for where, size in waiting.items() if size * limit < total]


def _in_proportion(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide ``limit`` among the partitions in proportion to ``waiting``. The remainder goes to partitions that lose
    most by rounding."""
    total = sum(waiting.values())
    parts = {where: divmod(limit * size, total) for where, size in waiting.items()}
    left = limit - sum(whole for whole, _ in parts.values())
    # Break ties by name, so that the same windows always get the same ends.
    favoured = set(sorted(parts, key=lambda where: (-parts[where][1], where))[:left])
    return {where: whole + (where in favoured) for where, (whole, _) in parts.items()}


class TriggerDelay:
    """Makes a trigger wait until ``min_offsets`` are unread, or until ``max_delay_ms`` have passed since the previous
    trigger.

    The first trigger that has offsets to read does not wait. ``clock`` returns monotonic seconds. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def has_to_wait(self, limits: TriggerLimits, waiting: int) -> bool:
        """Return True if the trigger must wait for more than ``waiting`` unread offsets. Otherwise restart the delay.

        A trigger without unread offsets does not restart the delay. So after the delay has ended, the first records
        that arrive are read at once.
        """
        if not waiting:
            return False
        now = self._clock()
        too_few = limits.min_offsets is not None and waiting < limits.min_offsets
        if too_few and self._last is not None and (now - self._last) * 1000 < limits.max_delay_ms:
            return True
        self._last = now
        return False


def _within_bytes(windows: Windows, limit: int, bytes_between: BytesBetween) -> dict[TopicPartition, int]:
    sizes = {where: bytes_between(where, start, stop) for where, (start, stop) in windows.items()}
    total = sum(sizes.values())
    if total <= limit:
        return {where: stop for where, (_, stop) in windows.items()}
    return {
        where: _last_within(where, window, limit * sizes[where] // total, bytes_between)
        for where, window in windows.items()
    }


def _last_within(where: TopicPartition, window: tuple[int, int], limit: int, bytes_between: BytesBetween) -> int:
    """Return the last end at which the range from the start of ``window`` has at most ``limit`` bytes. The range has at
    least one offset."""
    start, stop = window
    # A binary search is cheap, because sizes come from known segments without requests. The search is correct, because
    # sizes never shrink as the range grows.
    fits, ahead = min(start + 1, stop), stop
    while fits < ahead:
        middle = (fits + ahead + 1) // 2
        if bytes_between(where, start, middle) <= limit:
            fits = middle
        else:
            ahead = middle - 1
    return fits
