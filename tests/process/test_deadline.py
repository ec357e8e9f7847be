"""Deadlines, and timeouts that restart with progress."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.simulated_time import SimulatedClock
from tieredstore.errors import StoreUnavailableError
from tieredstore.process.deadline import Deadline, Stall


def test_the_sooner_deadline_is_kept_and_a_stall_beside_it() -> None:
    clock = SimulatedClock()
    early, late = Deadline(1, clock), Deadline(2, clock)
    assert early.sooner(late) is late.sooner(early) is early.sooner(None) is early
    stall = Stall(5, clock)
    with stall.under_way() as standing:
        for both in (standing.sooner(Deadline(9, clock)), Deadline(9, clock).sooner(standing)):
            assert (both.at_s, both.part, both.remaining_s()) == (9, standing.part, 5)


def test_what_is_over_is_said() -> None:
    clock = SimulatedClock()
    stall = Stall(5, clock)
    with stall.under_way() as standing:
        clock.now = 5
        with pytest.raises(StoreUnavailableError, match="the upload made no progress for 5 s"):
            standing.check("the upload")
        with pytest.raises(StoreUnavailableError, match="the upload did not end within its deadline"):
            Deadline(4, clock).sooner(standing).check("the upload")


def test_time_between_the_parts_does_not_count() -> None:
    clock = SimulatedClock()
    stall = Stall(10, clock)
    for _ in range(3):
        clock.now += 1000
        with stall.under_way() as deadline:
            clock.now += 3
            deadline.check("a part")
    clock.now += 1000
    assert stall.remaining_s() == 1
    with stall.under_way() as deadline:
        clock.now += 1
        assert deadline.remaining_s() == 0
        stall.progress()
        assert deadline.remaining_s() == 10


def test_progress_of_one_part_is_progress_of_all() -> None:
    clock = SimulatedClock()
    stall = Stall(10, clock)
    with stall.under_way() as first, stall.under_way() as second:
        for _ in range(20):
            clock.now += 9
            stall.progress()
        clock.now += 9
        assert first.remaining_s() == second.remaining_s() == 1


def test_what_is_sent_again_is_no_progress() -> None:
    clock = SimulatedClock()
    stall = Stall(10, clock)
    with stall.under_way() as deadline:
        assert deadline.part is not None
        for position, left_s in ((100, 10), (0, 4), (100, -2), (101, 10)):
            deadline.part.report(position)
            assert deadline.remaining_s() == left_s
            clock.now += 6
    with stall.under_way() as deadline:
        assert deadline.part is not None
        deadline.part.report(1)
        assert deadline.remaining_s() == 10


steps = st.lists(st.tuples(st.sampled_from(["begin", "end", "progress"]), st.integers(0, 9)), max_size=30)


@given(steps)
def test_it_stands_still_as_long_as_parts_run_without_progress(history: list[tuple[str, int]]) -> None:
    clock = SimulatedClock()
    stall = Stall(1000, clock)
    running = []
    stood_s = 0
    for step, passed_s in history:
        if step == "begin":
            part = stall.under_way()
            part.__enter__()
            running.append(part)
        elif step == "end" and running:
            running.pop().__exit__(None, None, None)
        elif step == "progress":
            stall.progress()
            stood_s = 0
        clock.now += passed_s
        stood_s += passed_s if running else 0
        assert stall.remaining_s() == 1000 - stood_s


def test_many_threads_may_be_under_way() -> None:
    stall = Stall(60)

    def part(_: int) -> float:
        with stall.under_way() as deadline:
            stall.progress()
            return deadline.remaining_s()

    with ThreadPoolExecutor(8) as pool:
        assert all(0 < left_s <= 60 for left_s in pool.map(part, range(500)))
    assert stall.remaining_s() <= 60 < math.inf
