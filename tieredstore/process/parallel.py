"""Reading ahead: what a store is asked many times, several at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Final, TypeVar

READERS: Final = 16
"""Requests at once unless told otherwise: a planning waits for round trips, not for bytes."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_parallel(pool: Executor, job: Callable[[_T], _R], items: Iterable[_T], *, at_once: int) -> Iterator[_R]:
    """The results of ``job`` in the order of ``items``, which are taken as there is room for them.

    At most ``at_once`` are under way or waiting to be taken, which bounds memory. What a job raises is raised in its
    place, and those that have not begun are dropped.
    """
    running: deque[Future[_R]] = deque()
    try:
        for item in items:
            if len(running) >= at_once:
                yield running.popleft().result()
            running.append(pool.submit(job, item))
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()
