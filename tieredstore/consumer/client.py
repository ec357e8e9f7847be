"""The Kafka client inside a consumer: confluent-kafka's own methods, which our consumer overrides."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, cast

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.live.clients import call_client
from tieredstore.model import TopicPartition
from tieredstore.partitions.position import Position

# Treat the client as untyped, because the type hints of confluent-kafka are incomplete.
_base: Final[Any] = confluent_kafka.Consumer
NO_OFFSET: Final = -1001
"""librdkafka's OFFSET_INVALID."""


class Received(Protocol):
    """A message from the bucket or the broker. An event, such as a partition's end, is a message with an error."""

    def topic(self) -> str: ...  # noqa: D102  methods of confluent_kafka.Message
    def partition(self) -> int: ...  # noqa: D102
    def offset(self) -> int: ...  # noqa: D102
    def key(self) -> bytes | None: ...  # noqa: D102
    def value(self) -> bytes | None: ...  # noqa: D102
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...  # noqa: D102
    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102
    def leader_epoch(self) -> int | None: ...  # noqa: D102
    def error(self) -> KafkaError | None: ...  # noqa: D102
    def __len__(self) -> int: ...


class MemberClient:
    """The Kafka client, which is the member of the group. Its methods call those of ``confluent_kafka.Consumer``, not
    our overrides.
    """

    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        # A weak reference avoids a reference cycle, so that an unused consumer is freed at once, as in confluent-kafka.
        self._consumer = weakref.ref(consumer)

    def _own(self) -> confluent_kafka.Consumer:
        consumer = self._consumer()
        if consumer is None:
            raise RuntimeError("Consumer closed")
        return consumer

    def poll(self, timeout_s: float) -> Received | None:
        """Return the next message or event. Callbacks run during the call."""
        message: Received | None = call_client(_base.poll, self._own(), timeout_s)
        return message

    def consume(self, count: int, timeout_s: float) -> list[Received]:
        """Return at most ``count`` messages; raise KeyboardInterrupt on an interrupt."""
        try:
            messages: list[Received] = call_client(_base.consume, self._own(), count, timeout_s)
        except SystemError as error:
            # Raise the interrupt here, because confluent-kafka 2.16 often loses the exception that a signal handler
            # raises during the call.
            raise KeyboardInterrupt from error
        return messages

    def assign(self, places: Sequence[KafkaPartition]) -> None:
        """Replace the assignment."""
        _base.assign(self._own(), list(places))

    def unassign(self) -> None:
        """Remove the assignment."""
        _base.unassign(self._own())

    def incremental_assign(self, places: Sequence[KafkaPartition]) -> None:
        """Add to the assignment."""
        _base.incremental_assign(self._own(), list(places))

    def incremental_unassign(self, places: Sequence[KafkaPartition]) -> None:
        """Remove from the assignment."""
        _base.incremental_unassign(self._own(), list(places))

    def pause(self, wheres: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions."""
        _base.pause(self._own(), [KafkaPartition(*where) for where in wheres])

    def resume(self, wheres: Iterable[TopicPartition]) -> None:
        """Resume fetching these partitions."""
        _base.resume(self._own(), [KafkaPartition(*where) for where in wheres])

    def seek(self, where: TopicPartition, offset: int, epoch: int | None = None) -> None:
        """Continue a partition at an offset; raise KafkaException if the client does not fetch this partition.

        ``epoch`` is the leader epoch of the record before ``offset``. By this epoch, the broker first checks that its
        log still has that record.
        """
        _base.seek(self._own(), KafkaPartition(*where, offset, leader_epoch=-1 if epoch is None else epoch))

    def positions(self, wheres: Sequence[TopicPartition]) -> list[KafkaPartition]:
        """Return each partition's position (the offset after the last returned message) with that message's leader
        epoch.
        """
        places: list[KafkaPartition] = _base.position(self._own(), [KafkaPartition(*where) for where in wheres])
        return places

    def commit(self, places: Iterable[KafkaPartition], *, asynchronous: bool = True) -> list[KafkaPartition]:
        """Commit the offsets of these partitions, with their leader epochs and metadata. An asynchronous commit returns
        an empty list.
        """
        return _base.commit(self._own(), offsets=list(places), asynchronous=asynchronous) or []

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        """Join the group."""
        _base.subscribe(self._own(), topics, **callbacks)

    def unsubscribe(self) -> None:
        """Leave the group. The next ``poll`` or ``consume`` revokes the assignment."""
        _base.unsubscribe(self._own())

    def watermarks(self, place: KafkaPartition, timeout_s: float, *, cached: bool = False) -> tuple[int, int] | None:
        """Return the first offset and the end of the broker's log; None on timeout."""
        span: tuple[int, int] | None = _base.get_watermark_offsets(self._own(), place, timeout=timeout_s, cached=cached)
        return span

    def offsets_for_times(self, places: Sequence[KafkaPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """For each place, return the broker's first offset at or after the place's time, or -1 if there is none."""
        known: list[KafkaPartition] = _base.offsets_for_times(self._own(), list(places), timeout=timeout_s)
        return {(place.topic, place.partition): place.offset for place in known}


def place_at(where: TopicPartition, at: Position, metadata: str | None = None) -> KafkaPartition:
    """Convert a position to confluent-kafka's type."""
    return KafkaPartition(*where, at.offset, metadata or "", leader_epoch=at.epoch_number)


def position_of(place: KafkaPartition | Received) -> Position:
    """Convert a partition or message of confluent-kafka to a position.

    A position needs the leader epoch of the record before its offset, but a message has only the epoch of its own
    record. Use this epoch, which is the same or later. confluent-kafka represents an unknown epoch by -1 or None.
    """
    epoch: int | None
    if isinstance(place, KafkaPartition):
        offset, epoch = place.offset, place.leader_epoch
    else:
        offset, epoch = place.offset(), place.leader_epoch()
    return Position(offset, None if epoch is None or epoch < 0 else epoch)


def refusal(code: int, reason: str) -> KafkaException:
    """Return the exception that confluent-kafka raises for a refused call."""
    return KafkaException(KafkaError(code, reason))


def check_places(places: object) -> list[KafkaPartition]:
    """Return a caller's list of partitions; like confluent-kafka, raise TypeError for anything else."""
    if not isinstance(places, list):
        raise TypeError("requires list of TopicPartition")
    return [check_place(place) for place in cast("list[object]", places)]


def check_place(place: object) -> KafkaPartition:
    """Return a caller's partition; raise TypeError for anything else."""
    if not isinstance(place, KafkaPartition):
        raise TypeError("expected cimpl.TopicPartition")
    return place
