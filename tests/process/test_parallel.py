"""Parallel work is bounded, in order or as it completes, and stops at the first error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.support.fresh_python import run_fresh
from tieredstore.process.parallel import in_parallel


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_results_come_in_the_order_of_the_items(pool: ThreadPoolExecutor) -> None:
    done = [threading.Event() for _ in range(30)]

    def after_next(number: int) -> int:
        assert number % 5 or done[number + 1].wait(60)
        done[number].set()
        return number * 2

    assert list(in_parallel(pool, after_next, range(30), at_once=7)) == [2 * i for i in range(30)]
    assert list(in_parallel(pool, after_next, [], at_once=1)) == []


def test_no_more_items_are_taken_than_there_is_room_for(pool: ThreadPoolExecutor) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = in_parallel(pool, lambda number: number, items(), at_once=8)
    for number in range(50):
        assert next(results) == number
        assert len(taken) <= number + 1 + 8


class LatestFirst(Executor):
    """Runs the latest job first, which can also happen with threads."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, partial(fn, *args, **kwargs)))
        if len(self.waiting) == 3:
            for waiting, job in reversed(self.waiting):
                try:
                    waiting.set_result(job())
                except ValueError as error:
                    waiting.set_exception(error)
        return future


@pytest.mark.parametrize("ordered", [True, False])
def test_results_before_an_error_are_given_whichever_job_runs_first(ordered: bool) -> None:
    def job(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        return number

    results = in_parallel(LatestFirst(), job, range(3), at_once=3, ordered=ordered)
    come: list[int] = []
    with pytest.raises(ValueError, match="two"):
        come.extend(results)
    assert sorted(come) == [0, 1]


def test_an_error_takes_its_place_and_what_has_not_begun_is_dropped() -> None:
    begun: list[int] = []

    def job(number: int) -> int:
        begun.append(number)
        if number == 2:
            raise ValueError("two")
        return number

    with ThreadPoolExecutor(1) as single:
        results = in_parallel(single, job, range(1000), at_once=100)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ValueError, match="two"):
            next(results)
    assert begun == [0, 1, 2]


def test_no_more_than_so_many_are_under_way_or_done_and_not_taken(pool: ThreadPoolExecutor) -> None:
    guard = threading.Lock()
    begun: list[int] = []

    def job(number: int) -> int:
        with guard:
            begun.append(number)
        return number

    for ordered in (True, False):
        begun.clear()
        results = in_parallel(pool, job, range(100), at_once=3, ordered=ordered)
        for taken in range(1, 20):
            next(results)
            pool.submit(int).result(60)  # begins after all jobs that the pool has by now
            assert len(begun) <= taken + 3
        results.close()


def test_results_come_as_they_are_done_if_the_order_does_not_matter(pool: ThreadPoolExecutor) -> None:
    go_on = threading.Event()

    def slow_first(number: int) -> int:
        if number == 0:
            assert go_on.wait(60)
        return number

    results = in_parallel(pool, slow_first, range(20), at_once=3, ordered=False)
    others = [next(results) for _ in range(18)]
    go_on.set()
    assert 0 not in others
    assert sorted([*others, *results]) == list(range(20))


def test_results_before_a_failed_one_are_given_and_of_several_failures_the_first(pool: ThreadPoolExecutor) -> None:
    later_failed = threading.Event()

    def job(number: int) -> int:
        if number == 2:
            assert later_failed.wait(60)
            raise ValueError("two")
        if number == 3:
            later_failed.set()
            raise ValueError("three")
        return number

    results = in_parallel(pool, job, range(100), at_once=10)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)


@pytest.mark.parametrize("ordered", [True, False])
def test_nothing_is_begun_after_a_failure_and_it_is_what_is_raised(ordered: bool) -> None:
    runs: list[list[int]] = []
    for _ in range(50):
        begun: list[int] = []
        runs.append(begun)

        def job(number: int, begun: list[int] = begun) -> int:
            begun.append(number)
            if number == 5:
                raise ValueError("five")
            return number

        with ThreadPoolExecutor(2) as few, pytest.raises(ValueError, match="five"):
            list(in_parallel(few, job, range(1000), at_once=40, ordered=ordered))
    # The system may pause the failing thread before its error is noted, so a few runs may begin more jobs.
    assert sum(max(begun) <= 5 + 2 for begun in runs) >= 40


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_of_the_items_is_raised_and_what_waits_is_dropped(ordered: bool) -> None:
    go_on = threading.Event()
    begun: list[int] = []

    def items() -> Iterator[int]:
        yield from range(10)
        raise OSError("no more items")

    def job(number: int) -> int:
        begun.append(number)
        assert go_on.wait(60)
        return number

    with ThreadPoolExecutor(1) as single:
        with pytest.raises(OSError, match="no more items"):
            list(in_parallel(single, job, items(), at_once=20, ordered=ordered))
        go_on.set()
    assert len(begun) <= 1


@pytest.mark.parametrize("ordered", [True, False])
def test_closing_early_drops_what_waits_and_the_pool_can_be_used_again(ordered: bool) -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def job(number: int) -> int:
        begun.append(number)
        assert number == 0 or go_on.wait(60)
        return number

    with ThreadPoolExecutor(1) as single:
        results = in_parallel(single, job, range(1000), at_once=100, ordered=ordered)
        assert next(results) == 0
        results.close()
        go_on.set()
        assert list(in_parallel(single, lambda number: -number, range(3), at_once=1, ordered=ordered)) == [0, -1, -2]
    assert len(begun) <= 2


def test_a_job_s_own_time_out_is_its_error(pool: ThreadPoolExecutor) -> None:
    def job(number: int) -> int:
        raise TimeoutError(f"job {number}")

    for ordered in (True, False):
        with pytest.raises(TimeoutError, match="job 0"):
            next(in_parallel(pool, job, [0], at_once=1, ordered=ordered))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_pool_that_is_shut_down_meanwhile_is_an_error_and_no_wait_for_ever(ordered: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def job(number: int) -> int:
        if number == 1:
            begun.set()
            go_on.wait(60)
        return number

    single = ThreadPoolExecutor(1)
    results = in_parallel(single, job, range(9), at_once=3, ordered=ordered)
    assert next(results) == 0
    assert begun.wait(60)
    single.shutdown(wait=False, cancel_futures=True)
    go_on.set()
    with pytest.raises((CancelledError, RuntimeError)):
        list(results)


def test_a_forked_child_drops_nothing_of_its_parent_s_and_does_not_hang() -> None:
    run_fresh("""
        import os, signal, threading, warnings
        from concurrent.futures import ThreadPoolExecutor
        from tieredstore.process.parallel import in_parallel

        warnings.simplefilter("ignore", DeprecationWarning)
        go_on = threading.Event()
        pool = ThreadPoolExecutor(1)
        results = in_parallel(pool, lambda number: number == 0 or go_on.wait(60), range(4), at_once=3)
        next(results)
        future = results.gi_frame.f_locals["run"]._futures[0]
        with future._condition:  # as a thread holds it that asks for this one
            child = os.fork()
            if not child:
                signal.alarm(20)
                results.close()
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        go_on.set()
        assert list(results) == [True] * 3
        pool.shutdown()
    """)


def test_running_items_are_bounded_by_weight_too(pool: ThreadPoolExecutor) -> None:
    begun: list[int] = []

    def weigh(item: int) -> int:
        begun.append(item)
        return item

    weights = [1, 1, 1, 50, 200, 3, 3, 90, 11]
    results = in_parallel(pool, lambda item: item, weights, at_once=4, weigh=weigh, max_weight=100)
    taken: list[int] = []
    for result in results:
        # All weighed items are in flight except for the last one, which may wait for room.
        in_flight = begun[len(taken) : -1]
        assert len(in_flight) <= 4
        assert sum(in_flight) <= 100 or len(in_flight) == 1
        taken.append(result)
    assert taken == weights
