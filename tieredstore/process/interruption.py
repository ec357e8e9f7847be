"""Signals: handlers for a time, and the end of a command's process soon after a signal, even if its threads wait for a
store.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import ClassVar, Final, Self

from tieredstore.process.forks import begin_again_after_fork

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that Ctrl-C, service managers and a closed terminal send."""

UNWINDING_S: Final = 0.5
"""After the first signal, a process that has nothing to undo gets this many seconds to end."""

TAKING_BACK_S: Final = 1.5
"""After the first signal, a process that must undo something gets this many seconds to end."""

_SOON: Final = 255  # stands for :meth:`Interruption.end_soon`, because no signal has this number


class SignalHandlers:
    """Sets signal handlers and the wake-up descriptor for a time, then restores the previous values. A forked child
    restores them too.

    Use this class only in the main thread.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
        self._wakeup_before = -1

    def install(
        self,
        signals: Iterable[signal.Signals],
        take: Callable[[int, FrameType | None], object],
        wakeup_fd: int,
        *,
        even_ignored: frozenset[signal.Signals] = frozenset(),
    ) -> None:
        """Let each of these signals call ``take`` and write to ``wakeup_fd``.

        An ignored signal stays ignored if it is not in ``even_ignored``. Shells ignore SIGINT for background processes,
        and nohup ignores SIGHUP.
        """
        self._wakeup_before = signal.set_wakeup_fd(wakeup_fd, warn_on_full_buffer=False)
        begin_again_after_fork(self)
        for signum in signals:
            before = signal.getsignal(signum)
            if before is not signal.SIG_IGN or signum in even_ignored:
                self._before[signum] = before
                signal.signal(signum, take)

    def restore(self) -> None:
        """Restore the previous handlers and descriptor."""
        self._restore(self._wakeup_before)

    def begin_again(self) -> None:
        """Reset in a forked child, whose signals must not wake the parent's threads."""
        self._restore(-1)

    def _restore(self, wakeup_fd: int) -> None:
        signal.set_wakeup_fd(wakeup_fd)
        while self._before:
            signum, before = self._before.popitem()
            # None means that C code had set the previous handler, which Python cannot restore. Restore the default
            # instead.
            signal.signal(signum, signal.SIG_DFL if before is None else before)


class Interrupted(BaseException):
    """Raised after a signal that ends the process: once in the main thread, and in threads that
    ``wake_on_interruption`` wakes.
    """


def is_interruption(error: BaseException | None) -> bool:
    """Return True if ``error`` is an interruption, or was raised from one.

    Before Python 3.12, a class statement raises RuntimeError from an exception in a ``__set_name__``. A signal may
    arrive there while a command imports a module.
    """
    while error is not None and not isinstance(error, Interrupted | KeyboardInterrupt):
        error = error.__cause__
    return error is not None


@dataclass(frozen=True, slots=True)
class _LastAct:
    act: Callable[[], None]
    needs_time: bool

    def do(self) -> None:
        with suppress(Exception):  # the process is ending, so nobody could handle the error
            self.act()


_LAST_ACTS: Final[dict[object, _LastAct]] = {}
_WAKERS: Final[dict[object, Callable[[], None]]] = {}
_NOT_ENDING: Final[set[int]] = set()
"""The signals of ``ENDING_SIGNALS`` that the command handles by itself at present."""


@contextmanager
def wake_on_interruption(wake: Callable[[], None]) -> Generator[None]:
    """Within the block, call ``wake`` on another thread if a signal ends the process. ``wake`` must not wait.

    After a signal, only the main thread gets the exception. A reader on another thread uses this function to raise
    Interrupted on its own thread.
    """
    name = object()
    _WAKERS[name] = wake
    try:
        yield
    finally:
        del _WAKERS[name]


@contextmanager
def at_sudden_end(act: Callable[[], None], *, needs_time: bool = False) -> Generator[None]:
    """Within the block, run ``act`` on another thread if the process must end without the main thread's cleanup.
    ``act`` must be quick.

    ``act`` replaces the main thread's cleanup after the exception, such as the removal of a file. With ``needs_time``,
    the main thread gets more time first, because its cleanup sends requests to a store.
    """
    name = object()
    _LAST_ACTS[name] = _LastAct(act, needs_time)
    try:
        yield
    finally:
        del _LAST_ACTS[name]


class KeyboardInterrupts:
    """A context manager for the blocks that Ctrl-C may leave by KeyboardInterrupt, see ``keyboard_interrupts``.

    Ctrl-C outside of these blocks raises nothing at once: the next of these blocks raises KeyboardInterrupt when it
    begins. So Ctrl-C never raises in an error handler or between two steps of a loop, where it would end the command.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._may_raise = False
        self._is_pending = False

    def __enter__(self) -> None:
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt
        self._may_raise = True

    def __exit__(self, *_: object) -> None:
        self._may_raise = False

    def take(self, _signum: int, _frame: FrameType | None) -> None:
        """Handle Ctrl-C."""
        self._wake()
        if self._may_raise:
            self._may_raise = False
            raise KeyboardInterrupt
        self._is_pending = True


@contextmanager
def keyboard_interrupts(wake: Callable[[], None]) -> Generator[KeyboardInterrupts]:
    """Within the block, Ctrl-C calls ``wake``, and raises KeyboardInterrupt in the blocks of the yielded object. The
    other signals still end the process.
    """
    interrupts = KeyboardInterrupts(wake)
    before = signal.signal(signal.SIGINT, interrupts.take)
    _NOT_ENDING.add(signal.SIGINT)
    try:
        yield interrupts
    finally:
        _NOT_ENDING.discard(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


class Interruption:
    """A context manager for the main thread that handles signals while the process's command runs.

    The first signal raises :class:`Interrupted` in the main thread. The main thread then cleans up as after an error.
    The cleanup may take long, because pools wait for threads that wait for a store. Native code may also delay the
    exception.

    So the signal also wakes a separate thread. This thread waits a moment, runs the functions passed to
    :func:`at_sudden_end`, and ends the process. A second signal ends the wait.
    """

    last_act_s: ClassVar[float] = 0.2
    """Maximum seconds to wait for each of these functions, because a disk or a terminal may hang."""

    def __init__(self, *, end_process: Callable[[int], object] = os._exit) -> None:
        self.signum: int | None = None
        self._exit_code = 0
        self._end_process = end_process
        self._main_thread = threading.get_ident()
        self._is_over = False
        self._has_raised = False
        self._handlers = SignalHandlers()
        self._last_resort, self._excepthook = logging.lastResort, threading.excepthook
        self._heard, self._rung = socket.socketpair()
        self._rung.setblocking(False)
        self._watch = threading.Thread(target=self._watch_signals, name="tieredstore-signals", daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        begin_again_after_fork(self)
        self._handlers.install(ENDING_SIGNALS, self._take, self._rung.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.restore()
        self.begin_again()
        self._rung.close()  # ends the thread
        self._watch.join()
        self._heard.close()

    def begin_again(self) -> None:
        """Report errors as if there had been no signal. A forked child has no thread that watches signals."""
        logging.lastResort, threading.excepthook = self._last_resort, self._excepthook

    @property
    def exit_code(self) -> int:
        """Exit code for the process; 0 if nothing requested its end. After a signal, it is the code that shells
        report."""
        return self._exit_code if self.signum is None else 128 + self.signum

    def end_soon(self, exit_code: int) -> None:
        """End the process as after a signal, but do not raise Interrupted, because the caller raises its own error."""
        self._exit_code = self._exit_code or exit_code
        self._has_raised = True
        self._rung.send(bytes((_SOON,)))

    def is_over(self) -> None:
        """Mark the command as done: a later signal then raises no exception, but still ends the process."""
        self._is_over = True

    def _take(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  a handler's signature
        self.signum = self.signum or signum
        if not (self._has_raised or self._is_over):
            self._has_raised = True
            # The remaining threads will fail because pools and stores are closed. Do not print their errors.
            logging.lastResort, threading.excepthook = None, _say_nothing
            raise Interrupted(signum)

    def _watch_signals(self) -> None:
        first = self._next_signal(None)
        if first is None:
            return
        if first != _SOON:
            self.signum = self.signum or first
        for wake in list(_WAKERS.values()):
            wake()
        second = self._next_signal(UNWINDING_S / 2)
        if second == 0 and first != _SOON and not (self._has_raised or self._is_over):
            # A signal that arrives just before the main thread begins to wait does not end the wait. Send it again.
            signal.pthread_kill(self._main_thread, first)
            self._next_signal(UNWINDING_S)  # the signal sent here
        if second == 0:
            second = self._next_signal(UNWINDING_S / 2)
        if second == 0 and any(last.needs_time for last in list(_LAST_ACTS.values())):
            second = self._next_signal(TAKING_BACK_S - UNWINDING_S)
        if second is not None:
            _do_last_acts(self.last_act_s)
            self._end_process(self.exit_code)

    def _next_signal(self, seconds: float | None) -> int | None:
        """Return the number of the next signal; 0 after the timeout, None once the command has ended."""
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        while poll.poll(None if seconds is None else seconds * 1000):
            rung = self._heard.recv(1)
            if not rung:
                return None
            if (
                rung[0] in {*ENDING_SIGNALS, _SOON} - _NOT_ENDING
            ):  # the descriptor also reports signals that other handlers handle
                return rung[0]
        return 0


def _say_nothing(_: threading.ExceptHookArgs) -> None:
    """Suppress Python's report of an error that ends a thread."""


def _do_last_acts(each_s: float) -> None:
    """Run the functions passed to ``at_sudden_end``, the last function first. Wait at most ``each_s`` for each."""
    for last in reversed(list(_LAST_ACTS.values())):
        actor = threading.Thread(target=last.do, name="tieredstore-last-act", daemon=True)
        with suppress(RuntimeError):  # no thread available
            actor.start()
            actor.join(each_s)
