"""Parallel streams: their order, a bound on waiting items, errors, and an end at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tieredstore.errors import DataLossError
from tieredstore.process.fan_in import FanIn

DEADLINE_S = 60.0


def fan_in(streams: Iterator[Callable[[], Iterator[int]]], *, at_once: int = 3, most: int = 10) -> FanIn[int]:
    return FanIn(streams, at_once=at_once, weigh=lambda _: 1, max_weight=most)


def numbers(start: int, count: int) -> Iterator[int]:
    yield from range(start, start + count)


@settings(max_examples=examples(30), deadline=None)
@given(lengths=st.lists(st.integers(0, 12), max_size=12), at_once=st.integers(1, 4), most=st.integers(1, 5))
def test_all_items_are_given_once_in_order(lengths: list[int], at_once: int, most: int) -> None:
    streams = (partial(numbers, 100 * place, count) for place, count in enumerate(lengths))
    expected = [100 * place + item for place, count in enumerate(lengths) for item in range(count)]
    with fan_in(streams, at_once=at_once, most=most) as items:
        assert list(items) == expected


def test_what_waits_is_bounded_and_the_one_that_is_due_comes_in_all_the_same() -> None:
    gone_on = threading.Event()
    given_out: list[int] = []
    weights = [6, 1, 1]

    def first() -> Iterator[int]:
        # The first stream begins only when later streams have filled all the room.
        assert gone_on.wait(DEADLINE_S)
        yield from (0, 0)

    def later() -> Iterator[int]:
        for item in range(1, 100):
            given_out.append(item)
            if len(given_out) == 10:
                gone_on.set()
            yield item

    streams = iter((first, later))
    with FanIn(streams, at_once=2, weigh=lambda item: weights[min(item, 1)], max_weight=9) as items:
        assert [next(items), next(items)] == [0, 0]
        assert len(given_out) == 10
        assert list(items) == list(range(1, 100))


def test_an_error_comes_after_what_is_before_it_and_ends_the_read() -> None:
    def failing() -> Iterator[int]:
        yield 5
        raise DataLossError("lost")

    streams = iter((partial(numbers, 0, 3), failing, partial(numbers, 10, 3)))
    taken: list[int] = []
    with pytest.raises(DataLossError, match="lost"), fan_in(streams, at_once=1) as items:
        taken.extend(items)
    assert taken == [0, 1, 2, 5]
    assert list(items) == []


def test_what_cannot_be_planned_fails_in_its_turn() -> None:
    def streams() -> Iterator[Callable[[], Iterator[int]]]:
        yield partial(numbers, 0, 3)
        raise DataLossError("not planned")

    with fan_in(streams()) as items:
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(DataLossError, match="not planned"):
            next(items)


def test_closed_it_ends_the_streams_under_way_and_begins_no_other() -> None:
    ended = threading.Event()
    begun: list[int] = []

    def endless(number: int) -> Iterator[int]:
        begun.append(number)
        try:
            while True:
                yield number
        finally:
            ended.set()

    with fan_in(partial(endless, number) for number in range(5)) as items:
        assert next(items) == 0
    assert ended.wait(DEADLINE_S)
    assert list(items) == []
    assert set(begun) <= {0, 1, 2}


def test_no_thread_starts_before_somebody_reads() -> None:
    begun: list[int] = []

    def stream() -> Iterator[int]:
        begun.append(1)
        yield 1

    items = fan_in(iter((stream,)))
    assert begun == []
    assert list(items) == [1]
