"""Divides a verification for several processes: one process compares a partition's segments, the others check the
segments' content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.listing import Scope, SegmentObjects
from tieredstore.format.keys import Suffix, main_path
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.neighbours import find_recreated_topic
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.verification import verify

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket

_BETWEEN: Final = frozenset(
    {
        FindingKind.GAP,
        FindingKind.OVERLAP,
        FindingKind.COPIED_TWICE,
        FindingKind.LEFT_BEHIND,
        FindingKind.LEFT_BEHIND_COVERED,
    }
)


@dataclass(frozen=True, slots=True)
class VerifyPart:
    """Segments of one partition that begin at or after ``first_offset`` and before ``stop_offset`` (None: no limit).
    The segment at ``before_offset`` comes before them, and may leave transactions open. 0 is the partition's beginning.

    With ``is_between``, the part only compares the manifests of all segments of the partition with each other.
    ``known`` are findings made while planning.
    """

    partition: TopicIdPartition
    first_offset: int = 0
    stop_offset: int | None = None
    before_offset: int = 0
    is_between: bool = False
    known: tuple[Finding, ...] = ()


def verify_part(
    bucket: Bucket, part: VerifyPart, selection: Selection, *, parallel: int | None = None
) -> Iterator[Finding]:
    """Yield the findings of a part, except findings made while planning."""
    scope = Scope.of(part.partition, part.before_offset)
    if part.is_between:
        selection = Selection(Level.LISTING, since_ms=selection.since_ms)
    selection = replace(selection, first_offset=part.first_offset)
    for checked in verify(bucket, scope, selection, parallel=parallel, stop_offset=part.stop_offset):
        # Skip keys with non-ASCII digits. The plan has reported these keys, and no range of offsets contains them.
        yield from (
            finding
            for finding in checked.findings
            if finding.kind is not FindingKind.FOREIGN_DIGITS
            and (finding.kind in _BETWEEN) == part.is_between
            # Another part reports the findings of the segment before this part.
            and (finding.start_offset or 0) >= part.first_offset
        )


def plan_parts(listed: Iterable[SegmentObjects], most_segments: int) -> Iterator[VerifyPart]:
    """Divide a listing into parts. For each partition, one part compares the segments. Each further part checks the
    content of about ``most_segments`` segments.

    Memory does not hold the listing. Segments with the same base offset are in the same part. So each segment is
    checked once.
    """
    topic_ids: dict[str, Uuid] = {}
    partition: TopicIdPartition | None = None
    first = before = committed = last = count = 0
    for objects in listed:
        where, start = objects.segment_id.topic_id_partition, objects.start_offset
        if where != partition:
            if partition is not None:
                yield VerifyPart(partition, first, before_offset=before)
            yield VerifyPart(where, is_between=True, known=tuple(find_recreated_topic(topic_ids, where)))
            partition, first, before, committed, last, count = where, 0, 0, 0, start, 0
        elif count >= most_segments and start > last:
            yield VerifyPart(where, first, start, before)
            first, before, count = start, committed, 0
        if objects.main_path != main_path(objects.segment_id, start):
            yield VerifyPart(where, stop_offset=0, known=(_foreign(objects),))
        if objects.find(Suffix.MANIFEST) is not None:
            committed = start
        last, count = max(last, start), count + 1
    if partition is not None:
        yield VerifyPart(partition, first, before_offset=before)


def _foreign(objects: SegmentObjects) -> Finding:
    return Finding(
        FindingKind.FOREIGN_DIGITS,
        objects.segment_id.topic_id_partition,
        "the offset is not written in ASCII digits",
        objects.start_offset,
        objects.segment_id.id,
    )
