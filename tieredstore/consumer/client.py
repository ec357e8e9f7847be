"""The client inside a consumer: confluent-kafka's own methods, below ours."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, cast

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.model import TopicPartition
from tieredstore.partitions.position import Position

# The library leaves many types open.
_base: Final[Any] = confluent_kafka.Consumer
NO_OFFSET: Final = -1001
"""librdkafka's OFFSET_INVALID."""


class Received(Protocol):
    """A message of either source, or an event of a partition as a message with an error."""

    def topic(self) -> str: ...  # noqa: D102  as the library has them
    def partition(self) -> int: ...  # noqa: D102
    def offset(self) -> int: ...  # noqa: D102
    def key(self) -> Any: ...  # noqa: D102
    def value(self) -> Any: ...  # noqa: D102
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...  # noqa: D102
    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102
    def leader_epoch(self) -> int | None: ...  # noqa: D102
    def error(self) -> KafkaError | None: ...  # noqa: D102
    def __len__(self) -> int: ...


class MemberClient:
    """The group's member: the own methods of the library's ``Consumer``."""

    def __init__(self, consumer: object) -> None:
        # Weak, so that an unreferenced consumer is released as the library's is.
        self._consumer = weakref.ref(consumer)

    def _own(self) -> Any:
        consumer = self._consumer()
        if consumer is None:
            raise RuntimeError("Consumer closed")
        return consumer

    def poll(self, timeout_s: float) -> Received | None:
        """Return the next message or event; callbacks run inside."""
        message: Received | None = _base.poll(self._own(), timeout_s)
        return message

    def consume(self, count: int, timeout_s: float) -> list[Received]:
        """Return at most ``count`` messages; an interrupt is raised."""
        try:
            messages: list[Received] = _base.consume(self._own(), count, timeout_s)
        except SystemError as error:
            # About half of the times confluent-kafka 2.16 loses the exception of a signal handler while it waits.
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
        """Stop fetching these."""
        _base.pause(self._own(), [KafkaPartition(*where) for where in wheres])

    def resume(self, wheres: Iterable[TopicPartition]) -> None:
        """Resume fetching these."""
        _base.resume(self._own(), [KafkaPartition(*where) for where in wheres])

    def seek(self, where: TopicPartition, offset: int, epoch: int | None = None) -> None:
        """Continue at an offset; raise KafkaException if it is not being fetched.

        With the leader epoch of the record before it, the broker first checks that the record is still in its log.
        """
        _base.seek(self._own(), KafkaPartition(*where, offset, leader_epoch=-1 if epoch is None else epoch))

    def positions(self, wheres: Sequence[TopicPartition]) -> list[KafkaPartition]:
        """Return the position after the last returned message of each, with its leader epoch."""
        places: list[KafkaPartition] = _base.position(self._own(), [KafkaPartition(*where) for where in wheres])
        return places

    def commit(self, places: Iterable[KafkaPartition], *, asynchronous: bool = True) -> Any:
        """Commit these, with their leader epochs and metadata."""
        return _base.commit(self._own(), offsets=list(places), asynchronous=asynchronous)

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        """Join the group."""
        _base.subscribe(self._own(), topics, **callbacks)

    def unsubscribe(self) -> None:
        """Leave the group; a later call revokes its assignment."""
        _base.unsubscribe(self._own())

    def watermarks(self, place: KafkaPartition, timeout_s: float, *, cached: bool = False) -> tuple[int, int] | None:
        """Return the broker's first offset and its end."""
        span: tuple[int, int] | None = _base.get_watermark_offsets(self._own(), place, timeout=timeout_s, cached=cached)
        return span

    def offsets_for_times(self, places: Sequence[KafkaPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Return the broker's offsets of these times; −1 for none."""
        known: list[KafkaPartition] = _base.offsets_for_times(self._own(), list(places), timeout=timeout_s)
        return {(place.topic, place.partition): place.offset for place in known}


def place_at(where: TopicPartition, at: Position, metadata: str | None = None) -> KafkaPartition:
    """Return a position as the library's type."""
    return KafkaPartition(*where, at.offset, metadata or "", leader_epoch=at.epoch_number)


def position_of(place: KafkaPartition | Received) -> Position:
    """Return the position of the library's place or message.

    A message's own epoch is that of the record before it, or a later one. Unknown ones are -1 or None there.
    """
    epoch: int | None
    if isinstance(place, KafkaPartition):
        offset, epoch = place.offset, place.leader_epoch
    else:
        offset, epoch = place.offset(), place.leader_epoch()
    return Position(offset, None if epoch is None or epoch < 0 else epoch)


def kafka_error(code: int, reason: str) -> KafkaError:
    """Make an error of the library."""
    return KafkaError(code, reason)


def refusal(code: int, reason: str) -> KafkaException:
    """Return the library's exception for a call that it refuses."""
    return KafkaException(kafka_error(code, reason))


def check_places(places: object) -> list[KafkaPartition]:
    """Return a call's list of partitions; raise TypeError, like the library, for anything else."""
    if not isinstance(places, list):
        raise TypeError("requires list of TopicPartition")
    return [check_place(place) for place in cast("list[object]", places)]


def check_place(place: object) -> KafkaPartition:
    """Return a call's partition; raise TypeError for anything else."""
    if not isinstance(place, KafkaPartition):
        raise TypeError("expected cimpl.TopicPartition")
    return place
