"""Counters of a reader's fetches, and counters in general."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tieredstore.process.forks import ForkSafeLock

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Stats = TypeVar("Stats", bound="DataclassInstance")


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


class Counters(Generic[Stats]):
    """Counters that add up to a dataclass of numbers, such as ``FetchStats``. Safe from several threads."""

    def __init__(self, kind: type[Stats]) -> None:
        self._kind = kind
        self._lock = ForkSafeLock()
        self._totals: dict[str, Any] = asdict(kind())

    def add(self, **counted: float) -> None:
        """Add to the counters of these names."""
        with self._lock:
            for name, count in counted.items():
                self._totals[name] += count

    def snapshot(self) -> Stats:
        """Return the current totals."""
        with self._lock:
            return self._kind(**self._totals)
