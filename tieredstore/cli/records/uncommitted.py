"""What ``tieredstore cat`` did not show of what it read, since nobody has committed it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tieredstore.cli.terminal.output import complain, human_count

if TYPE_CHECKING:
    from tieredstore.cli.records.record_filter import PartitionRecords
    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.model import TopicPartition
    from tieredstore.partitions import PartitionLog
    from tieredstore.reading.reader import TopicReader

_WAY_OUT: Final = "--isolation read_uncommitted shows them"


class LeftOut:
    """Gathers what a read leaves out under read_committed, and says it in the end."""

    def __init__(self, reader: TopicReader) -> None:
        self.aborted_in_tail = 0
        self._reader = reader
        self._aborted: dict[int, set[AbortedTransaction]] = {}
        self._reached: dict[int, int] = {}
        self._undecided: list[str] = []
        self._read_to_end: list[TopicPartition] = []

    def begin(self, log: PartitionLog, start: int, stop: int) -> set[AbortedTransaction]:
        """A partition is read; the set is for the aborted transactions that the read meets."""
        lineage = log.lineage
        if self._reader.query.isolation == "read_committed" and stop == log.end_from(start):
            # Without the broker the bucket's log ends before what is not decided in it.
            if not log.on_broker and lineage is not None and max(start, log.seam) < lineage.end_offset:
                self._undecided.append(undecided(log.where, max(start, log.seam), lineage.end_offset))
            elif log.on_broker:
                self._read_to_end.append(log.where)
        self._reached[log.partition] = start
        return self._aborted.setdefault(log.partition, set())

    def reached(self, partition: int, offset: int) -> None:
        """All records of a partition before ``offset`` were shown, or are not to be."""
        self._reached[partition] = max(offset, self._reached.get(partition, 0))

    def noting(self, batches: Iterable[PartitionRecords]) -> Iterator[PartitionRecords]:
        """The batches as they are, each noted once it was shown."""
        for partition, records in batches:
            yield partition, records
            if records.num_rows:
                untyped: Any = records
                self.reached(partition, untyped.column("offset")[-1].as_py() + 1)

    def tell(self, *, was_stopped: bool = False) -> None:
        """Say it on stderr; of a read that ``was_stopped`` without asking anybody."""
        for sentence in self._sentences(was_stopped):
            say_left_out(sentence)

    def _sentences(self, was_stopped: bool) -> Iterator[str]:
        aborted = self.aborted_in_tail + sum(
            entry.first_offset < self._reached[partition]
            for partition, entries in self._aborted.items()
            for entry in entries
        )
        if aborted:
            yield f"the records of {human_count(aborted)} aborted transaction{'s' * (aborted > 1)}"
        if was_stopped:
            return
        yield from self._undecided
        yield from self._waiting()

    def _waiting(self) -> Iterator[str]:
        """What open transactions hold back on the broker."""
        live = self._reader.live()
        if live is None or not self._read_to_end:
            return
        # In this order: what is written meanwhile is not taken for held back.
        written = live.cluster.end_offsets(self._read_to_end, "read_uncommitted")
        decided = live.cluster.end_offsets(self._read_to_end)
        for where, end in written.items():
            if decided[where] < end:
                yield f"offsets {decided[where]} to {end - 1} of {where[0]}-{where[1]}, from an open transaction on"


def undecided(where: TopicPartition, start: int, stop: int) -> str:
    """Name the offsets (half-open) of a partition that a transaction without outcome in the bucket holds back."""
    topic, partition = where
    return (
        f"offsets {start} to {stop - 1} of {topic}-{partition}, from a transaction on that has no outcome in the "
        f"segments, which reach to offset {stop - 1}"
    )


def say_left_out(sentence: str) -> None:
    """Say on stderr what was not shown, and how to see it."""
    complain(f"left out: {sentence}; {_WAY_OUT}")
