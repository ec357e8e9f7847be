"""Threads that outlive a call, and are a forked child's own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from tieredstore.process.forks import begin_again_after_fork

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class ThreadPool(Executor):
    """At most ``threads`` threads, which start when there is work; a forked child has its own, and none of the work.

    Python's pool counts the parent's threads in a child as its own, so that what is given to it there waits for ever.
    Futures of the parent are never done in a child: whoever keeps some begins again too.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._size = threads
        self._name = name
        self._is_shut = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child: no thread yet; still shut down if it was."""
        self._pool = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)
        if self._is_shut:
            self._pool.shutdown()

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """RuntimeError once it is shut down."""
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; what waits is dropped if ``cancel_futures``."""
        self._is_shut = True
        self._pool.shutdown(wait, cancel_futures=cancel_futures)
