"""The end of a ``with`` block closes, and closing never waits for ever: signal handlers and several threads may ask."""

from __future__ import annotations

import _thread
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import begin_again_after_fork


class Closing(ABC):
    """The end of a ``with`` block closes it, whatever ended the block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Give back what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_LOCKED_S: Final = 1.0
"""For locks: whoever has one gives it up at once, unless it is the thread that waits here."""

_LAST_STEPS_S: Final = 0.1
"""For a thread that has nothing left to do but to end."""


class Closer:
    """Does ``end``, which waits for nothing but locks, and then ``close``, once, whoever asks and however often.

    They are done on a thread of its own: a signal's handler may have interrupted the very thread that holds a lock
    which closing needs, and what is closed may not answer.
    """

    def __init__(self, end: Callable[[], None], close: Callable[[], None]) -> None:
        self._end = end
        self._close = close
        self._error: Exception | None = None
        self._is_done = False
        self._reset()
        begin_again_after_fork(self)

    def _reset(self) -> None:
        # Locks, since their methods are one step each, which a handler cannot come between.
        self._begun = threading.Lock()
        self._ended = threading.Lock()
        self._done = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tieredstore-close", daemon=True)
        if not self._is_done:
            self._ended.acquire()
            self._done.acquire()

    def begin_again(self) -> None:
        """In a forked child: what the parent has not closed to the end is to be closed here too."""
        self._reset()

    def close(self, timeout_s: float) -> bool:
        """Close, or wait until it is closed; False if it still is not after the time-out, and goes on.

        What went wrong is raised once, by whoever hears of it first.
        """
        if self._is_done:
            return True
        if self._begun.acquire(blocking=False):
            try:
                # Not the thread itself: to start one takes a lock of Python's, and waits for it to have begun.
                _thread.start_new_thread(self._thread.start, ())
            except RuntimeError:  # the interpreter is ending
                self._run()
        deadline = Deadline.after(timeout_s)
        # Where not even this is done, the thread that asks has a lock that is needed, and gives it up when we return.
        for lock, longest_s in ((self._ended, min(_LOCKED_S, timeout_s)), (self._done, timeout_s)):
            if not lock.acquire(timeout=max(0.0, min(longest_s, deadline.remaining_s()))):
                return False
            lock.release()
        if self._thread.ident is not None:
            self._thread.join(_LAST_STEPS_S)
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def _run(self) -> None:
        try:
            self._end()
            self._ended.release()
            self._close()
        except Exception as error:  # noqa: BLE001  raised where somebody waits for it
            self._error = error
        finally:
            self._is_done = True
            self._done.release()
