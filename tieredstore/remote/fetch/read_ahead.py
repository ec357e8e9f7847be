"""How much of the logs may be on its way before it is asked for."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from tieredstore.process.forks import begin_again_after_fork


class ReadAhead:
    """So many bytes of each reader; or, if ``is_shared``, of all readers together. Safe from several threads.

    Of what is shared each reader has an equal part at the most, and no more than the others leave at the moment. What a
    read itself needs is not counted as ahead: beyond the limit each reader may have the chunk that it stands in.
    """

    def __init__(self, limit_bytes: int, *, is_shared: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self._is_shared = is_shared
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child: its readers begin again too, and have nothing on its way."""
        # Reentrant: the garbage collector may close a reader within this very lock.
        self._lock = threading.RLock()
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def grant(self, reader: object) -> int:
        """How many bytes from its position on a reader may have on their way now."""
        if not self._is_shared:
            return self.limit_bytes
        with self._lock:
            own = self._held.setdefault(reader, 0)
            others = sum(self._held.values()) - own
            return max(0, min(self.limit_bytes // len(self._held), self.limit_bytes - others))

    def hold(self, reader: object, byte_count: int) -> None:
        """A reader has so many bytes on their way, or there and not read."""
        if self._is_shared:
            with self._lock:
                self._held[reader] = byte_count

    def release(self, reader: object) -> None:
        """A reader reads no further."""
        if self._is_shared:
            with self._lock:
                self._held.pop(reader, None)
