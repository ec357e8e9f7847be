"""What comes of the steps by which partitions are shipped."""

from __future__ import annotations

import enum
from typing import Final


class Step(enum.Enum):
    """What came of a step."""

    SHIPPED = "shipped"
    STORED = "stored"
    """It was in the store already."""
    HOLE = "hole"
    WAITS = "waits"
    IDLE = "idle"


MOVED_ON: Final = frozenset({Step.SHIPPED, Step.STORED, Step.HOLE})
"""The steps that have moved a watermark."""
