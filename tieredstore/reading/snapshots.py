"""Successive snapshots for long-lived readers. Each snapshot reads only the changes since the previous one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.watermark import StoredWatermarks
from tieredstore.model import TopicPartition
from tieredstore.partitions.position import Position, Standing, is_stale, needs_answer
from tieredstore.partitions.selections import Selection
from tieredstore.process.log_once import LogOnce
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.losses import loss_of_position
from tieredstore.reading.survey import survey_logs
from tieredstore.reading.windows import PlaceLookup, time_offset

if TYPE_CHECKING:
    from tieredstore.catalog.planning import ValidSegment
    from tieredstore.live import EpochEnd, LiveCluster
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

_NO_END: Final = ((None, None), None)


class LogSnapshots:
    """Snapshots of the logs that a query selects, renewed if older than ``fresh_s``. Not thread-safe. The owner closes
    this object.

    A renewal is cheap, because each manifest is read once, and the broker's connection stays open.
    ``clock`` returns monotonic seconds.
    """

    def __init__(
        self,
        open_source: Callable[[], RemoteStorageManager],
        query: LogQuery,
        *,
        fresh_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last: LogSnapshot | None = None
        """The latest snapshot."""
        self._open_source = open_source
        self._query = query
        self._fresh_s = fresh_s
        self._clock = clock
        self._taken_at = 0.0
        self._log = LogOnce(_logger)
        self._known: dict[str, ValidSegment] = {}
        self._watermarks: StoredWatermarks | None = None
        self._cluster: LiveCluster | None = None
        self._ends: dict[TopicPartition, tuple[tuple[int | None, int | None], EpochEnd | None]] = {}
        """By partition: the leader epoch of the position, the epoch of the present leader, and the broker's answer to
        the question where the position's epoch ends. The answer is reused while both epochs stay the same.
        """

    def current(self, selection: Selection | None = None) -> LogSnapshot:
        """Return the latest snapshot if it is fresh, even if its partitions are not those requested. Otherwise, take a
        new one.

        A new snapshot selects the partitions of ``selection``, or the query's partitions if ``selection`` is None.
        """
        if self.last is None or self._clock() - self._taken_at >= self._fresh_s:
            source = self._open_source()
            query = self._query if selection is None else replace(self._query, selection=selection)
            if self._watermarks is None:
                self._watermarks = StoredWatermarks(source)
            self.last = survey_logs(
                source, query, known=self._known, cluster=self.cluster(), before=self.last,
                watermarks=self._watermarks,
            )  # fmt: skip
            # Set the time after the snapshot. Otherwise, a snapshot that takes longer than fresh_s would be stale at
            # once.
            self._taken_at = self._clock()
            # Log each problem once, even if it disappears and returns. Otherwise, a segment that is still being copied
            # would be reported every second.
            for problem in self.last.problems:
                self._log.warn(problem)
        return self.last

    def epoch_ends(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, EpochEnd]:
        """Return the offset at which each position's leader epoch ends at the broker. Leave out positions whose leader
        has no later epoch in the latest snapshot.

        The broker's answer is reused while the leader stays the same, because the end of an earlier epoch does not
        change.
        """
        logs: Mapping[TopicPartition, PartitionLog] = {} if self.last is None else self.last.logs
        wanted = {
            where: (position.epoch, logs[where].live_epoch)
            for where, position in positions.items()
            if where in logs and needs_answer(position, logs[where])
        }
        asked = {where: epochs[0] for where, epochs in wanted.items() if self._ends.get(where, _NO_END)[0] != epochs}
        cluster = self.cluster()
        if cluster is not None and asked:
            answers = cluster.epoch_ends({where: epoch for where, epoch in asked.items() if epoch is not None})
            self._ends |= {where: (wanted[where], answers.get(where)) for where in asked}
        return {where: end for where in wanted if (end := self._ends[where][1]) is not None}

    def stale(self, positions: Mapping[TopicPartition, Position]) -> set[TopicPartition]:
        """Return the partitions for which the present log ends in an older epoch than the records that were read. Log
        each such partition once.
        """
        logs: Mapping[TopicPartition, PartitionLog] = {} if self.last is None else self.last.logs
        stale = {where for where, position in positions.items() if where in logs and is_stale(position, logs[where])}
        for where in sorted(stale):
            offset = positions[where].offset
            self._log.warn(loss_of_position(offset, Standing("stale", offset), logs[where]).sentence)
        return stale

    def lookup(self, snapshot: LogSnapshot) -> PlaceLookup:
        """Return an object that finds the offsets of places (such as a time) in a snapshot's logs."""
        return PlaceLookup(snapshot, self._query, self._time_offset)

    def _time_offset(self, log: PartitionLog, timestamp_ms: int) -> int | None:
        return time_offset(self._open_source(), self.cluster(), log, timestamp_ms)

    def close(self) -> None:
        """Close the connection to the broker and drop the latest snapshot. The next snapshot connects again."""
        self.last = None
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def cluster(self) -> LiveCluster | None:
        """Return the cluster, with one connection until ``close``; None for the bucket alone."""
        if self._cluster is None:
            self._cluster = self._query.open_cluster()
        return self._cluster
