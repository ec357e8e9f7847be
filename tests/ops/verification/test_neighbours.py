"""Tests of checks between segments: reading them one after another finds the same as a catalog of all."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.records.partition_history import PARTITION, Copy, make_segment, partition_copies
from tests.support.records.small_segments import memory_settings
from tieredstore.backends.base import ObjectInfo
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.lineage import ruling_segment, trace_lineage
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.format.keys import Suffix, main_path
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.neighbours import Neighbours
from tieredstore.ops.verification.selection import ClaimedOffsets, Level, Subject

K = FindingKind
LOST = (K.GAP, K.LEFT_BEHIND)
BUCKET = Bucket(memory_settings(1024), MemoryObjectStore())


def subject_of(segment: RemoteLogSegmentMetadata, suffix: Suffix = Suffix.MANIFEST) -> Subject:
    path = main_path(segment.remote_log_segment_id, segment.start_offset)
    info = ObjectInfo(f"{path}.{suffix.value}", 1)
    objects = SegmentObjects(segment.remote_log_segment_id, segment.start_offset, ((suffix, info),), path)
    return Subject(objects, Level.LISTING, BUCKET)


def findings_of(segments: Iterable[RemoteLogSegmentMetadata]) -> list[Finding]:
    """Return the findings about segments, in the order of their keys."""
    neighbours, findings = Neighbours(), list[Finding]()
    for segment in sorted(segments, key=lambda s: main_path(s.remote_log_segment_id, s.start_offset)):
        claimed = ClaimedOffsets(segment.end_offset, segment.segment_leader_epochs)
        findings += neighbours.take(subject_of(segment), claimed)
    return [*findings, *neighbours.finish()]


def told(findings: Iterable[Finding], *kinds: FindingKind) -> set[int]:
    """Return the offsets that findings of these kinds are about."""
    extents = [finding.offsets for finding in findings if finding.kind in kinds and finding.offsets is not None]
    return {offset for first, last in extents for offset in range(first, last + 1)}


@settings(max_examples=examples(200))
@given(partition_copies())
def test_what_is_told_as_lost_no_reader_gets_and_what_is_stored_nowhere_is_told(copies: list[Copy]) -> None:
    segments = [copy.segment for copy in copies]
    ruler = ruling_segment(segments)
    history = next(copy.history for copy in copies if copy.segment == ruler)
    lineage = trace_lineage(segments, ruler, history)
    findings = findings_of(segments)
    read = {offset for span in lineage.spans for offset in range(span.start, span.stop)}
    stored = {offset for s in segments for offset in range(s.start_offset, s.end_offset + 1)}
    absent = {offset for gap in lineage.gaps for offset in range(gap.start, gap.stop)} - stored
    assert not told(findings, *LOST) & read
    assert absent <= told(findings, *LOST)


def kinds_of(*segments: RemoteLogSegmentMetadata) -> list[tuple[FindingKind, tuple[int, int] | None]]:
    return [(finding.kind, finding.offsets) for finding in findings_of(segments)]


def test_an_unclean_election_leaves_a_tail_behind() -> None:
    old, new = make_segment(0, 199, ((0, 0),), number=1), make_segment(100, 149, ((0, 100), (1, 120)), number=2)
    tail, later = make_segment(200, 299, ((0, 200),), number=3), make_segment(150, 180, ((1, 150),), number=4)
    assert kinds_of(old, new, later) == [(K.OVERLAP, (100, 149))]
    assert kinds_of(old, new, later, tail) == [(K.OVERLAP, (100, 149)), (K.LEFT_BEHIND, (200, 299))]


def test_what_the_deposed_leader_shipped_is_lost_only_where_the_new_one_goes_on_without_it() -> None:
    """The old leader's segments are abandoned, and the new leader's segments end at other offsets. Only offsets
    350 to 369 are lost, because no segment of the new leader has them.
    """
    old = [make_segment(start, start + 99, ((0, start),), number=start) for start in (0, 100, 200, 300)]
    new = [
        make_segment(100, 249, ((0, 100), (1, 150)), number=1000),
        make_segment(250, 349, ((1, 250),), number=1250),
        make_segment(370, 399, ((1, 370),), number=1370),
    ]
    assert kinds_of(*old, *new) == [
        (K.OVERLAP, (100, 199)),
        (K.LEFT_BEHIND_COVERED, (200, 299)),
        (K.LEFT_BEHIND, (350, 369)),
    ]
    (lost,) = (finding for finding in findings_of([*old, *new]) if finding.kind is K.LEFT_BEHIND)
    assert lost.start_offset == 300
    assert kinds_of(*old, *new[:2])[-1] == (K.LEFT_BEHIND, (350, 399))


def test_a_copy_of_the_old_leader_within_the_new_ones_is_covered() -> None:
    new, old = make_segment(0, 199, ((0, 0), (1, 120)), number=1), make_segment(130, 180, ((0, 130),), number=2)
    assert kinds_of(new, old) == [(K.LEFT_BEHIND_COVERED, (130, 180))]
    assert kinds_of(new, make_segment(100, 110, ((0, 100),), number=2)) == [(K.OVERLAP, (100, 110))]


def test_what_a_damaged_manifest_hides_is_no_gap_and_what_comes_later_is() -> None:
    first, hidden, third, last = (make_segment(start, start + 9, ((0, start),)) for start in (0, 10, 20, 40))
    neighbours, kinds = Neighbours(), list[FindingKind]()
    for segment in (first, hidden, third, last):
        claimed = None if segment is hidden else ClaimedOffsets(segment.end_offset, segment.segment_leader_epochs)
        kinds += [finding.kind for finding in neighbours.take(subject_of(segment), claimed)]
    assert kinds == [K.GAP]


def test_objects_without_a_manifest_in_a_gap_are_named_there() -> None:
    neighbours = Neighbours()
    first, leftover, last = (make_segment(start, start + 9, ((0, start),)) for start in (0, 10, 20))
    assert not list(neighbours.take(subject_of(first), ClaimedOffsets(9)))
    assert not list(neighbours.take(subject_of(leftover, Suffix.LOG), None))
    (gap,) = neighbours.take(subject_of(last), ClaimedOffsets(29))
    assert (gap.kind, gap.offsets) == (K.GAP, (10, 19))
    assert "objects without a manifest" in gap.detail


def test_partitions_and_topics_are_apart_and_each_id_of_a_topic_is_told_once() -> None:
    other = [TopicIdPartition(Uuid(bytes([number] * 16)), PARTITION.topic, 3) for number in (1, 2)]
    segments = [make_segment(0, 9, ((5, 0),)), *(make_segment(100, 109, ((0, 100),), where=where) for where in other)]
    assert kinds_of(*segments, make_segment(10, 19, ((5, 10),))) == [(K.RECREATED_TOPIC, None)] * 2


def test_segments_that_name_no_epoch_are_a_log_by_offsets() -> None:
    assert kinds_of(make_segment(0, 9, ()), make_segment(12, 19, ())) == [(K.GAP, (10, 11))]
