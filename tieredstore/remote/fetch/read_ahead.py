"""The limit of bytes that are read ahead."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from tieredstore.process.forks import begin_again_after_fork


class ReadAhead:
    """A limit in bytes for each reader; or, if ``is_shared``, for all readers together. Safe from several threads.

    A reader gets at most an equal part of a shared limit, and no more than the others leave at the moment. The bytes of
    the read itself do not count: each reader may always have the chunk at its position.
    """

    def __init__(self, limit_bytes: int, *, is_shared: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self._is_shared = is_shared
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset: for a forked child, whose readers begin again too, with nothing being loaded."""
        # Reentrant: the garbage collector may close a reader inside this very lock.
        self._lock = threading.RLock()
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def grant(self, reader: object) -> int:
        """Return how many bytes from its position on a reader may load now."""
        if not self._is_shared:
            return self.limit_bytes
        with self._lock:
            own = self._held.setdefault(reader, 0)
            others = sum(self._held.values()) - own
            return max(0, min(self.limit_bytes // len(self._held), self.limit_bytes - others))

    def hold(self, reader: object, byte_count: int) -> None:
        """Note how many bytes of a reader are being loaded, or loaded and not read."""
        if self._is_shared:
            with self._lock:
                self._held[reader] = byte_count

    def release(self, reader: object) -> None:
        """Note that a reader has finished."""
        if self._is_shared:
            with self._lock:
                self._held.pop(reader, None)
