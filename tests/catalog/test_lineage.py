"""Lineages compared with a model of a replicated partition, and with a rule applied offset by offset."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records.partition_history import PARTITION, Copy, make_segment, partition_copies
from tieredstore.catalog.lineage import (
    Gap,
    Lineage,
    Span,
    Superseded,
    check_segment,
    needs_history,
    ruling_segment,
    trace_lineage,
)
from tieredstore.errors import CorruptDataError, IndexesCorruptError, SegmentNotFoundError
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import RemoteLogSegmentMetadata


def ruling_copy(copies: list[Copy]) -> Copy:
    ruler = ruling_segment(copy.segment for copy in copies)
    return next(copy for copy in copies if copy.segment == ruler)


def traced(*segments: RemoteLogSegmentMetadata, history: LeaderEpochs | None = None) -> Lineage:
    return trace_lineage(segments, ruling_segment(segments), history)


def extents(lineage: Lineage) -> list[tuple[int, int, int]]:
    """Return the number of each segment and the offsets it serves."""
    return [
        (int.from_bytes(span.segment.remote_log_segment_id.id.bytes, "big"), span.start, span.stop)
        for span in lineage.spans
    ]


def epoch_at(epochs: LeaderEpochs, offset: int) -> int | None:
    return next((epoch for epoch, start in reversed(epochs) if start <= offset), None)


@given(partition_copies())
def test_a_lineage_serves_the_rulers_log_and_all_that_is_left_of_it(copies: list[Copy]) -> None:
    ruler = ruling_copy(copies)
    lineage = trace_lineage([copy.segment for copy in copies], ruler.segment, ruler.history)
    by_segment = {copy.segment: copy for copy in copies}
    served = {
        offset: by_segment[span.segment].holds(offset)
        for span in lineage.spans
        for offset in range(span.start, span.stop)
    }
    first_epoch = ruler.history[0][0]
    for offset in range(ruler.segment.end_offset + 1):
        # Each record must have the epoch that the ruler's history gives its offset. Offsets before the history's start
        # have the history's first epoch.
        ruled = epoch_at(ruler.history, offset) if offset >= ruler.history[0][1] else first_epoch
        held = {copy.holds(offset) for copy in copies} - {None}
        right = {entry for entry in held if entry is not None and entry.epoch == ruled}
        assert len(right) <= 1  # each epoch has one leader, which writes one record per offset
        assert served.get(offset) == next(iter(right), None)
    assert max(served) == ruler.segment.end_offset


@given(partition_copies())
def test_no_record_that_the_ruler_does_not_have_is_served(copies: list[Copy]) -> None:
    """Compare records by their identities. The rules that form a lineage do not use identities, so the test is
    independent of them.
    """
    ruler = ruling_copy(copies)
    lineage = trace_lineage([copy.segment for copy in copies], ruler.segment, ruler.history)
    by_segment = {copy.segment: copy for copy in copies}
    for span in lineage.spans:
        served = [by_segment[span.segment].holds(offset) for offset in range(span.start, span.stop)]
        assert served == list(ruler.log[span.start : span.stop])
    for cut in lineage.superseded:
        left_out = [by_segment[cut.segment].holds(offset) for offset in range(cut.start, cut.stop)]
        began = ruler.history[0][1]
        assert not {entry for entry in left_out if entry is not None} & set(ruler.log[began:])


@given(partition_copies())
def test_the_parts_of_a_lineage_fit_together(copies: list[Copy]) -> None:
    ruler = ruling_copy(copies)
    segments = [copy.segment for copy in copies]
    lineage = trace_lineage(segments, ruler.segment, ruler.history)
    assert all(span.start < span.stop for span in lineage.spans)
    assert all(a.stop <= b.start for a, b in itertools.pairwise(lineage.spans))
    between = [(a.stop, b.start) for a, b in itertools.pairwise(lineage.spans) if a.stop < b.start]
    assert [(gap.start, gap.stop) for gap in lineage.gaps] == between
    accounted = {s.segment for s in lineage.spans} | {c.segment for c in lineage.superseded} | set(lineage.covered)
    assert accounted == set(segments)
    assert not {span.segment for span in lineage.spans} & set(lineage.covered)


@given(partition_copies(), st.randoms(use_true_random=False))
def test_the_order_in_which_segments_are_found_does_not_matter(copies: list[Copy], random: Random) -> None:
    ruler = ruling_copy(copies)
    shuffled = [copy.segment for copy in copies]
    random.shuffle(shuffled)
    one = trace_lineage([copy.segment for copy in copies], ruler.segment, ruler.history)
    other = trace_lineage(shuffled, ruling_segment(shuffled), ruler.history)
    assert other.spans == one.spans
    assert set(other.superseded) == set(one.superseded)


@given(partition_copies())
def test_where_the_index_is_not_needed_it_would_change_nothing(copies: list[Copy]) -> None:
    ruler = ruling_copy(copies)
    segments = [copy.segment for copy in copies]
    if not needs_history(ruler.segment, segments):
        without = trace_lineage(segments, ruler.segment, None)
        read = trace_lineage(segments, ruler.segment, ruler.history)
        assert (without.spans, without.superseded) == (read.spans, read.superseded)


@st.composite
def any_segments(draw: st.DrawFn) -> list[RemoteLogSegmentMetadata]:
    """Draw segments that may not fit any common history, but are each possible alone."""
    segments: list[RemoteLogSegmentMetadata] = []
    for number in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, 30))
        end = start + draw(st.integers(0, 15))
        own = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True).map(sorted))
        starts = sorted(draw(st.lists(st.integers(start, end), min_size=len(own) - 1, max_size=len(own) - 1)))
        epochs = tuple(zip(own, [start, *starts], strict=True))
        segments.append(make_segment(start, end, epochs, number=number, copied_ms=draw(st.integers(0, 2))))
    return segments


@given(any_segments())
def test_each_offset_goes_to_the_copy_that_the_rule_names(segments: list[RemoteLogSegmentMetadata]) -> None:
    ruler = ruling_segment(segments)
    lineage = trace_lineage(segments, ruler, None)
    first_epoch = lineage.epochs[0][0]

    def right(segment: RemoteLogSegmentMetadata, offset: int) -> bool:
        ruled = epoch_at(lineage.epochs, offset) if offset >= lineage.epochs[0][1] else first_epoch
        inside = segment.start_offset <= offset <= segment.end_offset
        return inside and epoch_at(segment.segment_leader_epochs, offset) == ruled

    for offset in range(50):
        holders = [segment for segment in segments if right(segment, offset)]
        spans = [span for span in lineage.spans if span.start <= offset < span.stop]
        assert len(spans) == bool(holders)
        assert all(span.segment in holders for span in spans)
        cut = {c.segment for c in lineage.superseded if c.start <= offset < c.stop}
        covering = {segment for segment in segments if segment.start_offset <= offset <= segment.end_offset}
        assert cut == covering - set(holders)


def test_an_unclean_election_cuts_what_the_old_leader_copied_last() -> None:
    old = make_segment(0, 99, ((0, 0),), number=1)
    lost = make_segment(100, 199, ((0, 100),), number=2)
    new = make_segment(150, 249, ((2, 150),), number=3)
    lineage = traced(old, lost, new, history=((0, 0), (2, 150)))
    assert extents(lineage) == [(1, 0, 100), (2, 100, 150), (3, 150, 250)]
    assert lineage.superseded == (Superseded(lost, 150, 200),)
    assert "offsets 150 to 199 of events-3 at offset 100" in str(lineage.superseded[0])


def test_an_epoch_that_the_ruler_never_saw_is_cut_whole_and_leaves_a_gap() -> None:
    kept, lost, new = (
        make_segment(0, 99, ((0, 0),), number=1),
        make_segment(100, 199, ((1, 100),), number=2),
        make_segment(120, 219, ((2, 120),), number=3),
    )
    lineage = traced(kept, lost, new, history=((0, 0), (2, 120)))
    assert extents(lineage) == [(1, 0, 100), (3, 120, 220)]
    assert lineage.gaps == (Gap(PARTITION, 100, 120),)
    assert lineage.superseded == (Superseded(lost, 100, 200),)
    assert "offsets 100 to 119 of events-3" in str(lineage.gaps[0])


def test_segments_older_than_the_rulers_first_epoch_are_not_of_the_log() -> None:
    """A leader elected without any data begins an empty log.

    Kafka deletes the older segments as unreferenced, so the lineage leaves them out.
    """
    old, new = make_segment(0, 99, ((0, 0),), number=1), make_segment(0, 49, ((5, 0),), number=2)
    lineage = traced(old, new, history=((5, 0),))
    assert extents(lineage) == [(2, 0, 50)]
    assert lineage.superseded == (Superseded(old, 0, 100),)


def test_a_first_epoch_whose_start_retention_moved_up_still_has_what_was_before() -> None:
    old, new = make_segment(0, 99, ((1, 0),), number=1), make_segment(100, 199, ((1, 100), (2, 150)), number=2)
    assert extents(traced(old, new, history=((1, 60), (2, 150)))) == [(1, 0, 100), (2, 100, 200)]


@pytest.mark.parametrize(("first", "second", "chosen"), [(5, 4, 1), (4, 5, 2), (5, 5, 2)])
def test_of_two_equal_copies_the_later_goes_first_and_then_the_greater_id(first: int, second: int, chosen: int) -> None:
    copies = [
        make_segment(0, 99, ((0, 0),), number=1, copied_ms=first),
        make_segment(0, 99, ((0, 0),), number=2, copied_ms=second),
    ]
    for order in (copies, copies[::-1]):
        lineage = traced(*order)
        assert extents(lineage) == [(chosen, 0, 100)]
        assert [segment != lineage.spans[0].segment for segment in lineage.covered] == [True]


def test_overlapping_copies_are_followed_by_the_one_that_reaches_furthest() -> None:
    lineage = traced(
        make_segment(0, 99, ((0, 0),), number=1),
        make_segment(50, 149, ((0, 50),), number=2),
        make_segment(60, 199, ((0, 60),), number=3),
    )
    assert extents(lineage) == [(1, 0, 100), (3, 100, 200)]


def test_an_epoch_without_a_record_does_not_rule() -> None:
    """Of two epochs that start at the same offset, the first ended before any write."""
    first = make_segment(0, 9, ((0, 0), (1, 5), (2, 5)), number=1)
    second = make_segment(3, 9, ((0, 3), (2, 5)), number=2)
    assert extents(traced(first, second)) == [(1, 0, 10)]
    assert traced(first, second).superseded == ()


def test_segments_that_name_no_epoch_make_a_log_by_offsets_and_yield_to_all_that_do() -> None:
    bare = make_segment(0, 9, (), number=1)
    assert extents(traced(bare, make_segment(10, 19, (), number=2))) == [(1, 0, 10), (2, 10, 20)]
    named = make_segment(10, 19, ((0, 10),), number=2)
    assert needs_history(named, [bare, named])
    assert traced(bare, named, history=((0, 10),)).superseded == (Superseded(bare, 0, 10),)


@pytest.mark.parametrize("history", [(), ((0, 0),), ((5, 20),), ((0, 0), (1, 15)), ((1, 0), (2, 15))])
def test_an_index_that_contradicts_its_own_segment_is_damage(history: LeaderEpochs) -> None:
    with pytest.raises(IndexesCorruptError, match="lacks the epochs in its metadata"):
        traced(make_segment(0, 9, ((0, 0),), number=1), make_segment(10, 19, ((1, 10),), number=2), history=history)


LINEAGE = traced(
    make_segment(10, 19, ((0, 10),), number=1, max_timestamp_ms=100),
    make_segment(20, 29, ((0, 20),), number=2, max_timestamp_ms=50),
    make_segment(40, 49, ((0, 40),), number=3),
    make_segment(60, 69, ((0, 60),), number=4, max_timestamp_ms=80),
)


@given(st.integers(-5, 80), st.integers(-5, 80))
def test_ranges_of_offsets_give_what_there_is_of_them(start: int, stop: int) -> None:
    wanted = range(start, stop)
    spans = LINEAGE.spans_between(start, stop)
    assert all(span.start < span.stop for span in spans)
    there = [offset for span in LINEAGE.spans for offset in range(span.start, span.stop)]
    assert [o for span in spans for o in range(span.start, span.stop)] == [o for o in there if o in wanted]
    missing = [o for o in wanted if 10 <= o < 70 and o not in there]
    assert [o for gap in LINEAGE.gaps_between(start, stop) for o in range(gap.start, gap.stop)] == missing


@given(st.integers(-5, 80))
def test_an_offset_gives_the_span_that_holds_it(offset: int) -> None:
    holding = [span for span in LINEAGE.spans if span.start <= offset < span.stop]
    if holding:
        assert [LINEAGE.span_at(offset)] == holding
    else:
        with pytest.raises(SegmentNotFoundError, match=f"offset {offset} of events-3 .*; there are 10 to 69 with gaps"):
            LINEAGE.span_at(offset)


def test_the_ends_of_a_log_are_its_earliest_offset_and_one_more_than_its_last() -> None:
    assert (LINEAGE.earliest_offset, LINEAGE.end_offset) == (10, 70)
    assert LINEAGE.spans[0] == Span(LINEAGE.spans[0].segment, 10, 20)


@pytest.mark.parametrize(
    ("start", "end", "epochs"),
    [
        (5, 4, ()),
        (-1, 4, ()),
        (0, 9, ((1, 0), (0, 5))),
        (0, 9, ((1, 0), (1, 5))),
        (0, 9, ((0, 5), (1, 4))),
        (0, 9, ((0, 1),)),
        (0, 9, ((0, 0), (1, 10))),
    ],
)
def test_metadata_that_contradicts_itself_is_refused(start: int, end: int, epochs: LeaderEpochs) -> None:
    with pytest.raises(CorruptDataError):
        check_segment(make_segment(start, end, epochs))


def test_epochs_may_begin_before_the_segment() -> None:
    segment = make_segment(10, 19, ((0, 0), (1, 5)), number=1)
    check_segment(segment)
    assert traced(segment).epochs == ((1, 10),)
