"""The bytes that a broker may hold: taken before a Message is read, given back when it is stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MESSAGE_COST: Final = 1024
"""What a Message takes beside its bytes while it is held: who waits for it, what it is called, where it goes."""


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody for whom there was no room; ``granted`` is called once, when the bytes are taken for it."""

    size: int
    granted: Callable[[], None]
    is_granted: bool = False
    is_gone: bool = False


class Room:
    """Used on the broker's loop alone. Who waits is served in order, so that a large Message comes too.

    A Message takes all of its bytes at once, before the first of them is read: two that have a half each would wait
    for each other.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self._waiting: deque[Waiter] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def take(self, size: int, granted: Callable[[], None]) -> Waiter | None:
        """Take ``size`` bytes: at once (None), or when there is room, which ``granted`` tells."""
        if not self._waiting and self.taken + size <= self.size:
            self.taken += size
            return None
        waiter = Waiter(size, granted)
        self._waiting.append(waiter)
        return waiter

    def give_back(self, size: int) -> None:
        """So many bytes are free again."""
        self.taken -= size
        self._serve()

    def forget(self, waiter: Waiter) -> None:
        """It waits no more; what it was given is free again."""
        waiter.is_gone = True
        if waiter.is_granted:
            self.taken -= waiter.size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            if not waiter.is_gone:
                if self.taken + waiter.size > self.size:
                    return
                self.taken += waiter.size
            self._waiting.popleft()
            if not waiter.is_gone:
                waiter.is_granted = True
                waiter.granted()
