"""The uploader's counters and gauges for Prometheus. They are sums over partitions, whose number is unbounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tieredstore.metrics import REGISTRY
from tieredstore.model import TopicIdPartition
from tieredstore.uploader.partition import Role

if TYPE_CHECKING:
    from tieredstore.uploader.uploader import Uploader

COUNTERS: Final[Mapping[str, str]] = {
    "segments": "Segments shipped.",
    "bytes": "Log bytes of segments shipped.",
    "stored_bytes": "Stored bytes of segments shipped.",
    "tries": "Attempts to ship a segment.",
    "failed_tries": "Failed attempts to ship a segment.",
    "holes": "Holes: ranges of offsets that could not be shipped.",
    "lost_offsets": "Offsets in holes.",
    "filled_offsets": "Offsets in holes, of any broker's uploader, that this uploader shipped later.",
    "expired_segments": "Segments deleted from the store by uploader.retention.",
    "expired_bytes": "Stored bytes deleted by uploader.retention.",
    "abandoned_segments": "Segments dropped without shipping: the topic was deleted, or the log now has other records.",
    "moved_back": "Watermarks moved back because a later leader epoch began before them.",
    "snapshots": "Snapshots of the cluster written.",
    "failed_snapshots": "Failed attempts to write a snapshot of the cluster.",
}

GAUGES: Final[Mapping[str, str]] = {
    "lag_segments": "Closed segments of led partitions that are not shipped.",
    "lag_bytes": "Log bytes of closed segments of led partitions that are not shipped.",
    "oldest_segment_age_seconds": "Seconds since the oldest unshipped segment was closed; 0 without one.",
    "waiting_partitions": "Led partitions whose next segment may not be shipped yet.",
    "failing_partitions": "Led partitions whose last attempt failed.",
    "partitions": "Partitions in the log directories selected for shipping.",
    "led_partitions": "Partitions selected for shipping that this broker leads.",
    "leaving_segments": "Segments of partitions that left this broker, held until the store has them.",
    "leadership_known": "1 if the led partitions are known, else 0.",
    "recorded_holes": "Ranges of offsets recorded as not shipped in the watermarks of led partitions.",
    "held_files": "Files held open.",
    "held_deleted_bytes": "Bytes on disk of logs that the broker deleted and the uploader keeps.",
    "refused_topics": "Topics that are not shipped because they are compacted or tiered by the broker.",
}


@dataclass(slots=True)
class Counts:
    """Totals of one uploader, with one field for each metric in ``COUNTERS``.

    Threads update them without a lock, because a rare lost count does no harm.
    """

    segments: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    tries: int = 0
    failed_tries: int = 0
    holes: int = 0
    lost_offsets: int = 0
    filled_offsets: int = 0
    expired_segments: int = 0
    expired_bytes: int = 0
    abandoned_segments: int = 0
    moved_back: int = 0
    snapshots: int = 0
    failed_snapshots: int = 0
    recorded: dict[TopicIdPartition, int] = field(default_factory=dict[TopicIdPartition, int])
    unfilled: dict[TopicIdPartition, str] = field(default_factory=dict[TopicIdPartition, str])

    def hole(self, where: TopicIdPartition, first: int, last: int, reason: str) -> None:
        """Count a new hole: offsets that could not be uploaded."""
        self.holes += 1
        self.lost_offsets += last - first + 1
        self.recorded[where] = self.recorded.get(where, 0) + 1
        self.unfilled.pop(where, None)
        self.unfilled[where] = f"offsets {first} to {last} of {where} were not shipped: {reason}"

    @property
    def last_unfilled(self) -> str | None:
        """Return the newest hole since the start that is still unfilled."""
        return next(reversed(list(self.unfilled.values())), None)

    def fill(self, where: TopicIdPartition) -> None:
        """Note that all holes of the partition are filled."""
        self.unfilled.pop(where, None)
        self.recorded.pop(where, None)

    def know_holes(self, where: TopicIdPartition, count: int) -> None:
        """Note the number of holes in an upload watermark that was just read."""
        self.recorded[where] = count


class CountsCollector(Collector):
    """Exports the totals, and the present ``gauges``. Registered with Prometheus until it is closed."""

    def __init__(
        self, counts: Counts, gauges: Callable[[], Mapping[str, float]], registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._counts, self._gauges, self._registry = counts, gauges, registry
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics' names, so that the registry refuses a second collector."""
        return (*self._counters(), *(GaugeMetricFamily(_name(name), meaning) for name, meaning in GAUGES.items()))

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        yield from self._counters()
        values = self._gauges()
        for name, meaning in GAUGES.items():
            yield GaugeMetricFamily(_name(name), meaning, value=values.get(name, 0.0))

    def close(self) -> None:
        """Unregister the collector."""
        self._registry.unregister(self)

    def _counters(self) -> Iterable[Metric]:
        for name, meaning in COUNTERS.items():
            yield CounterMetricFamily(_name(name), meaning, value=getattr(self._counts, name))


def _name(name: str) -> str:
    return f"tieredstore_uploader_{name}"


def levels_of(uploader: Uploader, now_s: float) -> Mapping[str, float]:
    """Return the values of ``GAUGES``. ``now_s`` is the present time of the uploader's clock."""
    partitions = uploader.disk.partitions
    led = [partition for partition in partitions if partition.role is Role.LED]
    leaving = [partition for partition in partitions if partition.role is Role.LEAVING]
    lag = [segment for partition in led for segment in partition.pending()]
    return {
        "lag_segments": len(lag),
        "lag_bytes": sum(segment.size_in_bytes for segment in lag),
        "oldest_segment_age_seconds": max((segment.age_s(now_s) for segment in lag), default=0.0),
        "waiting_partitions": sum(partition.turn.waits_for is not None for partition in led),
        "failing_partitions": sum(partition.turn.failures > 0 for partition in led),
        "partitions": len(partitions) - len(leaving),
        "led_partitions": len(led),
        "leaving_segments": sum(len(partition.segments) for partition in leaving),
        "leadership_known": float(uploader.leadership.is_known),
        "recorded_holes": sum(uploader.counts.recorded.get(partition.where, 0) for partition in led),
        "held_files": uploader.held.files,
        "held_deleted_bytes": uploader.held.unlinked_bytes,
        "refused_topics": len(uploader.topics.refused),
    }
