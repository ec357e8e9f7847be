"""Cache of small values that are needed often. Concurrent callers share one load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

from tieredstore.config.fetch import IndexCacheSettings, ManifestCacheSettings
from tieredstore.errors import StoreUnavailableError
from tieredstore.process.bounded_map import BoundedMap
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.futures import OverdueError, outcome
from tieredstore.process.lifetime import Lifetime

Value = TypeVar("Value")


class CachedLoads(Generic[Value]):
    """A cache that runs one load per key for all callers. Safe from several threads.

    A load continues after a caller gives up, and failures are not cached. A caller waits at most the limits'
    ``get_timeout_ms``. After ``life`` has ended, ``get`` raises an error, even for cached values.
    """

    def __init__(
        self,
        limits: ManifestCacheSettings | IndexCacheSettings,
        weigh: Callable[[Value], int],
        what: str,
        *,
        pool: Executor,
        life: Lifetime,
    ) -> None:
        """Cache the loads of ``pool``, whose tasks end with ``life``. ``what`` names a value in errors."""
        self._cache = BoundedMap[str, Value](limits.size, weigh=weigh, retention_ms=limits.retention_ms)
        self._life = life
        self._pool = pool
        self._timeout_s = limits.get_timeout_ms / 1000
        self._what = what
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Forget running loads in a forked child, where the parent's loads never end."""
        self._lock = threading.RLock()
        self._running: dict[str, Future[Value]] = {}

    def get(self, key: str, load: Callable[[], Value]) -> Value:
        """Return the cached value, or the result of ``load``. Raise StoreUnavailableError if loading takes too long."""
        self._life.check()
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        future = self._start(key, load)
        try:
            return outcome(future, self._timeout_s)
        except OverdueError as error:
            waited = f"{self._timeout_s:g} s"
            raise StoreUnavailableError(f"{self._what} was not loaded within {waited}; loading continues") from error

    def discard(self, key: str) -> None:
        """Remove a value."""
        self._cache.discard(key)

    def close(self) -> None:
        """Remove all values from memory, because cached manifests contain data keys."""
        self._cache.clear()

    def _start(self, key: str, load: Callable[[], Value]) -> Future[Value]:
        with self._lock:
            if key in self._running:
                return self._running[key]
            # Look in the cache again, because a load may have ended since ``get`` looked. A load caches its value
            # before it leaves `_running`.
            if (cached := self._cache.get(key)) is not None:
                future: Future[Value] = Future()
                future.set_result(cached)
                return future
            # Load on a thread of the pool, so that the load continues if the caller stops waiting.
            future = self._pool.submit(self._run, key, load)
            if not future.done():  # an executor may run the task before submit returns
                self._running[key] = future
            return future

    def _run(self, key: str, load: Callable[[], Value]) -> Value:
        try:
            loaded = load()
            self._life.check()
            self._cache.put(key, loaded)
            return loaded
        finally:
            with self._lock:
                self._running.pop(key, None)
