"""The assignment of the Kafka client: exactly the partitions that the consumer reads from the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.consumer.client import place_at, position_of
from tieredstore.consumer.partition import Live, Parked, Partition, Stall
from tieredstore.live.follower import Link
from tieredstore.model import TopicPartition
from tieredstore.partitions.position import Position

if TYPE_CHECKING:
    from tieredstore.consumer.assembly import Makers
    from tieredstore.consumer.client import MemberClient, Received

_logger: Final = logging.getLogger(__name__)

_MOST_RECEIVED: Final = 10_000
_MOST_RECEIVED_BYTES: Final = 4 * 1024 * 1024


class LiveSide:
    """Keeps exactly the partitions that are read from the broker assigned to the Kafka client. Used by the polling
    thread only.

    A group with eager rebalancing has no incremental assignment. A change there assigns all live partitions again, with
    their offsets, at most once a second.
    """

    def __init__(self, client: MemberClient, timeout_s: float, makers: Makers) -> None:
        self._client = client
        self.partitions: dict[TopicPartition, Partition] = {}
        """All assigned partitions of the consumer."""
        self._timeout_s = timeout_s
        self._silent_s = min(makers.silent_s, timeout_s)
        self._reassign_s = makers.reassign_s
        self._clock = makers.clock
        self.is_eager = False
        """True in a group with eager rebalancing."""
        self.leaving: set[TopicPartition] = set()
        """Partitions that the client still fetches although the consumer must drop their messages."""
        self.unheard: set[TopicPartition] = set()
        """Live partitions (read from the broker) without a message since their assignment."""
        self._paused: set[TopicPartition] = set()
        """Partitions that are paused in the client, which keeps a pause across assignments."""
        self._is_due = False
        self._assigned_at = -makers.reassign_s
        self._drained_at = 0.0
        self._received: list[Sequence[Received]] = []
        """The client's messages since the last :meth:`locate`."""
        self._received_count = self._received_bytes = 0

    def __iter__(self) -> Iterator[tuple[Partition, Live]]:
        for partition in self.partitions.values():
            if isinstance(partition.phase, Live):
                yield partition, partition.phase

    def join_group(self, *, is_eager: bool) -> None:
        """Assign by the group's protocol from now on. Without a group, assignments are incremental."""
        self.is_eager = is_eager

    def add(self, partition: Partition) -> None:
        """Make a partition live: let the client fetch it from its position on."""
        assert partition.position is not None
        if not self.is_eager:
            self._client.incremental_assign([_place(partition)])
        live = partition.phase = Live(partition.position)
        self.unheard.add(partition.where)
        if self.is_eager:
            self._is_due = True
        else:
            self.set_paused(partition)
            self._begin_check([(partition, live)])

    def set_paused(self, partition: Partition) -> None:
        """Pause or resume a partition in the client, according to the partition's flag ``paused``."""
        where = partition.where
        if partition.paused:
            # Pause even a partition that was paused before, because the client ignored that pause if the partition was
            # not assigned yet.
            self._client.pause([where])
            self._paused.add(where)
        elif where in self._paused:
            self._client.resume([where])
            self._paused.discard(where)

    def remove(self, partition: Partition) -> None:
        """Let the client stop fetching a live partition; drop its messages that are not returned yet."""
        where, partition.phase = partition.where, Parked()
        self.unheard.discard(where)
        if self.is_eager:
            self.leaving.add(where)
            self._is_due = True
        else:
            self._client.incremental_unassign([KafkaPartition(*where)])

    def forget(self, wheres: Iterable[TopicPartition]) -> None:
        """Record that the Kafka client no longer fetches these partitions."""
        self.unheard.difference_update(wheres)
        self.leaving.difference_update(wheres)

    def forget_all(self) -> None:
        """Record that the Kafka client has no assigned partitions any more."""
        self.unheard.clear()
        self.leaving.clear()
        self._is_due = False

    @property
    def due_in(self) -> float | None:
        """Return the seconds until the next full assignment; None if none is needed."""
        return max(0.0, self._assigned_at + self._reassign_s - self._clock()) if self._is_due else None

    def flush(self) -> None:
        """Assign all live partitions again if an assignment is needed and the minimum interval has passed."""
        if not self._is_due or self.due_in:
            return
        self.locate()
        known = list(self)
        self._client.assign([_place(partition) for partition, _ in known])
        self._assigned_at, self._is_due = self._clock(), False
        self.leaving.clear()
        for partition, live in known:
            live.held.clear()
            self.begin_silent(partition, live)
            self.set_paused(partition)
        self._begin_check(known)

    @property
    def has_unchecked(self) -> bool:
        """True if the client still has to check the log of a partition for truncation."""
        return any(live.link is Link.UNCHECKED for _, live in self._list_unheard())

    def check(self) -> None:
        """Let the client check the logs of unchecked partitions for truncation."""
        for partition, live in self._list_unheard():
            if live.link is not Link.UNCHECKED:
                continue
            assert partition.position is not None
            try:
                # Seek to the position, because librdkafka checks the leader epoch at a seek, but not at an assignment.
                self._client.seek(partition.where, partition.position, partition.epoch)
            except KafkaException:
                continue  # the client does not fetch the partition yet
            live.link = Link.SILENT

    def _list_unheard(self) -> list[tuple[Partition, Live]]:
        known = (self.partitions[where] for where in self.unheard)
        return [(partition, partition.phase) for partition in known if isinstance(partition.phase, Live)]

    def _begin_check(self, known: Iterable[tuple[Partition, Live]]) -> None:
        for partition, live in known:
            live.link = Link.UNCHECKED if partition.epoch is not None and partition.position else Link.SILENT
        self.check()

    def hear(self, partition: Partition, live: Live) -> None:
        """Record that the client has returned a message of a partition."""
        live.link, partition.retry.tries, partition.retry.refusals = Link.HEARD, 0, 0
        self.unheard.discard(partition.where)

    def locate(self) -> None:
        """Update the positions of the live partitions, and the leader epochs of their last records."""
        heard = [partition.where for partition, live in self if live.link is Link.HEARD]
        for place in self._client.positions(heard) if heard else ():
            partition = self.partitions[place.topic, place.partition]
            if partition.held:
                partition.at = position_of(partition.held[0])
            elif place.offset >= 0 and place.offset != partition.position:
                partition.commit.has_given |= partition.position is None or place.offset > partition.position
                partition.at = position_of(place)
        self._received.clear()
        self._received_count = self._received_bytes = 0

    def note_received(self, messages: Sequence[Received], byte_count: int) -> None:
        """Record messages of the client, for :meth:`find_dropped`."""
        self._received.append(messages)
        self._received_count += len(messages)
        self._received_bytes += byte_count
        if self._received_count > _MOST_RECEIVED or self._received_bytes > _MOST_RECEIVED_BYTES:
            self.locate()

    def find_dropped(self) -> list[tuple[Partition, Position]]:
        """Return the partitions whose messages the client has dropped, and where each must be read again.

        If a signal or a callback raises an exception during a call, confluent-kafka drops the messages of this call.
        librdkafka's positions have already passed these messages.
        """
        last = {
            (message.topic(), message.partition()): message
            for messages in self._received
            for message in messages
            if message.error() is None
        }
        dropped: list[tuple[Partition, Position]] = []
        known_places = self._client.positions([partition.where for partition, _ in self])
        places = {(place.topic, place.partition): place for place in known_places}
        for partition, live in self:
            known, first = partition.at, partition.at
            if live.held:
                known, first = _behind(live.held[-1]), position_of(live.held[0])
            elif live.link is Link.HEARD and partition.where in last:
                known = first = _behind(last[partition.where])
            assert isinstance(known, Position)
            assert isinstance(first, Position)
            if places[partition.where].offset > known.offset:
                dropped.append((partition, first))
        return dropped

    def begin_silent(self, partition: Partition, live: Live) -> None:
        """Record that the client starts at the partition's position, and has returned no message from there yet."""
        live.assigned_at = -1 if partition.position is None else partition.position
        live.link, live.hole_at = Link.SILENT, -1
        self.unheard.add(partition.where)

    def note_drained(self) -> None:
        """Record that the client's queue is empty. While the queue has messages, no partition counts as stalled."""
        self._drained_at = self._clock()

    def is_stalled(self, partition: Partition, live: Live, end: int | None) -> bool:
        """Return True if a partition makes no progress for too long, but the broker has readable records up to ``end``.

        After an outage of a broker, librdkafka sometimes fetches nothing from a partition for minutes, because it waits
        for a lost answer about the leader epoch. A new assignment ends this wait.

        Return True only once for the same position and end, because the remaining offsets may be transaction markers,
        which the client never returns.
        """
        position, now = partition.position, self._clock()
        if end is None or position is None or position >= end or partition.paused or live.held:
            live.stall = None
            return False
        if live.stall is None or live.stall.position != position:
            live.stall = Stall(position, now)
            return False
        late = live.stall.since + (self._timeout_s if live.link is Link.HEARD else self._silent_s)
        if now < late or self._drained_at < late or partition.revived == (position, end):
            return False
        live.stall, partition.revived = None, (position, end)
        _logger.info(
            "the client fetches nothing of %s from offset %d on, but the broker has records up to %d: assigning the "
            "partition again",
            partition, position, end - 1,
        )  # fmt: skip
        return True


def _place(partition: Partition) -> KafkaPartition:
    """Return the offset where the client starts, with the leader epoch of the record before that offset."""
    at = partition.at
    assert isinstance(at, Position)
    return place_at(partition.where, at if at.offset else Position(0))


def _behind(message: Received) -> Position:
    """Return the position after a message."""
    at = position_of(message)
    return Position(at.offset + 1, at.epoch)
