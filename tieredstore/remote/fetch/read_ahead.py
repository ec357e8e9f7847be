"""Limit on bytes that are read ahead."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from tieredstore.process.forks import begin_again_after_fork


class ReadAhead:
    """Limit of read-ahead in bytes, for each reader or, if ``is_shared``, for all readers together. Safe from several
    threads.

    A reader gets at most an equal part of a shared limit, and only what the other readers leave unused. The limit does
    not count the bytes of the read itself, so a reader may always load the chunk at its position.
    """

    def __init__(self, limit_bytes: int, *, is_shared: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self._is_shared = is_shared
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset the limit in a forked child, where no loads run and readers start again."""
        # The lock is reentrant, because the garbage collector may close a reader while this thread holds the lock.
        self._lock = threading.RLock()
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def grant(self, reader: object) -> int:
        """Return how many bytes beyond its position ``reader`` may load now."""
        if not self._is_shared:
            return self.limit_bytes
        with self._lock:
            own = self._held.setdefault(reader, 0)
            others = sum(self._held.values()) - own
            return max(0, min(self.limit_bytes // len(self._held), self.limit_bytes - others))

    def hold(self, reader: object, byte_count: int) -> None:
        """Record the bytes that ``reader`` is loading, or has loaded and not read."""
        if self._is_shared:
            with self._lock:
                self._held[reader] = byte_count

    def release(self, reader: object) -> None:
        """Record that ``reader`` has finished."""
        if self._is_shared:
            with self._lock:
                self._held.pop(reader, None)
