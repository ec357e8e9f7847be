"""A broker's part in governing, whatever the brokers agree by."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from tieredstore.pubsub.governor.directory import Assignment

TICK_S: Final = 1.5
"""Seconds from one tick to the next."""


def rest_s(took_s: float) -> float:
    """How long to wait after a tick that took so long: others count the seconds from beat to beat."""
    return max(TICK_S / 5, TICK_S - took_s)


class Governor(Assignment):
    """``tick``, and ``leave`` at the end, are for one thread; what it answers to the broker's loop is from memory."""

    generation: int | None = None
    """Grows from one that governs to the next; None while another broker does."""

    @abstractmethod
    def tick(self) -> None:
        """Say that this broker lives, look who does, govern if it is this one's turn, read what is assigned."""

    @abstractmethod
    def leave(self) -> bool:
        """Give up the seat: others have its topics soon, which :meth:`follow` tells. False if there is no other."""

    @abstractmethod
    def follow(self) -> None:
        """After :meth:`leave`: read what is assigned by now. Topics that nobody has taken yet are this broker's."""

    def close(self) -> None:
        """Let go of everything."""
        return
