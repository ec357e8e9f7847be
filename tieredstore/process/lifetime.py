"""Lifetimes of open objects. When a lifetime ends, threads that wait for the object's work stop waiting, even if the
work goes on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from functools import partial
from typing import Any, ParamSpec, TypeVar

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.forks import begin_again_after_fork

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Lifetime:
    """The time from the opening of an object, called ``what`` in errors, until it is closed. Thread-safe.

    The object passes work to executors through :meth:`bind`, so that the futures fail when the lifetime ends. The
    work itself may continue, because a thread cannot leave a call to a store that does not respond.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_over = False
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Forget all work in a forked child. A lifetime that has ended stays ended."""
        # Use only atomic steps and no locks: garbage collection may end a lifetime at any point, even while a thread
        # holds a lock.
        self._promises: set[_Promise[Any]] = set()
        self._running: set[object] = set()
        self._rested = threading.Event()

    @property
    def is_over(self) -> bool:
        """True after the lifetime's end."""
        return self._is_over

    def check(self) -> None:
        """Raise AlreadyClosedError after the lifetime's end."""
        if self._is_over:
            raise self.error()

    def error(self) -> AlreadyClosedError:
        """Return the error for threads that wait when the lifetime ends, and for later callers."""
        return AlreadyClosedError(f"{self._what} was closed; open another one to continue")

    def bind(self, executor: Executor) -> Executor:
        """Return an executor whose futures end with this lifetime; the owner of ``executor`` shuts it down."""
        return _Bound(executor, self)

    def end(self) -> None:
        """End all waits, and refuse new work. Do not call it from a signal handler, because it takes the futures'
        locks.
        """
        self._is_over = True
        with contextlib.suppress(KeyError):
            while True:
                self._promises.pop().fail(self.error())

    def rest(self, timeout_s: float | None) -> bool:
        """Wait until no work runs, after :meth:`end`; return False after the timeout."""
        return not self._running or self._rested.wait(timeout_s)

    def during(self, work: Callable[[], _Result]) -> _Result:
        """Do the work on the caller's thread; raise AlreadyClosedError if the lifetime has already ended."""
        token = object()
        self._running.add(token)  # added before the check, so that rest() never misses work that is about to begin
        try:
            self.check()
            return work()
        finally:
            self._discard(token)

    def register(self, promise: _Promise[Any]) -> None:
        """Register ``promise``, so that it fails when the lifetime ends."""
        self._promises.add(promise)
        promise.add_done_callback(self._promises.discard)
        if self._is_over:  # the lifetime ended just now, and ``end`` may have missed this promise
            promise.fail(self.error())

    def do(self, promise: _Promise[_Result], work: Callable[[], _Result]) -> _Result:
        """Do the work on the executor's thread, and set the promise's result."""
        token = object()
        self._running.add(token)  # added before the check, so that rest() never misses work that is about to begin
        try:
            promise.begin()
            result = work()
        except BaseException as error:
            promise.fail(error)
            raise
        else:
            promise.fulfil(result)
            return result
        finally:
            del promise  # break the reference cycle of error, traceback and promise
            self._discard(token)

    def _discard(self, token: object) -> None:
        self._running.discard(token)
        if self._is_over and not self._running:
            self._rested.set()


class _Promise(Future[_Result]):
    """A future that may fail while the work continues. The result of the work is then dropped."""

    def begin(self) -> None:
        """Mark the work as running. Raise CancelledError if the promise was cancelled or has failed already. The
        error stays in the executor's thread.
        """
        with self._condition:
            if self.done() or not self.set_running_or_notify_cancel():
                raise CancelledError

    def fulfil(self, result: _Result) -> None:
        with contextlib.suppress(InvalidStateError):
            self.set_result(result)

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            self.set_exception(error)


class _Bound(Executor):
    """An executor whose futures fail when a lifetime ends."""

    def __init__(self, executor: Executor, life: Lifetime) -> None:
        self._executor = executor
        self._life = life

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """Submit work; raise AlreadyClosedError after the lifetime's end or the executor's shutdown."""
        self._life.check()
        promise: _Promise[_Result] = _Promise()
        self._life.register(promise)
        try:
            task = self._executor.submit(self._life.do, promise, partial(fn, *args, **kwargs))
        except RuntimeError as error:  # raised by an executor after its shutdown
            promise.cancel()
            raise AlreadyClosedError(f"the threads accept no more work: {error}") from error
        # If the executor's future is done already, return that future instead of the promise.
        return task if task.done() else promise
