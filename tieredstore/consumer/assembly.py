"""The parts of a consumer: this module creates them, connects them with each other, measures and closes them.

docs/reference/metrics.md lists the metrics.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tieredstore.consumer.client import MemberClient
from tieredstore.consumer.core import Core
from tieredstore.consumer.delivery import Delivery
from tieredstore.consumer.group import Commits, Group
from tieredstore.consumer.live_side import LiveSide
from tieredstore.consumer.lookups import Lookups
from tieredstore.consumer.loss_policy import LossPolicy
from tieredstore.consumer.offset_queries import OffsetQueries
from tieredstore.consumer.partition import Bucket, Failed, Partition
from tieredstore.consumer.streams import StoredStreams
from tieredstore.live import LiveCluster
from tieredstore.live.properties import shared_properties
from tieredstore.metrics.counting import Snapshots
from tieredstore.remote import RemoteStorageManager

if TYPE_CHECKING:
    from confluent_kafka import Consumer as KafkaConsumer

    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Makers:
    """Factories of a consumer's connections, and limits that are not settings. Tests replace both."""

    manager: Callable[..., RemoteStorageManager] = RemoteStorageManager
    cluster: Callable[..., LiveCluster] = LiveCluster
    client: Callable[[KafkaConsumer], MemberClient] = MemberClient
    clock: Callable[[], float] = time.monotonic
    first_pause_s: float = 0.1
    """Seconds before the first retry; the pause doubles with each retry."""
    reassign_s: float = 1.0
    """The minimum seconds between two full assignments, because each drops the messages that the client has
    prefetched."""
    silent_s: float = 10.0
    """Seconds without a message from a newly assigned partition, after which it counts as stalled if the broker has
    records."""
    held_bytes: int = 8 * 1024 * 1024
    """The maximum size in bytes of the client's messages that the consumer holds for ``poll_arrow``, because the client
    limits only its own queue."""
    closing_s: float = 8.0
    """Seconds that ``close`` waits for threads that are calling the store or the broker. After that, it leaves the
    threads running."""


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


class Parts:
    """All parts of a consumer that reads a store."""

    def __init__(self, settings: ConsumerSettings, client: MemberClient, makers: Makers) -> None:
        """Assemble the parts; raise ConfigError if the store's settings are invalid."""
        assert settings.store is not None
        self.settings = settings
        self.measures = Measures(self.levels)
        self.news = threading.Event()
        """An event that is set whenever a look-up or a read of the bucket has results."""
        self._closing_s = makers.closing_s
        with contextlib.ExitStack() as opened:
            self.manager = makers.manager(settings.store, shares_read_ahead=True)
            opened.callback(self.manager.close)
            self.cluster: LiveCluster | None = None
            if settings.has_broker:
                self.cluster = makers.cluster(
                    shared_properties(settings.client), isolation=settings.isolation, timeout_s=settings.timeout_s
                )
                opened.callback(self.cluster.close)
            live = LiveSide(client, settings.timeout_s, makers)
            lookups = Lookups(settings, self.manager, self.cluster, self.news, makers.clock)
            streams = StoredStreams(self.manager, settings, self.news)
            policy = LossPolicy(settings, self.measures, makers.first_pause_s, makers.clock)
            self.core = Core(settings, live, lookups, streams, policy, makers.clock)
            self.delivery = Delivery(self.core, self.measures, makers.held_bytes)
            self.commits = Commits(client, self.core, settings)
            self.group = Group(client, self)
            self.offsets = OffsetQueries(settings, client, self.core)
            self._stop_measuring = CONSUMERS.add(self.measures.snapshot)
            opened.pop_all()

    def begin_closing(self) -> None:
        """Ask the threads to end, but do not wait, so that the consumer can leave the group in the meantime."""
        self.core.streams.close()
        self.core.lookups.close()

    def close(self) -> None:
        """End all running work, within ten seconds."""
        self.begin_closing()
        self._stop_measuring()
        end = time.monotonic() + self._closing_s
        with contextlib.ExitStack() as ending:
            if self.cluster is not None:
                ending.callback(self.cluster.close)
            # The stack runs these callbacks in reverse order, so it closes the manager before it joins the threads.
            # Pending requests to the store then fail, so the threads end soon.
            ending.callback(lambda: self.core.lookups.join(end))
            ending.callback(lambda: self.core.streams.join(end))
            ending.callback(self.manager.close)
            self.core.drop(list(self.core.partitions))

    def statistics(self) -> dict[TopicPartition, dict[str, Any]]:
        """Return the statistics of each partition."""
        self.core.live.locate()
        return {where: _statistics(partition) for where, partition in self.core.partitions.items()}

    def levels(self) -> Mapping[str, float]:
        """Return the current gauge values."""
        known = list(self.core.partitions.values())
        records, seconds = [_lag(one) for one in known], [_lag_s(one) for one in known]
        return {
            "queued_bytes": self.core.streams.queued_bytes,
            "refreshes": self.core.lookups.refreshes,
            "lag_records": sum(records), "lag_records_max": max(records, default=0),
            "lag_seconds": sum(seconds), "lag_seconds_max": max(seconds, default=0.0),
        }  # fmt: skip


def _statistics(partition: Partition) -> dict[str, Any]:
    phase, live, lineage = partition.phase, partition.log.live, partition.log.lineage
    stream = phase.stream if isinstance(phase, Bucket) else None
    return {
        "source": partition.tally.side,
        "phase": phase.word,
        "position": partition.position,
        "paused": partition.paused,
        "lag": _lag(partition),
        "at_end": partition.is_at_end,
        "live_start": None if live is None else live[0],
        "live_end": None if live is None else live[1],
        "stored_start": None if lineage is None else lineage.earliest_offset,
        "stored_end": None if lineage is None else lineage.end_offset,
        "reads_until": None if stream is None else stream.stop,
        "queued_bytes": 0 if stream is None else stream.waiting_bytes,
        "side_changes": partition.tally.changes,
        "error": str(phase.error) if isinstance(phase, Failed) else None,
    }


def _lag(partition: Partition) -> int:
    """Count the offsets between a partition's position and the last known end of the partition's log."""
    live, lineage, position = partition.log.live, partition.log.lineage, partition.position
    end = max(0 if live is None else live[1], 0 if lineage is None else lineage.end_offset)
    return max(0, end - position) if position is not None and position >= 0 else 0


def _lag_s(partition: Partition) -> float:
    """Return the age of the last returned record in seconds, or 0 if the log has no later records."""
    if not _lag(partition) or partition.tally.timestamp_ms <= 0:
        return 0.0
    return max(0.0, time.time() - partition.tally.timestamp_ms / 1000)
