"""confluent-kafka's consumers, extended to read from the bucket too."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeGuard

import confluent_kafka
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.consumer._message import Message
from tieredstore.consumer.assembly import Makers, Parts
from tieredstore.consumer.client import NO_OFFSET, Received, check_place, check_places
from tieredstore.consumer.delivery import PartitionBatch
from tieredstore.consumer.group import RebalanceCallback
from tieredstore.consumer.settings import Mode, parse_settings
from tieredstore.errors import ConfigError
from tieredstore.kafka.records import COLUMNS
from tieredstore.live.client_log import ClientLog, log_to
from tieredstore.live.clients import call_client
from tieredstore.live.messages import MessageColumns
from tieredstore.remote.stores import StoreLike

# Treat the client as untyped, because the type hints of confluent-kafka are incomplete.
_base: Final[Any] = confluent_kafka.Consumer

_SLICE_S: Final = 0.01
"""The longest wait in seconds between two calls to the Kafka client, while results from the bucket are expected."""

_LONGEST_SLICE_S: Final = 0.5
"""The longest single wait in seconds: Python handles signals only between two waits."""


class Consumer(confluent_kafka.Consumer):
    """A group member that reads the bucket and the broker as one log.

    The class has all methods of ``confluent_kafka.Consumer``, with their arguments, results and errors.
    ``docs/how-to/consumer.md`` lists the differences and the properties under ``tiered.storage.``. Use a consumer from
    one thread. Only ``commit`` with offsets, ``committed`` and ``list_topics`` may be called from other threads. Close
    the consumer when done.

    Example::

        config = {"bootstrap.servers": "127.0.0.1:9092", "group.id": "billing", "auto.offset.reset": "earliest"}
        with tieredstore.Consumer(config, store="store.properties") as consumer:
            consumer.subscribe(["orders"])
            message = consumer.poll(10.0)
    """

    _makers: ClassVar[Makers] = Makers()

    def __init__(self, config: dict[str, Any] | None = None, /, *, store: StoreLike = None, **kwargs: Any) -> None:
        """Set up a consumer; ``store`` is the bucket, in any form that :func:`tieredstore.open` takes.

        Raise ConfigError for invalid properties. The consumer connects only at the first call of a method.
        """
        given = {**(config or {}), **kwargs}
        logger = given.pop("logger", None)
        self._settings = parse_settings(given, store)
        member = self._settings.member_properties()
        on_commit = member.get("on_commit")
        # The library refuses anything that is not callable.
        if self._settings.mode is not Mode.KAFKA_ONLY and (on_commit is None or callable(on_commit)):
            member["on_commit"] = self._pass_answers(weakref.ref(self), on_commit)
        super().__init__(log_to(ClientLog(), member) if logger is None else {**member, "logger": logger})
        self._client = self._makers.client(self)
        self._is_closing = self._is_closed = False
        self._calls_back = False
        """True while the client may run a user's callback. If the callback calls the client's ``consume`` or
        ``list_topics``, confluent-kafka 2.16 ends the process at the next callback, for example of a commit's answer.
        """
        self._parts: Parts | None = None
        if self._settings.mode is not Mode.KAFKA_ONLY:
            self._parts = Parts(self._settings, self._client, self._makers)

    @staticmethod
    def _pass_answers(known: weakref.ref[Consumer], on_commit: Any) -> Callable[[Any, list[KafkaPartition]], None]:
        """Return a callback that passes the answers to asynchronous commits to the consumer, then to the user's
        ``on_commit``. The reference is weak, as in ``MemberClient``.
        """

        def note(error: Any, places: list[KafkaPartition]) -> None:
            consumer = known()
            if consumer is not None and consumer._parts is not None:
                consumer._parts.commits.note_answer(error, places)
            if on_commit is not None:
                on_commit(error, places)

        return note

    # ---- records

    # The return type is narrower than in confluent-kafka's hints, which allow messages without an offset, although no
    # consumer returns such messages.
    def poll(  # type: ignore[override]
        self, timeout: float | None = -1
    ) -> Received | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the next message or event, from bucket or broker, or None if none arrives within ``timeout``
        seconds."""
        if self._parts is None:
            return self._client.poll(-1 if timeout is None else timeout)
        messages = self._collect(1, timeout)
        return messages[0] if messages else None

    def consume(  # type: ignore[override]
        self, num_messages: int | None = None, timeout: float | None = -1
    ) -> list[Received]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return up to ``num_messages`` (default: ``max.poll.records``, else 1); fewer if ``timeout`` seconds pass."""
        count = num_messages if num_messages is not None else self._settings.poll_records or 1
        if self._parts is None or not 0 < count <= 1_000_000:
            return self._client.consume(count, -1 if timeout is None else timeout)
        return self._collect(count, timeout)

    def poll_arrow(
        self, timeout: float | None = -1, max_rows: int | None = None, columns: Sequence[str] = COLUMNS
    ) -> PartitionBatch | None:
        """Return records of one partition, in columns; None if there are none within ``timeout`` seconds.

        ``poll_arrow`` raises the same errors as :meth:`poll`, and KafkaException where :meth:`poll` returns a message
        with an error.
        """
        parts = self._expect_parts()
        if max_rows is not None and max_rows < 1:
            raise ConfigError(f"max_rows is {max_rows}; it must be at least 1, or None for no limit")
        chosen, end = MessageColumns(columns), _end(timeout)
        parts.commits.commit_when_due()
        # Call the client at least once, even if the bucket always has more records, because these calls keep the
        # consumer in its group.
        self._take_live(parts, 0.0, max_rows or _MANY)
        while True:
            self._tick(parts)
            given = parts.delivery.take_batch(max_rows, chosen)
            if given is not None:
                return given
            _raise_first_error(parts, parts.delivery.take_events())
            wait = self._wait(parts, end)
            if wait is None:
                return None
            self._take_live(parts, wait, max_rows or _MANY)

    def batches(self, max_rows: int | None = None, columns: Sequence[str] = COLUMNS) -> Iterator[PartitionBatch]:
        """Yield record batches until the consumer is closed; raise RuntimeError if it is closed already."""
        self._expect_parts()
        while not self._is_closed:
            given = self.poll_arrow(_LONGEST_SLICE_S, max_rows, columns)
            if given is not None:
                yield given

    def _collect(self, count: int, timeout: float | None) -> list[Received]:
        """Collect messages until there are ``count``, or the timeout has passed."""
        parts = self._expect_parts()
        end = _end(timeout)
        parts.commits.commit_when_due()
        collected: list[Received] = []
        parts.commits.in_calls.append(collected)
        wait: float | None = 0.0
        try:
            while True:
                # Call the client first in each round, because its callbacks handle rebalances and commits. The call
                # also returns the broker's records.
                room = count - len(collected)
                most = max(1, room // 2) if parts.delivery.has_open or parts.core.readable else room
                self._serve(parts, collected, most, wait or 0.0)
                self._tick(parts, raises=not collected)
                parts.delivery.take(collected, count)
                if len(collected) >= count:
                    return collected
                wait = self._wait(parts, end)
                if wait is None:
                    return collected
        except BaseException:
            parts.delivery.put_back(collected)
            raise
        finally:
            parts.commits.in_calls.pop()

    def _serve(self, parts: Parts, collected: list[Received], count: int, wait: float) -> None:
        messages, ended = self._consume(parts, count, wait)
        if ended:
            collected[:] = _without(collected, ended)
        collected += messages

    def _consume(self, parts: Parts, count: int, wait: float) -> tuple[list[Received], set[tuple[str, int]]]:
        """Return the client's messages, and the partitions that were revoked during the call."""
        if self._calls_back:
            time.sleep(wait)
            return [], set()
        before = parts.group.take_ended()
        self._calls_back = True
        try:
            messages = self._client.consume(count, wait)
            ended = parts.group.take_ended()
            # A user's callback may have made this call while another call runs. That call needs them too.
            parts.group.leave_ended(before | ended)
            # Drop the messages of a revoked partition, even if the partition was assigned again at once.
            return parts.delivery.judge(_without(messages, ended) if ended else messages, count), ended
        except BaseException:
            parts.core.read_again()
            raise
        finally:
            self._calls_back = False

    def _take_live(self, parts: Parts, wait: float, count: int) -> None:
        most = parts.delivery.room(count) if not wait else 1
        messages = self._consume(parts, most, wait)[0]
        parts.delivery.hold([message for message in messages if message.error() is None])
        # Raise an error only after the other messages are stored, so that later calls return them.
        _raise_first_error(parts, messages)

    def _tick(self, parts: Parts, *, raises: bool = True) -> None:
        parts.core.tick()
        if raises:
            error = parts.core.take_error()
            if error is not None:
                raise error

    def _wait(self, parts: Parts, end: float | None) -> float | None:
        """Return how long the client may wait for messages; None if the timeout has passed.

        If results from the bucket are expected, this method itself waits for them and returns 0.
        """
        left = _LONGEST_SLICE_S if end is None else end - time.monotonic()
        if left <= 0 or (self._calls_back and end is None):
            return None
        if parts.core.is_busy:
            parts.news.wait(min(left, _SLICE_S))
            # Clear the event before the caller checks for results, so that a result that arrives after the check sets
            # the event again.
            parts.news.clear()
            return 0.0
        return min(left, _LONGEST_SLICE_S, max(0.001, parts.core.due_in))

    # ---- the group, and its assignment

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group for these topics; names that begin with ``^`` are patterns."""
        given = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        callbacks = {name: callback for name, callback in given.items() if callback is not None}
        if (parts := self._open_parts()) is None:
            self._client.subscribe(topics, **callbacks)
            return
        self._expect_broker("subscribe")
        for callback in callbacks.values():
            if not callable(callback):
                raise TypeError("expected a callable")
        parts.group.subscribe(topics, on_assign, on_revoke, on_lost)

    def unsubscribe(self) -> None:
        """Leave the group. The next ``poll`` or ``consume`` revokes the assignment."""
        self._client.unsubscribe()

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Replace the assignment. A partition without an offset starts at its committed offset."""
        if (parts := self._open_parts()) is None:
            self._client.assign(partitions)
        else:
            parts.group.assign(check_places(partitions))

    def unassign(self) -> None:
        """Remove the assignment."""
        if (parts := self._open_parts()) is None:
            self._client.unassign()
        else:
            parts.group.unassign()

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        """Add to the current assignment."""
        if (parts := self._open_parts()) is None:
            self._client.incremental_assign(partitions)
        else:
            parts.group.incremental_assign(check_places(partitions))

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        """Remove from the current assignment."""
        if (parts := self._open_parts()) is None:
            self._client.incremental_unassign(partitions)
        else:
            parts.group.incremental_unassign(check_places(partitions))

    def assignment(self) -> list[KafkaPartition]:
        """Return the assigned partitions, whether they are read from the bucket or the broker."""
        if (parts := self._open_parts()) is None:
            assigned: list[KafkaPartition] = _base.assignment(self)
            return assigned
        return [KafkaPartition(*where) for where in sorted(parts.core.partitions)]

    def pause(self, partitions: list[KafkaPartition]) -> None:
        """Stop returning records of these partitions until they are resumed, even in later assignments."""
        if (parts := self._open_parts()) is None:
            _base.pause(self, partitions)
        else:
            parts.group.pause(check_places(partitions))

    def resume(self, partitions: list[KafkaPartition]) -> None:
        """Continue these partitions where they were paused."""
        if (parts := self._open_parts()) is None:
            _base.resume(self, partitions)
        else:
            parts.group.resume(check_places(partitions))

    def seek(self, partition: KafkaPartition) -> None:
        """Continue a partition at any offset; raise KafkaException if the partition is not assigned."""
        if (parts := self._open_parts()) is None:
            _base.seek(self, partition)
        else:
            parts.group.seek(check_place(partition))

    def position(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]:
        """Return the next offset of each partition; OFFSET_INVALID while the offset is unknown."""
        if (parts := self._open_parts()) is None:
            places: list[KafkaPartition] = _base.position(self, partitions)
            return places
        positions = parts.core.positions()
        wheres = [(place.topic, place.partition) for place in check_places(partitions)]
        return [KafkaPartition(*where, positions.get(where, NO_OFFSET)) for where in wheres]

    # ---- offsets

    def commit(self, *positional: Any, **named: Any) -> Any:
        """Commit the offset after ``message``, or ``offsets``, or by default the offsets after all returned records.

        ``commit`` waits for the coordinator's answer only if ``asynchronous`` is False.
        """
        given: dict[str, Any] = dict(zip(("message", "offsets", "asynchronous"), positional, strict=False)) | named
        message = given.get("message")
        offsets = given.get("offsets")
        asynchronous = bool(given.get("asynchronous", True))
        given = {name: value for name, value in given.items() if value is not None}
        if (parts := self._open_parts()) is None:
            return _base.commit(self, **given)
        self._expect_broker("commit")
        if message is not None or offsets is not None:
            if offsets is None and message is not None and _is_message(message) and message.error() is None:
                given = {"offsets": [parts.commits.place_behind(message)], "asynchronous": asynchronous}
            places = _base.commit(self, **given)
            if asynchronous:
                parts.commits.note_sent(given.get("offsets", ()))
            parts.commits.note_committed(places or ())
            return places
        return parts.commits.commit_async() if asynchronous else parts.commits.commit_and_wait()

    def store_offsets(self, message: Any = None, offsets: list[KafkaPartition] | None = None) -> None:
        """Set the offsets that ``commit()`` and automatic commits use. Requires ``enable.auto.offset.store=false``."""
        if (parts := self._open_parts()) is None:
            given = {"message": message, "offsets": offsets}
            _base.store_offsets(self, **{name: value for name, value in given.items() if value is not None})
            return
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            if not _is_message(message):
                raise TypeError("expected confluent_kafka.cimpl.Message")
            offsets = [parts.commits.place_behind(message)]
        elif offsets is None:
            raise ValueError("expected either message or offsets")
        parts.commits.store(check_places(offsets))

    def committed(self, partitions: list[KafkaPartition], timeout: float | None = -1) -> list[KafkaPartition]:
        """Return the group's committed offsets."""
        self._expect_broker("committed")
        places: list[KafkaPartition] = _base.committed(self, partitions, timeout=-1 if timeout is None else timeout)
        return places

    def list_topics(self, *positional: Any, **named: Any) -> Any:
        """Return the cluster's topics, as confluent-kafka does."""
        cluster = None if self._parts is None else self._parts.cluster
        if self._calls_back and cluster is not None:
            return cluster.list_topics(*positional, **named)
        return _base.list_topics(self, *positional, **named)

    def get_watermark_offsets(self, partition: KafkaPartition, timeout: float | None = -1, cached: bool = False) -> Any:
        """Return the first offset that bucket or broker has, and the broker's end; None on timeout. With
        ``remote_only``, return the bucket's first offset and end.
        """
        seconds = -1.0 if timeout is None else timeout
        if (parts := self._open_parts()) is None:
            return self._client.watermarks(partition, seconds, cached=cached)
        return parts.offsets.watermarks(check_place(partition), seconds, cached=cached)

    def offsets_for_times(self, partitions: list[KafkaPartition], timeout: float | None = -1) -> list[KafkaPartition]:
        """Take each partition's ``offset`` as a time in ms. Return its first offset at or after this time, or -1 if
        there is none."""
        seconds = -1.0 if timeout is None else timeout
        if (parts := self._open_parts()) is None:
            places: list[KafkaPartition] = _base.offsets_for_times(self, partitions, timeout=seconds)
            return places
        return parts.offsets.for_times(check_places(partitions), seconds)

    # ---- its life

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials from the next connection on, in all clients of this consumer."""
        _base.set_sasl_credentials(self, username, password)
        if self._parts is not None and self._parts.cluster is not None:
            self._parts.cluster.set_sasl_credentials(username, password)

    def tiered_stats(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the state of each assigned partition, without a request; ``docs/how-to/consumer.md`` lists the
        fields.
        """
        return {} if self._parts is None else self._parts.statistics()

    def close(self) -> None:
        """Commit returned records, leave the group, and end all threads. A second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        parts = self._parts
        try:
            if parts is not None:
                # This commit matters only for a manual assignment. In a group, closing the client revokes the
                # partitions, and the revocation commits.
                parts.commits.commit_auto()
                parts.begin_closing()
            # The client calls the user's callbacks, which may use the consumer, for example to commit.
            self._calls_back = True
            call_client(_base.close, self)
        finally:
            self._calls_back = False
            self._is_closed = True
            if parts is not None:
                parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_parts(self) -> Parts | None:
        """Return the parts, or None with ``kafka_only``. Raise RuntimeError if they are closed."""
        if self._parts is not None and self._is_closed:
            raise RuntimeError("Consumer closed")
        return self._parts

    def _expect_parts(self) -> Parts:
        if (parts := self._open_parts()) is None:
            raise ConfigError("records in columns need a store: tiered.storage.mode is kafka_only")
        return parts

    def _expect_broker(self, call: str) -> None:
        if not self._settings.has_broker:
            raise ConfigError(f"{call} needs the group's broker: set bootstrap.servers")


_MANY: Final = 10_000


def _end(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else time.monotonic() + timeout


def _without(messages: list[Received], ended: set[tuple[str, int]]) -> list[Received]:
    return [message for message in messages if (message.topic(), message.partition()) not in ended]


def _raise_first_error(parts: Parts, messages: Iterable[Received]) -> None:
    """Raise KafkaException for a message with an error, except the end of a partition. Later calls raise the errors of
    the other messages.
    """
    errors = [(message, error) for message in messages if (error := message.error()) is not None]
    errors = [entry for entry in errors if entry[1].code() != confluent_kafka.KafkaError._PARTITION_EOF]
    if errors:
        parts.delivery.put_back([message for message, _ in errors[1:]])
        raise confluent_kafka.KafkaException(errors[0][1])


def _is_message(message: object) -> TypeGuard[Received]:
    return isinstance(message, Message | confluent_kafka.Message)


_WORDS: Final = """A consumer that deserializes keys and values with ``key.deserializer`` and ``value.deserializer``.

It combines ``DeserializingConsumer`` of confluent-kafka with :class:`Consumer`.
"""

# Create the class by a call of ``type``, because type checkers reject a class statement: confluent-kafka's class
# narrows return types of its base.
DeserializingConsumer: Any = type(
    "DeserializingConsumer",
    (confluent_kafka.DeserializingConsumer, Consumer),
    {"__doc__": _WORDS, "__module__": __name__},
)
