"""One partition's log as a reader sees it, bucket and broker as one: what is decided of it. Values in, values out."""

from __future__ import annotations

from tieredstore.partitions.log import OffsetWindow, PartitionLog
from tieredstore.partitions.offset_specs import (
    Earliest,
    GlobalTimestamp,
    Latest,
    OffsetSpec,
    PartitionTimestamps,
    SpecificOffsets,
)
from tieredstore.partitions.position import Position
from tieredstore.partitions.selections import Assign, Selection, Subscribe, SubscribePattern

__all__ = [
    "Assign",
    "Earliest",
    "GlobalTimestamp",
    "Latest",
    "OffsetSpec",
    "OffsetWindow",
    "PartitionLog",
    "PartitionTimestamps",
    "Position",
    "Selection",
    "SpecificOffsets",
    "Subscribe",
    "SubscribePattern",
]
