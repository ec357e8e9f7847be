"""Reports which records of a requested range were left out by ``read_committed``, because they are not committed.

A command that shows records to a user reports its progress to :class:`LeftOut`. Readers do not depend on this module.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.reading.query import LogQuery


class LeftOut:
    """Collects the aborted transactions found during a read, and describes what was left out. Thread-safe."""

    def __init__(self, query: LogQuery) -> None:
        self.aborted_in_tail = 0
        self._query = query
        self._lock = threading.Lock()
        self._logs: dict[int, PartitionLog] = {}
        self._windows: dict[int, OffsetWindow] = {}
        self._aborted: dict[int, set[AbortedTransaction]] = {}
        self._reached: dict[int, int] = {}

    @property
    def end_offset(self) -> int:
        """The largest end offset of all logs."""
        return max((log.end for log in self._logs.values()), default=0)

    def begin(self, log: PartitionLog, start: int, stop: int) -> None:
        """Record that the caller begins to read a partition."""
        self._logs[log.partition], self._windows[log.partition] = log, (start, stop)
        self._aborted[log.partition] = set()
        self._reached[log.partition] = start

    def meet(self, partition: int, aborted: Iterable[AbortedTransaction]) -> None:
        """Record the aborted transactions in a range that was read. The range may come after the records that the
        caller has shown so far.
        """
        with self._lock:
            self._aborted[partition].update(aborted)

    def note_given(self, partition: int, next_offset: int) -> None:
        """Record that the caller has shown all records of a partition before ``next_offset``, and all records of
        earlier partitions.
        """
        for number, (_, stop) in self._windows.items():
            if number < partition:
                self._reached[number] = stop
        self._reached[partition] = max(next_offset, self._reached.get(partition, 0))

    def note_end(self) -> None:
        """Record that the caller has shown all records."""
        self._reached.update({number: stop for number, (_, stop) in self._windows.items()})

    def sentences(self, *, asks: bool = True) -> list[str]:
        """Describe the records left out so far. Ask the broker for open transactions only if ``asks`` is True."""
        if self._query.isolation != "read_committed":
            return []
        with self._lock:
            aborted = self.aborted_in_tail + sum(
                entry.first_offset < self._reached[partition]
                for partition, entries in self._aborted.items()
                for entry in entries
            )
        told = [f"the records of {aborted:,} aborted transaction{'s' * (aborted > 1)}"] if aborted else []
        return [*told, *self._describe_undecided(), *(self._describe_held_back() if asks else ())]

    def _find_ended(self) -> Iterator[tuple[PartitionLog, int]]:
        """Yield each log that was read to its end, with the first offset of the read."""
        for number, (start, stop) in self._windows.items():
            log = self._logs[number]
            if self._reached[number] >= stop == log.end_from(start):
                yield log, start

    def _describe_undecided(self) -> Iterator[str]:
        """Describe transactions for which the bucket has no outcome. If the broker lacks the records, too, the read
        ends before such a transaction.
        """
        for log, start in self._find_ended():
            first, waits = max(start, log.seam), not log.on_broker or log.end_from(start) < log.end
            if waits and log.lineage is not None and first < log.lineage.end_offset:
                yield describe_undecided(log.where, first, log.lineage.end_offset, log.end)

    def _describe_held_back(self) -> Iterator[str]:
        """Describe the records at the broker that cannot be read yet, because a transaction is still open."""
        ended = [log.where for log, _ in self._find_ended() if log.on_broker]
        cluster = self._query.open_cluster() if ended else None
        if cluster is None:
            return
        with contextlib.closing(cluster):
            # Request the log's end (read_uncommitted) before the last stable offset. In the other order, records that
            # are written between the two requests would count as held back by a transaction.
            written: Mapping[TopicPartition, int] = cluster.end_offsets(ended, "read_uncommitted")
            decided = cluster.end_offsets(ended)
        for where, end in written.items():
            if decided[where] < end:
                offsets = f"offsets {decided[where]} to {end - 1} of {where[0]}-{where[1]}"
                yield f"{offsets}, held back by an open transaction"


def describe_undecided(where: TopicPartition, start: int, stop: int, end: int = 0) -> str:
    """Describe offsets that cannot be read yet, because the bucket lacks the outcome of a transaction. The segments end
    at ``stop`` (exclusive), the log at ``end`` if that is later.
    """
    topic, partition = where
    return (
        f"offsets {start} to {max(stop, end) - 1} of {topic}-{partition}, held back by a transaction that has no "
        f"outcome in the segments, which end at offset {stop - 1}"
    )
