"""A copy whose caller is interrupted: running work is awaited, or named in the log."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.interruption import ENDING_SIGNALS, Interrupted, Interruption, at_sudden_end
from tieredstore.process.lifetime import Lifetime
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.managed_store import ManagerCalls


class InterruptedSubmit(ThreadPool):
    """Interrupts after the work has begun, and before the caller has its future."""

    def __init__(self, interrupt: type[BaseException], begun: threading.Event) -> None:
        super().__init__(1, "interrupted-submit")
        self._interrupt = interrupt
        self._has_begun = begun

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        super().submit(fn, *args, **kwargs)
        assert self._has_begun.wait(60)
        raise self._interrupt


class Copy:
    """A copy that has begun an upload. When asked to end, it rolls back as soon as the test permits it."""

    def __init__(self) -> None:
        self.has_begun, self.is_asked_to_end, self.may_end = threading.Event(), threading.Event(), threading.Event()
        self.is_undone = False

    def write(self, check: Callable[[], None]) -> None:
        self.has_begun.set()
        try:
            while True:
                check()
        except AlreadyClosedError:
            self.is_asked_to_end.set()
            assert self.may_end.wait(60)
            self.is_undone = True
            raise


@pytest.fixture
def copy() -> Copy:
    return Copy()


@pytest.mark.parametrize("signum", ENDING_SIGNALS)
def test_a_signal_does_not_leave_before_what_was_begun_is_undone_or_named(copy: Copy, signum: signal.Signals) -> None:
    said: list[str] = []
    main = threading.main_thread().ident or 0

    def tell() -> None:
        said.append("may have left objects")
        copy.may_end.set()

    def send_twice() -> None:
        assert copy.has_begun.wait(60)  # the handlers are installed by then
        signal.pthread_kill(main, signum)
        assert copy.is_asked_to_end.wait(60)
        signal.pthread_kill(main, signum)

    before = {each: signal.signal(each, signal.SIG_DFL) for each in ENDING_SIGNALS}
    calls = ManagerCalls(Lifetime("it"), undo_s=0)
    sender = threading.Thread(target=send_twice)
    sender.start()
    try:
        with (
            Interruption(end_process=lambda _: None),
            pytest.raises(Interrupted),
            at_sudden_end(tell, needs_time=True),
        ):
            calls.run_writing("a segment", copy.write)
    finally:
        sender.join()
        for each, handler in before.items():
            signal.signal(each, handler)
    assert said == ["may have left objects"]


def test_an_interrupt_before_the_future_is_there_is_waited_for_as_well(copy: Copy) -> None:
    calls = ManagerCalls(Lifetime("it"), pool=InterruptedSubmit(Interrupted, copy.has_begun))
    copy.may_end.set()
    with pytest.raises(Interrupted):
        calls.run_writing("a segment", copy.write)
    assert copy.is_undone


def test_what_a_keyboard_interrupt_cannot_wait_for_is_named(copy: Copy, caplog: pytest.LogCaptureFixture) -> None:
    calls = ManagerCalls(Lifetime("it"), pool=InterruptedSubmit(KeyboardInterrupt, copy.has_begun), undo_s=0)
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        calls.run_writing("a segment", copy.write)
    copy.may_end.set()
    (message,) = caplog.messages
    assert message.startswith("a segment: the copy was interrupted before its rollback ended; ")
