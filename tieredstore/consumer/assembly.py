"""What a consumer is made of, put together and taken apart in one place."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tieredstore.consumer.commits import Commits, topic_id_in
from tieredstore.consumer.core import Core
from tieredstore.consumer.handing_out import HandingOut
from tieredstore.consumer.live_side import LiveSide
from tieredstore.consumer.lookups import Committed, Lookups
from tieredstore.consumer.measures import CONSUMERS, Measures
from tieredstore.consumer.offset_queries import OffsetQueries
from tieredstore.consumer.partition import Bucket, Failed, Partition
from tieredstore.consumer.streams import StoredStreams
from tieredstore.consumer.troubles import Troubles
from tieredstore.live import LiveCluster
from tieredstore.records.settings import ReadSettings
from tieredstore.remote import RemoteStorageManager

if TYPE_CHECKING:
    from collections.abc import Callable

    from tieredstore.consumer.client import MemberClient
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.model import TopicPartition

_CLOSING_S: Final = 8.0
"""How long threads are waited for that are in a call of the store or the broker; then they are left behind."""


@dataclass(slots=True)
class Parts:
    """All parts of one consumer."""

    settings: ConsumerSettings
    manager: RemoteStorageManager
    cluster: LiveCluster | None
    live: LiveSide
    lookups: Lookups
    streams: StoredStreams
    core: Core
    handing_out: HandingOut
    commits: Commits
    offsets: OffsetQueries
    measures: Measures
    news: threading.Event
    """Set whenever a look or a read has something to give."""
    stop_measuring: Callable[[], None]

    def begin_closing(self) -> None:
        """Let threads end while the group is left."""
        self.streams.close()
        self.lookups.close()

    def close(self) -> None:
        """End all that is under way, within ten seconds."""
        self.begin_closing()
        self.stop_measuring()
        end = time.monotonic() + _CLOSING_S
        with contextlib.ExitStack() as ending:
            if self.cluster is not None:
                ending.callback(self.cluster.close)
            # What waits for the store fails at once then.
            ending.callback(lambda: self.lookups.join(end))
            ending.callback(lambda: self.streams.join(end))
            ending.callback(self.manager.close)
            self.core.drop(list(self.core.partitions))

    def statistics(self) -> dict[TopicPartition, dict[str, Any]]:
        """By partition, for people and tests."""
        self.live.locate()
        return {where: _statistics(partition) for where, partition in self.core.partitions.items()}

    def levels(self) -> Mapping[str, float]:
        """What is so now, for metrics."""
        known = list(self.core.partitions.values())
        records, seconds = [_lag(one) for one in known], [_lag_s(one) for one in known]
        return {
            "queued_bytes": self.streams.queued_bytes,
            "refreshes": self.lookups.refreshes,
            "lag_records": sum(records), "lag_records_max": max(records, default=0),
            "lag_seconds": sum(seconds), "lag_seconds_max": max(seconds, default=0.0),
        }  # fmt: skip


def assemble(settings: ConsumerSettings, client: MemberClient) -> Parts:
    """The parts of a consumer that reads a store; ConfigError if the store's settings cannot be used."""
    assert settings.store is not None
    with contextlib.ExitStack() as opened:
        manager = opened.enter_context(contextlib.closing(RemoteStorageManager(settings.store, shares_read_ahead=True)))
        cluster = None
        if settings.has_broker:
            cluster = LiveCluster(
                settings.admin_properties(), isolation=settings.isolation, timeout_s=settings.timeout_s
            )
            opened.callback(cluster.close)
        measures, news = Measures(dict), threading.Event()
        partitions: dict[TopicPartition, Partition] = {}
        live = LiveSide(client, partitions, settings.timeout_s)
        group = str(settings.client.get("group.id", ""))

        def ask_commits(wheres: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
            # Not by the member's own client: another thread's call in it does not return while a callback runs.
            commits = {} if cluster is None else cluster.commits(group, wheres)
            return {
                where: Committed(commit.offset, commit.leader_epoch, topic_id_in(commit.metadata))
                for where, commit in commits.items()
            }

        lookups = Lookups(
            mode=settings.mode, reset=settings.reset, isolation=settings.isolation, refresh_s=settings.refresh_s,
            source=manager, cluster=cluster, committed=ask_commits,
            news=news,
        )  # fmt: skip
        read = ReadSettings(
            isolation=settings.isolation, on_corrupt="fail" if settings.on_data_loss == "fail" else "skip"
        )
        streams = StoredStreams(
            manager, read, threads=settings.partitions_at_once, queued_bytes=settings.queued_bytes, news=news
        )
        troubles = Troubles(settings, measures)
        core = Core(settings, partitions, live, lookups, streams, troubles)
        parts = Parts(
            settings=settings,
            manager=manager,
            cluster=cluster,
            live=live,
            lookups=lookups,
            streams=streams,
            core=core,
            handing_out=HandingOut(core, measures),
            commits=Commits(client, core, settings),
            offsets=OffsetQueries(settings, client, core, lookups, manager, cluster),
            measures=measures,
            news=news,
            stop_measuring=CONSUMERS.add(measures.snapshot),
        )
        measures.levels = parts.levels
        opened.pop_all()
    return parts


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
    """Records between the position and the end that was last seen."""
    live, lineage, position = partition.log.live, partition.log.lineage, partition.position
    end = max(0 if live is None else live[1], 0 if lineage is None else lineage.end_offset)
    return max(0, end - position) if position is not None and position >= 0 else 0


def _lag_s(partition: Partition) -> float:
    """How old the last record is that was given, if others follow it."""
    if not _lag(partition) or partition.tally.timestamp_ms <= 0:
        return 0.0
    return max(0.0, time.time() - partition.tally.timestamp_ms / 1000)
