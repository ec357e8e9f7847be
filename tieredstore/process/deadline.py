"""Deadlines of operations, so that nothing waits forever for a store, a broker or a lock."""

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
"""Default time limit of one request with its retries."""


def seconds(milliseconds: int | None) -> float | None:
    """Convert a timeout from milliseconds; None stays None."""
    return None if milliseconds is None else milliseconds / 1000


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock at which an operation times out.

    ``part`` is a part of the operation. If it makes no progress for too long, the operation times out too.
    """

    at_s: float
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False)
    part: PartUnderWay | None = None

    @classmethod
    def after(cls, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline ``seconds`` from now."""
        return cls(monotonic() + seconds, monotonic)

    def remaining_s(self) -> float:
        """Return the seconds left; zero or less after the deadline."""
        left_s = self.at_s - self.monotonic()
        return left_s if self.part is None else min(left_s, self.part.stall.remaining_s())

    def check(self, what: str) -> None:
        """Raise StoreUnavailableError, naming ``what``, if the deadline has passed."""
        if self.remaining_s() <= 0:
            raise StoreUnavailableError(f"{what} {self.reason}")

    @property
    def reason(self) -> str:
        """The reason of a timeout, as the end of a sentence that begins with the operation's name."""
        if self.part is not None and self.at_s > self.monotonic():
            return f"made no progress for {self.part.stall.timeout_s:g} s"
        return "did not end within its deadline"

    def sooner(self, other: Deadline | None) -> Deadline:
        """Return the earlier of the two deadlines."""
        if other is None:
            return self
        first, last = (self, other) if self.at_s <= other.at_s else (other, self)
        return first if last.part is None else Deadline(first.at_s, first.monotonic, first.part or last.part)


class Stall:
    """A timeout that restarts whenever there is progress: an operation may be slow, but must not stall. Thread-safe.

    Only time inside ``under_way`` blocks counts, where callers report ``progress``. Waits outside of these blocks, for
    example for a rate limit, are unlimited.
    """

    def __init__(self, timeout_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._parts = 0
        self._stood_s = 0.0
        """Seconds without progress, up to the end of the last ``under_way`` block. A running block adds the time since
        ``_since_s``."""
        self._since_s = monotonic()

    def progress(self) -> None:
        """Restart the timeout."""
        with self._lock:
            self._stood_s, self._since_s = 0.0, self._monotonic()

    @contextmanager
    def under_way(self) -> Generator[Deadline]:
        """Count the time within the ``with`` block, and yield a deadline that passes when the operation stalls."""
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
        """Return the seconds left; zero or less after a stall."""
        with self._lock:
            running_s = self._monotonic() - self._since_s if self._parts else 0.0
            return self.timeout_s - self._stood_s - running_s


@dataclass(slots=True)
class PartUnderWay:
    """One request of an operation, with its retries. The operation times out if this request stalls."""

    stall: Stall
    furthest: int = 0

    def report(self, position: int) -> None:
        """Report the number of bytes sent so far. The report counts as progress if no earlier attempt has sent as many
        bytes."""
        if position > self.furthest:
            self.furthest = position
            self.stall.progress()


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux, only this clock counts the time while the machine is suspended. On macOS, the monotonic clock counts it
too.
"""


def boot_clock_s() -> float:
    """Return the seconds of a clock that cannot be set and that counts suspended time."""
    return time.clock_gettime(_CLOCK)
