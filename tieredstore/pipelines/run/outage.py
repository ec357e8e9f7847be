"""Time limit and pauses for retries while a store or broker is unavailable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from tieredstore.errors import TieredStoreError

_logger: Final = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0


class Outage:
    """Duration of an outage (an unavailable store or broker), from the first failure to the next success. Not
    thread-safe."""

    def __init__(self, limit_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` is monotonic, in seconds."""
        self._limit_s, self._clock = limit_s, clock
        self._since_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        self.reason = ""
        """Text of the last failure."""
        self.count = 0
        """Number of outages so far."""

    @property
    def is_on(self) -> bool:
        """True if the last attempt failed."""
        return self._since_s is not None

    @property
    def waiting_s(self) -> float:
        """Duration of the current outage, or 0. Any thread may read it."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock() - since_s

    def note_failure(self, error: TieredStoreError) -> float:
        """Return the seconds to wait before the next attempt. Raise the error if it is not retryable or the time limit
        is over.

        Only the first failure of an outage is logged.
        """
        now = self._clock()
        if not error.retryable:
            raise error
        self.reason = str(error)
        if self._since_s is None:
            self._since_s, self._pause_s, self.count = now, _FIRST_PAUSE_S, self.count + 1
            _logger.warning("retrying for at most %g s: %s", self._limit_s, error)
        if now - self._since_s >= self._limit_s:
            raise error
        pause_s, self._pause_s = self._pause_s, min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        return pause_s

    def note_success(self) -> None:
        """Note that an operation has succeeded."""
        if self._since_s is not None:
            _logger.warning("available again after %.0f s", self._clock() - self._since_s)
        self._since_s = None
