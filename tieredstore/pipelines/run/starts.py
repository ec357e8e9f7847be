"""First offsets for partitions that the pipeline has not written yet: a consumer group's offsets, the earliest offsets,
or the latest offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from tieredstore.errors import ConfigError, CorruptDataError, DataLossError, excerpt
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.selection import query_of

if TYPE_CHECKING:
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.pipelines.config.chapters import GroupSettings
    from tieredstore.pipelines.config.settings import Pipeline, PipelineSettings

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
