"""How many of the available offsets a trigger takes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
)

from tests.support.simulated_time import SimulatedClock
from tieredstore.model import TopicPartition
from tieredstore.partitions.log import OffsetWindow
from tieredstore.spark.source.trigger_limits import IN_OPTIONS, TriggerDelay, TriggerLimits, Windows, shares

windows = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)),
    st.tuples(st.integers(0, 2**62), st.integers(0, 5000)).map(lambda pair: (pair[0], pair[0] + pair[1])),
)
limits = st.none() | st.integers(1, 20_000)


def no_bytes(where: TopicPartition, start: int, stop: int) -> int:
    raise AssertionError("nobody asked for bytes")


def ten_bytes_each(where: TopicPartition, start: int, stop: int) -> int:
    return 10 * (stop - start)


def taken(unread: Windows, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    assert unread.keys() == ends.keys()
    return {where: ends[where] - start for where, (start, _) in unread.items()}


@given(windows, limits, limits)
def test_what_is_taken_is_within_the_windows_and_the_limits_and_gets_on(
    unread: Windows, max_offsets: int | None, max_bytes: int | None
) -> None:
    ends = TriggerLimits(max_offsets, max_bytes).admit(unread, ten_bytes_each)
    got = taken(unread, ends)
    waiting = {where for where, (start, stop) in unread.items() if stop > start}
    for where, (start, stop) in unread.items():
        assert (start < ends[where] <= stop) if where in waiting else ends[where] == stop
    if max_offsets is not None:
        assert sum(got.values()) <= max(max_offsets, len(waiting))
    if max_bytes is not None:
        assert sum(got.values()) * 10 <= max_bytes + 10 * len(waiting)


@given(windows)
def test_without_limits_all_is_taken(unread: Windows) -> None:
    assert TriggerLimits().admit(unread, no_bytes) == {where: stop for where, (_, stop) in unread.items()}


@given(windows, st.integers(1, 20_000))
def test_the_limit_of_offsets_is_used_up(unread: Windows, limit: int) -> None:
    sizes = {where: stop - start for where, (start, stop) in unread.items() if stop > start}
    assert sum(shares(sizes, limit).values()) == min(max(limit, len(sizes)), sum(sizes.values()))


@given(windows, st.integers(1, 20_000))
def test_who_has_more_gets_no_less(unread: Windows, limit: int) -> None:
    sizes = {where: stop - start for where, (start, stop) in unread.items() if stop > start}
    got = shares(sizes, limit)
    by_size = sorted(sizes, key=lambda where: sizes[where])
    for smaller, greater in itertools.pairwise(by_size):
        assert got[smaller] <= got[greater] or sizes[smaller] == sizes[greater]


def test_shares_are_in_proportion() -> None:
    sizes = {("a", 0): 900, ("a", 1): 90, ("a", 2): 10}
    assert shares(sizes, 100) == {("a", 0): 90, ("a", 1): 9, ("a", 2): 1}
    assert shares({("a", 0): 20, ("a", 1): 20, ("a", 2): 10}, 9) == {("a", 0): 4, ("a", 1): 3, ("a", 2): 2}


# For each case: limits; windows of partitions 0, 1, ...; bytes per offset of each (None: the source must not ask);
# offsets taken of each.
ADMITTED: dict[str, tuple[TriggerLimits, list[OffsetWindow], list[int] | None, list[int]]] = {
    "a small partition beside a huge one": (TriggerLimits(10), [(0, 10**12), (5, 6)], None, [9, 1]),
    "fewer offsets than partitions": (TriggerLimits(2), [(0, 100)] * 5, None, [1] * 5),
    "nothing waiting": (TriggerLimits(5, 5), [(7, 7)], [10], [0]),
    "bytes by what each partition has": (TriggerLimits(max_bytes=1000), [(0, 10), (0, 1000)], [100, 1], [5, 500]),
    "a record greater than the limit": (TriggerLimits(max_bytes=1), [(3, 9)], [2**40], [1]),
    "sizes that nobody knows": (TriggerLimits(max_bytes=1), [(3, 9)], [0], [6]),
    "both limits, that of bytes is less": (TriggerLimits(50, 300), [(0, 100)], [10], [30]),
    "both limits, that of offsets is less": (TriggerLimits(20, 300), [(0, 100)], [10], [20]),
}


@pytest.mark.parametrize("case", ADMITTED)
def test_what_a_trigger_takes(case: str) -> None:
    trigger_limits, unread, sizes, expected = ADMITTED[case]
    windows = {("a", partition): window for partition, window in enumerate(unread)}

    def size(where: TopicPartition, start: int, stop: int) -> int:
        return sizes[where[1]] * (stop - start) if sizes else no_bytes(where, start, stop)

    assert list(taken(windows, trigger_limits.admit(windows, size)).values()) == expected


def test_a_run_of_one_trigger_has_no_limits() -> None:
    mine = TriggerLimits(5, 6, 7, 8)
    assert mine.under(IN_OPTIONS) == mine
    assert mine.under(ReadAllAvailable()) == TriggerLimits()


# For each step: elapsed seconds, pending offsets, and whether the trigger still waits for 100 offsets or 60 s.
DELAYS: dict[str, list[tuple[float, int, bool]]] = {
    "the first trigger does not wait; others wait for enough offsets": [(0, 1, False), (0, 99, True), (0, 100, False)],
    "the delay begins again with each trigger that took offsets, not with one that still waits": [
        (0, 500, False), (59.9, 1, True), (0.2, 1, False), (59.9, 1, True),
    ],
    "a trigger without offsets does not count, and offsets after the delay do not wait again": [
        (0, 0, False), (0, 1, False), (61, 0, False), (0, 1, False), (0, 1, True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", DELAYS)
def test_a_trigger_waits_for_enough_offsets_or_the_delay(case: str) -> None:
    clock = SimulatedClock()
    delay, limit = TriggerDelay(clock), TriggerLimits(min_offsets=100, max_delay_ms=60_000)
    for seconds, waiting, waits in DELAYS[case]:
        clock.now += seconds
        assert delay.has_to_wait(limit, waiting) is waits


def test_without_a_minimum_nothing_waits() -> None:
    delay = TriggerDelay(SimulatedClock())
    assert not any(delay.has_to_wait(TriggerLimits(max_offsets=5), 0) for _ in range(3))


def test_the_clock_is_not_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    delay, limit = TriggerDelay(), TriggerLimits(min_offsets=100, max_delay_ms=3_600_000)
    delay.has_to_wait(limit, 100)
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert delay.has_to_wait(limit, 1)
