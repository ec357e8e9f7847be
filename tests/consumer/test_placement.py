"""The source of the next record at an offset, in each mode, with any extents of bucket and broker."""

from __future__ import annotations

from collections.abc import Sequence

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
    stop = position if lineage is None else lineage.missing_from(position)
    return place(mode, position, live, lineage, max(position, min(stop, undecided)))


TENS = ((0, 10), (10, 20), (20, 30))
WITH_HOLE = ((10, 20), (40, 50))
ALL = 10**9


@pytest.mark.parametrize(
    ("spans", "undecided", "mode", "position", "live", "expected"),
    [
        (TENS, ALL, K, 0, (0, 50), OnBroker()),
        (TENS, ALL, K, 50, (0, 50), OnBroker()),
        (TENS, ALL, K, 5, (15, 50), InBucket(20)),  # the first segment that reaches the broker's log ends at 20
        (TENS, ALL, K, 5, (10, 50), InBucket(10)),
        (TENS, ALL, K, 5, (11, 50), InBucket(20)),
        (TENS, ALL, K, 5, (30, 50), InBucket(30)),
        (TENS, ALL, K, 15, (15, 50), OnBroker()),
        (TENS, ALL, K, 30, (40, 50), Lost(40)),
        (TENS, ALL, K, 35, (40, 50), Lost(40)),
        (TENS, ALL, K, 51, (40, 50), OutOfRange()),
        (TENS, ALL, K, 29, (0, 25), InBucket(30)),
        (TENS, ALL, K, 30, (0, 25), EndsEarlier(25)),
        (TENS, ALL, R, 5, (0, 50), InBucket(30)),
        (TENS, ALL, R, 30, (0, 50), OnBroker()),
        (TENS, ALL, R, 30, (31, 50), Lost(31)),
        (TENS, ALL, ONLY, 5, (0, 50), InBucket(30)),
        (TENS, ALL, ONLY, 5, None, InBucket(30)),
        (TENS, ALL, ONLY, 30, None, Waits()),
        (TENS, ALL, ONLY, 31, None, Waits()),
        (WITH_HOLE, ALL, K, 0, (5, 60), OutOfRange()),
        (WITH_HOLE, ALL, ONLY, 0, None, OutOfRange()),
        (WITH_HOLE, ALL, K, 15, (60, 70), InBucket(20)),
        (WITH_HOLE, ALL, K, 20, (60, 70), Lost(40)),
        (WITH_HOLE, ALL, K, 25, (60, 70), Lost(40)),
        (WITH_HOLE, ALL, K, 20, (30, 70), Lost(30)),
        (WITH_HOLE, ALL, R, 20, (0, 70), OnBroker()),  # the broker fills the hole
        (WITH_HOLE, ALL, R, 40, (0, 70), InBucket(50)),
        (WITH_HOLE, ALL, ONLY, 20, None, Lost(40)),
        (WITH_HOLE, ALL, ONLY, 50, None, Waits()),
        (TENS, 25, R, 20, (0, 50), InBucket(25)),
        (TENS, 25, R, 25, (0, 50), OnBroker()),
        (TENS, 25, R, 25, (28, 50), Waits()),
        (TENS, 25, K, 25, (30, 50), Waits()),
        (TENS, 25, ONLY, 25, None, Waits()),
        (WITH_HOLE, 15, ONLY, 15, None, Lost(40)),
        *(((), ALL, mode, position, (start, 9), placement)
          for mode in (K, R)
          for position, start, placement in ((5, 0, OnBroker()), (5, 6, OutOfRange()), (10, 6, OutOfRange()))),
        ((), ALL, ONLY, 0, None, Waits()),
    ],
)  # fmt: skip
def test_where_a_partition_goes_on(
    spans: Sequence[tuple[int, int]],
    undecided: int,
    mode: Mode,
    position: int,
    live: LiveSpan | None,
    expected: Placement,
) -> None:
    """Test buckets without holes, with a hole, with a later start, and with an open transaction at ``undecided``."""
    assert placed(mode, position, live, *spans, undecided=undecided) == expected


def test_sides_change_at_the_end_of_a_segment_at_the_earliest() -> None:
    """While retention advances the broker's start, the consumer reads the bucket up to a segment's end."""
    ends = {stop for _, stop in TENS}
    for position in range(30):
        for live_start in range(position + 1, 40):
            assert placed(K, position, (live_start, 50), *TENS) in {InBucket(stop) for stop in ends}


def test_who_lags_by_a_whole_segment() -> None:
    lineage = lineage_of(*TENS)
    assert [lags(position, 30, lineage) for position in (0, 10, 20, 21, 30)] == [True, True, True, False, False]
    assert not lags(15, 25, lineage)
