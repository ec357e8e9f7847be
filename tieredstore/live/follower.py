"""A consumer that follows partitions. It returns new records, and the end of a partition's stream, as events."""

from __future__ import annotations

import contextlib
import enum
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from tieredstore.errors import AlreadyClosedError, BatchCorruptError, ResourceNotFoundError, TieredStoreError
from tieredstore.kafka.records import COLUMNS
from tieredstore.live.clients import LiveConsumer, reading_configuration
from tieredstore.live.faults import OF_GROUPS, OF_HOLES, OUT_OF_RANGE, fault, translate_errors
from tieredstore.live.messages import FIRST_MESSAGES, MessageColumns, epoch_of, next_count, offset_of, pieces, size_of
from tieredstore.live.properties import check_timeout, client_configuration
from tieredstore.live.topic_watch import TopicWatch
from tieredstore.model import Isolation, TopicPartition
from tieredstore.process.closing import Closing

_WAIT_S: Final = 0.1
_LOOK_S: Final = 5.0
"""While it is unclear if any broker is available, wait at most this many seconds for an answer."""


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """New ``records`` of a partition, in offset order. After this event, the follower has returned all records before
    ``next_offset``.

    ``records`` is None if the broker lacks the next offset: retention deleted it, the log was truncated, or the topic
    is gone. The follower then no longer follows the partition.
    """

    where: TopicPartition
    records: pa.RecordBatch | None
    next_offset: int
    leader_epoch: int | None = None
    """Leader epoch of the last record."""


class Link(enum.Enum):
    """State of a partition in librdkafka's consumer.

    | from | event | next |
    |---|---|---|
    | - | assigned, with the leader epoch of the preceding record | `UNCHECKED` |
    | - | assigned without a leader epoch | `SILENT` |
    | `UNCHECKED` | the consumer accepts the seek that makes it ask the leader | `SILENT` |
    | `SILENT` | a record or the end of the log arrives | `HEARD` |
    """

    UNCHECKED = enum.auto()
    """The consumer has not yet asked the leader if the leader's log still has the record before the start offset. Until
    then, the follower drops messages."""
    SILENT = enum.auto()
    """No message has arrived since the assignment, so the partition may not exist."""
    HEARD = enum.auto()


@dataclass(slots=True)
class _Followed:
    """A followed partition: its next offset, and the leader epoch of the preceding record, if known."""

    position: int
    epoch: int | None
    link: Link
    failure: TieredStoreError | None = None
    """An error that a later call raises, after all records before it have been returned."""


class LiveFollower(Closing):
    """Follows partitions of one cluster from given offsets. Not thread-safe; close it after use.

    One consumer reads all partitions, without joining a group. The follower needs memory for librdkafka's read-ahead
    (``docs/how-to/read.md``), and for about 4 MiB or 10,000 records to return. Memory does not grow with the number of
    partitions.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        isolation: Isolation,
        columns: Sequence[str] = COLUMNS,
        timeout_s: float = 60.0,
        make_consumer: Callable[[Mapping[str, str]], LiveConsumer] = LiveConsumer,
    ) -> None:
        """Raise ConfigError for invalid arguments. The follower connects when the first partition is added."""
        check_timeout(timeout_s)
        configuration = client_configuration(properties, isolation)
        self._columns = MessageColumns(columns)
        self._servers = configuration["bootstrap.servers"]
        self._doing = f"the followed partitions at {self._servers} cannot be read"
        self._timeout_s = timeout_s
        self._consumer = make_consumer(reading_configuration(configuration, timeout_s))
        self._followed: dict[TopicPartition, _Followed] = {}
        self._ready: deque[LiveEvent] = deque()
        self._is_closed = False
        self._rows = FIRST_MESSAGES
        self._answered_at = time.monotonic()
        self._watch = TopicWatch(self._consumer, timeout_s)
        self._watched = ""
        """The topic checked last."""

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset of each followed partition, after the events returned by :meth:`poll`."""
        return {where: one.position for where, one in self._followed.items()}

    @property
    def is_ready(self) -> bool:
        """True if :meth:`poll` can return an event at once."""
        return bool(self._ready)

    def add(
        self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> None:
        """Follow these partitions from these offsets. A partition that is already followed continues at the new offset.

        ``epochs`` are the leader epochs of the records before the offsets. If an election has truncated a partition's
        log below the given offset since then, the partition's next event has no records.
        """
        self.remove(positions)
        if positions:
            # Assign incrementally, so that other partitions keep their fetches and read-ahead.
            with translate_errors(self._doing):
                self._consumer.incremental_assign([KafkaPartition(*where, at) for where, at in positions.items()])
            for where, at in positions.items():
                link = Link.UNCHECKED if where in epochs else Link.SILENT
                self._followed[where] = _Followed(at, epochs.get(where), link)
            self._answered_at = time.monotonic()
            self._watch.begin()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop following these partitions, and drop their events that were not returned yet."""
        known = [where for where in partitions if where in self._followed]
        if not known:
            return
        with translate_errors(self._doing):
            self._consumer.incremental_unassign([KafkaPartition(*where) for where in known])
        for where in known:
            del self._followed[where]
        self._ready = deque(event for event in self._ready if event.where in self._followed)

    def poll(self, timeout_s: float) -> LiveEvent | None:
        """Return the next event of any partition; None if there is none within ``timeout_s``.

        If no new records were written, ``poll`` returns None and raises no error. A topic or partition counts as gone
        if brokers do not know it for some seconds.

        Raise BrokerUnavailableError (retryable) if no broker answers within the follower's own timeout. Other errors
        are BrokerDeniedError, BrokerError and BatchCorruptError. Events before an error are returned first; a later
        call continues after them.
        """
        self.wait(timeout_s)
        if not self._ready:
            return None
        event = self._ready.popleft()
        if event.records is None:
            self.remove([event.where])
        else:
            followed = self._followed[event.where]
            followed.position = event.next_offset
            if event.leader_epoch is not None:
                followed.epoch = event.leader_epoch
        return event

    def wait(self, timeout_s: float) -> None:
        """Wait until :meth:`poll` has an event, at most ``timeout_s``. Raise the same errors as :meth:`poll`."""
        if self._is_closed:
            raise AlreadyClosedError("the follower was closed; open another one to continue")
        end = time.monotonic() + timeout_s
        while not self._ready:
            left = max(0.0, end - time.monotonic())
            self._raise_failure()
            if self._followed:
                self._check_places()
                # First take the messages that have arrived. If there are none, wait for one message, because a call
                # of consume(many, timeout) would wait until all requested messages have arrived.
                try:
                    messages = self._consumer.consume(self._rows, 0)
                    self._take(messages or self._consumer.consume(1, min(left, _WAIT_S)))
                except BaseException:
                    # An interrupted call drops its messages, and the consumer would continue after them.
                    with contextlib.suppress(TieredStoreError, RuntimeError):
                        self._restart(list(self._followed))
                    raise
                self._check_broker()
            elif left:
                time.sleep(min(left, _WAIT_S))
            if not left:
                return

    def _check_places(self) -> None:
        """Seek with the leader epoch. The consumer then drops earlier fetches, and asks the leader if its log has the
        record before the position."""
        for where, followed in self._followed.items():
            if followed.link is Link.UNCHECKED and followed.epoch is not None:
                place = KafkaPartition(*where, followed.position, leader_epoch=followed.epoch)
                with contextlib.suppress(KafkaException):  # the assignment is not active yet: seek again later
                    self._consumer.seek(place)
                    followed.link = Link.SILENT

    def close(self) -> None:
        """Close the connections; later calls raise AlreadyClosedError."""
        self._is_closed = True
        self._consumer.close()

    def _take(self, messages: list[Message]) -> None:
        """Convert messages into events, in order of arrival within each partition."""
        runs: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            where = _partition_of(message)
            followed = self._followed.get(where)
            if followed is not None and followed.link is Link.UNCHECKED:
                continue
            error = message.error()
            if error is not None:
                self._judge(error, where, runs)
            elif followed is not None and followed.failure is None:
                # Drop messages of partitions that were removed, or that have failed and will restart.
                runs.setdefault(where, []).append(message)
        for where in list(runs):
            self._release(where, runs)
        records = [message for message in messages if message.error() is None]
        if records:
            self._rows = next_count(len(records), size_of(records))

    def _release(self, where: TopicPartition, runs: dict[TopicPartition, list[Message]]) -> None:
        """Convert the messages of one partition into record batches."""
        for piece in pieces(runs.pop(where)):
            try:
                at = 0
                for records in self._columns.build_each(piece):
                    at += records.num_rows
                    last = piece[at - 1]
                    self._ready.append(LiveEvent(where, records, offset_of(last) + 1, epoch_of(last)))
            except BatchCorruptError as error:
                self._fail(where, error)
                break
        self._mark_heard(where)

    def _judge(self, error: KafkaError, where: TopicPartition, runs: dict[TopicPartition, list[Message]]) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._mark_heard(where)
            return
        if code in OF_GROUPS | OF_HOLES:
            return
        broker_error = fault(error, self._doing)
        if code in OUT_OF_RANGE or isinstance(broker_error, ResourceNotFoundError):
            if where in runs:
                # The records before the error are undamaged, so return them before the event. The caller may then
                # continue in the bucket.
                self._release(where, runs)
            if where in self._followed:
                self._ready.append(LiveEvent(where, None, self._followed[where].position))
        elif broker_error.retryable:
            # librdkafka retries by itself, so raise the error only if nothing arrives within the timeout.
            self._consumer.trouble.note(error)
        else:
            # Only store the error, because raising it here would drop messages of other partitions.
            self._fail(where, broker_error)

    def _fail(self, where: TopicPartition, error: TieredStoreError) -> None:
        followed = self._followed.get(where)
        if followed is not None and followed.failure is None:
            followed.failure = error

    def _raise_failure(self) -> None:
        """Raise a partition's error. The consumer has already read further, so restart the partition after the last
        returned event."""
        for where, followed in list(self._followed.items()):
            if followed.failure is not None:
                self._restart([where])
                raise followed.failure

    def _restart(self, wheres: Sequence[TopicPartition]) -> None:
        """Restart partitions after their last returned events."""
        known = {where: self._followed[where] for where in wheres}
        # Give the leader epochs too, so that the leader checks if its log was truncated below the offset.
        epochs = {where: followed.epoch for where, followed in known.items() if followed.epoch is not None}
        # If this fails or is interrupted, the consumer may lack the partitions, so no later call may continue.
        self._is_closed = True
        self.add({where: followed.position for where, followed in known.items()}, epochs)
        self._is_closed = False

    def _mark_heard(self, where: TopicPartition) -> None:
        if where in self._followed:
            self._followed[where].link = Link.HEARD
        self._answered_at = time.monotonic()
        self._consumer.trouble.forget()

    def _check_broker(self) -> None:
        """Raise an error if an answer is overdue and no broker is available."""
        trouble = self._consumer.trouble
        final = trouble.final(self._doing)
        if final is not None:
            raise final
        self._check_silent()
        if time.monotonic() < self._answered_at + self._timeout_s:
            return
        if trouble.noted is None and not self._list_silent():
            return
        # The last connection error may no longer apply. While the log does not grow, librdkafka does not report a
        # restored connection. So ask a broker.
        self._look_for_broker()
        if self._list_silent():
            raise trouble.unavailable(self._doing, self._timeout_s)
        trouble.forget()
        self._answered_at = time.monotonic()

    def _check_silent(self) -> None:
        """Look up why no messages arrive from some partitions. Each call checks one topic."""
        if not self._watch.is_due or not (silent := self._list_silent()):
            return
        topics = {topic for topic, _ in silent}
        self._watched = min({topic for topic in topics if topic > self._watched} or topics)
        partitions = sorted(number for topic, number in silent if topic == self._watched)
        for number, error in self._watch.faults(self._watched, partitions, self._doing).items():
            if not isinstance(error, ResourceNotFoundError):
                raise error
            where = self._watched, number
            self._followed[where].link = Link.HEARD
            self._ready.append(LiveEvent(where, None, self._followed[where].position))

    def _list_silent(self) -> list[TopicPartition]:
        """Return the partitions from which neither a record nor the end of the log has arrived."""
        return [where for where, followed in self._followed.items() if followed.link is not Link.HEARD]

    def _look_for_broker(self) -> None:
        try:
            # Ask about one topic only, because any answer shows that a broker is available, and the metadata of all
            # topics may be large.
            self._consumer.list_topics(next(iter(self._followed))[0], timeout=min(_LOOK_S, self._timeout_s))
        except KafkaException as error:
            raise self._consumer.trouble.unavailable(self._doing, self._timeout_s) from error


def _partition_of(message: Message) -> TopicPartition:
    topic, partition = message.topic(), message.partition()
    return topic or "", -1 if partition is None else partition
