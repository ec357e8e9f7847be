"""What a garbage collection finds, and what becomes of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

from tieredstore.backends.base import AbandonedWrite
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.format.keys import ObjectKey
from tieredstore.model import TopicIdPartition


class GarbageOutcome(enum.StrEnum):
    """What became of one thing that nothing refers to."""

    DELETED = "deleted"
    """It is gone; in a dry run it would be."""

    YOUNG = "young"
    """It may be of a copy under way: left alone."""

    REFERENCED = "referenced"
    """It has a manifest by now: left alone."""

    UNKNOWN = "unknown"
    """It has a manifest, and the brokers' records never named it: left alone unless that is asked for."""

    HELD = "held"
    """It is under a legal hold: left alone."""

    LEFT = "left"
    """Nobody but the store can take it away."""

    GONE = "gone"
    """Somebody else took it away, or its writer is at work."""

    REFUSED = "refused"
    """The store refuses to delete it."""


class Forgotten(enum.StrEnum):
    """Why nobody reads a segment that has a manifest."""

    DELETED = "the brokers have deleted it"
    UNFINISHED = "the brokers take its copy for unfinished"
    NEVER_NAMED = "the brokers' records do not name it"


def written_ms(objects: SegmentObjects) -> int | None:
    """Return when the youngest object was written, by the store's clock; None where the store does not tell."""
    times = [info.modified_ms for _, info in objects.objects]
    return None if None in times else max(time for time in times if time is not None)


@dataclass(frozen=True, slots=True)
class Garbage:
    """Objects without a manifest, a segment that brokers have forgotten, or a write that did not end.

    ``name`` is the segment's path, or the write's key. ``size`` in bytes and ``modified_ms``, of the youngest part, are
    None where the store does not tell.
    """

    what: SegmentObjects | AbandonedWrite
    name: str
    partition: TopicIdPartition
    first_offset: int
    size: int | None
    modified_ms: int | None
    forgotten: Forgotten | None = None

    @classmethod
    def of_objects(cls, objects: SegmentObjects, forgotten: Forgotten | None = None) -> Self:
        """What a segment without a manifest has, or one that brokers have ``forgotten``."""
        where = objects.segment_id.topic_id_partition
        youngest = written_ms(objects)
        return cls(objects, objects.main_path, where, objects.start_offset, objects.stored_size, youngest, forgotten)

    @classmethod
    def of_write(cls, write: AbandonedWrite, place: ObjectKey) -> Self:
        """A write at a ``place`` of the layout."""
        where = place.segment_id.topic_id_partition
        return cls(write, write.key, where, place.start_offset, write.size, write.started_ms)

    @property
    def is_write(self) -> bool:
        """Whether it is a write that did not end, of which no listing has anything."""
        return isinstance(self.what, AbandonedWrite)


@dataclass(frozen=True, slots=True)
class GarbageStep:
    """One step of a collection."""

    garbage: Garbage
    outcome: GarbageOutcome
    reason: str | None = None
