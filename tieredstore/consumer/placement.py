"""The decision where a partition continues from an offset: on the broker, in the bucket, or nowhere yet. This module
does no I/O."""

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
"""The broker's first offset, and its end (exclusive)."""


@dataclass(frozen=True, slots=True)
class OnBroker:
    """The broker has the offset, or the broker's log ends at the offset."""


@dataclass(frozen=True, slots=True)
class InBucket:
    """The bucket has the records up to ``stop`` (exclusive), and none of them is in an open transaction. At ``stop``,
    another look-up follows."""

    stop: int


@dataclass(frozen=True, slots=True)
class Waits:
    """The next record is not available yet: it is not written, not uploaded, or in an open transaction."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Neither bucket nor broker has the offsets up to ``stop``, but one of the two has later offsets."""

    stop: int


@dataclass(frozen=True, slots=True)
class EndsEarlier:
    """The broker's log ends at ``end``, before the position."""

    end: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The segment that follows the bucket's readable records cannot be read."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The offset is before the beginning or after the end of both logs, so ``auto.offset.reset`` applies."""


@dataclass(frozen=True, slots=True)
class Overwritten:
    """The log was truncated at the offset ``at``, before the position, and a later leader has written other records
    there."""

    at: int


@dataclass(frozen=True, slots=True)
class Recreated:
    """The topic was re-created as ``topic_id``."""

    topic_id: Uuid | None


@dataclass(frozen=True, slots=True)
class Unset:
    """The partition has no start offset, and the reset policy is ``error``."""


Placement: TypeAlias = (
    OnBroker | InBucket | Waits | Lost | EndsEarlier | Unreadable | OutOfRange | Overwritten | Recreated | Unset
)


def beginning(lineage: Lineage) -> int:
    """Return the first offset of the bucket's log, including unreadable segments before the first readable one."""
    first = lineage.earliest_offset
    hidden = lineage.unreadable_between(first, first, starts_there=False, stops_there=True)
    return min([first, *(problem.start_offset for problem in hidden)])


def place(mode: Mode, position: int, live: LiveSpan | None, lineage: Lineage | None, decided: int) -> Placement:
    """Decide where a partition continues.

    ``live`` is None if the broker lacks the partition, or is not asked. ``lineage`` is None if the bucket lacks the
    partition. ``decided`` is the end of the bucket's readable records from ``position`` on.
    """
    on_broker = mode is not Mode.REMOTE_ONLY and live is not None and live[0] <= position <= live[1]
    if on_broker and mode is Mode.KAFKA_PREFERRED:
        return OnBroker()
    if lineage is not None and decided > position:
        return InBucket(_stop(mode, position, live, lineage, decided))
    if on_broker:
        return OnBroker()
    if mode is Mode.REMOTE_ONLY or live is None:
        return _place_without_broker(position, live, lineage)
    return _place_between(position, live, lineage)


def lags(position: int, end: int, lineage: Lineage) -> bool:
    """Return True if the bucket has at least one whole segment between ``position`` and ``end``."""
    return any(position <= span.start and span.stop <= end for span in reversed(lineage.spans))


def _stop(mode: Mode, position: int, live: LiveSpan | None, lineage: Lineage, decided: int) -> int:
    """Return where to stop reading the bucket.

    If the broker is preferred, stop at the end of the first segment that reaches into the broker's log.
    """
    if mode is not Mode.KAFKA_PREFERRED or live is None:
        return decided
    # Do not stop at the broker's first offset itself, because retention soon deletes that record, and the reader would
    # have to return to the bucket.
    ends = (span.stop for span in lineage.spans if span.stop > position and span.stop >= live[0])
    return min(next(ends, decided), decided)


def _place_without_broker(position: int, live: LiveSpan | None, lineage: Lineage | None) -> Placement:
    if lineage is None:
        return Waits()
    if position < beginning(lineage):
        return OutOfRange() if live is None or position < live[0] else Lost(lineage.earliest_offset)
    later = lineage.start_after_gap(position)
    if later is not None:
        return Lost(later)
    hidden = lineage.unreadable_between(position, MAX_OFFSET, starts_there=True, stops_there=False)
    behind = [problem for problem in hidden if problem.start_offset >= position]
    return Unreadable(behind[0]) if behind else Waits()


def _place_between(position: int, live: LiveSpan, lineage: Lineage | None) -> Placement:
    """Place an offset that the broker does not have. The bucket does not have the offset either, or has it only in an
    open transaction."""
    start, end = live
    earliest = start if lineage is None else min(start, beginning(lineage))
    last = end if lineage is None else max(end, lineage.end_offset)
    if not earliest <= position <= last:
        return OutOfRange()
    if position > end:
        return EndsEarlier(end)
    assert lineage is not None  # without the bucket's log, all offsets in range are the broker's
    later = lineage.start_after_gap(position)
    if later is None and position < lineage.end_offset:
        # The broker has deleted the beginning of the open transaction, so wait for the upload of the segment with the
        # transaction's end.
        return Waits()
    return Lost(start if later is None else min(start, later))
