"""Ending a process by a signal: the exception, the waits, and functions that run before a sudden end."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.support.fresh_python import run_fresh
from tests.support.waiting import wait_until
from tieredstore.process import interruption
from tieredstore.process.interruption import (
    ENDING_SIGNALS,
    Interrupted,
    Interruption,
    at_sudden_end,
    keyboard_interrupts,
)
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool


class PatientInterruption(Interruption):
    last_act_s = 10.0

    def __init__(self, *, end_process: Callable[[int], object]) -> None:
        super().__init__(end_process=end_process)
        self.waits_s: list[float | None] = []
        """The time limits of all waits for a signal, in order."""

    def _next_signal(self, seconds: float | None) -> int | None:
        self.waits_s.append(seconds)
        return super()._next_signal(seconds)


class End:
    """Replaces the function that ends the process."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def __call__(self, code: int) -> None:
        self.codes.append(code)

    def is_asked(self) -> None:
        """Wait until the end of the process is requested."""
        wait_until(lambda: bool(self.codes))


@pytest.fixture(autouse=True)
def short_moments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interruption, "UNWINDING_S", 0.05)
    monkeypatch.setattr(interruption, "TAKING_BACK_S", 0.1)
    before = [signal.signal(signum, signal.SIG_DFL) for signum in ENDING_SIGNALS]
    yield
    for signum, handler in zip(ENDING_SIGNALS, before, strict=True):
        signal.signal(signum, handler)


def raise_and_stay(signum: signal.Signals, *stay: Callable[[], object]) -> None:
    """Raise the signal, and run the functions ``stay`` in a ``finally`` block."""
    try:
        signal.raise_signal(signum)
    finally:
        for step in stay:
            step()


@pytest.mark.parametrize("signum", ENDING_SIGNALS)
def test_the_first_signal_is_raised_in_the_main_thread(signum: signal.Signals) -> None:
    with Interruption(end_process=End()) as ending, pytest.raises(Interrupted):
        signal.raise_signal(signum)
    assert ending.exit_code == 128 + signum
    assert signal.getsignal(signum) is signal.SIG_DFL


def test_a_main_thread_that_begins_to_wait_when_the_signal_comes_gets_it_again() -> None:
    """A signal that another thread gets does not end the main thread's wait either."""
    begins, ended, wait = threading.Event(), threading.Event(), threading.Semaphore(0)

    def signal_here() -> bool:
        begins.wait(60)
        signal.raise_signal(signal.SIGTERM)
        in_time = ended.wait(60)
        wait.release()
        return in_time

    with ThreadPool(1, "signals") as pool:
        in_time = pool.submit(signal_here)
        with Interruption(end_process=End()) as ending, contextlib.suppress(Interrupted):
            begins.set()
            wait.acquire(timeout=120)
        ended.set()
        assert in_time.result(120)
    assert ending.exit_code == 128 + signal.SIGTERM


def test_a_way_out_that_takes_long_is_cut_off_and_last_acts_are_done() -> None:
    end, acts = End(), list[str]()
    with (
        PatientInterruption(end_process=end),
        pytest.raises(Interrupted),
        at_sudden_end(lambda: acts.append("first")),
        at_sudden_end(lambda: acts.append("second")),
    ):
        raise_and_stay(signal.SIGTERM, end.is_asked)
    assert (end.codes, acts) == ([143], ["second", "first"])


def test_a_way_out_that_is_short_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "UNWINDING_S", 60)
    end, acts = End(), list[str]()
    with Interruption(end_process=end), pytest.raises(Interrupted), at_sudden_end(lambda: acts.append("act")):
        signal.raise_signal(signal.SIGINT)
    # The thread that would end the process has ended, so the process will not be ended.
    assert "tieredstore-signals" not in {thread.name for thread in threading.enumerate()}
    assert (end.codes, acts) == ([], [])


def test_a_command_with_its_own_ctrl_c_is_ended_by_the_other_signals() -> None:
    end, woken = End(), list[bool]()
    with Interruption(end_process=end), keyboard_interrupts(lambda: woken.append(True)) as interruptible:
        with pytest.raises(KeyboardInterrupt), interruptible:
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted):
            raise_and_stay(signal.SIGTERM, end.is_asked)
    assert (woken, end.codes) == ([True], [143])


def test_ctrl_c_outside_of_an_interruptible_block_is_raised_by_the_next_block() -> None:
    passed: list[int] = []
    with keyboard_interrupts(lambda: None) as interruptible:
        with interruptible:
            passed.append(1)
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interruptible:
            passed.append(2)
        with interruptible:
            passed.append(3)
    assert passed == [1, 3]


def test_one_act_that_hangs_or_fails_does_not_keep_the_others() -> None:
    end, acts, never = End(), list[str](), threading.Event()

    def fail() -> None:
        raise OSError

    def hang() -> None:
        never.wait(30)

    with (
        Interruption(end_process=end),
        pytest.raises(Interrupted),
        at_sudden_end(lambda: acts.append("act")),
        at_sudden_end(fail),
        at_sudden_end(hang),
    ):
        raise_and_stay(signal.SIGINT, end.is_asked)
    never.set()
    assert end.codes == [130]
    wait_until(lambda: acts == ["act"])


@pytest.mark.slow
def test_what_needs_time_gets_it_and_a_second_signal_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "TAKING_BACK_S", 600)
    end = End()

    def stay_a_while() -> None:
        wait_until(lambda: end.codes or (ending.waits_s[-1] or 0) > 500)
        assert end.codes == []

    with (
        PatientInterruption(end_process=end) as ending,
        pytest.raises(Interrupted),
        at_sudden_end(stay_a_while, needs_time=True),
    ):
        # The second signal raises nothing, because the first one's exception is still propagating.
        raise_and_stay(signal.SIGINT, stay_a_while, partial(signal.raise_signal, signal.SIGTERM), end.is_asked)
    assert end.codes == [130]


def test_what_is_over_is_not_interrupted_and_ends_all_the_same() -> None:
    end = End()
    with Interruption(end_process=end) as ending:
        ending.is_over()
        signal.raise_signal(signal.SIGTERM)
        end.is_asked()
    assert end.codes == [143]


def test_an_end_that_is_asked_for_raises_nothing() -> None:
    end = End()
    with Interruption(end_process=end) as ending:
        ending.end_soon(7)
        end.is_asked()
        assert ending.exit_code == 7
        assert ending.signum is None
    assert end.codes == [7]


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interruption(end_process=End()) as ending:
        signal.raise_signal(signal.SIGINT)
    assert ending.exit_code == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_signals_that_have_a_handler_end_nothing() -> None:
    end, heard = End(), list[int]()
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    with Interruption(end_process=end) as ending:
        signal.raise_signal(signal.SIGUSR1)
    # The end of the block waits until the thread that watches signals has seen all of them.
    signal.signal(signal.SIGUSR1, before)
    assert (heard, end.codes, ending.exit_code) == ([signal.SIGUSR1], [], 0)


def test_threads_that_are_left_behind_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    go = threading.Event()

    def fail() -> None:
        go.wait()
        raise RuntimeError("left behind")

    left = threading.Thread(target=fail)
    left.start()
    last_resort = logging.lastResort
    with Interruption(end_process=End()), pytest.raises(Interrupted):
        raise_and_stay(signal.SIGINT, go.set, left.join)
    assert logging.lastResort is last_resort
    assert capfd.readouterr().err == ""


def test_whoever_waits_on_another_thread_is_woken() -> None:
    end, ends, never = End(), list[str](), threading.Event()

    def work() -> None:
        pool = ThreadPool(1, "test")
        try:
            list(in_parallel(pool, lambda _: never.wait(60), range(5), at_once=2, ordered=False))
        except Interrupted:
            ends.append("interrupted")
        pool.shutdown(wait=False, cancel_futures=True)

    working = threading.Thread(target=work)
    working.start()
    with Interruption(end_process=end), pytest.raises(Interrupted):
        raise_and_stay(signal.SIGTERM, partial(working.join, 30))
    never.set()
    assert ends == ["interrupted"]


def test_signals_of_a_forked_child_are_what_they_were() -> None:
    assert (
        run_fresh("""
import os, signal
from tieredstore.process.interruption import Interruption

with Interruption():
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
        == "-15\n"
    )
