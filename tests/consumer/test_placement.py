"""Where a partition goes on from an offset: each mode, wherever bucket and broker begin and end."""

from __future__ import annotations

import pytest

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.consumer.placement import (
    EndsEarlier,
    InBucket,
    LiveSpan,
    Lost,
    OnBroker,
    OutOfRange,
    Placement,
    Waits,
    lags,
    place,
    run_stop,
)
from tieredstore.consumer.settings import Mode
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid

WHERE = TopicIdPartition(Uuid(bytes(range(16))), "orders", 0)
K, R, ONLY = Mode.KAFKA_PREFERRED, Mode.REMOTE_PREFERRED, Mode.REMOTE_ONLY


def lineage_of(*extents: tuple[int, int]) -> Lineage:
    spans: list[Span] = []
    for start, stop in extents:
        segment_id = RemoteLogSegmentId(WHERE, Uuid(start.to_bytes(16, "big")))
        spans.append(Span(RemoteLogSegmentMetadata(segment_id, start, stop - 1, 100), start, stop))
    return Lineage(WHERE, ((0, 0),), tuple(spans))


def placed(
    mode: Mode, position: int, live: LiveSpan | None, *extents: tuple[int, int], undecided: int = 10**9
) -> Placement:
    lineage = lineage_of(*extents) if extents else None
    stop = run_stop(lineage, position)
    return place(mode, position, live, lineage, None if stop is None else max(position, min(stop, undecided)))


TENS = [(0, 10), (10, 20), (20, 30)]


@pytest.mark.parametrize(
    ("mode", "position", "live", "expected"),
    [
        (K, 0, (0, 50), OnBroker()),
        (K, 50, (0, 50), OnBroker()),
        (K, 5, (15, 50), InBucket(20)),  # to the end of the segment behind which the broker has the log
        (K, 5, (10, 50), InBucket(10)),
        (K, 5, (11, 50), InBucket(20)),
        (K, 5, (30, 50), InBucket(30)),
        (K, 15, (15, 50), OnBroker()),
        (K, 30, (40, 50), Lost(40)),
        (K, 35, (40, 50), Lost(40)),
        (K, 51, (40, 50), OutOfRange()),
        (K, 29, (0, 25), InBucket(30)),
        (K, 30, (0, 25), EndsEarlier(25)),
        (R, 5, (0, 50), InBucket(30)),
        (R, 30, (0, 50), OnBroker()),
        (R, 30, (31, 50), Lost(31)),
        (ONLY, 5, (0, 50), InBucket(30)),
        (ONLY, 5, None, InBucket(30)),
        (ONLY, 30, None, Waits()),
        (ONLY, 31, None, Waits()),
    ],
)
def test_a_bucket_without_holes(mode: Mode, position: int, live: LiveSpan | None, expected: Placement) -> None:
    assert placed(mode, position, live, *TENS) == expected


@pytest.mark.parametrize(
    ("mode", "position", "live", "expected"),
    [
        (K, 0, (5, 60), OutOfRange()),
        (ONLY, 0, None, OutOfRange()),
        (K, 15, (60, 70), InBucket(20)),
        (K, 20, (60, 70), Lost(40)),
        (K, 25, (60, 70), Lost(40)),
        (K, 20, (30, 70), Lost(30)),
        (R, 20, (0, 70), OnBroker()),  # the broker fills the hole
        (R, 40, (0, 70), InBucket(50)),
        (ONLY, 20, None, Lost(40)),
        (ONLY, 50, None, Waits()),
    ],
)
def test_holes_and_a_beginning(mode: Mode, position: int, live: LiveSpan | None, expected: Placement) -> None:
    assert placed(mode, position, live, (10, 20), (40, 50)) == expected


@pytest.mark.parametrize(
    ("mode", "position", "live", "expected"),
    [
        (R, 20, (0, 50), InBucket(25)),
        (R, 25, (0, 50), OnBroker()),
        (R, 25, (28, 50), Waits()),
        (K, 25, (30, 50), Waits()),
        (ONLY, 25, None, Waits()),
    ],
)
def test_a_transaction_without_outcome(mode: Mode, position: int, live: LiveSpan | None, expected: Placement) -> None:
    assert placed(mode, position, live, *TENS, undecided=25) == expected


def test_what_a_hole_leaves_undecided_is_lost() -> None:
    assert placed(ONLY, 15, None, (10, 20), (40, 50), undecided=15) == Lost(40)


@pytest.mark.parametrize("mode", [K, R])
def test_without_a_bucket(mode: Mode) -> None:
    assert placed(mode, 5, (0, 9)) == OnBroker()
    assert placed(mode, 5, (6, 9)) == OutOfRange()
    assert placed(mode, 10, (6, 9)) == OutOfRange()
    assert placed(ONLY, 0, None) == Waits()


def test_sides_change_at_the_end_of_a_segment_at_the_earliest() -> None:
    """However retention moves the broker's beginning on, a read ends where a segment does."""
    ends = {stop for _, stop in TENS}
    for position in range(30):
        for live_start in range(position + 1, 40):
            assert placed(K, position, (live_start, 50), *TENS) in {InBucket(stop) for stop in ends}


def test_who_lags_by_a_whole_segment() -> None:
    lineage = lineage_of(*TENS)
    assert [lags(position, 30, lineage) for position in (0, 10, 20, 21, 30)] == [True, True, True, False, False]
    assert not lags(15, 25, lineage)
