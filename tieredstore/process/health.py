"""The health of a service: its readiness for work, and signs of life of its threads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from tieredstore.process.forks import ForkSafeLock

_logger: Final = logging.getLogger(__name__)


class Health:
    """The named conditions of a service. Each failing condition has a sentence with the reason. Thread-safe.

    A service is *ready* if all its conditions hold, and *alive* if no promised sign of life is overdue. Anyone may see
    the sentences about failing conditions. So these sentences must not contain secrets or data of records.
    """

    def __init__(
        self,
        conditions: Mapping[str, str | None] | None = None,
        *,
        servers: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the conditions. ``conditions`` maps each name to the reason why the condition fails at the start, such
        as ``{"store": "unknown"}``, or to None if the condition holds.

        ``servers`` names the server behind a condition, such as ``{"leadership": "broker"}``. The log gets one line
        when the first condition of a server fails, and one line when all conditions of this server hold again.
        """
        self._monotonic = monotonic
        self._lock = ForkSafeLock()
        self._reasons: dict[str, str | None] = dict(conditions or {})
        self._servers = dict(servers or {})
        self._lost_at_s: dict[str, float] = {}
        self._beats: dict[str, tuple[float, float]] = {}
        """The time of the latest sign of life, and the longest time until the next one."""

    def holds(self, condition: str) -> None:
        """Mark the condition as holding; raise KeyError for an unknown name."""
        with self._lock:
            if condition not in self._reasons:
                raise KeyError(condition)
            self._reasons[condition] = None
            server = self._servers.get(condition, "")
            rest = (self._reasons.get(other) for other, of in self._servers.items() if of == server)
            lost_at_s = self._lost_at_s.pop(server, None) if not any(rest) else None
        if lost_at_s is not None:
            _logger.warning("%s: available again after %.0f s", server, self._monotonic() - lost_at_s)

    def fails(self, condition: str, sentence: str) -> None:
        """Mark the condition as failing; ``sentence`` gives the reason."""
        with self._lock:
            self._reasons[condition] = sentence
            server = self._servers.get(condition)
            is_lost = server is not None and server not in self._lost_at_s
            if server is not None and is_lost:
                self._lost_at_s[server] = self._monotonic()
        if is_lost:
            _logger.warning("%s: lost; retrying until it answers: %s", server, sentence)

    def beat(self, name: str, *, within_s: float) -> None:
        """Record a sign of life of ``name`` (a thread or loop), and expect the next within ``within_s`` seconds."""
        with self._lock:
            self._beats[name] = (self._monotonic(), within_s)

    def rest(self, name: str) -> None:
        """Expect no more signs of life from the thread or loop ``name``, which has ended properly."""
        with self._lock:
            self._beats.pop(name, None)

    def reasons(self) -> dict[str, str]:
        """Return a sentence with the reason for each failing condition; empty if the service is ready."""
        with self._lock:
            return {name: sentence for name, sentence in self._reasons.items() if sentence is not None}

    def silent(self) -> dict[str, str]:
        """Return a sentence for each thread or loop that has an overdue sign of life; empty if the service is alive."""
        with self._lock:
            now = self._monotonic()
            return {
                name: f"no sign of life for {now - at_s:.0f} s, expected within {within_s:g} s"
                for name, (at_s, within_s) in self._beats.items()
                if now - at_s > within_s
            }
