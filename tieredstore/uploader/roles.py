"""Assigns each partition its role: led, followed, ignored or leaving (see ``Role``).

This is a separate module because roles do not depend on uploads, only on leadership, topic settings and the log
directories.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from tieredstore.errors import TieredStoreError
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.process.forks import ForkSafeLock
from tieredstore.uploader.disk import Disk
from tieredstore.uploader.leadership import LeadershipView
from tieredstore.uploader.metrics import Counts
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.topics import TopicAdvice

if TYPE_CHECKING:
    from tieredstore.live.broker_state import BrokerState

_logger: Final = logging.getLogger(__name__)

_DELETED_S: Final = 60.0
"""A topic counts as deleted only if the broker does not know it for this long, because a broker that has just started
knows no topics.
"""

_NO_ID: Final = Uuid(bytes(16))


class Roles:
    """Assigns roles. ``assign`` is thread-safe; only one thread may call ``let_leave``."""

    def __init__(
        self,
        disk: Disk,
        leadership: LeadershipView,
        topics: TopicAdvice,
        broker: BrokerState | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._disk, self._leadership, self._topics, self._monotonic = disk, leadership, topics, monotonic
        self._broker = broker
        self._assigning = ForkSafeLock()
        self._missed: dict[TopicIdPartition, float] = {}

    def assign(self) -> bool:
        """Assign each partition its role by the last known leadership. Return True if this broker leads a new
        partition."""
        with self._assigning:
            partitions = self._disk.partitions
            for partition in partitions:
                if partition.folder is None and partition.role is not Role.LEAVING:
                    partition.leave()
            if not self._leadership.was_ever_known:
                return False
            entering = [one for one in partitions if one.role is not Role.LED and self._leads(one)]
            if self._broker is not None and entering:
                self._broker.look_anew()
            for partition in entering:
                # List the folder again, because its log may have been truncated while this broker followed. Links or
                # descriptors may then keep files that the broker has replaced.
                if partition.role is not Role.IGNORED:
                    self._disk.relist(partition)
                partition.lead()
            for partition in partitions:
                if partition.folder is not None and not self._leads(partition):
                    self._let_others_lead(partition)
        return bool(entering)

    def let_leave(self, counts: Counts) -> None:
        """Forget partitions without a folder once their pinned segments (kept by open files or links) are uploaded, or
        once their topic is deleted.

        Segments are dropped without upload only if the cluster no longer knows the topic.
        """
        leaving = [partition for partition in self._disk.partitions if partition.folder is None]
        for partition in leaving:
            if not partition.has_pins and not partition.turn.is_busy:
                # Also count lost segments, such as segments dropped because a disk was full.
                counts.abandoned_segments += sum(one.lost is not None for one in partition.pending())
                self._disk.remove(partition)
        leaving = [partition for partition in leaving if partition.has_pins]
        self._missed = {one.where: self._missed[one.where] for one in leaving if one.where in self._missed}
        ids = self._topic_ids({partition.where.topic for partition in leaving})
        dropped: dict[str, list[str]] = {}
        for partition in leaving:
            if self._is_deleted(partition.where, ids):
                if pinned := partition.abandon():
                    offsets = f"{pinned[0].base_offset} to {pinned[-1].next_offset - 1}"
                    dropped.setdefault(partition.where.topic, []).append(f"{partition.where.partition} ({offsets})")
                counts.abandoned_segments += len(pinned)
                self._disk.remove(partition)
        for topic, partitions in dropped.items():
            _logger.warning(
                "%s: the topic is deleted; held segments were dropped without shipping them: partition (offsets) %s",
                topic, ", ".join(partitions),
            )  # fmt: skip

    def _leads(self, partition: Partition) -> bool:
        is_led = partition.folder is not None and self._leadership.leads(partition.name)
        return is_led and partition.where.topic not in self._topics.refused

    def _let_others_lead(self, partition: Partition) -> None:
        if partition.where.topic not in self._topics.refused:
            partition.follow()
        elif partition.role is not Role.IGNORED or partition.has_pins:
            partition.ignore()

    def _topic_ids(self, topics: AbstractSet[str]) -> Mapping[str, Uuid | None]:
        """Return the topics' ids in the cluster. Without a cluster to ask, return the ids in the log directories. Then
        omit topics that a failed log directory or an unidentified folder may have.
        """
        if not topics:
            return {}
        try:
            ids = self._leadership.source.topic_ids(topics)
            if ids is None and self._broker is not None:
                ids = self._broker.topic_ids(topics)
        except TieredStoreError as error:
            _logger.debug("cannot read topic ids now: %s", error)
            return {}
        if ids is None:
            here = {one.where.topic: one.where.topic_id for one in self._disk.partitions if one.folder is not None}
            unknown = topics if self._disk.failed else {topic for topic, _ in self._disk.unidentified}
            ids = {topic: here.get(topic) for topic in topics - unknown}
        return ids

    def _is_deleted(self, where: TopicIdPartition, ids: Mapping[str, Uuid | None]) -> bool:
        """Return True if the topic was deleted, or re-created with another id."""
        topic_id = ids.get(where.topic)
        if where.topic in ids and topic_id is None:
            now_s = self._monotonic()
            return now_s - self._missed.setdefault(where, now_s) >= _DELETED_S
        self._missed.pop(where, None)
        has_id = where.topic_id != self._disk.derived_id(where.topic)
        return has_id and topic_id not in (None, _NO_ID, where.topic_id)
