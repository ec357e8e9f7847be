"""The client inside of a consumer: confluent-kafka's own methods, beneath those of ours."""

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
    """A message of either source, or what happened to a partition as a message that is an error."""

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
    """The group's member: what the library's ``Consumer`` does by itself."""

    def __init__(self, consumer: object) -> None:
        # Weakly: a consumer that is forgotten goes away as the library's does.
        self._consumer = weakref.ref(consumer)

    def _own(self) -> Any:
        consumer = self._consumer()
        if consumer is None:
            raise RuntimeError("Consumer closed")
        return consumer

    def poll(self, timeout_s: float) -> Received | None:
        """The next message or event; callbacks run in it."""
        message: Received | None = _base.poll(self._own(), timeout_s)
        return message

    def consume(self, count: int, timeout_s: float) -> list[Received]:
        """So many at most; an interrupt ends it as it ends anything else."""
        try:
            messages: list[Received] = _base.consume(self._own(), count, timeout_s)
        except SystemError as error:
            # About half of the times confluent-kafka 2.16 loses what a signal's handler raised while it waited.
            raise KeyboardInterrupt from error
        return messages

    def assign(self, places: Sequence[KafkaPartition]) -> None:
        """These in place of what there is."""
        _base.assign(self._own(), list(places))

    def unassign(self) -> None:
        """None any more."""
        _base.unassign(self._own())

    def incremental_assign(self, places: Sequence[KafkaPartition]) -> None:
        """These too."""
        _base.incremental_assign(self._own(), list(places))

    def incremental_unassign(self, places: Sequence[KafkaPartition]) -> None:
        """These no longer."""
        _base.incremental_unassign(self._own(), list(places))

    def pause(self, wheres: Iterable[TopicPartition]) -> None:
        """Fetch no more of these."""
        _base.pause(self._own(), [KafkaPartition(*where) for where in wheres])

    def resume(self, wheres: Iterable[TopicPartition]) -> None:
        """Fetch on."""
        _base.resume(self._own(), [KafkaPartition(*where) for where in wheres])

    def seek(self, where: TopicPartition, offset: int, epoch: int | None = None) -> None:
        """Go on there; KafkaException where it is not being fetched.

        With the leader epoch of the record before it the broker is asked first whether that is still of its log.
        """
        _base.seek(self._own(), KafkaPartition(*where, offset, leader_epoch=-1 if epoch is None else epoch))

    def positions(self, wheres: Sequence[TopicPartition]) -> list[KafkaPartition]:
        """Behind the last message that was given of each, with its leader epoch."""
        places: list[KafkaPartition] = _base.position(self._own(), [KafkaPartition(*where) for where in wheres])
        return places

    def commit(self, places: Iterable[KafkaPartition], *, asynchronous: bool = True) -> Any:
        """Commit these, with their leader epochs and metadata."""
        return _base.commit(self._own(), offsets=list(places), asynchronous=asynchronous)

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        """Be a member of the group."""
        _base.subscribe(self._own(), topics, **callbacks)

    def unsubscribe(self) -> None:
        """Leave the group; what it has assigned is revoked in a later call."""
        _base.unsubscribe(self._own())

    def watermarks(self, place: KafkaPartition, timeout_s: float, *, cached: bool = False) -> tuple[int, int] | None:
        """The broker's first offset and its end."""
        span: tuple[int, int] | None = _base.get_watermark_offsets(self._own(), place, timeout=timeout_s, cached=cached)
        return span

    def offsets_for_times(self, places: Sequence[KafkaPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Where the broker has these times; −1 for none."""
        known: list[KafkaPartition] = _base.offsets_for_times(self._own(), list(places), timeout=timeout_s)
        return {(place.topic, place.partition): place.offset for place in known}


def place_at(where: TopicPartition, at: Position, metadata: str | None = None) -> KafkaPartition:
    """Return a position as the library has it."""
    return KafkaPartition(*where, at.offset, metadata or "", leader_epoch=at.epoch_number)


def position_of(place: KafkaPartition | Received) -> Position:
    """Return where a place, or a message, of the library's is.

    A message's own epoch is that of the record before it, or a later one. Unknown ones are -1 or None there.
    """
    epoch: int | None
    if isinstance(place, KafkaPartition):
        offset, epoch = place.offset, place.leader_epoch
    else:
        offset, epoch = place.offset(), place.leader_epoch()
    return Position(offset, None if epoch is None or epoch < 0 else epoch)


def kafka_error(code: int, reason: str) -> KafkaError:
    """As the library would say it."""
    return KafkaError(code, reason)


def refusal(code: int, reason: str) -> KafkaException:
    """Return what the library raises for a call that it does not take."""
    return KafkaException(kafka_error(code, reason))


def check_places(places: object) -> list[KafkaPartition]:
    """Return the list that a call was given; TypeError, as the library has it, if it is none of partitions."""
    if not isinstance(places, list):
        raise TypeError("requires list of TopicPartition")
    return [check_place(place) for place in cast("list[object]", places)]


def check_place(place: object) -> KafkaPartition:
    """Return the partition that a call was given; TypeError if it is none."""
    if not isinstance(place, KafkaPartition):
        raise TypeError("expected cimpl.TopicPartition")
    return place
