"""A pool keeps threads after a call, but only as many as there were calls at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tieredstore.process.thread_pool import ThreadPool


def test_a_pool_has_as_many_threads_as_work_at_once() -> None:
    """However often callers submit work, there is one thread per running task, plus one that is ending."""
    callers, names = 4, set[str]()

    def note() -> None:
        names.add(threading.current_thread().name)

    with ThreadPool(64, "calls") as pool, ThreadPoolExecutor(callers) as calling:

        def call_again_and_again(_: int) -> None:
            for _ in range(500):
                pool.submit(note).result(60)

        list(calling.map(call_again_and_again, range(callers)))
    assert 1 <= len(names) <= 2 * callers


def test_work_that_waits_for_other_work_has_a_thread_of_its_own_up_to_the_most() -> None:
    with ThreadPool(3, "calls") as pool:
        every_one = threading.Barrier(3)
        assert sorted(future.result(60) for future in [pool.submit(every_one.wait, 60) for _ in range(3)]) == [0, 1, 2]
        # Dropped tasks no longer count.
        go = threading.Event()
        waiting = [pool.submit(go.wait, 60) for _ in range(5)]
        assert [future.cancel() for future in waiting[3:]] == [True, True]
        go.set()
        assert all(future.result(60) for future in waiting[:3])
        again = threading.Barrier(3)
        assert len([future.result(60) for future in [pool.submit(again.wait, 60) for _ in range(3)]]) == 3
