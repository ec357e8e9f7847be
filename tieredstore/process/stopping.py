"""Stop requests to the threads of a service, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from tieredstore.errors import ConfigError
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import begin_again_after_fork

_WITHOUT_WORK: Final = set[threading.Thread]()


@contextmanager
def nothing_under_way() -> Generator[None]:
    """Within the block, mark this thread as idle: it has no work that must finish before a stop. For example, it waits
    for a store.

    A stop ends a service at once if all of its threads are in ``nothing_under_way`` blocks.
    """
    thread = threading.current_thread()
    is_outermost = thread not in _WITHOUT_WORK
    _WITHOUT_WORK.add(thread)
    try:
        yield
    finally:
        if is_outermost:
            _WITHOUT_WORK.discard(thread)


def is_without_work(thread: threading.Thread) -> bool:
    """Return True if the thread is in a ``nothing_under_way`` block."""
    return thread in _WITHOUT_WORK


class Stop:
    """A request to stop, which cannot be taken back. Thread-safe.

    Do not call the methods from a signal handler. They take locks, which the interrupted thread may hold.

    ``drain_s`` is the time, in seconds, that running work may still take after the request to stop.
    """

    def __init__(self, drain_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        if not 0 <= drain_s < threading.TIMEOUT_MAX:
            raise ConfigError(f"invalid drain time of {drain_s} s; 0 s or more are needed")
        self.drain_s = drain_s
        self._monotonic = monotonic
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._deadline: Deadline | None = None
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset in a forked child: keep an earlier request to stop, and make fresh locks."""
        self._lock = threading.Lock()
        self._asked = threading.Event()
        if self._deadline is not None:
            self._asked.set()

    def ask(self) -> None:
        """Request the stop; later calls change nothing, not even the deadline."""
        with self._lock:
            if self._deadline is None:
                self._deadline = Deadline.after(self.drain_s, self._monotonic)
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        """True after a stop was requested."""
        return self._asked.is_set()

    @property
    def deadline(self) -> Deadline | None:
        """The time by which all work must have ended; None until a stop is requested."""
        return self._deadline

    def wait(self, seconds: float) -> bool:
        """Pause for ``seconds`` and return False; return True as soon as a stop is requested.

        Threads of a service must pause only by this method, so that a stop ends the pause: ``while not stop.wait(5.0):
        ...``.
        """
        return self._asked.wait(min(seconds, threading.TIMEOUT_MAX))  # Long.MAX ms in the settings are more
