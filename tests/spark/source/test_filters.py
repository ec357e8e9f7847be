from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tieredstore.spark.source.batch import Bounds, bounds_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def test_no_filter_leaves_everything() -> None:
    bounds = bounds_of([])
    assert bounds == Bounds()
    assert bounds.admits("t", 0)
    assert bounds.window(5, 9) == (5, 9)
    assert bounds.since_ms is None


def test_a_topic_and_a_partition_are_told_by_equality_and_by_lists() -> None:
    bounds = bounds_of([In(("topic",), ("a", "b", None)), EqualTo(("topic",), "b"), EqualNullSafe(("partition",), 3)])
    assert bounds.admits("b", 3)
    assert not bounds.admits("a", 3)
    assert not bounds.admits("b", 2)


def test_filters_that_exclude_each_other_leave_nothing() -> None:
    bounds = bounds_of([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")])
    assert not bounds.admits("a", 0)
    assert not bounds.admits("b", 0)


def test_partitions_are_bound_by_order_too() -> None:
    bounds = bounds_of([GreaterThan(("partition",), 1), LessThanOrEqual(("partition",), 3)])
    assert [number for number in range(6) if bounds.admits("t", number)] == [2, 3]
    bounds = bounds_of([GreaterThanOrEqual(("partition",), 1), LessThan(("partition",), 3)])
    assert [number for number in range(6) if bounds.admits("t", number)] == [1, 2]


def test_topics_are_bound_by_how_they_begin() -> None:
    bounds = bounds_of([StringStartsWith(("topic",), "ab"), StringStartsWith(("key",), "x")])
    assert bounds.admits("abc", 0)
    assert not bounds.admits("acb", 0)


@pytest.mark.parametrize(
    ("one", "window"),
    [
        (EqualTo(("offset",), 7), (7, 8)),
        (EqualNullSafe(("offset",), 7), (7, 8)),
        (In(("offset",), (9, 7)), (7, 10)),
        (GreaterThan(("offset",), 7), (8, 20)),
        (GreaterThanOrEqual(("offset",), 7), (7, 20)),
        (LessThan(("offset",), 7), (5, 7)),
        (LessThanOrEqual(("offset",), 7), (5, 8)),
        (EqualTo(("offset",), 4), (5, 5)),
        (LessThan(("offset",), -3), (5, 5)),
        (GreaterThan(("offset",), 2**63 - 1), (5, 5)),
    ],
)
def test_offsets_narrow_a_window(one: Filter, window: tuple[int, int]) -> None:
    assert bounds_of([one]).window(5, 20) == window


@pytest.mark.parametrize(
    ("one", "since_ms"),
    [
        (GreaterThanOrEqual(("timestamp",), at(1_000_000)), 1000),
        (GreaterThanOrEqual(("timestamp",), at(1_000_001)), 1001),
        (GreaterThan(("timestamp",), at(1_000_000)), 1001),
        (GreaterThan(("timestamp",), at(999_999)), 1000),
        (EqualTo(("timestamp",), at(5000)), 5),
        (EqualNullSafe(("timestamp",), at(5000)), 5),
        (In(("timestamp",), (at(7000), None, at(6000))), 6),
        (GreaterThanOrEqual(("timestamp",), at(-500)), 0),
        (GreaterThan(("timestamp",), at(-1000)), 0),
    ],
)
def test_times_bound_from_below(one: Filter, since_ms: int) -> None:
    assert bounds_of([one]).since_ms == since_ms


def test_the_latest_of_several_bounds_of_time_counts() -> None:
    several = [GreaterThan(("timestamp",), at(1000)), GreaterThan(("timestamp",), at(8000)), EqualTo(("topic",), "a")]
    assert bounds_of(several).since_ms == 9


def test_times_do_not_bound_from_above_since_records_need_not_be_in_their_order() -> None:
    assert bounds_of([LessThan(("timestamp",), at(5)), LessThanOrEqual(("timestamp",), at(5))]) == Bounds()


def test_an_instant_counts_whatever_its_zone() -> None:
    there = timezone(timedelta(hours=2))
    assert bounds_of([GreaterThanOrEqual(("timestamp",), datetime(1970, 1, 1, 2, tzinfo=there))]).since_ms == 0
    assert bounds_of([GreaterThanOrEqual(("timestamp",), datetime(1970, 1, 1))]).since_ms == 0  # noqa: DTZ001 - as Spark's TIMESTAMP_NTZ


@pytest.mark.parametrize(
    "one",
    [
        IsNull(("topic",)),
        IsNotNull(("offset",)),
        Not(EqualTo(("topic",), "a")),
        StringContains(("topic",), "a"),
        StringEndsWith(("topic",), "a"),
        EqualTo(("key",), b"a"),
        EqualTo(("value",), "topic"),
        EqualTo(("headers", "key"), "topic"),
        EqualTo(("topic",), None),
        In(("offset",), (None,)),
        In(("partition",), ()),
        In(("offset",), (7, "8")),
        EqualTo(("offset",), 7.5),
        GreaterThan(("offset",), "7"),
        GreaterThan(("topic",), "a"),
        GreaterThan(("timestamp",), None),
    ],
)
def test_what_tells_nothing_leaves_everything(one: Filter) -> None:
    assert bounds_of([one]) == Bounds()


def test_bounds_travel() -> None:
    bounds = bounds_of([EqualTo(("topic",), "a"), GreaterThan(("timestamp",), at(0)), LessThan(("offset",), 9)])
    assert pickle.loads(pickle.dumps(bounds)) == bounds


COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: lambda row, value: row == value,
    EqualNullSafe: lambda row, value: row == value,
    GreaterThan: lambda row, value: row > value,
    GreaterThanOrEqual: lambda row, value: row >= value,
    LessThan: lambda row, value: row < value,
    LessThanOrEqual: lambda row, value: row <= value,
    In: lambda row, value: row in value,
}
SMALL = st.integers(-3, 6)
INSTANTS = st.integers(-4000, 6000).map(at)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["a", "b", "c"]),
    "partition": SMALL,
    "offset": SMALL,
    "timestamp": INSTANTS,
}


@st.composite
def filters(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(list(VALUES)))
    values = VALUES[column]
    kind = draw(st.sampled_from(list(COMPARISONS)))
    several = st.lists(values, min_size=1, max_size=3)  # a list, as Spark's worker passes it
    return kind((column,), draw(several) if kind is In else draw(values))


ROWS = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 5), st.integers(0, 5), st.integers(-1, 5))


@given(st.lists(filters(), max_size=4), ROWS)
def test_no_row_that_the_filters_let_through_is_left_out(pushed: list[Any], row: tuple[str, int, int, int]) -> None:
    topic, partition, offset, timestamp_ms = row
    cells = {"topic": topic, "partition": partition, "offset": offset, "timestamp": at(timestamp_ms * 1000)}
    passes = all(COMPARISONS[type(one)](cells[one.attribute[0]], one.value) for one in pushed)
    bounds = bounds_of(pushed)
    first, stop = bounds.window(0, 6)
    read = (
        bounds.admits(topic, partition)
        and first <= offset < stop
        and (bounds.since_ms is None or timestamp_ms >= bounds.since_ms)
    )
    assert read or not passes


@given(st.lists(filters(), max_size=4), ROWS)
def test_filters_of_topic_partition_and_offset_alone_are_nearly_exact(
    pushed: list[Any], row: tuple[str, int, int, int]
) -> None:
    exact = [
        one
        for one in pushed
        if (one.attribute[0] in ("partition", "offset") and not isinstance(one, In))
        or (one.attribute[0] == "topic" and isinstance(one, (EqualTo, EqualNullSafe, In)))
    ]
    topic, partition, offset, _ = row
    cells = {"topic": topic, "partition": partition, "offset": offset}
    bounds = bounds_of(exact)
    first, stop = bounds.window(0, 6)
    assert (bounds.admits(topic, partition) and first <= offset < stop) == all(
        COMPARISONS[type(one)](cells[one.attribute[0]], one.value) for one in exact
    )
