"""Waits for futures: they end with the work, in time, or when a signal comes, at whatever moment."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from tieredstore.errors import AlreadyClosed
from tieredstore.process.futures import Overdue, is_done, outcome


class Waited(Future[int]):
    """Notes how long each of its waits may take."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.waits.append(timeout)
        return super().exception(timeout)


def test_a_wait_looks_up_again_and_again_for_a_signal_that_came_before_it_began() -> None:
    future = Waited()
    threading.Timer(1.2, future.set_result, [7]).start()
    assert outcome(future) == 7
    assert len(future.waits) > 1
    assert all(wait is not None and 0 < wait <= 0.5 for wait in future.waits)


def test_a_wait_ends_in_time() -> None:
    future, began_s = Waited(), time.monotonic()
    assert not is_done(future, 0.7)
    assert time.monotonic() - began_s >= 0.7
    assert len(future.waits) > 1
    assert not is_done(future, 0)
    with pytest.raises(Overdue):
        outcome(future, 0)


def test_what_is_done_or_dropped_is_not_waited_for() -> None:
    done, dropped = Waited(), Waited()
    done.set_result(3)
    dropped.cancel()
    assert outcome(done, 0) == 3
    assert is_done(dropped)
    with pytest.raises(AlreadyClosed):
        outcome(dropped)
    assert dropped.waits == []
