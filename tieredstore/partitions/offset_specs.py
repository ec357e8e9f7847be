"""Where reading starts or ends, before any log has been looked at. All frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tieredstore.model import TopicPartition

EARLIEST_OFFSET: Final = -2
"""Stands for the earliest offset in :class:`SpecificOffsets`."""

LATEST_OFFSET: Final = -1
"""Stands for the end of the log in :class:`SpecificOffsets`."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset that there is, of each partition."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log, of each partition."""


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset for each partition; -2 is the earliest one and -1 the end."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class GlobalTimestamp:
    """In each partition the first record of this time or later."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PartitionTimestamps:
    """The first record of a time (ms) or later; a time for each partition."""

    timestamps: Mapping[TopicPartition, int]


OffsetSpec: TypeAlias = Earliest | Latest | SpecificOffsets | GlobalTimestamp | PartitionTimestamps
"""Where reading starts or ends in each of the partitions."""
