"""A second try beside the first when that one hangs: what is done so must be the same however often it is done."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final, TypeVar

from tieredstore.errors import TieredStoreError
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool

_LEAST_S: Final = 0.3
_TIMES_USUAL: Final = 3
_UNKNOWN_S: Final = 0.5
"""What is taken to be usual before the first has come: a large body on a slow link takes longer than the least."""

_REMEMBERED: Final = 100
_Result = TypeVar("_Result")


class UsualTime:
    """What tries took lately, and after how long another one is worth it."""

    def __init__(self, least_s: float = _LEAST_S) -> None:
        self._least_s = least_s
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)

    def note(self, seconds: float) -> None:
        """One has succeeded."""
        self._seconds.append(seconds)

    @property
    def hedge_after_s(self) -> float:
        """Three times what 95 in 100 took, and 300 ms at least; 1.5 s before anything is known."""
        recent = sorted(self._seconds)
        usual = recent[len(recent) * 95 // 100] if recent else _UNKNOWN_S
        return max(self._least_s, _TIMES_USUAL * usual)


class Hedge:
    """Runs something on a thread of its own, and once more beside it when that takes long. Thread-safe; a forked child
    begins anew."""

    def __init__(
        self, name: str, threads: int, *, monotonic: Callable[[], float] = time.monotonic, least_s: float = _LEAST_S
    ) -> None:
        self._name, self._threads = name, threads
        self._monotonic = monotonic
        self._usual = UsualTime(least_s)
        self._begin()
        begin_again_after_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPool | None = None

    def begin_again(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._begin()

    def run(self, attempt: Callable[[], _Result]) -> _Result:
        """What the first try that succeeds gives; the error of the last one if none does."""
        with self._lock:
            self._pool = self._pool or ThreadPool(self._threads, self._name)
            pool = self._pool

        def run_timed() -> _Result:
            begin_s = self._monotonic()
            result = attempt()
            self._usual.note(self._monotonic() - begin_s)
            return result

        ended: SimpleQueue[Future[_Result]] = SimpleQueue()

        def begin() -> Future[_Result]:
            future = pool.submit(run_timed)
            future.add_done_callback(ended.put)
            return future

        tries = [begin()]
        if not is_done(tries[0], self._usual.hedge_after_s):
            tries.append(begin())
        # Each ends, by the store's own deadline at the latest.
        for left in reversed(range(len(tries))):
            try:
                return outcome(ended.get(), 0)
            except TieredStoreError:
                if not left:
                    raise
        raise AssertionError("each try ends")

    def close(self) -> None:
        """Begin no more; what hangs is left behind."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
