"""The frames that clients have a broker take, shared out: no client, by its address, keeps the loop from the others.

A frame may have 15 bytes and cost a hundred times more than its way here. Of each address some are taken in one turn of
the loop, and a connection has fewer than that; the next ones wait for later turns, in their order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

FRAMES_AN_ADDRESS: Final = 256
"""In one turn of the loop."""

FRAMES_A_CONNECTION: Final = 64
"""Before others of its address have their turn."""


class Turns:
    """Used on the broker's loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def take(self, address: str) -> bool:
        """Whether a frame of this address may be taken in this turn."""
        if not self._taken:
            self._loop.call_soon(self._begin)
        if self._taken[address] >= FRAMES_AN_ADDRESS:
            return False
        self._taken[address] += 1
        return True

    def wait(self, address: str, go_on: Callable[[], None]) -> None:
        """Have ``go_on`` called in a later turn, behind those of this address that wait already."""
        if not self._taken:
            self._loop.call_soon(self._begin)
            self._taken[""] += 1
        self._waiting.setdefault(address, deque()).append(go_on)

    def _begin(self) -> None:
        """A turn begins."""
        self._taken.clear()
        for address in list(self._waiting):
            waiting = self._waiting[address]
            for _ in range(len(waiting)):
                if self._taken[address] >= FRAMES_AN_ADDRESS:
                    break
                waiting.popleft()()
            if not waiting:
                del self._waiting[address]
        if self._waiting and not self._taken.total():
            self._loop.call_soon(self._begin)
