"""Sums over a store's segments: by topic, by partition, or by the day of the newest record."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from tieredstore.format.keys import Suffix
from tieredstore.model import Uuid
from tieredstore.ops.listing import ListedSegment

_DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)
_LAST_DAY: Final = (date.max - _EPOCH).days


class UsageBy(enum.StrEnum):
    """How sums are grouped."""

    TOPIC = "topic"
    PARTITION = "partition"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class UsageKey:
    """The topic, partition or day that a sum covers. Fields that the grouping does not use are None. An unknown ``day``
    is None too.
    """

    topic: str | None = None
    topic_id: Uuid | None = None
    partition: int | None = None
    day: date | None = None

    @classmethod
    def of(cls, segment: ListedSegment, by: UsageBy) -> UsageKey:
        """Return the key of the sum to which the segment is added."""
        if by is UsageBy.DAY:
            return cls(day=_day(segment.max_timestamp_ms))
        where = segment.partition
        return cls(where.topic, where.topic_id, where.partition if by is UsageBy.PARTITION else None)


@dataclass(slots=True)
class Usage:
    """Sums over segments. ``size`` is the size of the logs before compression, for segments with a readable manifest.

    ``sized_stored`` is the stored size of the segments with a readable manifest. ``leftovers`` counts segments without
    a manifest; they are not in ``segments``. Segments with an unreadable manifest are in ``damaged`` and ``segments``.
    """

    segments: int = 0
    leftovers: int = 0
    damaged: int = 0
    objects: int = 0
    stored_size: int = 0
    size: int = 0
    sized_stored: int = 0

    def add(self, segment: ListedSegment) -> None:
        """Count a segment."""
        self.objects += len(segment.objects.objects)
        self.stored_size += segment.objects.stored_size
        if segment.objects.find(Suffix.MANIFEST) is None:
            self.leftovers += 1
        else:
            self.segments += 1
            self.damaged += segment.damage is not None
        if segment.stored is not None:
            self.size += segment.stored.metadata.segment_size_in_bytes
            self.sized_stored += segment.objects.stored_size


def usage_of(listed: Iterable[ListedSegment], by: UsageBy) -> Mapping[UsageKey, Usage]:
    """Sum a listing. Memory holds only the sums."""
    sums: dict[UsageKey, Usage] = {}
    for segment in listed:
        sums.setdefault(UsageKey.of(segment, by), Usage()).add(segment)
    return sums


def _day(timestamp_ms: int | None) -> date | None:
    days = None if timestamp_ms is None else timestamp_ms // _DAY_MS
    # Return None for a time beyond the calendar, because a record's timestamp may be any number.
    return None if days is None or days > _LAST_DAY else _EPOCH + timedelta(days=days)
