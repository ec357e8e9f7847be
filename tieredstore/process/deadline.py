"""By when something has succeeded or failed: nothing waits for ever for a store, a broker or a lock."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tieredstore.errors import StoreUnavailableError

CALL_TIMEOUT_S: Final = 300.0
"""Time limit of one request with its retries, where the settings give none."""


def seconds(milliseconds: int | None) -> float | None:
    """A time-out of the settings; None if there is none."""
    return None if milliseconds is None else milliseconds / 1000


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock by which an operation has succeeded or failed.

    It comes earlier if ``part`` stands still.
    """

    at_s: float
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False)
    part: PartUnderWay | None = None

    @classmethod
    def after(cls, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> Deadline:
        """The deadline ``seconds`` from now."""
        return cls(monotonic() + seconds, monotonic)

    def remaining_s(self) -> float:
        """Seconds left; zero or less when it has passed."""
        left_s = self.at_s - self.monotonic()
        return left_s if self.part is None else min(left_s, self.part.stall.remaining_s())

    def check(self, what: str) -> None:
        """StoreUnavailableError, naming ``what``, if the deadline has passed."""
        if self.remaining_s() <= 0:
            raise StoreUnavailableError(f"{what} {self.reason}")

    @property
    def reason(self) -> str:
        """What is the case once it has passed, said of the operation."""
        if self.part is not None and self.at_s > self.monotonic():
            return f"made no progress for {self.part.stall.timeout_s:g} s"
        return "did not end within its deadline"

    def sooner(self, other: Deadline | None) -> Deadline:
        """This deadline or ``other``, whichever comes first."""
        if other is None:
            return self
        first, last = (self, other) if self.at_s <= other.at_s else (other, self)
        return first if last.part is None else Deadline(first.at_s, first.monotonic, first.part or last.part)


class Stall:
    """An end that moves away with each progress: an operation may be slow, but not stand still. Thread-safe.

    Only the time counts in which a part of the operation is under way (``under_way``), and what progress is, is said by
    who makes it (``progress``): waits between the parts, such as those for a rate limit, may be as long as they like.
    """

    def __init__(self, timeout_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._parts = 0
        self._stood_s = 0.0
        """How long it had stood still when it was last under way; counted on from ``_since_s``."""
        self._since_s = monotonic()

    def progress(self) -> None:
        """Begin the time anew."""
        with self._lock:
            self._stood_s, self._since_s = 0.0, self._monotonic()

    @contextmanager
    def under_way(self) -> Generator[Deadline]:
        """A part of the operation runs in the block; its deadline as far as this one decides it."""
        with self._lock:
            if self._parts == 0:
                self._since_s = self._monotonic()
            self._parts += 1
        try:
            yield Deadline(math.inf, self._monotonic, PartUnderWay(self))
        finally:
            with self._lock:
                self._parts -= 1
                if self._parts == 0:
                    self._stood_s += self._monotonic() - self._since_s

    def remaining_s(self) -> float:
        """Seconds left; zero or less when it has stood still for too long."""
        with self._lock:
            running_s = self._monotonic() - self._since_s if self._parts else 0.0
            return self.timeout_s - self._stood_s - running_s


@dataclass(slots=True)
class PartUnderWay:
    """A part of an operation that may not stand still, with its retries."""

    stall: Stall
    furthest: int = 0

    def reached(self, position: int) -> None:
        """So many bytes of the part have gone out: progress, unless an earlier try came as far."""
        if position > self.furthest:
            self.furthest = position
            self.stall.progress()


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux alone counts sleep by a clock of its own; its monotonic one stands still meanwhile, as macOS's does not."""


def boot_clock_s() -> float:
    """Seconds of a clock that nobody sets and that goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)
