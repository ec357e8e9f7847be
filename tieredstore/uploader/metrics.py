"""The uploader's counters and gauges for Prometheus, and its lag by partition.

Metrics are sums over all partitions, because the number of partitions is unbounded. Only ``uploader.metrics.topics``
adds a label, with a bounded number of values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tieredstore.metrics import REGISTRY
from tieredstore.model import TopicIdPartition
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.segment import Segment

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
    "filled_offsets": "Offsets that this uploader shipped to fill holes, its own or another uploader's.",
    "expired_segments": "Segments deleted from the store by uploader.retention.",
    "expired_bytes": "Stored bytes deleted by uploader.retention.",
    "abandoned_segments": "Segments dropped without shipping: their topic was deleted, the log now has other records, "
    "or they were lost before this broker lost the partition.",
    "moved_back": "Moves of an upload watermark back to the start of a later leader epoch.",
    "snapshots": "Snapshots of the cluster written.",
    "failed_snapshots": "Failed attempts to write a snapshot of the cluster.",
}

LAG: Final[Mapping[str, str]] = {
    "lag_segments": "Closed segments of led partitions that are not shipped yet.",
    "lag_bytes": "Log bytes of closed segments of led partitions that are not shipped yet.",
    "oldest_segment_age_seconds": "Seconds since the oldest unshipped segment was closed; 0 if all are shipped.",
    "unread_partitions": "Led partitions whose watermark is not read yet: the lag does not include them.",
}
"""The gauges that are also exported as ``topic_...`` for each topic that ``uploader.metrics.topics`` selects."""

GAUGES: Final[Mapping[str, str]] = {
    **LAG,
    "waiting_partitions": "Led partitions whose next segment must wait, for replication or an open transaction.",
    "failing_partitions": "Led partitions whose last upload step failed.",
    "partitions": "Local partitions selected for shipping.",
    "led_partitions": "Partitions selected for shipping that this broker leads.",
    "leaving_segments": "Segments of partitions that left this broker, held until the store has them.",
    "leadership_known": "1 if it is known which partitions this broker leads, else 0.",
    "recorded_holes": "Holes recorded in the upload watermarks of led partitions.",
    "held_files": "Files held open.",
    "held_deleted_bytes": "Bytes on disk of logs that the broker deleted and the uploader keeps.",
    "refused_topics": "Topics that are not shipped because they are compacted, or because the broker tiers them.",
}


OTHER_TOPICS: Final = "(other)"
"""Label of the sum over all topics without a separate label. No topic can have this name."""


@dataclass(slots=True)
class Counts:
    """Totals of one uploader, with one field for each metric in ``COUNTERS``.

    Threads update these totals without a lock, because a rare lost count does no harm.
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
    """The number of holes in the partition's upload watermark, as last read or written."""
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
        """Return a description of the newest hole since the start that is still unfilled; None if there is no such
        hole."""
        return next(reversed(list(self.unfilled.values())), None)

    def fill(self, where: TopicIdPartition) -> None:
        """Record that all holes of the partition are filled."""
        self.unfilled.pop(where, None)
        self.recorded.pop(where, None)


class CountsCollector(Collector):
    """Exports the totals, the present ``gauges``, and the gauges in ``LAG`` by topic.

    The collector is registered with Prometheus until it is closed.
    """

    def __init__(
        self,
        counts: Counts,
        gauges: Callable[[], Mapping[str, float]],
        topics: Callable[[], Mapping[str, Mapping[str, float]]],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._counts, self._gauges, self._topics, self._registry = counts, gauges, topics, registry
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics' names, so that the registry refuses a second collector."""
        gauges = (GaugeMetricFamily(_name(name), meaning) for name, meaning in GAUGES.items())
        return (*self._counters(), *gauges, *_by_topic({}))

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        yield from self._counters()
        values = self._gauges()
        for name, meaning in GAUGES.items():
            yield GaugeMetricFamily(_name(name), meaning, value=values.get(name, 0.0))
        if topics := self._topics():
            yield from _by_topic(topics)

    def close(self) -> None:
        """Unregister the collector."""
        self._registry.unregister(self)

    def _counters(self) -> Iterable[Metric]:
        for name, meaning in COUNTERS.items():
            yield CounterMetricFamily(_name(name), meaning, value=getattr(self._counts, name))


def _name(name: str) -> str:
    return f"tieredstore_uploader_{name}"


def _by_topic(topics: Mapping[str, Mapping[str, float]]) -> Iterable[Metric]:
    for name, meaning in LAG.items():
        family = GaugeMetricFamily(_name(f"topic_{name}"), f"By topic: {meaning}", labels=["topic"])
        for topic, values in topics.items():
            family.add_metric([topic], values[name])
        yield family


def levels_of(uploader: Uploader, now_s: float) -> Mapping[str, float]:
    """Return the values of ``GAUGES``. ``now_s`` is the present time of the uploader's clock."""
    partitions = uploader.disk.partitions
    led = _find_led(uploader)
    leaving = [partition for partition in partitions if partition.role is Role.LEAVING]
    return {
        **_lag_of((partition.lag() for partition in led), now_s),
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


def lag_by_topic(uploader: Uploader, now_s: float, most: int = 100) -> Mapping[str, Mapping[str, float]]:
    """Return the values of ``LAG`` by topic, for the first ``most`` topics by name that ``uploader.metrics.topics``
    selects.

    The topics that are not among the selected are summed as ``(other)``. Return nothing if
    ``uploader.metrics.topics`` is empty.
    """
    patterns = uploader.own.metrics_topics
    if not patterns:
        return {}
    topics: dict[str, list[Partition]] = {}
    for partition in _find_led(uploader):
        topics.setdefault(partition.where.topic, []).append(partition)
    # Choose by name, not by lag. The topics with the greatest lag change over time, and Prometheus keeps a series for
    # every topic that ever had a label.
    matching = (topic for topic in sorted(topics) if any(re.fullmatch(pattern, topic) for pattern in patterns))
    named = list(itertools.islice(matching, most))
    groups = {topic: topics.pop(topic) for topic in named}
    if topics:
        groups[OTHER_TOPICS] = [partition for partitions in topics.values() for partition in partitions]
    return {
        topic: _lag_of((partition.lag() for partition in partitions), now_s) for topic, partitions in groups.items()
    }


def lag_by_partition(uploader: Uploader, now_s: float) -> Mapping[str, object]:
    """Return the content of ``/lag`` as a JSON object: the led partitions in order, each with its lag.

    Until a partition's watermark is read, its ``lag_segments``, ``lag_bytes`` and ``oldest_segment_age_seconds`` are
    None. ``reason`` is the last error, or the condition that the next segment waits for.
    """
    led = sorted(_find_led(uploader), key=lambda partition: partition.name)
    return {
        "leadership_known": uploader.leadership.is_known,
        "partitions": [_lag_row(partition, now_s) for partition in led],
    }


def _lag_row(partition: Partition, now_s: float) -> Mapping[str, object]:
    where, turn, lag = partition.where, partition.turn, partition.lag()
    reason = turn.error or turn.waits_for
    values = _lag_of([lag], now_s)
    return {
        "topic": where.topic,
        "topic_id": str(where.topic_id),
        "partition": where.partition,
        "next_offset": partition.shipped,
        **{name: None if lag is None else values[name] for name in LAG if name != "unread_partitions"},
        "reason": None if reason is None or lag == [] else str(reason),
    }


def _find_led(uploader: Uploader) -> list[Partition]:
    return [partition for partition in uploader.disk.partitions if partition.role is Role.LED]


def _lag_of(lags: Iterable[list[Segment] | None], now_s: float) -> Mapping[str, float]:
    """Return the value of each gauge in ``LAG``. ``lags`` holds the lag of each partition."""
    lags = list(lags)
    segments = [segment for lag in lags if lag is not None for segment in lag]
    return {
        "lag_segments": len(segments),
        "lag_bytes": sum(segment.size_in_bytes for segment in segments),
        "oldest_segment_age_seconds": max((segment.age_s(now_s) for segment in segments), default=0.0),
        "unread_partitions": sum(lag is None for lag in lags),
    }
