"""Group membership: assignments by the coordinator or by hand, revocations, and commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.consumer.client import place_at, position_of, refusal
from tieredstore.consumer.partition import Commit, Live, Partition, Start, Tail
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid, name_of
from tieredstore.partitions.position import Position
from tieredstore.process.log_once import LogOnce

if TYPE_CHECKING:
    from tieredstore.consumer.assembly import Parts
    from tieredstore.consumer.client import MemberClient, Received
    from tieredstore.consumer.core import Core
    from tieredstore.consumer.settings import ConsumerSettings
    from tieredstore.model import TopicPartition

_BEGINNING, _END, _STORED, _INVALID, _TAIL = -2, -1, -1000, -1001, -2000
_STARTS: Final[dict[int, Start]] = {
    _BEGINNING: "earliest",
    _END: "latest",
    _STORED: "committed",
    _INVALID: "committed",
}
"""The start that each logical offset of librdkafka stands for."""
_LOGICAL: Final[dict[str, int]] = {"earliest": _BEGINNING, "latest": _END, "error": _END}
"""The logical offset of each named start in librdkafka."""

RebalanceCallback: TypeAlias = Callable[[Any, list[KafkaPartition]], None]


class Group:
    """Keeps the core's partitions equal to the assignment of the group or the user. Only the core assigns partitions to
    the Kafka client."""

    def __init__(self, client: MemberClient, parts: Parts) -> None:
        self._ended: set[TopicPartition] = set()
        """Partitions that were revoked or unassigned since the last :meth:`take_ended`."""
        self._client = client
        self._parts = parts
        self._on_assign: RebalanceCallback | None = None
        self._on_revoke: RebalanceCallback | None = None
        self._on_lost: RebalanceCallback | None = None
        self._was_assigned = False

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: RebalanceCallback | None,
        on_revoke: RebalanceCallback | None,
        on_lost: RebalanceCallback | None,
    ) -> None:
        """Join the group. The client gets callbacks of this class, which call the user's callbacks."""
        self._client.subscribe(
            topics, on_assign=self._take_assigned, on_revoke=self._take_revoked, on_lost=self._take_lost
        )
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._parts.core.live.join_group(is_eager=self._parts.settings.is_eager)

    def assign(self, places: Sequence[KafkaPartition]) -> None:
        """Replace the assignment."""
        starts = _starts_of(places)
        self._end_all(lambda: self._client.assign([]))
        self._parts.core.add(starts)
        self._was_assigned = True

    def unassign(self) -> None:
        """Remove the assignment."""
        self._end_all(self._client.unassign)

    def incremental_assign(self, places: Sequence[KafkaPartition]) -> None:
        """Add to the assignment."""
        starts = _starts_of(places)
        core = self._parts.core
        # A rebalance ends only after this call to the client, so make the call now, without partitions. The core
        # assigns the partitions later.
        self._client.incremental_assign([])
        again = [where for where, _ in starts if where in core.partitions]
        if again:
            reason = f"{again[0][0]} [{again[0][1]}] is already part of the current assignment"
            raise refusal(KafkaError._CONFLICT, reason)
        core.add(starts)
        self._was_assigned = True

    def incremental_unassign(self, places: Sequence[KafkaPartition]) -> None:
        """Remove from the assignment."""
        wheres = _wheres(places)
        unknown = [where for where in wheres if where not in self._parts.core.partitions or wheres.count(where) > 1]
        # Commit first, because in ``on_revoke`` the client's call ends the revocation, and the next owner may begin.
        self._parts.commits.commit_auto(wheres)
        # Call the client before changing anything, because the client refuses this call in a group with eager
        # rebalancing.
        self._client.incremental_unassign([])
        if unknown:
            reason = f"{unknown[0][0]} [{unknown[0][1]}] can't be unassigned"
            raise refusal(KafkaError._INVALID_ARG, f"{reason} since it is not in the current assignment")
        self._give_up(wheres)

    def _end_all(self, unassign: Callable[[], None]) -> None:
        """End the whole assignment. If the client raises an error, keep the assignment."""
        self._parts.commits.commit_auto()
        unassign()
        self._forget(list(self._parts.core.partitions))
        self._parts.core.live.forget_all()

    def take_ended(self) -> set[TopicPartition]:
        """Return the partitions that were revoked since the last call. Some of them may be assigned again."""
        ended, self._ended = self._ended, set()
        return ended

    def leave_ended(self, wheres: set[TopicPartition]) -> None:
        """Let the next :meth:`take_ended` return these partitions too."""
        self._ended |= wheres

    def pause(self, places: Sequence[KafkaPartition]) -> None:
        """Stop returning records of these partitions, in this assignment and in later ones."""
        core = self._parts.core
        for where in _wheres(places):
            partition = core.partitions.get(where)
            if partition is not None:
                if not isinstance(partition.phase, Live):
                    self._parts.delivery.forget([where])
                core.pause(partition)
            elif where in core.paused:
                core.paused[where] = True

    def resume(self, places: Sequence[KafkaPartition]) -> None:
        """Continue returning records of these partitions."""
        core = self._parts.core
        for where in _wheres(places):
            partition = core.partitions.get(where)
            if partition is not None:
                core.resume(partition)
                self._parts.delivery.hold_on(partition)
            elif where in core.paused:
                core.paused[where] = False

    def seek(self, place: KafkaPartition) -> None:
        """Continue a partition at another offset. Look the offset up first, because the broker may lack it."""
        where = place.topic, place.partition
        partition = self._parts.core.partitions.get(where)
        failure = f"Failed to seek to offset {place.offset}: Local:"
        if partition is None:
            raise refusal(KafkaError._STATE, f"{failure} Erroneous state")
        start = _start(place.offset)
        if start is None or place.offset == _STORED:
            raise refusal(KafkaError._INVALID_ARG, f"{failure} Invalid argument or configuration")
        if place.offset == _INVALID:
            start = self._parts.settings.reset
        self._parts.delivery.forget([where])
        if self._seeks_in_client(partition, start):
            return
        self._parts.core.move(partition, start)

    def _seeks_in_client(self, partition: Partition, start: Start) -> bool:
        """If only the broker can have the offset, seek in the client without a look-up, and return True."""
        live, span, lineage = partition.phase, partition.log.live, partition.log.lineage
        if not isinstance(live, Live) or not isinstance(start, int):
            return False
        if span is None or not span[0] <= start <= span[1]:
            return False
        if self._parts.core.live.is_eager and self._parts.core.live.due_in is not None:
            return False  # the client does not fetch the partition yet
        if lineage is not None and start < lineage.end_offset:
            return False
        try:
            self._client.seek(partition.where, start)
        except KafkaException:
            return False
        live.held.clear()
        partition.at, partition.eof_at = Position(start), -1
        self._parts.core.live.begin_silent(partition, live)
        return True

    def _take_assigned(self, consumer: KafkaConsumer, places: list[KafkaPartition]) -> None:
        """Handle an assignment by the coordinator. The client gets each partition only after a look-up."""
        self._was_assigned = False
        try:
            if self._on_assign is not None:
                self._on_assign(consumer, places)
        finally:
            # If the user's callback has not assigned the partitions, assign them here, even if the callback raised an
            # error, as confluent-kafka does.
            if not self._was_assigned:
                (self.assign if self._parts.core.live.is_eager else self.incremental_assign)(places)

    def _take_revoked(self, consumer: KafkaConsumer, places: list[KafkaPartition]) -> None:
        self._end(consumer, places, self._on_revoke, commits=True)

    def _take_lost(self, consumer: KafkaConsumer, places: list[KafkaPartition]) -> None:
        """Handle partitions that were lost, not revoked. Commit nothing, because another member may own them by now."""
        self._end(consumer, places, self._on_lost or self._on_revoke, commits=False)

    def _end(
        self,
        consumer: KafkaConsumer,
        places: list[KafkaPartition],
        callback: RebalanceCallback | None,
        *,
        commits: bool,
    ) -> None:
        if not commits:
            # Before the callback, because giving partitions up commits too.
            self._parts.commits.forget(_wheres(places))
        try:
            if callback is not None:
                callback(consumer, places)
        finally:
            known = self._parts.core.partitions
            # In an eager group, a revocation ends the whole assignment, including partitions that were assigned
            # manually.
            ended = list(known) if self._parts.core.live.is_eager else [one for one in _wheres(places) if one in known]
            if commits:
                self._parts.commits.commit_auto(ended)
            if self._parts.core.live.is_eager:
                self._forget(ended)
                self._parts.core.live.forget_all()
                self._client.unassign()
            else:
                self._give_up(ended)

    def _give_up(self, wheres: Sequence[TopicPartition]) -> None:
        known = self._parts.core.partitions
        live = [where for where in wheres if isinstance(known[where].phase, Live)]
        self._forget(wheres)
        self._client.incremental_unassign([KafkaPartition(*where) for where in live])

    def _forget(self, wheres: Sequence[TopicPartition]) -> None:
        self._ended.update(wheres)
        self._parts.delivery.forget(wheres)
        self._parts.core.drop(wheres)


def _wheres(places: Sequence[KafkaPartition]) -> list[TopicPartition]:
    return [(place.topic, place.partition) for place in places]


def _starts_of(places: Sequence[KafkaPartition]) -> list[tuple[TopicPartition, Start]]:
    """Return each partition's start; raise KafkaException for a repeated partition or an invalid offset."""
    starts: dict[TopicPartition, Start] = {}
    for place, where in zip(places, _wheres(places), strict=True):
        start = _start(place.offset)
        if where in starts:
            raise refusal(KafkaError._INVALID_ARG, f"Duplicate {where[0]} [{where[1]}] in input list")
        if start is None:
            reason = f"{where[0]} [{where[1]}] has invalid start offset {place.offset}"
            raise refusal(KafkaError._INVALID_ARG, reason)
        starts[where] = start
    return list(starts.items())


def _start(offset: int) -> Start | None:
    """Convert an offset in librdkafka's form to a start; return None for an unknown negative number."""
    if offset <= _TAIL:
        return Tail(_TAIL - offset)
    return _STARTS.get(offset) if offset < 0 else offset


def logical_offset(start: Start) -> int:
    """Convert a start to librdkafka's form of an offset. There, -2000 - n means n offsets before the end."""
    if isinstance(start, Tail):
        return _TAIL - start.count
    return start if isinstance(start, int) else _LOGICAL[start]


_logger: Final = logging.getLogger(__name__)

_METADATA: Final = "tieredstore topic.id="
"""The prefix of the metadata in our commits; a topic id follows."""


class Commits:
    """Chooses the offsets to commit, and commits them. Used by the polling thread only."""

    def __init__(self, client: MemberClient, core: Core, settings: ConsumerSettings) -> None:
        self._client = client
        self._core = core
        self._auto_s = settings.auto_commit_s if settings.has_broker else None
        self._auto_store = settings.auto_store
        self._due_at = time.monotonic() + (self._auto_s or 0.0)
        self._log = LogOnce(_logger)
        self.in_calls: list[Sequence[Received]] = []
        """Messages that the running calls have collected but not returned yet, so they must not be committed. A user's
        callback may call the consumer while a call runs."""

    def places(self) -> dict[TopicPartition, KafkaPartition]:
        """Return the offset to commit for each partition: the offset given to ``store_offsets``, or the offset after
        the last returned record."""
        known = self._core.partitions.values()
        if not self._auto_store:
            return {one.where: one.commit.stored for one in known if one.commit.stored is not None}
        self._core.live.locate()
        given: dict[TopicPartition, Position] = {}
        for partition in known:
            if partition.commit.has_given and partition.position is not None:
                given[partition.where] = Position(partition.position, partition.epoch)
        for message in reversed([message for collected in self.in_calls for message in collected]):
            where = message.topic(), message.partition()
            if where in given and message.error() is None:
                given[where] = position_of(message)
        return {where: place_at(where, at, self.metadata(where)) for where, at in given.items() if at.offset >= 0}

    def metadata(self, where: TopicPartition) -> str | None:
        """Return commit metadata that names the partition's topic id; None if the id is unknown."""
        partition = self._core.partitions.get(where)
        topic_id = None if partition is None else partition.log.topic_id
        return None if topic_id is None else f"{_METADATA}{topic_id}"

    def place_behind(self, message: Received) -> KafkaPartition:
        """Return the message's partition with the offset after the message, for a commit."""
        where, at = (message.topic(), message.partition()), position_of(message)
        return place_at(where, Position(at.offset + 1, at.epoch), self.metadata(where))

    def commit_async(self) -> None:
        """Commit :meth:`places` without waiting for the answer."""
        known = self.places()
        if known:
            self.note_sent(known.values())
            self._client.commit(known.values())

    def commit_and_wait(self) -> list[KafkaPartition]:
        """Commit the offsets that are not committed yet, and wait for the answer. Return all assigned partitions;
        partitions without a new commit have no offset."""
        new = {
            where: place for where, place in self.places().items() if self._core.confirmed.get(where) != place.offset
        }
        if not new:
            raise refusal(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored")
        places = self._client.commit(new.values(), asynchronous=False)
        self.note_committed(places)
        return [*places, *(KafkaPartition(*where) for where in self._core.partitions if where not in new)]

    def note_sent(self, places: Iterable[KafkaPartition]) -> None:
        """Record an asynchronous commit: which offset the group coordinator has then is unknown."""
        for place in places:
            self._core.confirmed.pop((place.topic, place.partition), None)

    def note_committed(self, places: Iterable[KafkaPartition]) -> None:
        """Record the committed offsets that the group coordinator has confirmed."""
        for place in places:
            if place.error is None:
                self._core.confirmed[place.topic, place.partition] = place.offset

    def note_answer(self, error: KafkaError | None, places: Iterable[KafkaPartition]) -> None:
        """Take the coordinator's answer to an asynchronous commit. An automatic commit that failed is due again."""
        for place in places:
            partition = self._core.partitions.get((place.topic, place.partition))
            reason = error if place.error is None else place.error
            if reason is None:
                continue
            # The client logs such an error only if it has no callback for commits, but ours always has one.
            where = name_of((place.topic, place.partition))
            self._log.warn(f"offset {place.offset} of {where} was not committed: {reason.str()}")
            if partition is not None and partition.commit.committed == place.offset:
                partition.commit.committed = None

    def commit_when_due(self) -> None:
        """Commit if ``auto.commit.interval.ms`` has passed. Each poll or consume calls this first."""
        if self._auto_s is not None and time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + self._auto_s
            self.commit_auto()

    def commit_auto(self, wheres: Iterable[TopicPartition] | None = None) -> None:
        """If automatic commits are on, commit new offsets without waiting. With ``wheres``, commit only these
        partitions.
        """
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
        self.note_sent(new)
        try:
            # Do not wait. The client sends its requests in order, so this commit goes out before a request to leave the
            # group.
            self._client.commit(new)
        except KafkaException as error:
            _logger.warning("cannot commit offsets: %s", error)

    def forget(self, wheres: Iterable[TopicPartition]) -> None:
        """Forget what there is to commit of these partitions."""
        self._core.live.locate()
        for where in wheres:
            partition = self._core.partitions.get(where)
            if partition is not None:
                partition.commit = Commit()

    def store(self, places: Sequence[KafkaPartition]) -> None:
        """Set the offsets to commit next; raise KafkaException if none of the partitions is assigned."""
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
    """Return the topic id from the metadata of a consumer's commit; None if another kind of client made the commit."""
    text = (metadata or "").removeprefix(_METADATA)
    try:
        return None if text == (metadata or "") else Uuid.parse(text)
    except ConfigError:
        return None
