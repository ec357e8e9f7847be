"""The log of one partition as a reader sees it: bucket and broker as one. The package contains only pure functions and
values."""

from __future__ import annotations

from tieredstore.partitions.log import OffsetWindow, PartitionLog
from tieredstore.partitions.position import Position
from tieredstore.partitions.selections import Assign, Selection, Subscribe, SubscribePattern

__all__ = [
    "Assign",
    "OffsetWindow",
    "PartitionLog",
    "Position",
    "Selection",
    "Subscribe",
    "SubscribePattern",
]
