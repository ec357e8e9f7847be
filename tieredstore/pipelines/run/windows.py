"""Selection of the offsets to write next. Records become due by size, age or number. They are divided into offset
windows (ranges of offsets), and tasks write the windows in parallel.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tieredstore.errors import ConfigError, DataLossError
from tieredstore.model import Uuid, human_bytes
from tieredstore.partitions.position import stand
from tieredstore.partitions.selections import is_selected
from tieredstore.pipelines.log.commit_log import Life, Progress
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.selection import query_of
from tieredstore.pipelines.run.starts import begins_elsewhere

if TYPE_CHECKING:
    from tieredstore.live import EpochEnd
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import LogState
    from tieredstore.reading.log_snapshot import LogSnapshot


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits at which records must be written: bytes of the log, number of offsets (0: no limit), or age in seconds.

    In topics that match the regular expression ``marked``, all records seen so far become due at ``minute_mark``
    minutes past each hour.
    """

    window_bytes: int
    records: int
    age_s: float
    minute_mark: int = 0
    marked: str = ""

    def age_of(self, topic: str, wall_s: float) -> float:
        """Return the age in seconds at which a topic's records are due. ``wall_s`` is the current time in s since the
        epoch."""
        return min(self.age_s, self._since_mark_s(wall_s)) if self._is_marked(topic) else self.age_s

    def due_in_s(self, topic: str, age_s: float, wall_s: float) -> float:
        """Return the seconds until a topic's records, which are now ``age_s`` old, must be written. Ignore limits of
        size and number."""
        by_age_s = self.age_s - age_s
        return min(by_age_s, 3600 - self._since_mark_s(wall_s)) if self._is_marked(topic) else by_age_s

    def divide(
        self, log: PartitionLog, progress: Progress, start: int, end: int, *, with_rest: bool
    ) -> Iterator[BatchWindow]:
        """Divide these offsets into windows that reach a limit of size or number. With ``with_rest``, the remaining
        offsets are the last window."""
        bytes_between = partial(_bytes_between, log, progress)
        while start < end:
            stop = min(end, start + self.records) if self.records else end
            if bytes_between(start, stop) > self.window_bytes:
                # End at the first offset at which the offset window would have at least ``window_bytes``.
                ends = range(start + 1, stop)
                stop = start + 1 + bisect_left(ends, self.window_bytes, key=partial(bytes_between, start))
            elif stop == end and not with_rest and not (self.records and stop - start >= self.records):
                return
            # Keep the topic id that the commit log has, even if bucket and broker show another id for the same topic.
            yield BatchWindow(log.topic, progress.topic_id, log.partition, start, stop, log.position(stop).epoch_number)
            start = stop

    def _is_marked(self, topic: str) -> bool:
        return bool(self.marked) and re.fullmatch(self.marked, topic) is not None

    def _since_mark_s(self, wall_s: float) -> float:
        return (wall_s - 60 * self.minute_mark) % 3600

    def __str__(self) -> str:
        """Return the limits of size and number as text, such as ``at 190.7 MiB or 1,000 records of a partition``."""
        number = f" or {self.records:,} records" if self.records else ""
        return f"at {human_bytes(self.window_bytes)}{number} of a partition"


class Waiting:
    """Times when this process first saw each partition's unwritten records. Not thread-safe. ``now_s`` is in monotonic
    seconds.
    """

    def __init__(self) -> None:
        self._since_s: dict[TopicPartition, tuple[int, float]] = {}

    def age_s(self, where: TopicPartition, start: int, now_s: float) -> float:
        """Return the seconds since this process first saw unwritten records at ``start``."""
        known = self._since_s.get(where)
        if known is None or known[0] != start:
            known = self._since_s[where] = start, now_s
        return now_s - known[1]

    def clear(self, where: TopicPartition) -> None:
        """Forget when this process first saw unwritten records of the partition."""
        self._since_s.pop(where, None)


def position_of(log: PartitionLog, progress: Progress, answer: EpochEnd | None = None) -> int:
    """Return the next offset to write. ``answer`` is the broker's end offset of the leader epoch in ``progress``.

    Raises DataLossError if the next offset is beyond the log's end, or beyond the offset where a new leader truncated
    the log. Raises ConfigError if the topic was re-created.
    """
    if not is_of(log, progress.topic_id):
        raise ConfigError(
            f"the topic {log.topic} was re-created: its new files would reuse names of its old files; set another "
            "secor.generation"
        )
    standing = stand(progress.position, log, answer)
    if standing.kind in {"cut", "beyond"}:
        what = (
            f"its log ends before offset {log.end}"
            if standing.kind == "beyond"
            else f"a later leader epoch has written other records from offset {standing.at} on"
        )
        raise DataLossError(
            f"{log.topic}-{log.partition} is written up to offset {progress.next_offset - 1}, but {what}: Kafka has "
            "lost records that were already written; to go on, exclude the topic by secor.kafka.topic_blacklist or "
            "set another secor.generation"
        )
    return progress.next_offset


def find_gone(snapshot: LogSnapshot, state: LogState, pipeline: Pipeline) -> dict[TopicPartition, str]:
    """Return a sentence for each partition that no longer exists, and of which the log has only the beginning.

    The log records the beginning of a partition that has records, so these records are lost. In four cases the log has
    only the beginning although no record is lost, so the result is empty. If the settings choose the first offset, a
    partition may begin without records. A ``frame`` function may have dropped all records. A generation that took over
    another one also has beginnings of fully written partitions. A backfill may read its records from files.
    """
    own, query = pipeline.own, query_of(pipeline)
    if begins_elsewhere(own) or own.frame or state.other >= 0 or state.life is not Life.FOLLOWING:
        return {}
    unreadable = {one.where for one in snapshot.unreadable}
    return {
        where: f"{where[0]}-{where[1]} is gone, and none of its records from offset {progress.next_offset} on was "
        f"written; {query.words.accept_loss} to go on"
        for where, progress in sorted(state.positions.items())
        if not (progress.recent_offsets or progress.files or where in snapshot.logs or where in unreadable)
        and is_selected(query.selection, where)
    }


def is_of(log: PartitionLog, topic_id: str) -> bool:
    """Return True if the log may belong to the topic with this id. The log's own id may be unknown."""
    known = Uuid.spelled(topic_id)
    return known is not None and log.is_of(known)


def _bytes_between(log: PartitionLog, progress: Progress, start: int, stop: int) -> int:
    """Estimate the bytes of these offsets from the bucket's segments. If the partition has no segments in the bucket,
    estimate from the sizes of the latest offset windows."""
    if log.lineage is None and progress.recent_offsets:
        return (stop - start) * progress.recent_bytes // progress.recent_offsets
    return log.bytes_between(start, stop)
