"""How a process that does one thing ends when a signal asks it to: soon, whatever its threads are waiting for."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Final, Self

from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.signal_handlers import SignalHandlers

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what a service manager sends, and the terminal that is closed."""

UNWINDING_S: Final = 0.5
"""How long a process that has nothing to take back may go on after the first signal."""

TAKING_BACK_S: Final = 1.5
"""How long one may go on that has."""

_LAST_ACT_S: Final = 0.2
_SOON: Final = 255  # no signal has this number


class Interrupted(BaseException):
    """A signal asked for the end. Raised once, in the main thread, wherever that is; and where others are woken."""


def exit_code_of(signum: int) -> int:
    """The exit code that shells give to what a signal ended."""
    return 128 + signum


@dataclass(frozen=True, slots=True)
class _LastAct:
    act: Callable[[], None]
    needs_time: bool

    def do(self) -> None:
        with suppress(Exception):  # there is nobody left who could be told
            self.act()


_LAST_ACTS: Final[dict[object, _LastAct]] = {}
_WAKERS: Final[dict[object, Callable[[], None]]] = {}


@contextmanager
def woken_by_interruption(wake: Callable[[], None]) -> Generator[None]:
    """Within the block: call ``wake`` when a signal asks for the end, on another thread; it must not wait.

    For those who wait on threads that the main thread's exception does not reach, to raise Interrupted there.
    """
    name = object()
    _WAKERS[name] = wake
    try:
        yield
    finally:
        del _WAKERS[name]


@contextmanager
def at_sudden_end(act: Callable[[], None], *, needs_time: bool = False) -> Generator[None]:
    """Within the block: if the process is ended in the middle of it, do ``act``, on another thread and quickly.

    For what an error would undo on its way out of the block, and a sudden end does not: a file is removed, a sentence
    said. ``needs_time`` says that the way out talks with a store, and is worth waiting for.
    """
    name = object()
    _LAST_ACTS[name] = _LastAct(act, needs_time)
    try:
        yield
    finally:
        del _LAST_ACTS[name]


class Interruption:
    """The signals of a process while its one command runs; a context manager, for the main thread.

    The first signal raises :class:`Interrupted` in the main thread, and all is undone on its way out as after an
    error. That way may be long: pools are waited for, and their threads for a store, and the main thread may not even
    hear of it in the middle of a call that is not Python's. So a thread of its own, which the system wakes, gives it
    a moment, does what :func:`at_sudden_end` was told, and ends the process. A second signal is not given the moment.
    """

    def __init__(self, *, end_process: Callable[[int], object] = os._exit) -> None:
        self.signum: int | None = None
        self._exit_code = 0
        self._end_process = end_process
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.restore()
        self._speak_again()
        self._rung.close()  # which ends the thread
        self._watch.join()
        self._heard.close()

    def begin_again(self) -> None:
        """In a forked child: nobody watches there, and its signals are what they were."""
        self._speak_again()

    @property
    def exit_code(self) -> int:
        """What the process is to end with; 0 if nothing asked for its end."""
        return self._exit_code if self.signum is None else exit_code_of(self.signum)

    def end_soon(self, exit_code: int) -> None:
        """As if a signal had come, but that nothing is raised: the caller does that himself."""
        self._exit_code = self._exit_code or exit_code
        self._has_raised = True
        self._rung.send(bytes((_SOON,)))

    def is_over(self) -> None:
        """The command is done: a signal that comes from now on interrupts nothing, but still ends the process."""
        self._is_over = True

    def _take(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  a handler's signature
        self.signum = self.signum or signum
        if not (self._has_raised or self._is_over):
            self._has_raised = True
            # Threads that are left behind meet pools and stores that are closed, and nobody wants to read of that.
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
        second = self._next_signal(UNWINDING_S)
        if second == 0 and any(last.needs_time for last in list(_LAST_ACTS.values())):
            second = self._next_signal(TAKING_BACK_S - UNWINDING_S)
        if second is not None:
            _do_last_acts()
            self._end_process(self.exit_code)

    def _next_signal(self, seconds: float | None) -> int | None:
        """The number of the signal that comes next; 0 if none comes in that time, None if none will be waited for."""
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        while poll.poll(None if seconds is None else seconds * 1000):
            rung = self._heard.recv(1)
            if not rung:
                return None
            if rung[0] in (*ENDING_SIGNALS, _SOON):  # the system tells of all signals that have a handler of Python
                return rung[0]
        return 0

    def _speak_again(self) -> None:
        logging.lastResort, threading.excepthook = self._last_resort, self._excepthook


def _say_nothing(_: threading.ExceptHookArgs) -> None:
    """What Python would tell of an error that ends a thread."""


def _do_last_acts() -> None:
    """The last first. Each has a moment alone, since a disk or a terminal may not answer."""
    for last in reversed(list(_LAST_ACTS.values())):
        actor = threading.Thread(target=last.do, name="tieredstore-last-act", daemon=True)
        with suppress(RuntimeError):  # the system has no thread for it
            actor.start()
            actor.join(_LAST_ACT_S)
