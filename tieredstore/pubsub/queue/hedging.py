"""Hedged requests: if a request is slow, a second attempt runs at the same time. The request must therefore be
idempotent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeVar

from tieredstore.errors import TieredStoreError
from tieredstore.process.futures import is_done, outcome
from tieredstore.process.thread_pool import ThreadPool

_LEAST_S: Final = 0.3
_TIMES_USUAL: Final = 3
_UNKNOWN_S: Final = 0.5
"""Assumed duration of an attempt in seconds, before any attempt has succeeded. The assumption exceeds ``_LEAST_S``,
because the link may be slow."""

_REMEMBERED: Final = 100
_Result = TypeVar("_Result")


class UsualTime:
    """Recent durations of attempts, and the delay after which a second attempt begins."""

    def __init__(self, least_s: float = _LEAST_S) -> None:
        self._least_s = least_s
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)

    def note(self, seconds: float) -> None:
        """Note the duration of a success."""
        self._seconds.append(seconds)

    @property
    def hedge_after_s(self) -> float:
        """Three times the 95th percentile of the durations, and at least 0.3 s. Before the first result, 1.5 s."""
        recent = sorted(self._seconds)
        usual = recent[len(recent) * 95 // 100] if recent else _UNKNOWN_S
        return max(self._least_s, _TIMES_USUAL * usual)


class Hedge:
    """Runs a request on the hedge's own threads. If the first attempt is slow, a second attempt starts. Thread-safe."""

    def __init__(self, name: str, threads: int, *, least_s: float = _LEAST_S) -> None:
        self._new_pool = partial(ThreadPool, threads, name)
        self._pool = self._new_pool()
        self._usual = UsualTime(least_s)

    def run(self, attempt: Callable[[], _Result]) -> _Result:
        """Return the first successful result; if none succeeds, raise the last error."""
        pool = self._pool

        def run_timed() -> _Result:
            begin_s = time.monotonic()
            result = attempt()
            self._usual.note(time.monotonic() - begin_s)
            return result

        ended: SimpleQueue[Future[_Result]] = SimpleQueue()

        def begin() -> Future[_Result]:
            future = pool.submit(run_timed)
            future.add_done_callback(ended.put)
            return future

        tries = [begin()]
        if not is_done(tries[0], self._usual.hedge_after_s):
            tries.append(begin())
        # Wait for each attempt without a timeout, because the store's own deadline ends even an attempt that hangs.
        for left in reversed(range(len(tries))):
            try:
                return outcome(ended.get(), 0)
            except TieredStoreError:
                if not left:
                    raise
        raise AssertionError("each try ends")

    def close(self) -> None:
        """Abandon waiting and hanging attempts. Later attempts get new threads."""
        pool, self._pool = self._pool, self._new_pool()
        pool.shutdown(wait=False, cancel_futures=True)
