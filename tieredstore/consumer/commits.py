"""Commits: what earlier calls gave, and nothing that this one may still fail to give."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.consumer.client import place_at, position_of, refusal
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.partitions.position import Position

if TYPE_CHECKING:
    from tieredstore.consumer.client import MemberClient
    from tieredstore.consumer.core import Core
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.model import TopicPartition

_logger: Final = logging.getLogger(__name__)

_METADATA: Final = "tieredstore topic.id="
"""What metadata of our commits begin with."""


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

    def places(self) -> dict[TopicPartition, KafkaPartition]:
        """Behind what was given, or what ``store_offsets`` said, of each partition."""
        known = self._core.partitions.values()
        if not self._auto_store:
            return {one.where: one.commit.stored for one in known if one.commit.stored is not None}
        self._core.live.locate()
        given: dict[TopicPartition, Position] = {}
        for partition in known:
            if partition.commit.has_given and partition.position is not None:
                given[partition.where] = Position(partition.position, partition.epoch)
        for message in reversed(self.in_call):
            where = message.topic(), message.partition()
            if where in given and message.error() is None:
                given[where] = position_of(message)
        return {where: place_at(where, at, self.metadata(where)) for where, at in given.items() if at.offset >= 0}

    def metadata(self, where: TopicPartition) -> str | None:
        """What a commit says of the topic that the partition was read in."""
        partition = self._core.partitions.get(where)
        topic_id = None if partition is None else partition.log.topic_id
        return None if topic_id is None else f"{_METADATA}{topic_id}"

    def place_behind(self, message: Any) -> KafkaPartition:
        """What a commit of a message commits."""
        where, at = (message.topic(), message.partition()), position_of(message)
        return place_at(where, Position(at.offset + 1, at.epoch), self.metadata(where))

    def commit_async(self) -> None:
        """Commit :meth:`places` without waiting; nothing where there are none."""
        known = self.places()
        if known:
            self._client.commit(known.values())

    def commit_and_wait(self) -> list[KafkaPartition]:
        """Commit what is not known to be committed; return all that is assigned, with or without an offset."""
        new = {where: place for where, place in self.places().items() if self._confirmed.get(where) != place.offset}
        if not new:
            raise refusal(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored")
        places = self._client.commit(new.values(), asynchronous=False)
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
        new: list[KafkaPartition] = []
        for where, place in self.places().items():
            commit = self._core.partitions[where].commit
            if (chosen is None or where in chosen) and commit.committed != place.offset:
                new.append(place)
                commit.committed = place.offset
        if not new:
            return
        try:
            # The request goes out before any other to the coordinator, as that to leave the group.
            self._client.commit(new)
        except KafkaException as error:
            _logger.warning("offsets could not be committed: %s", error)

    def store(self, places: Sequence[KafkaPartition]) -> None:
        """Have the next commit without offsets commit these; KafkaException if none of them is assigned."""
        if self._auto_store:
            raise refusal(KafkaError._INVALID_ARG, "StoreOffsets failed: Local: Invalid argument or configuration")
        known = {(place.topic, place.partition): place for place in places}
        known = {where: place for where, place in known.items() if where in self._core.partitions}
        if places and not known:
            raise refusal(KafkaError._STATE, "StoreOffsets failed: Local: Erroneous state")
        for where, place in known.items():
            metadata = place.metadata or self.metadata(where)
            stored = place_at(where, position_of(place), metadata) if place.offset >= 0 else None
            self._core.partitions[where].commit.stored = stored


def topic_id_in(metadata: str | None) -> Uuid | None:
    """Return the id of the topic that was read, by what a commit of ours says of it; None for others' commits."""
    text = (metadata or "").removeprefix(_METADATA)
    try:
        return None if text == (metadata or "") else Uuid.parse(text)
    except ConfigError:
        return None
