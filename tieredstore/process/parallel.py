"""Runs one job per item with bounded parallelism, for many requests to a store or parts of an upload."""

from __future__ import annotations

import contextlib
import os
import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from typing import Final, Generic, TypeVar

from tieredstore.errors import AlreadyClosedError
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.interruption import Interrupted, wake_on_interruption

READERS: Final = 16
"""The default number of parallel requests while a read is planned. The requests are small, so planning mostly waits for
round trips.
"""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(
    pool: Executor,
    job: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    at_once: int,
    ordered: bool = True,
    weigh: Callable[[_Item], int] | None = None,
    max_weight: int = 0,
) -> Generator[_Result, None, None]:
    """Yield the results of ``job`` in the order of ``items``, or as they complete if not ``ordered``.

    To bound memory, at most ``at_once`` items are waiting, running or unread. One more item is taken from ``items`` in
    advance, on the caller's thread. With ``weigh``, the waiting, running and unread items together weigh at most
    ``max_weight``. A heavier item runs alone.

    After a job has failed, no later job begins. The generator yields the results before the failed job, then raises its
    error. If iterating over ``items`` raises an error, the generator raises it at once.

    Raise AlreadyClosedError in a forked child, or if the pool drops waiting jobs.

    When the generator ends, by an error, by ``close`` or because its reader stops, waiting jobs are dropped. Running
    jobs continue, and the shutdown of the pool waits for them. If a signal ends the process, an unordered read raises
    Interrupted at once, on any thread.
    """
    run = _Run[_Item, _Result](pool, job, ordered)
    with wake_on_interruption(run.interrupt), contextlib.closing(run):
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
    """Raised for a job that did not begin, because an earlier job had failed."""


class _Run(Generic[_Item, _Result]):
    """The jobs of one call. They begin in the order of the items. Their results are read in the same order, or as jobs
    complete.
    """

    def __init__(self, pool: Executor, job: Callable[[_Item], _Result], ordered: bool) -> None:
        self._pool = pool
        self._job = job
        self._ordered = ordered
        self.weight = 0
        self._futures: deque[Future[_Result]] = deque()
        self._weights: dict[Future[_Result], int] = {}
        self._done: queue.SimpleQueue[Future[_Result] | None] = queue.SimpleQueue()
        self._process = os.getpid()
        self._begun = 0
        self._failed_at: int | None = None

    @property
    def has_failed(self) -> bool:
        """True if a job has failed; then no more jobs begin."""
        return self._failed_at is not None

    @property
    def size(self) -> int:
        """Number of jobs whose results are unread."""
        return len(self._futures)

    def begin(self, item: _Item, weight: int) -> None:
        """Submit one more job."""
        future = self._pool.submit(self._do, self._begun, item)
        self._begun += 1
        self._futures.append(future)
        if weight:
            self._weights[future] = weight
            self.weight += weight
        if not self._ordered:
            future.add_done_callback(self._done.put)

    def next_result(self) -> _Result:
        """Wait for the next result, and return it or raise its error."""
        if os.getpid() != self._process:
            raise AlreadyClosedError(
                "these jobs were started by the parent process, and a fork does not copy their threads: start new jobs"
            )
        while True:
            future = self._first() if self._ordered else self._first_done()
            self._futures.remove(future)
            self.weight -= self._weights.pop(future, 0)
            try:
                return outcome(future)
            except _DroppedError:
                # Skip a job that was cancelled because another job failed: the failed job reports the error.
                continue

    def interrupt(self) -> None:
        """Raise Interrupted in an unordered read."""
        self._done.put(None)

    def close(self) -> None:
        """Drop waiting jobs. Do nothing in a forked child, because jobs and locks belong to the parent."""
        if os.getpid() == self._process:
            for future in self._futures:
                future.cancel()

    def _do(self, number: int, item: _Item) -> _Result:
        # Drop jobs after the failed job. Jobs before it still run, because their results are needed.
        if self._failed_at is not None and number > self._failed_at:
            raise _DroppedError
        try:
            return self._job(item)
        except BaseException:
            self._failed_at = number if self._failed_at is None else min(number, self._failed_at)
            raise

    def _first(self) -> Future[_Result]:
        # Wait before the caller removes the future. If an interrupt ends the wait, ``close`` can then still drop the
        # job.
        is_done(self._futures[0])
        return self._futures[0]

    def _first_done(self) -> Future[_Result]:
        future = self._done.get()
        if future is None:
            raise Interrupted
        return future
