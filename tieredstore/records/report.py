"""What a read has to say beside its records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.catalog.lineage import Gap, Lineage

if TYPE_CHECKING:
    from tieredstore.catalog.problems import Problem
    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.kafka.records import SkippedBatch
    from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition

LostOffsets: TypeAlias = Gap
"""Offsets that were asked for and that no segment holds: a gap, or what lay before the log's beginning."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction that the segments do not tell the outcome of; its first record has ``first_offset``.

    ``segments_end`` is the offset up to which segments follow each other from there.
    """

    partition: TopicIdPartition
    producer_id: int
    first_offset: int
    segments_end: int

    def __str__(self) -> str:
        return (
            f"the transaction of producer {self.producer_id} that began at offset {self.first_offset} of "
            f"{self.partition} has no outcome in the segments, which reach to offset {self.segments_end - 1}; the read "
            f"ends at offset {self.first_offset}"
        )


@dataclass(frozen=True, slots=True)
class SkippedInSegment:
    """A damaged batch of ``segment`` that was left out."""

    segment: RemoteLogSegmentMetadata
    batch: SkippedBatch

    def __str__(self) -> str:
        return (
            f"the record batch at byte {self.batch.position} of {self.segment} (offset {self.batch.base_offset}) is "
            f"left out: it {self.batch.reason}"
        )


@dataclass(slots=True)
class ReadReport:
    """Grows while its read goes on; whole once the read is exhausted.

    ``next_offset`` is where a following read has to begin: all records before it were given, or are not to be.
    ``lost`` and ``unreadable``, segments that nobody can read and that may hide records, are known before the first
    record, but for what lies behind the end of the last segment's log though it is said to be there. ``aborted`` are
    the transactions whose records are left out; of a segment that is being read those too that lie ahead.
    """

    next_offset: int
    lost: tuple[LostOffsets, ...] = ()
    undecided: Undecided | None = None
    skipped: list[SkippedInSegment] = field(default_factory=list[SkippedInSegment])
    unreadable: tuple[Problem, ...] = ()
    aborted: set[AbortedTransaction] = field(default_factory=set["AbortedTransaction"])


def lost_offsets(lineage: Lineage, start: int, stop: int) -> Iterator[LostOffsets]:
    """What of the offsets is in no segment, though later ones are in one: before the log's beginning, and in gaps."""
    # Retention took these, or they were never copied: a consumer would be out of range here.
    if start < min(stop, lineage.earliest_offset):
        yield LostOffsets(lineage.partition, start, min(stop, lineage.earliest_offset))
    yield from lineage.gaps_between(start, stop)
