"""What a service says of itself: whether it is ready for work, and whether its threads still give signs of life."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tieredstore.process.forks import ForkSafeLock


@dataclass(frozen=True, slots=True)
class _Beat:
    at_s: float
    within_s: float


class Health:
    """Named conditions, each with a sentence that says why it does not hold. Thread-safe.

    A service is *ready* when all of its conditions hold, and *alive* when none of those that promised a sign of life
    owes one. Sentences are shown to whoever may ask: no secret belongs into them, nor what a record holds.
    """

    def __init__(self, conditions: Mapping[str, str] | None = None, *, monotonic: Callable[[], float] = time.monotonic):
        """``conditions`` do not hold yet, each for the reason that is given: ``{"store": "it was not asked yet"}``."""
        self._monotonic = monotonic
        self._lock = ForkSafeLock()
        self._reasons: dict[str, str | None] = dict(conditions or {})
        self._beats: dict[str, _Beat] = {}

    def holds(self, condition: str) -> None:
        """The condition holds from now on. KeyError for one that nobody has named before: it is misspelled."""
        with self._lock:
            if condition not in self._reasons:
                raise KeyError(condition)
            self._reasons[condition] = None

    def fails(self, condition: str, sentence: str) -> None:
        """The condition does not hold, and why."""
        with self._lock:
            self._reasons[condition] = sentence

    def beat(self, name: str, *, within_s: float) -> None:
        """A sign of life of ``name`` (a thread, a loop), which promises the next one ``within_s``."""
        with self._lock:
            self._beats[name] = _Beat(self._monotonic(), within_s)

    def rest(self, name: str) -> None:
        """``name`` has ended in order and owes no sign any more."""
        with self._lock:
            self._beats.pop(name, None)

    def reasons(self) -> dict[str, str]:
        """The conditions that do not hold, each with its sentence; ready if there are none."""
        with self._lock:
            return {name: sentence for name, sentence in self._reasons.items() if sentence is not None}

    def silent(self) -> dict[str, str]:
        """Those that owe a sign of life, each with a sentence; alive if there are none."""
        with self._lock:
            now = self._monotonic()
            return {
                name: f"no sign of life for {now - beat.at_s:.0f} s, and {beat.within_s:g} s were promised"
                for name, beat in self._beats.items()
                if now - beat.at_s > beat.within_s
            }
