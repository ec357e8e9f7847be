"""Tests of cutting windows into splits. No broker is needed, not even for the broker's part of a window."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records.small_segments import memory_settings
from tieredstore.model import Uuid
from tieredstore.partitions.log import PartitionLog
from tieredstore.partitions.selections import Subscribe
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.plan import plan_windows
from tieredstore.reading.query import LogQuery
from tieredstore.reading.split_reads import LiveSplit
from tieredstore.records.splits import SplitLimits
from tieredstore.remote import RemoteStorageManager

QUERY = LogQuery(Subscribe(("orders",)))


def live_splits(sizes: list[int], limits: SplitLimits) -> list[LiveSplit]:
    """Return the splits of partitions that only the broker has, with these numbers of offsets."""
    logs = {
        ("orders", number): PartitionLog(
            "orders", number, Uuid.random(), None, seam=0, earliest=0, end=size, live_start=0
        )
        for number, size in enumerate(sizes)
    }
    windows = {where: (0, log.end) for where, log in logs.items()}
    with RemoteStorageManager(memory_settings()) as source:
        splits = plan_windows(source, LogSnapshot(logs), windows, QUERY, limits)
    return [split for split in splits if isinstance(split, LiveSplit)]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 30), st.none() | st.integers(1, 9))
def test_as_many_splits_as_asked_for_where_there_are_offsets_enough(
    sizes: list[int], least: int, most_records: int | None
) -> None:
    splits = live_splits(sizes, SplitLimits(max_bytes=1 << 20, max_records=most_records, min_splits=least))
    assert len(splits) >= min(least, sum(sizes))
    assert all(split.stop - split.start <= (most_records or 40) for split in splits)
    for number, size in enumerate(sizes):
        own = [split for split in splits if split.partition.partition == number]
        assert [split.start for split in own[:1]] == [0] * bool(size)
        assert [split.stop for split in own[-1:]] == [size] * bool(size)
        assert all(one.stop == following.start for one, following in pairwise(own))


@pytest.mark.parametrize(("size", "least", "count"), [(9, 4, 5), (8, 4, 4), (3, 4, 3), (1, 9, 1)])
def test_offsets_that_do_not_divide_make_rather_more_splits_than_fewer(size: int, least: int, count: int) -> None:
    assert len(live_splits([size], SplitLimits(max_bytes=1 << 20, min_splits=least))) == count
