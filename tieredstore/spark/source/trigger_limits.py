"""The part of the waiting offsets that a trigger takes, and its wait for more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from tieredstore.errors import ConfigError
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicPartition
from tieredstore.partitions.log import OffsetWindow

Windows = dict[TopicPartition, OffsetWindow]
"""The offsets to read of each partition."""

DEFAULT_DELAY_MS: Final = 15 * 60 * 1000
"""The ``maxTriggerDelay`` of a limit without one."""

BytesBetween = Callable[[TopicPartition, int, int], int]
"""The approximate size of a partition's offsets (half-open); it never falls when the range grows."""


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of one trigger; None if absent. Offsets count, even those without a record."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_DELAY_MS

    def as_read_limit(self) -> ReadLimit:
        """Return the engine's form of these limits; it has none for several at once, and the first one represents all.

        No limit is as many rows as possible: ``ReadAllAvailable`` is left to ``Trigger.Once``, see :func:`is_once`.
        """
        if self.max_offsets is not None:
            return ReadMaxRows(self.max_offsets)
        if self.max_bytes is not None:
            return ReadMaxBytes(self.max_bytes)
        if self.min_offsets is not None:
            return ReadMinRows(self.min_offsets)
        return ReadMaxRows(MAX_OFFSET)

    def under(self, limit: ReadLimit) -> TriggerLimits:
        """Return the limits of a trigger with the engine's ``limit``: these if it passes their own form back.

        Raise ConfigError for a limit without a meaning for logs.
        """
        if limit == self.as_read_limit():
            return self
        match limit:
            case ReadAllAvailable():
                return TriggerLimits()
            case ReadMaxRows(max_rows=count):
                return TriggerLimits(max_offsets=count)
            case ReadMaxBytes(max_bytes=count):
                return TriggerLimits(max_bytes=count)
            case ReadMinRows(min_rows=count):
                return TriggerLimits(min_offsets=count, max_delay_ms=self.max_delay_ms)
            case _:
                raise ConfigError(f"a topic cannot be read by {type(limit).__name__}: it has offsets and bytes")

    def admit(self, windows: Windows, bytes_between: BytesBetween) -> dict[TopicPartition, int]:
        """Return the end of each of ``windows`` for this trigger.

        Each gets a share of the limit in proportion to its size, and at least one offset: a small partition does not
        wait for a large one, and the stream always progresses. So more than the limit is read only if one offset is
        more than a partition's share.
        """
        ends = {where: stop for where, (_, stop) in windows.items()}
        if self.max_offsets is not None:
            waiting = {where: stop - start for where, (start, stop) in windows.items() if stop > start}
            for where, share in shares(waiting, self.max_offsets).items():
                ends[where] = windows[where][0] + share
        if self.max_bytes is not None:
            # Within the remaining limit of offsets: both apply at once.
            ends = _within_bytes(
                {where: (windows[where][0], ends[where]) for where in ends}, self.max_bytes, bytes_between
            )
        return ends


def is_once(limit: ReadLimit) -> bool:
    """Return True if the trigger of ``limit`` is ``Trigger.Once``, for which the engine passes its own limit, not ours.

    It gives a source no other sign of that trigger.
    """
    return isinstance(limit, ReadAllAvailable)


def shares(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Split ``limit``, or everything waiting, in proportion to ``waiting``: at least 1 each."""
    if sum(waiting.values()) <= limit:
        return dict(waiting)
    rest = dict(waiting)
    # Their excess is taken from the others, more of which may then fall below one.
    while small := _below_one(rest, limit):
        limit -= len(small)
        for where in small:
            del rest[where]
    return dict.fromkeys(waiting, 1) | _in_proportion(rest, limit)


def _below_one(waiting: Mapping[TopicPartition, int], limit: int) -> list[TopicPartition]:
    """Return those whose share of the limit is less than one offset."""
    total = sum(waiting.values())
    return [where for where, size in waiting.items() if size * limit < total]


def _in_proportion(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide all of ``limit``; remainders go to those that lose most."""
    total = sum(waiting.values())
    parts = {where: divmod(limit * size, total) for where, size in waiting.items()}
    left = limit - sum(whole for whole, _ in parts.values())
    # By name if equal, so that the same windows always get the same ends.
    favoured = set(sorted(parts, key=lambda where: (-parts[where][1], where))[:left])
    return {where: whole + (where in favoured) for where, (whole, _) in parts.items()}


class TriggerDelay:
    """Lets a trigger wait for ``min_offsets``, at most ``max_delay_ms`` after the one before.

    The first trigger with something to read does not wait. ``clock`` returns monotonic seconds. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def has_to_wait(self, limits: TriggerLimits, waiting: int) -> bool:
        """Return True if ``waiting`` offsets are too few yet; otherwise this is the trigger to wait after.

        Nothing is no trigger: records that come after the delay are read at once.
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
    """Return the greatest end in ``window`` with at most ``limit`` bytes before it, at least one offset on."""
    start, stop = window
    # By bisection: a size is arithmetic on known segments, and does not fall as the range grows.
    fits, ahead = min(start + 1, stop), stop
    while fits < ahead:
        middle = (fits + ahead + 1) // 2
        if bytes_between(where, start, middle) <= limit:
            fits = middle
        else:
            ahead = middle - 1
    return fits
