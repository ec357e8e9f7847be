"""Closes objects, also at the end of ``with`` blocks. A close never waits forever, and may be called
from signal handlers and from several threads.
"""

from __future__ import annotations

import _thread
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Self

from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import begin_again_after_fork


class Closing(ABC):
    """Object that a ``with`` block closes."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_LOCKED_S: Final = 1.0
"""The longest wait for locks in seconds. Other threads release their locks soon; only a lock that the waiting thread
itself holds stays locked."""

_LAST_STEPS_S: Final = 0.1
"""The longest wait, in seconds, for a thread that is about to end."""


class Closer:
    """Calls the function ``end``, then ``close``. ``end`` waits only for locks. Both are called only once, even if
    several threads close.

    ``end`` and ``close`` run on a separate thread, for two reasons. A signal handler that calls :meth:`close` may have
    interrupted a thread, and ``end`` may need a lock of that thread. Also, the closed resource may not respond.
    """

    def __init__(self, end: Callable[[], None], close: Callable[[], None]) -> None:
        self._end = end
        self._close = close
        self._error: Exception | None = None
        self._is_done = False
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Make fresh locks and a thread. A forked child must close its own copy of the resource."""
        # Use locks as flags, because a signal handler cannot interrupt a lock's methods halfway.
        self._begun = threading.Lock()
        self._ended = threading.Lock()
        self._done = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tieredstore-close", daemon=True)
        if not self._is_done:
            self._ended.acquire()
            self._done.acquire()

    def close(self, timeout_s: float) -> bool:
        """Close, or wait until another caller has closed. Return False after the timeout; closing then continues.

        If closing fails, only one of the callers gets the error.
        """
        if self._is_done:
            return True
        if self._begun.acquire(blocking=False):
            try:
                # Call ``Thread.start`` on another thread, because ``start`` takes a lock of Python. If a signal handler
                # closes the object, this thread may already hold that lock.
                _thread.start_new_thread(self._thread.start, ())
            except RuntimeError:  # the interpreter is shutting down
                self._run()
        deadline = Deadline.after(timeout_s)
        # If ``end`` does not finish in time, the calling thread probably holds a lock that ``end`` needs. Return, so
        # that the caller can release the lock.
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
        except Exception as error:  # noqa: BLE001  raised in a waiting caller
            self._error = error
        finally:
            self._is_done = True
            self._done.release()
