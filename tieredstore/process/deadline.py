"""By when something has succeeded or failed: nothing waits for ever for a store, a broker or a lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tieredstore.errors import StoreUnavailable

CALL_TIMEOUT_S: Final = 300.0
"""Time limit of one request with its retries, where the settings give none."""


def seconds(milliseconds: int | None) -> float | None:
    """A time-out of the settings; None if there is none."""
    return None if milliseconds is None else milliseconds / 1000


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock by which an operation has succeeded or failed."""

    at_s: float
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False)

    @classmethod
    def after(cls, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> Deadline:
        """The deadline ``seconds`` from now."""
        return cls(monotonic() + seconds, monotonic)

    def remaining_s(self) -> float:
        """Seconds left; zero or less when it has passed."""
        return self.at_s - self.monotonic()

    def check(self, what: str) -> None:
        """StoreUnavailable, naming ``what``, if the deadline has passed."""
        if self.remaining_s() <= 0:
            raise StoreUnavailable(f"{what} did not end within its deadline")

    def sooner(self, other: Deadline | None) -> Deadline:
        """This deadline or ``other``, whichever comes first."""
        return self if other is None or self.at_s <= other.at_s else other
