"""What became of each segment of a key rotation."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tieredstore.catalog.listing import SegmentObjects


class RotationOutcome(enum.StrEnum):
    """What became of one segment."""

    ROTATED = "rotated"
    """Its data key is wrapped by the active pair now; in a dry run it would be."""

    ACTIVE = "active"
    """Its data key was wrapped by the active pair already."""

    PLAIN = "plain"
    """It is not encrypted."""

    UNKNOWN_KEY = "unknown_key"
    """Its pair is not on the ring: left alone."""

    WRONG_KEY = "wrong_key"
    """The pair of this id does not open its data key: left alone."""

    DAMAGED = "damaged"
    """Its manifest cannot be read, or is that of another segment: left alone."""

    CHANGED = "changed"
    """Its manifest was changed by somebody else each time it was looked at: left alone, try again."""

    GONE = "gone"
    """It was deleted meanwhile."""

    @property
    def is_failure(self) -> bool:
        """Whether the segment still needs another pair than the active one, and will after a second run too."""
        return self in {self.UNKNOWN_KEY, self.WRONG_KEY, self.DAMAGED}


@dataclass(frozen=True, slots=True)
class RotationStep:
    """One segment of a rotation: ``key_id`` is the pair before it, ``reason`` says why it was left alone."""

    objects: SegmentObjects
    outcome: RotationOutcome
    key_id: str | None = None
    reason: str | None = None
