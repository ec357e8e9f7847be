"""Threads of a remote storage manager. There are three pools, because a task must not wait for another task of the same
pool."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from dataclasses import dataclass

from tieredstore.process.lifetime import Lifetime
from tieredstore.process.thread_pool import ThreadPool, ThreadsOfProcess


@dataclass(frozen=True, slots=True)
class Pools:
    """Three thread pools.

    ``transform`` encodes and decodes chunks. ``fetch`` waits for ranged GETs of logs, ``lookup`` for manifests and
    indexes. A fetch task may wait for a lookup task. Tasks of the other pools wait for no task.
    """

    transform: Executor
    fetch: Executor
    lookup: Executor

    @classmethod
    def of_threads(cls, *, transform: int, fetch: int, lookup: int) -> Pools:
        """Make pools with at most these numbers of threads (0: one per processor). Threads start on demand."""
        sizes = {"transform": transform, "fetch": fetch, "lookup": lookup}
        return cls(
            **{name: ThreadPool(size or os.cpu_count() or 1, f"tieredstore-{name}") for name, size in sizes.items()}
        )

    def of_this_process(self) -> Pools:
        """Wrap the pools so that a forked child refuses to use them."""
        return Pools(*(ThreadsOfProcess(pool) for pool in (self.transform, self.fetch, self.lookup)))

    def bound(self, life: Lifetime) -> Pools:
        """Wrap the pools so that the futures of their tasks end with ``life``."""
        return Pools(life.bound(self.transform), life.bound(self.fetch), life.bound(self.lookup))

    def shutdown(self, wait: bool) -> None:
        """Drop queued tasks. Wait for running tasks if ``wait``, otherwise abandon them."""
        for pool in (self.lookup, self.fetch, self.transform):
            pool.shutdown(wait, cancel_futures=True)
