"""Segments that were found but cannot be used, with the reasons."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import CorruptDataError, ObjectArchivedError, UnknownKeyError, WrongKeyError
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import RemoteLogSegmentId, TopicPartition

UNREADABLE: Final = (CorruptDataError, ObjectArchivedError, UnknownKeyError, WrongKeyError)
"""Errors of a segment that cannot be read, although it exists. A retry does not help."""


class ProblemKind(enum.Enum):
    """Reason why a segment cannot be used. The value is a clause for messages."""

    INCOMPLETE = "not all of its objects are there"
    DAMAGED = "its description is damaged"
    ARCHIVED = "its description is archived"
    UNREADABLE = "its description cannot be decrypted"


_HOLD_RECORDS: Final = (ProblemKind.DAMAGED, ProblemKind.ARCHIVED, ProblemKind.UNREADABLE)


@dataclass(frozen=True, slots=True)
class Problem:
    """A segment that was found but cannot be used, with the reason; ``detail`` is a sentence.

    If an incomplete segment ``has_manifest``, all its objects once existed, because the manifest is written last.
    """

    kind: ProblemKind
    segment_id: RemoteLogSegmentId
    start_offset: int
    detail: str
    has_manifest: bool = False

    @property
    def where(self) -> TopicPartition:
        """Topic and partition."""
        partition = self.segment_id.topic_id_partition
        return partition.topic, partition.partition

    @property
    def is_loss(self) -> bool:
        """True if the segment was once whole: its records were stored, but cannot be read now."""
        return self.kind in _HOLD_RECORDS or self.has_manifest

    def __str__(self) -> str:
        where = self.segment_id.topic_id_partition
        return f"segment {self.segment_id.id} of {where} at offset {self.start_offset} is ignored: {self.detail}"


def unreadable_between(
    problems: Iterable[Problem],
    readable: Sequence[tuple[int, int]],
    start: int,
    stop: int,
    *,
    starts_there: bool,
    stops_there: bool,
) -> Iterator[Problem]:
    """Yield the problems of segments that may have records in the window from ``start`` to ``stop`` (half-open).

    ``readable`` are the readable offsets (half-open), ascending. If only a segment's start is known, the segment may
    extend to the next readable offset.

    ``starts_there`` is True if the caller named the window's start as an offset. ``stops_there`` is True if the caller
    named its stop as an offset. Any other border comes from a look-up of the log's beginning, of its end, or of a time.
    A look-up does not see the records of an unreadable segment. So the result includes a problem right outside such a
    border.

    A segment that lost objects is included only at the log's end, or right before the window. Elsewhere, the read
    reports the segment's offsets as a gap. Before the log's first readable offset, retention may be deleting it.
    """
    for problem in problems:
        first = problem.start_offset
        if not problem.is_loss or any(low <= first < high for low, high in readable):
            continue
        end = min((low for low, _ in readable if low > first), default=MAX_OFFSET)
        is_first = not any(low < first for low, _ in readable)
        if problem.has_manifest and end < MAX_OFFSET and (is_first or start != end):
            continue
        is_within = first < stop and start < end
        is_before = not starts_there and end == start
        # A segment is right behind the window if no readable offset lies between the window's stop and the segment's
        # start.
        is_behind = not stops_there and first >= stop and not any(stop < high and low < first for low, high in readable)
        if is_within or is_before or is_behind:
            yield problem
