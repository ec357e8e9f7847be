"""What becomes of each segment that is copied from one store to another."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tieredstore.catalog.listing import SegmentObjects
from tieredstore.errors import TieredStoreError
from tieredstore.model import TopicIdPartition, Uuid


class CopyOutcome(enum.StrEnum):
    """What became of one segment."""

    COPIED = "copied"
    """It stands in the target, verified; in a dry run it would be copied."""

    THERE = "there"
    """It stood in the target, equal."""

    LEFTOVER = "leftover"
    """The source has no manifest of it, as of a copy under way: there is nothing to copy."""

    GONE = "gone"
    """It was deleted from the source meanwhile."""

    FAILED = "failed"
    """It cannot be copied, for the reason of the step's error; the others can."""


class CopyWay(enum.StrEnum):
    """What is done to a segment on its way."""

    VERBATIM = "verbatim"
    """Nothing: the same bytes under the same ids."""

    REWRAPPED = "rewrapped"
    """Its data key is wrapped by another pair; the other bytes are the same, and so are the ids."""

    TRANSCODED = "transcoded"
    """Log and indexes are decoded and written anew, under a segment id of their own."""


@dataclass(frozen=True, slots=True)
class CopyStep:
    """One segment of a copy.

    ``objects`` are those of the source; ``last_offset`` is inclusive, None where nobody says. ``segment_id`` is that
    of the copy, None where there is none. ``sent`` are the bytes that were written (in a dry run: would be, of
    transcoded segments as many as the source has). ``error`` says why it failed.
    """

    objects: SegmentObjects
    outcome: CopyOutcome
    way: CopyWay | None = None
    last_offset: int | None = None
    segment_id: Uuid | None = None
    sent: int = 0
    error: TieredStoreError | None = None

    @property
    def partition(self) -> TopicIdPartition:
        """The partition that the segment is of."""
        return self.objects.segment_id.topic_id_partition
