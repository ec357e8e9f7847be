"""Commits: what earlier calls gave, and nothing that this one may still fail to give."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from tieredstore.consumer.client import kafka_error

if TYPE_CHECKING:
    from tieredstore.consumer.client import MemberClient
    from tieredstore.consumer.core import Core
    from tieredstore.consumer.partition import Partition
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.model import TopicPartition

_logger: Final = logging.getLogger(__name__)


class Commits:
    """Knows the offsets that are to be committed. For the polling thread."""

    def __init__(
        self,
        client: MemberClient,
        core: Core,
        settings: ConsumerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._core = core
        self._auto_s = settings.auto_commit_s if settings.has_broker else None
        self._auto_store = settings.auto_store
        self._clock = clock
        self._due_at = clock() + (self._auto_s or 0.0)
        self.in_call: Sequence[Any] = ()
        """Messages that the call under way has taken: they are not given before it returns."""

    def offsets(self) -> dict[TopicPartition, int]:
        """Behind what was given, or what ``store_offsets`` said, of each partition."""
        if not self._auto_store:
            known = self._core.partitions.values()
            return {partition.where: partition.stored for partition in known if partition.stored is not None}
        self._core.live.locate()
        offsets: dict[TopicPartition, int] = {}
        for partition in self._core.partitions.values():
            if partition.has_given and partition.position is not None and partition.position >= 0:
                offsets[partition.where] = partition.position
        for message in reversed(self.in_call):
            where = message.topic(), message.partition()
            if where in offsets and message.error() is None:
                offsets[where] = message.offset()
        return offsets

    def commit_when_due(self) -> None:
        """At the beginning of a call: each ``auto.commit.interval.ms``."""
        if self._auto_s is not None and self._clock() >= self._due_at:
            self._due_at = self._clock() + self._auto_s
            self.commit_auto()

    def commit_auto(self, wheres: Iterable[TopicPartition] | None = None) -> None:
        """What is new, if commits are automatic; of these partitions alone if they are given. Does not wait."""
        if self._auto_s is None:
            return
        chosen = None if wheres is None else set(wheres)
        new: dict[TopicPartition, int] = {}
        for where, offset in self.offsets().items():
            partition = self._core.partitions[where]
            if (chosen is None or where in chosen) and partition.committed != offset:
                new[where], partition.committed = offset, offset
        if not new:
            return
        try:
            # The request goes out before any other to the coordinator, as that to leave the group.
            self._client.commit(new)
        except KafkaException as error:
            _logger.warning("offsets could not be committed: %s", error)

    def store(self, partition: Partition | None, offset: int) -> None:
        """What the next commit without offsets is to commit of a partition."""
        if self._auto_store:
            raise KafkaException(
                kafka_error(KafkaError._INVALID_ARG, "StoreOffsets failed: Local: Invalid argument or configuration")
            )
        if partition is None:
            raise KafkaException(kafka_error(KafkaError._STATE, "StoreOffsets failed: Local: Erroneous state"))
        partition.stored = offset

    def no_offset(self) -> KafkaException:
        """What a commit of nothing is."""
        return KafkaException(kafka_error(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored"))
