"""One client per process: made once, when it is first needed, and never kept over a fork or a pickle."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable

import pytest

from tests.support.waiting import is_within, join, wait_until
from tieredstore.process.forks import PerProcess

created: list[int] = []
closed: list[int] = []


def make() -> int:
    created.append(len(created))
    return created[-1]


def close(client: int) -> None:
    closed.append(client)


def fresh() -> PerProcess[int]:
    created.clear()
    closed.clear()
    return PerProcess(make, close)


def test_threads_share_the_one_client() -> None:
    def make_last() -> int:
        """Make the client when each thread wants it, or already has it."""
        wait_until(lambda: all(is_within(thread, PerProcess.get) for thread in threads if thread.is_alive()), 60)
        return make()

    def get() -> None:
        begin.wait(60)
        seen.append(clients.get())

    fresh()
    clients, seen, begin = PerProcess(make_last, close), list[int](), threading.Barrier(8)
    threads = [threading.Thread(target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert seen == [0] * 8
    assert created == [0]


def test_a_closed_client_is_followed_by_another() -> None:
    clients = fresh()
    clients.close()
    assert closed == []
    assert clients.get() == 0
    clients.close()
    clients.close()
    assert closed == [0]
    assert clients.get() == 1


def test_a_pickled_holder_is_empty() -> None:
    clients = fresh()
    clients.get()
    copy: PerProcess[int] = pickle.loads(pickle.dumps(clients))
    assert copy.get() == 1
    assert clients.get() == 0


# Python 3.12 and later warn of forks with other threads, which are tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def in_child(act: Callable[[], int]) -> int:
    """Return the exit code of a forked child that runs ``act``."""
    child = os.fork()
    if child == 0:
        try:
            code = act()
        except BaseException:  # noqa: BLE001  the child must not go on with the test run
            code = 99
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_its_own_client_and_leaves_its_parent_s_open() -> None:
    clients = fresh()
    assert clients.get() == 0

    def act() -> int:
        clients.close()
        return 10 * len(closed) + clients.get()

    assert in_child(act) == 1
    assert clients.get() == 0


def test_a_fork_while_another_thread_makes_its_client_does_not_hang() -> None:
    making = threading.Event()
    go_on = threading.Event()

    def slowly() -> int:
        making.set()
        go_on.wait(10)
        return 7

    clients = PerProcess(slowly, close)
    thread = threading.Thread(target=clients.get)
    thread.start()
    making.wait()

    def act() -> int:
        go_on.set()
        return clients.get()

    try:
        assert in_child(act) == 7
    finally:
        go_on.set()
        thread.join()
