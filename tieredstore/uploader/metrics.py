"""The uploader's counters and their Prometheus metrics: sums over partitions, because their number is unbounded."""

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
    "bytes": "Bytes of the logs of segments shipped.",
    "stored_bytes": "Bytes that these segments take in the store.",
    "tries": "Tries to ship a segment.",
    "failed_tries": "Tries to ship a segment that failed.",
    "holes": "Losses: ranges of offsets that could not be shipped.",
    "lost_offsets": "Offsets in these ranges.",
    "filled_offsets": "Offsets that were holes, of whichever broker's uploader, and were shipped from here.",
    "expired_segments": "Segments deleted from the store by uploader.retention.",
    "expired_bytes": "Bytes that these took in the store.",
    "abandoned_segments": "Segments let go unshipped: their topic was deleted, or the log has other records there.",
    "moved_back": "Watermarks moved back since a later leader epoch began before them.",
}

GAUGES: Final[Mapping[str, str]] = {
    "lag_segments": "Closed segments of led partitions that are not shipped.",
    "lag_bytes": "Bytes of their logs.",
    "oldest_segment_age_seconds": "How long the one is closed that was closed first; 0 if none waits.",
    "waiting_partitions": "Led partitions whose next segment is not settled.",
    "failing_partitions": "Led partitions whose last try failed.",
    "partitions": "Partitions in the log directories selected for shipping.",
    "led_partitions": "Those of them that this broker leads.",
    "leaving_segments": "Segments held of partitions that left this broker, until the store has them.",
    "leadership_known": "1 if it is known which these are, else 0.",
    "recorded_holes": "Ranges of offsets recorded as not shipped in the watermarks of led partitions.",
    "held_files": "Files held open.",
    "held_deleted_bytes": "Bytes on disk of logs that only the uploader keeps.",
    "refused_topics": "Topics that are not shipped because they are compacted or tiered by the broker.",
}


@dataclass(slots=True)
class Counts:
    """Totals of one uploader. Updated without a lock of their own: a rare lost count does no harm.

    One field for each metric, as ``COUNTERS`` names them.
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
    recorded: dict[TopicIdPartition, int] = field(default_factory=dict[TopicIdPartition, int])
    unfilled: dict[TopicIdPartition, str] = field(default_factory=dict[TopicIdPartition, str])

    def hole(self, where: TopicIdPartition, first: int, last: int, reason: str) -> None:
        """Count one more loss."""
        self.holes += 1
        self.lost_offsets += last - first + 1
        self.recorded[where] = self.recorded.get(where, 0) + 1
        self.unfilled.pop(where, None)
        self.unfilled[where] = f"offsets {first} to {last} of {where} were not shipped: {reason}"

    @property
    def last_unfilled(self) -> str | None:
        """Return the last loss since the start that was not filled."""
        return next(reversed(list(self.unfilled.values())), None)

    def fill(self, where: TopicIdPartition) -> None:
        """Note that all holes of the partition are filled."""
        self.unfilled.pop(where, None)
        self.recorded.pop(where, None)

    def know_holes(self, where: TopicIdPartition, count: int) -> None:
        """Note the holes of a watermark when it was read."""
        self.recorded[where] = count


class CountsCollector(Collector):
    """Exports the totals, and the present values of ``gauges``; registered until it is closed."""

    def __init__(
        self, counts: Counts, gauges: Callable[[], Mapping[str, float]], registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._counts, self._gauges, self._registry = counts, gauges, registry
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return the names, so that a second collector is noticed."""
        return (*self._counters(), *(GaugeMetricFamily(_name(name), meaning) for name, meaning in GAUGES.items()))

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        yield from self._counters()
        values = self._gauges()
        for name, meaning in GAUGES.items():
            yield GaugeMetricFamily(_name(name), meaning, value=values.get(name, 0.0))

    def close(self) -> None:
        """Unregister."""
        self._registry.unregister(self)

    def _counters(self) -> Iterable[Metric]:
        for name, meaning in COUNTERS.items():
            yield CounterMetricFamily(_name(name), meaning, value=getattr(self._counts, name))


def _name(name: str) -> str:
    return f"tieredstore_uploader_{name}"


def levels_of(uploader: Uploader, now_s: float) -> Mapping[str, float]:
    """Return the gauges by their names, as of this moment of the uploader's clock."""
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
