"""Records of a requested range that ``read_committed`` leaves out, because they are not committed.

Kept apart from the readers, which do not depend on it: the caller that passes records on notes its progress here.
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
    """Collects the aborted transactions that a read meets, and finally says what was left out. Thread-safe."""

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
        """The end of the longest log."""
        return max((log.end for log in self._logs.values()), default=0)

    def begin(self, log: PartitionLog, start: int, stop: int) -> None:
        """Note that the read of a partition begins."""
        self._logs[log.partition], self._windows[log.partition] = log, (start, stop)
        self._aborted[log.partition] = set()
        self._reached[log.partition] = start

    def meet(self, partition: int, aborted: Iterable[AbortedTransaction]) -> None:
        """Note aborted transactions of a part that is read, or that was read ahead."""
        with self._lock:
            self._aborted[partition].update(aborted)

    def note_given(self, partition: int, next_offset: int) -> None:
        """Note that all records of a partition before an offset were passed on, and those of all earlier partitions."""
        for number, (_, stop) in self._windows.items():
            if number < partition:
                self._reached[number] = stop
        self._reached[partition] = max(next_offset, self._reached.get(partition, 0))

    def note_end(self) -> None:
        """Note that everything was read."""
        self._reached.update({number: stop for number, (_, stop) in self._windows.items()})

    def sentences(self, *, asks: bool = True) -> list[str]:
        """Describe the records left out so far; ask the broker only if ``asks``."""
        if self._query.isolation != "read_committed":
            return []
        with self._lock:
            aborted = self.aborted_in_tail + sum(
                entry.first_offset < self._reached[partition]
                for partition, entries in self._aborted.items()
                for entry in entries
            )
        told = [f"the records of {aborted:,} aborted transaction{'s' * (aborted > 1)}"] if aborted else []
        return [*told, *self._undecided(), *(self._held_back() if asks else ())]

    def _ended(self) -> Iterator[tuple[PartitionLog, int]]:
        """Yield the logs that were read to their ends, and the start of each read."""
        for number, (start, stop) in self._windows.items():
            log = self._logs[number]
            if self._reached[number] >= stop == log.end_from(start):
                yield log, start

    def _undecided(self) -> Iterator[str]:
        """Describe open transactions in the bucket: without a broker, its log ends before them."""
        for log, start in self._ended():
            if not log.on_broker and log.lineage is not None and max(start, log.seam) < log.lineage.end_offset:
                yield undecided(log.where, max(start, log.seam), log.lineage.end_offset)

    def _held_back(self) -> Iterator[str]:
        """Describe the records that open transactions hold back on the broker."""
        ended = [log.where for log, _ in self._ended() if log.on_broker]
        cluster = self._query.open_cluster() if ended else None
        if cluster is None:
            return
        with contextlib.closing(cluster):
            # In this order, so that records written in between do not count as held back.
            written: Mapping[TopicPartition, int] = cluster.end_offsets(ended, "read_uncommitted")
            decided = cluster.end_offsets(ended)
        for where, end in written.items():
            if decided[where] < end:
                yield f"offsets {decided[where]} to {end - 1} of {where[0]}-{where[1]}, from an open transaction on"


def undecided(where: TopicPartition, start: int, stop: int) -> str:
    """Describe the offsets (half-open) of a partition held back by a transaction that is undecided in the bucket."""
    topic, partition = where
    return (
        f"offsets {start} to {stop - 1} of {topic}-{partition}, from a transaction on that has no outcome in the "
        f"segments, which reach to offset {stop - 1}"
    )
