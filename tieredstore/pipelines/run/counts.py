"""What a pipeline has done in this process and what waits, as metrics of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tieredstore.metrics import REGISTRY

if TYPE_CHECKING:
    from tieredstore.pipelines.log.entries import Entry

_COUNTERS: Final = {
    "batches": "Batches that were committed and published.",
    "files": "Files of records that were published.",
    "records": "Records that were filed.",
    "bytes": "Bytes of all files that were published.",
    "bad_messages": "Messages that were put aside.",
    "finalized": "Directories that were said to be complete.",
    "late": "Times that a complete directory got late records.",
    "outages": "Times that a store or a broker was away.",
}
_GAUGES: Final = {
    "up": "1 while the query runs.",
    "waiting_seconds": "For how long a store or a broker is away by now; 0: it is not.",
    "lag_offsets": "Offsets that are not written, over all partitions.",
    "lag_seconds": "For how long this process knows the first unwritten record that waits longest; 0: all is written.",
    "last_commit_timestamp_seconds": "When the last batch was published; 0: none since the start.",
}
_LABELS: Final = ("pipeline", "generation")


@dataclass(slots=True)
class Counts:
    """Totals since the start, and how it is now. Written by the driver's thread; others may read."""

    batches: int = 0
    files: int = 0
    records: int = 0
    bytes: int = 0
    bad_messages: int = 0
    finalized: int = 0
    late: int = 0
    outages: int = 0
    up: int = 0
    waiting_seconds: float = 0.0
    lag_offsets: int = 0
    lag_seconds: float = 0.0
    last_commit_timestamp_seconds: float = 0.0

    def note(self, entry: Entry) -> None:
        """Count an entry, all of which is done."""
        if not entry.windows:
            self.finalized += len(entry.directories)
            return
        self.batches += 1
        self.files += sum(file.kind == "data" for file in entry.files)
        self.bytes += sum(file.size for file in entry.files)
        self.records += sum(window.records for window in entry.windows)
        self.bad_messages += sum(window.quarantined for window in entry.windows)
        self.late += len(entry.directories)
        self.last_commit_timestamp_seconds = time.time()


class CountsCollector(Collector):
    """Gives the counts of all pipelines of a process, by name and generation; registered until it is closed."""

    def __init__(
        self, counts: Callable[[], Iterable[tuple[str, int, Counts]]], registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._counts, self._registry = counts, registry
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """The names, so that two of them are noticed."""
        return _families()[1]

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        by_name, families = _families()
        for pipeline, generation, counts in self._counts():
            for name, family in by_name.items():
                family.add_metric([pipeline, str(generation)], getattr(counts, name))
        return families

    def close(self) -> None:
        """Be seen no more."""
        self._registry.unregister(self)


def _families() -> tuple[dict[str, CounterMetricFamily | GaugeMetricFamily], list[Metric]]:
    by_name: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for name, meaning in _COUNTERS.items():
        by_name[name] = CounterMetricFamily(f"tieredstore_pipeline_{name}", meaning, labels=_LABELS)
    for name, meaning in _GAUGES.items():
        by_name[name] = GaugeMetricFamily(f"tieredstore_pipeline_{name}", meaning, labels=_LABELS)
    return by_name, list(by_name.values())
