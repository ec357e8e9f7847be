"""The facts that a read reports besides its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.catalog.lineage import Gap

if TYPE_CHECKING:
    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.kafka.records import SkippedBatch
    from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition

LostOffsets: TypeAlias = Gap
"""Requested offsets that no segment has, although segments have later offsets."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction that begins at ``first_offset``, and whose outcome (commit or abort) is not in the segments.

    ``segments_end`` is the offset at which the segments after ``first_offset`` end or have a gap.
    """

    partition: TopicIdPartition
    producer_id: int
    first_offset: int
    segments_end: int

    def __str__(self) -> str:
        return (
            f"the transaction of producer {self.producer_id} that began at offset {self.first_offset} of "
            f"{self.partition} has no outcome in the segments, which end at offset {self.segments_end - 1}; the read "
            f"ends before offset {self.first_offset}"
        )


@dataclass(frozen=True, slots=True)
class SkippedInSegment:
    """A damaged batch of ``segment`` that the read has left out."""

    segment: RemoteLogSegmentMetadata
    batch: SkippedBatch

    def __str__(self) -> str:
        return (
            f"the record batch at byte {self.batch.position} of {self.segment} (offset {self.batch.base_offset}) is "
            f"left out: it {self.batch.reason}"
        )


@dataclass(slots=True)
class ReadReport:
    """The results of a read. They are complete once the read is exhausted.

    The next read should start at ``next_offset``, because every earlier record was returned or deliberately left out.
    If the log of the last segment ends earlier than its manifest says, ``lost`` has the missing offsets.

    ``aborted`` are the transactions whose records are left out. During the read, they may include transactions of the
    current segment that the read has not yet reached.
    """

    next_offset: int
    lost: tuple[LostOffsets, ...] = ()
    undecided: Undecided | None = None
    skipped: list[SkippedInSegment] = field(default_factory=list[SkippedInSegment])
    aborted: set[AbortedTransaction] = field(default_factory=set["AbortedTransaction"])
