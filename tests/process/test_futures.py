"""Waits for futures end with the work, at the timeout, or at a signal at any moment."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tieredstore.errors import AlreadyClosedError
from tieredstore.process import futures
from tieredstore.process.futures import OverdueError, is_done, outcome


class Waited(Future[int]):
    """Records the timeout of each wait, which passes on a fake clock; the work ends in wait number ``done_in``."""

    def __init__(self, done_in: int = 0) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._done_in = done_in

    def exception(self, timeout: float | None = None) -> BaseException | None:
        assert timeout is not None, "it would not hear of a signal"
        self.waits.append(timeout)
        if len(self.waits) == self._done_in:
            self.set_result(7)
        return super().exception(0)

    def now_s(self) -> float:
        return sum(self.waits)


def test_a_wait_looks_up_again_and_again_for_a_signal_that_came_before_it_began() -> None:
    future = Waited(done_in=3)
    assert outcome(future) == 7
    assert future.waits == [0.5, 0.5, 0.5]


def test_a_wait_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    future = Waited()
    monkeypatch.setattr(futures, "time", SimpleNamespace(monotonic=future.now_s))
    assert not is_done(future, 0.7)
    assert future.waits == [0.5, pytest.approx(0.2)]
    assert not is_done(future, 0)
    with pytest.raises(OverdueError):
        outcome(future, 0)


def test_done_or_dropped_futures_are_not_waited_for() -> None:
    done, dropped = Waited(), Waited()
    done.set_result(3)
    dropped.cancel()
    assert outcome(done, 0) == 3
    assert is_done(dropped)
    with pytest.raises(AlreadyClosedError):
        outcome(dropped)
    assert dropped.waits == []
