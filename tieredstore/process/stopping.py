"""How the threads of a service learn that they are to end, and by when."""

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
    """Within the block this thread has nothing that a stop should let end, as one that waits for a store to answer.

    A service that is told to stop, and of which only such threads go on, ends at once.
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
    """Whether a thread is within such a block."""
    return thread in _WITHOUT_WORK


class Stop:
    """A stop that is asked for once, and then for good. Thread-safe; not for signal handlers, which must not lock.

    ``drain_s`` is how long the work that is under way may take from then on.
    """

    def __init__(self, drain_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        if not 0 <= drain_s < threading.TIMEOUT_MAX:
            raise ConfigError(f"work cannot be drained for {drain_s} s; 0 s or more are needed")
        self.drain_s = drain_s
        self._monotonic = monotonic
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._deadline: Deadline | None = None
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child: as it was, with locks that no thread of the parent holds."""
        self._lock = threading.Lock()
        self._asked = threading.Event()
        if self._deadline is not None:
            self._asked.set()

    def ask(self) -> None:
        """Ask for it; later calls change nothing, the deadline neither."""
        with self._lock:
            if self._deadline is None:
                self._deadline = Deadline.after(self.drain_s, self._monotonic)
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        """Whether it was asked for."""
        return self._asked.is_set()

    @property
    def deadline(self) -> Deadline | None:
        """By when all work is to have ended; None as long as nobody asked."""
        return self._deadline

    def wait(self, seconds: float) -> bool:
        """Pass the time until there is something to do; True at once when the stop is asked for.

        A service waits by this alone: ``while not stop.wait(5.0): ...`` ends when it is told to.
        """
        return self._asked.wait(seconds)
