"""How long something is open: what is waited for on its behalf ends when it does, whoever still works at it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from typing import Any, ParamSpec, TypeVar

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.forks import begin_again_after_fork

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Lifetime:
    """From the making of ``what`` until it is closed. Safe from several threads.

    Work is given to executors through :meth:`bound`: a future of theirs fails when the lifetime ends, while its work
    may go on, since nobody can take a thread out of a call that a store does not answer.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_over = False
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child: over if it was, and nothing runs."""
        # Without locks, by steps that are whole by themselves: garbage collection ends work anywhere.
        self._promises: set[_Promise[Any]] = set()
        self._running: set[object] = set()
        self._rested = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._is_over

    def check(self) -> None:
        """AlreadyClosedError if it has ended."""
        if self._is_over:
            raise self.error()

    def error(self) -> AlreadyClosedError:
        """What whoever waits, or comes later, is told."""
        return AlreadyClosedError(f"{self._what} was closed; open another one to go on")

    def bound(self, executor: Executor) -> Executor:
        """The executor, for work of this lifetime. Shutting it down is its owner's business."""
        return _Bound(executor, self)

    def end(self) -> None:
        """End all waits, and let nothing begin any more. Not for signal handlers: waits have locks."""
        self._is_over = True
        with contextlib.suppress(KeyError):
            while True:
                self._promises.pop().fail(self.error())

    def rest(self, timeout_s: float | None) -> bool:
        """Once it has ended: wait until no work is under way; False if some still is after the time-out."""
        return not self._running or self._rested.wait(timeout_s)

    def during(self, work: Callable[[], _Result]) -> _Result:
        """Do the work on the caller's thread; AlreadyClosedError if it has ended before, and not while the work goes
        on."""
        token = object()
        self._running.add(token)  # first, as below
        try:
            self.check()
            return work()
        finally:
            self._discard(token)

    def begun(self, promise: _Promise[Any]) -> None:
        """Have ``promise`` failed at the end."""
        self._promises.add(promise)
        promise.add_done_callback(self._promises.discard)
        if self._is_over:  # since it was looked: nobody else would fail it
            promise.fail(self.error())

    def do(self, promise: _Promise[_Result], work: Callable[[], _Result]) -> _Result:
        """Do the work, on the executor's thread, and tell whoever still waits for it."""
        token = object()
        self._running.add(token)  # first, so that whoever has seen nothing run can rely on it
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
            del promise  # which the error's traceback would keep, and it the error
            self._discard(token)

    def _discard(self, token: object) -> None:
        self._running.discard(token)
        if self._is_over and not self._running:
            self._rested.set()


class _Promise(Future[_Result]):
    """A future that may be failed while its work goes on; what comes of the work then is nobody's."""

    def begin(self) -> None:
        """The work begins; CancelledError, which nobody looks at, if it was dropped or failed before."""
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
    """An executor whose futures end with a lifetime."""

    def __init__(self, executor: Executor, life: Lifetime) -> None:
        self._executor = executor
        self._life = life

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """AlreadyClosedError once the lifetime has ended, and when the executor takes no more."""
        self._life.check()
        promise: _Promise[_Result] = _Promise()
        self._life.begun(promise)
        try:
            task = self._executor.submit(self._life.do, promise, lambda: fn(*args, **kwargs))
        except RuntimeError as error:  # an executor's own way to say that it was shut down
            promise.cancel()
            raise AlreadyClosedError(f"no thread can be given more work: {error}") from error
        # An executor may do the work before submit returns; then its own future has the answer.
        return task if task.done() else promise
