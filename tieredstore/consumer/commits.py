"""Commits: what earlier calls gave, and nothing that this one may still fail to give."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.consumer.client import refusal

if TYPE_CHECKING:
    from tieredstore.consumer.client import MemberClient
    from tieredstore.consumer.core import Core
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
        self._confirmed: dict[TopicPartition, int] = {}
        """What the coordinator has confirmed of the commits that were waited for, in whichever assignment."""
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

    def commit_async(self) -> None:
        """Commit :meth:`offsets` without waiting; nothing where there are none."""
        known = self.offsets()
        if known:
            self._client.commit(known)

    def commit_and_wait(self) -> list[KafkaPartition]:
        """Commit what is not known to be committed; return all that is assigned, with or without an offset."""
        new = {where: offset for where, offset in self.offsets().items() if self._confirmed.get(where) != offset}
        if not new:
            raise refusal(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored")
        places = self._client.commit(new, asynchronous=False)
        self.note_committed(places)
        return [*places, *(KafkaPartition(*where) for where in self._core.partitions if where not in new)]

    def note_committed(self, places: Iterable[KafkaPartition]) -> None:
        """The coordinator has confirmed these."""
        for place in places:
            if place.error is None:
                self._confirmed[place.topic, place.partition] = place.offset

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

    def store(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Have the next commit without offsets commit these; KafkaException if none of them is assigned."""
        if self._auto_store:
            raise refusal(KafkaError._INVALID_ARG, "StoreOffsets failed: Local: Invalid argument or configuration")
        known = [where for where in offsets if where in self._core.partitions]
        if offsets and not known:
            raise refusal(KafkaError._STATE, "StoreOffsets failed: Local: Erroneous state")
        for where in known:
            self._core.partitions[where].stored = offsets[where] if offsets[where] >= 0 else None
