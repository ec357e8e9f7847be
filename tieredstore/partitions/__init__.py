"""The log of one partition as a reader sees it: the bucket's and the broker's part in one. All functions are pure."""

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
