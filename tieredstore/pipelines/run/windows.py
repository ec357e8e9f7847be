"""Selection of the offsets to write next.

A partition that the pipeline has not written yet begins at a consumer group's offset, the earliest offset or the latest
offset. Records become due by size, age or number. They are divided into offset windows (ranges of offsets), and tasks
write the windows in parallel.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError, CorruptDataError, DataLossError, excerpt
from tieredstore.model import Uuid, human_bytes
from tieredstore.partitions.position import stand
from tieredstore.partitions.selections import is_selected
from tieredstore.pipelines.log.commit_log import Life, Progress
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.source import query_of

if TYPE_CHECKING:
    from tieredstore.live import EpochEnd
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.config.chapters import GroupSettings
    from tieredstore.pipelines.config.settings import Pipeline, PipelineSettings
    from tieredstore.pipelines.log.commit_log import LogState
    from tieredstore.reading.log_snapshot import LogSnapshot

_logger: Final = logging.getLogger(__name__)

_SESSION_S: Final = 30.0
_AT_ONCE: Final = 1000
_MOST_DIGITS: Final = 19


class Starts:
    """Offsets at which a pipeline begins partitions. Each query opens a connection. Not thread-safe.

    The consumer group's offset of a partition is read once per generation (a version of the output). It is committed to
    the log before any record is written. Later changes of the group's offset have no effect.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._starting, self._groups = pipeline.own.starting, pipeline.own.groups
        self._query = query_of(pipeline)
        self._is_waiting: set[TopicPartition] = set()

    def of(self, logs: Sequence[PartitionLog], *, is_new: bool) -> dict[TopicPartition, int]:
        """Return the first offset of each partition. Leave out a partition while the consumer group's offset is beyond
        the readable records.

        ``is_new`` is true if the generation (a version of the output) has no commits. In this case, the call raises
        ConfigError if the consumer group has no offset in any partition. The call raises DataLossError if the group's
        offset is before a log's first offset or beyond the broker's log end.
        """
        if not self._groups.starting_group:
            return {log.where: self._by_rule(log) for log in logs}
        standing = self._read_committed([log.where for log in logs])
        if is_new and logs and not standing:
            place = "ZooKeeper" if self._groups.group_storage == "zookeeper" else "Kafka"
            raise ConfigError(
                f"startingOffsets: the group {self._groups.starting_group} has no committed offset of any of the "
                f"{len(logs)} partitions in {place}: name another group, or leave out startingOffsets"
            )
        begins: dict[TopicPartition, int] = {}
        beyond: list[PartitionLog] = []
        for log in logs:
            at = standing.get(log.where)
            if at is None:
                begins[log.where] = self._by_rule(log)
            elif at < log.earliest:
                raise DataLossError(
                    f"the group {self._groups.starting_group} is at offset {at} of {log.topic}-{log.partition}, whose "
                    f"log begins at {log.earliest}: offsets {at} to {log.earliest - 1} are neither in the bucket nor "
                    f"on the broker any more; to skip them, move the group to offset {log.earliest}"
                )
            elif at > log.end:
                beyond.append(log)
            else:
                begins[log.where] = at
        self._check_beyond(beyond, standing)
        return begins

    def _by_rule(self, log: PartitionLog) -> int:
        return log.earliest if self._starting == "earliest" else log.end

    def _check_beyond(self, logs: Sequence[PartitionLog], standing: Mapping[TopicPartition, int]) -> None:
        """Raise DataLossError if the consumer group's offset is beyond the broker's log end; otherwise log that the
        partition waits.

        The consumer group may have read records that this pipeline cannot read yet, for example records of an open
        transaction.
        """
        known = [log.where for log in logs if log.on_broker]
        ends: dict[TopicPartition, int] = {}
        if known and (cluster := self._query.open_cluster()) is not None:
            with cluster:
                ends = cluster.end_offsets(known, "read_uncommitted")
        for log in logs:
            at = standing[log.where]
            if at > ends.get(log.where, at):
                raise DataLossError(
                    f"the group {self._groups.starting_group} is at offset {at} of {log.topic}-{log.partition}, "
                    f"whose log ends before offset {ends[log.where]}: records were lost in Kafka, or the topic was "
                    "created again; move the group, or leave out startingOffsets"
                )
            if log.where not in self._is_waiting:
                self._is_waiting.add(log.where)
                _logger.warning(
                    "%s-%d waits: the group is at offset %d, and readable records end before %d",
                    log.topic, log.partition, at, log.end,
                )  # fmt: skip

    def _read_committed(self, wheres: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if self._groups.group_storage == "zookeeper":
            return _in_zookeeper(self._groups, wheres)
        cluster = self._query.open_cluster()
        if cluster is None:
            raise ConfigError("startingOffsets: the group's offsets are in Kafka: set kafka.bootstrap.servers")
        with cluster:
            offsets = cluster.committed_offsets(self._groups.starting_group, wheres)
        return {where: offset for where, offset in offsets.items() if offset is not None}


def begins_elsewhere(own: PipelineSettings) -> bool:
    """Return True if the settings may begin a partition at another offset than its first."""
    return bool(own.groups.starting_group) or own.starting != "earliest"


def mark(log: PartitionLog, offset: int) -> BatchWindow:
    """Return an empty offset window, which marks where a partition begins."""
    return BatchWindow(log.topic, str(log.topic_id), log.partition, offset, offset, log.position(offset).epoch_number)


def _in_zookeeper(groups: GroupSettings, wheres: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return committed offsets from the ZooKeeper nodes of Secor and Kafka's old consumers. Each node holds an offset
    as decimal digits.
    """
    # Import only here, because ``zookeeper_session`` needs the optional dependencies `kafka` and `zookeeper`.
    from tieredstore.live.zookeeper_session import ZooKeeperSession  # noqa: PLC0415

    above = f"{groups.zookeeper_path}/consumers/{groups.starting_group}/offsets"
    paths = {f"{above}/{topic}/{partition}": (topic, partition) for topic, partition in wheres}
    names = list(paths)
    standing: dict[TopicPartition, int] = {}
    with closing(ZooKeeperSession(groups.zookeeper, _SESSION_S, answer_s=_SESSION_S)) as session:
        for first in range(0, len(names), _AT_ONCE):
            for path, (raw, _) in session.get_all(names[first : first + _AT_ONCE]).items():
                standing[paths[path]] = _offset(raw, path)
    return standing


def _offset(raw: bytes, path: str) -> int:
    text = raw.decode("ascii", "replace").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise CorruptDataError(
            f"ZooKeeper has {excerpt(text)!r} at {path}, which is not an offset: correct it or delete the node"
        )
    return int(text)


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
    known = Uuid.parse_canonical(topic_id)
    return known is not None and log.is_of(known)


def _bytes_between(log: PartitionLog, progress: Progress, start: int, stop: int) -> int:
    """Estimate the bytes of these offsets from the bucket's segments. If the partition has no segments in the bucket,
    estimate from the sizes of the latest offset windows."""
    if log.lineage is None and progress.recent_offsets:
        return (stop - start) * progress.recent_bytes // progress.recent_offsets
    return log.bytes_between(start, stop)
