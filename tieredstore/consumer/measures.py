"""A consumer's counters, for Prometheus; docs/reference/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tieredstore.metrics.counting import Snapshots

_LEVELS: Final = ("queued_bytes", "lag_records", "lag_seconds", "lag_records_max", "lag_seconds_max")

CONSUMERS: Final = Snapshots("tieredstore_consumer", levels=_LEVELS)
"""The summed measures of all consumers of this process."""


@dataclass(slots=True)
class Measures:
    """The counters of one consumer. ``levels`` returns the current gauge values."""

    levels: Callable[[], Mapping[str, float]]
    records: dict[str, int] = field(default_factory=lambda: {"bucket": 0, "broker": 0})
    byte_counts: dict[str, int] = field(default_factory=lambda: {"bucket": 0, "broker": 0})
    side_changes: int = 0
    lost_offsets: int = 0
    resets: int = 0

    def snapshot(self) -> dict[str, float]:
        """Return the value of each metric by name."""
        return {
            **{f"{source}_records": count for source, count in self.records.items()},
            **{f"{source}_record_bytes": count for source, count in self.byte_counts.items()},
            "side_changes": self.side_changes,
            "lost_offsets": self.lost_offsets,
            "resets": self.resets,
            **self.levels(),
        }
