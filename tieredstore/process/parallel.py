"""One job for each of many items, several at once: what a store is asked many times, parts that are sent."""

from __future__ import annotations

import contextlib
import os
import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from typing import Final, Generic, TypeVar

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.deadline import Deadline
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.interruption import Interrupted, woken_by_interruption

READERS: Final = 16
"""Requests at once unless told otherwise: a planning waits for round trips, not for bytes."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(
    pool: Executor,
    job: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    at_once: int,
    ordered: bool = True,
    deadline: Deadline | None = None,
    weigh: Callable[[_Item], int] | None = None,
    max_weight: int = 0,
) -> Generator[_Result, None, None]:
    """The results of ``job`` in the order of ``items``; in that of their coming if not ``ordered``.

    At most ``at_once`` items are with the pool, waiting, being worked on, or done and not yet asked for, which bounds
    memory; one more is taken from ``items`` meanwhile. Items are taken on the caller's thread, in between results.
    With ``weigh`` these items together weigh at most ``max_weight``; one that weighs more is there alone.

    When a job fails none is begun any more that comes after it. The results before it are still given, then its error
    is raised; an error of ``items`` is raised at once. StoreUnavailableError if the ``deadline`` passes while a result
    is waited for; AlreadyClosedError if the pool drops what waits, and in a child that was forked meanwhile. However it
    ends, by an error, by ``close`` or because nobody asks for more, jobs that wait are dropped, and those under way go
    on to their own end: the pool's owner waits for them by shutting it down. Where a signal ends the process,
    Interrupted is raised at once for results that are given as they come, whatever thread waits for them.
    """
    run = _Run[_Item, _Result](pool, job, ordered, deadline)
    with woken_by_interruption(run.interrupt), contextlib.closing(run):
        for item in items:
            weight = 0 if weigh is None else weigh(item)
            while run.size and not run.has_failed and (run.size >= at_once or run.weight + weight > max_weight):
                yield run.next_result()
            if run.has_failed:
                break
            run.begin(item, weight)
        while run.size:
            yield run.next_result()


class _DroppedError(Exception):
    """A job that was not begun, since one before it had failed."""


class _Run(Generic[_Item, _Result]):
    """What of one call is with the pool: begun in the order of the items, taken in that order or as it is done."""

    def __init__(
        self, pool: Executor, job: Callable[[_Item], _Result], ordered: bool, deadline: Deadline | None
    ) -> None:
        self._pool = pool
        self._job = job
        self._ordered = ordered
        self._deadline = deadline
        self.weight = 0
        self._futures: deque[Future[_Result]] = deque()
        self._weights: dict[Future[_Result], int] = {}
        self._done: queue.SimpleQueue[Future[_Result] | None] = queue.SimpleQueue()
        self._process = os.getpid()
        self._begun = 0
        self._failed_at: int | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a job has failed, so that none is begun any more."""
        return self._failed_at is not None

    @property
    def size(self) -> int:
        """How many items are with the pool, or done and not taken."""
        return len(self._futures)

    def begin(self, item: _Item, weight: int) -> None:
        """Give the pool one more."""
        future = self._pool.submit(self._do, self._begun, item)
        self._begun += 1
        self._futures.append(future)
        if weight:
            self._weights[future] = weight
            self.weight += weight
        if not self._ordered:
            future.add_done_callback(self._done.put)

    def next_result(self) -> _Result:
        """Wait for the one that is due; raises its error."""
        if os.getpid() != self._process:
            raise AlreadyClosedError(
                "this was begun by the parent process, whose threads a fork leaves behind; begin anew"
            )
        while True:
            future = self._first() if self._ordered else self._first_done()
            self._futures.remove(future)
            self.weight -= self._weights.pop(future, 0)
            try:
                return outcome(future)
            except _DroppedError:
                # It may be done a moment before the failed job is for whose sake it was dropped: that one is there too.
                continue

    def interrupt(self) -> None:
        """Raise Interrupted where results are waited for as they come."""
        self._done.put(None)

    def close(self) -> None:
        """Begin none of those that wait. In a forked child all are the parent's, and so are their locks."""
        if os.getpid() == self._process:
            for future in self._futures:
                future.cancel()

    def _do(self, number: int, item: _Item) -> _Result:
        # One before it may get its thread's time only now, and its result is still asked for.
        if self._failed_at is not None and number > self._failed_at:
            raise _DroppedError
        try:
            return self._job(item)
        except BaseException:
            self._failed_at = number if self._failed_at is None else min(number, self._failed_at)
            raise

    def _first(self) -> Future[_Result]:
        future = self._futures[0]
        while not is_done(future, self._remaining_s()):
            self._check_deadline()
        return future

    def _first_done(self) -> Future[_Result]:
        while True:
            try:
                future = self._done.get(timeout=self._remaining_s())
            except queue.Empty:
                self._check_deadline()
                continue
            if future is None:
                raise Interrupted
            return future

    def _remaining_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline.remaining_s())

    def _check_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.check("what is done in parallel")
