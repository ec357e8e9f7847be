"""Counters of a reader's fetches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tieredstore.process.forks import ForkSafeLock


@dataclass(frozen=True, slots=True)
class FetchStats:
    """Totals since the reader was made.

    ``bytes_asked`` counts the bytes that streams returned. ``requests`` counts ranged GETs of logs, and
    ``bytes_fetched`` the stored bytes that these GETs returned. ``wait_seconds`` is the time that readers waited for
    these GETs. The fields ``chunk_*`` count chunks.
    """

    bytes_asked: int = 0
    bytes_fetched: int = 0
    requests: int = 0
    manifest_requests: int = 0
    index_requests: int = 0
    chunk_hits: int = 0
    chunk_misses: int = 0
    chunk_loads: int = 0
    chunk_load_failures: int = 0
    wait_seconds: float = 0.0


class FetchCounters:
    """Counters that add up to ``FetchStats``. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._totals: dict[str, Any] = asdict(FetchStats())

    def add(self, **counted: float) -> None:
        """Add to the counters of these names."""
        with self._lock:
            for name, count in counted.items():
                self._totals[name] += count

    def snapshot(self) -> FetchStats:
        """Return the current totals."""
        with self._lock:
            return FetchStats(**self._totals)
