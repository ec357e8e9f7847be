"""The continuation of a partition from an offset: the broker, the bucket, or nowhere yet. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.consumer.settings import Mode
from tieredstore.limits import MAX_OFFSET

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.catalog.problems import Problem
    from tieredstore.model import Uuid

LiveSpan: TypeAlias = tuple[int, int]
"""The broker's offsets: its first, and its end (exclusive)."""


@dataclass(frozen=True, slots=True)
class OnBroker:
    """The broker has the offset, or it is its end."""


@dataclass(frozen=True, slots=True)
class InBucket:
    """The bucket has the offsets from there up to ``stop``, all decided; look again at ``stop``."""

    stop: int


@dataclass(frozen=True, slots=True)
class Waits:
    """The next record is not available yet: not written, not uploaded, or not decided."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The offsets up to ``stop`` are nowhere, and later ones exist."""

    stop: int


@dataclass(frozen=True, slots=True)
class EndsEarlier:
    """The broker's log ends at ``end``, before the position."""

    end: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The segment after the bucket's end is unreadable."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """Neither log has reached the offset, or both begin after it: a reset is due."""


@dataclass(frozen=True, slots=True)
class Cut:
    """From ``at`` on, before the position, a later leader epoch has written another log."""

    at: int


@dataclass(frozen=True, slots=True)
class OtherLife:
    """The topic was re-created as ``topic_id``."""

    topic_id: Uuid | None


@dataclass(frozen=True, slots=True)
class Unset:
    """There is no start offset, and the reset is ``error``."""


Placement: TypeAlias = (
    OnBroker | InBucket | Waits | Lost | EndsEarlier | Unreadable | OutOfRange | Cut | OtherLife | Unset
)


def run_stop(lineage: Lineage | None, position: int) -> int | None:
    """Return the end of the contiguous segments from ``position``; None if no segment has it."""
    if lineage is None or not lineage.earliest_offset <= position < lineage.end_offset:
        return None
    gaps = lineage.gaps_between(position, lineage.end_offset)
    if gaps and gaps[0].start <= position:
        return None
    return gaps[0].start if gaps else lineage.end_offset


def place(mode: Mode, position: int, live: LiveSpan | None, lineage: Lineage | None, decided: int | None) -> Placement:
    """Decide where a partition continues.

    ``live`` is None if the broker lacks the partition, or is not asked; ``lineage`` if the bucket lacks it. ``decided``
    is the end of the bucket's readable records from ``position``, None if there are none.
    """
    on_broker = mode is not Mode.REMOTE_ONLY and live is not None and live[0] <= position <= live[1]
    if on_broker and mode is Mode.KAFKA_PREFERRED:
        return OnBroker()
    if lineage is not None and decided is not None and decided > position:
        return InBucket(_stop(mode, position, live, lineage, decided))
    if on_broker:
        return OnBroker()
    if mode is Mode.REMOTE_ONLY or live is None:
        return _place_without_broker(position, live, lineage)
    return _place_between(position, live, lineage)


def lags(position: int, end: int, lineage: Lineage) -> bool:
    """Return True if a partition read from the broker lags by a whole segment of the bucket."""
    return any(position <= span.start and span.stop <= end for span in reversed(lineage.spans))


def _stop(mode: Mode, position: int, live: LiveSpan | None, lineage: Lineage, decided: int) -> int:
    """Return the end of the first segment after which the broker has the log, if it is preferred."""
    if mode is not Mode.KAFKA_PREFERRED or live is None:
        return decided
    # Not the broker's beginning: retention moves that, and each round would change sides.
    ends = (span.stop for span in lineage.spans if span.stop > position and span.stop >= live[0])
    return min(next(ends, decided), decided)


def _place_without_broker(position: int, live: LiveSpan | None, lineage: Lineage | None) -> Placement:
    if lineage is None:
        return Waits()
    earliest = lineage.earliest_offset
    if position < earliest:
        return OutOfRange() if live is None or position < live[0] else Lost(earliest)
    later = _next_start(position, lineage)
    if later is not None:
        return Lost(later)
    hidden = lineage.unreadable_between(position, MAX_OFFSET, starts_there=True, stops_there=False)
    behind = [problem for problem in hidden if problem.start_offset >= position]
    return Unreadable(behind[0]) if behind else Waits()


def _place_between(position: int, live: LiveSpan, lineage: Lineage | None) -> Placement:
    """Place an offset that the broker lacks, and that the bucket lacks or has not decided."""
    start, end = live
    earliest = start if lineage is None else min(start, lineage.earliest_offset)
    last = end if lineage is None else max(end, lineage.end_offset)
    if not earliest <= position <= last:
        return OutOfRange()
    if position > end:
        return EndsEarlier(end)
    assert lineage is not None  # without it the broker has everything from the earliest to the last
    later = _next_start(position, lineage)
    if later is None and position < lineage.end_offset:
        # An undecided transaction whose beginning the broker has deleted: a future segment decides it.
        return Waits()
    return Lost(start if later is None else min(start, later))


def _next_start(position: int, lineage: Lineage) -> int | None:
    """Return the start of the next run of segments after a hole at or after the position."""
    gaps = lineage.gaps_between(max(position, lineage.earliest_offset), lineage.end_offset)
    return gaps[0].stop if gaps else None
