"""A notification queue in Kafka, as MemQ has it: JSON as the value, a topic's partitions as read partitions.

An idempotent producer writes; the offset of the record is that of the notification. Whoever reads, MemQ's consumers
among them, needs nothing of ours.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tieredstore.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConfigError,
    DataLossError,
    InvalidRangeError,
    ResourceNotFoundError,
    StoreUnavailableError,
    TieredStoreError,
    TopicNotFoundError,
)
from tieredstore.live.broker_state import BrokerState
from tieredstore.live.clients import LiveConsumer, LiveProducer, reading_configuration
from tieredstore.live.cluster import LiveCluster
from tieredstore.live.faults import fault, translate_errors
from tieredstore.live.properties import client_configuration
from tieredstore.process.deadline import Deadline
from tieredstore.process.per_process import PerProcess
from tieredstore.pubsub.queue.kafka_group import KafkaGroup, group_states
from tieredstore.pubsub.queue.kafka_topics import TopicAdmin
from tieredstore.pubsub.queue.queues import GroupPartition, NotificationQueue, QueuedNotification, QueueSite

_CALL_S: Final = 30.0
_SEND_S: Final = 15.0
_POLL_S: Final = 0.05
_AGAIN_S: Final = 0.2
_PARTITIONS_FOR_S: Final = 30.0


@dataclass(slots=True)
class _Receipt:
    """What the client says of one record in the end."""

    error: KafkaError | None = None
    offset: int | None = None
    said: threading.Event = field(default_factory=threading.Event)

    def note(self, error: KafkaError | None, message: Message) -> None:
        self.error, self.offset = error, message.offset()
        self.said.set()


class KafkaQueue(NotificationQueue):
    """The notifications of one topic in the Kafka topic ``name``. ``properties`` are those of a Kafka client."""

    def __init__(
        self,
        properties: Mapping[str, str],
        name: str,
        topic: str,
        *,
        send_s: float = _SEND_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._properties = dict(properties)
        self._name = name
        self._topic = topic
        self._monotonic = monotonic
        self._cluster = LiveCluster(properties, isolation="read_uncommitted", timeout_s=_CALL_S)
        self._state = BrokerState(properties, timeout_s=_CALL_S)
        self._admin = TopicAdmin(properties, name, _CALL_S)
        reading = reading_configuration(client_configuration(properties, "read_uncommitted"), _CALL_S)
        self._logs = PartitionLogs(reading, name)
        self._tail = PartitionLogs(reading, name)  # for searches, which leave the readers' places alone
        self._producer = PerProcess(lambda: LiveProducer(_producer_configuration(properties, send_s)), _discard)
        self._lock = threading.Lock()
        self._known_partitions: tuple[int, float] | None = None
        self._floors: dict[int, int] = {}  # offsets at which or behind which what is sent from now on will lie

    @classmethod
    def open(cls, site: QueueSite) -> KafkaQueue:
        """The queue that ``pubsub.kafka.*`` of the settings reaches."""
        properties = {name: text.get_secret_value() for name, text in site.settings.kafka}
        if not properties.get("bootstrap.servers"):
            raise ConfigError(
                f"topic {site.topic} has its queue in Kafka: set pubsub.kafka.bootstrap.servers (host:port,host:port)"
            )
        return cls(properties, site.name, site.topic)

    def close(self) -> None:
        """Let the clients go."""
        self._producer.close()
        self._logs.close()
        self._tail.close()
        self._cluster.close()
        self._admin.close()
        self._state.close()

    @property
    def partitions(self) -> int:
        """How many partitions the Kafka topic has; asked for every 30 s."""
        with self._lock:
            known = self._known_partitions
        if known is not None and self._monotonic() < known[1]:
            return known[0]
        try:
            count = len(self._cluster.existing_topic(self._name).partitions)
        except ResourceNotFoundError as error:
            raise TopicNotFoundError(
                f"the queue of topic {self._topic} is not there: {error}; create that topic of Kafka's"
            ) from error
        with self._lock:
            self._known_partitions = count, self._monotonic() + _PARTITIONS_FOR_S
        return count

    def append(self, partition: int, notifications: Sequence[bytes], deadline: Deadline) -> list[int]:
        """As the contract says: one record each, one after the other, so that their order is theirs."""
        self._check(partition)
        return [self._append(partition, raw, deadline) for raw in notifications]

    def _append(self, partition: int, raw: bytes, deadline: Deadline) -> int:
        """One record, and its offset. The client sends again by itself, and the broker knows what it has; only what
        the client gave up may be there or not, and is looked for before it is sent as something new."""
        is_unclear = False
        while True:
            try:
                floor = self._floor(partition)
                offset = self._search(partition, raw, floor, deadline) if is_unclear else None
                is_unclear = True
                if offset is None:
                    offset = self._send(partition, raw, deadline)
            except TieredStoreError as error:
                if not error.retryable:
                    raise
                if deadline.remaining_s() <= _AGAIN_S:
                    raise StoreUnavailableError(
                        f"{self._where(partition)}: the notification was not appended, or not known to be: {error}"
                    ) from error
                time.sleep(_AGAIN_S)
            else:
                with self._lock:
                    self._floors[partition] = max(self._floors.get(partition, 0), offset + 1)
                return offset

    def _floor(self, partition: int) -> int:
        """An offset before which the record cannot lie; it stays the same until one was delivered."""
        with self._lock:
            floor = self._floors.get(partition)
        if floor is None:
            floor = self.end(partition)
            with self._lock:
                floor = self._floors.setdefault(partition, floor)
        return floor

    def _send(self, partition: int, raw: bytes, deadline: Deadline) -> int:
        producer, receipt = self._producer.get(), _Receipt()
        doing = f"{self._where(partition)}: the notification cannot be sent"
        try:
            producer.produce(self._name, raw, partition=partition, on_delivery=receipt.note)
        except BufferError as error:
            raise StoreUnavailableError(f"{doing}: the client holds as many as it may") from error
        except KafkaException as error:
            raise self._failure(producer, error.args[0], doing) from error
        while not receipt.said.is_set():
            producer.poll(_POLL_S)
            if deadline.remaining_s() <= 0:
                raise StoreUnavailableError(f"{doing}: no broker has it in time")
        if receipt.error is not None:
            raise self._failure(producer, receipt.error, doing)
        if receipt.offset is None:
            raise BrokerError(f"{doing}: the broker tells no offset")
        return receipt.offset

    def _failure(self, producer: LiveProducer, error: KafkaError, doing: str) -> TieredStoreError:
        if error.fatal() or error.code() == KafkaError._FATAL or producer.is_lost:
            # An idempotent producer that cannot tell any more what the broker has: the next one begins anew.
            self._producer.close()
            return StoreUnavailableError(f"{doing}: {error.str()}")
        return fault(error, doing)

    def _search(self, partition: int, raw: bytes, floor: int, deadline: Deadline) -> int | None:
        """Where the record lies behind ``floor``, if it does by now."""
        stop, at = self.end(partition), floor
        while at < stop:
            entries = self._tail.read(partition, at, lambda: stop, self._by(deadline))
            for entry in entries:
                if entry.raw == raw:
                    return entry.offset
            if not entries:
                break
            at = entries[-1].offset + 1
        return None

    def _by(self, deadline: Deadline) -> Deadline:
        return Deadline.after(max(0.0, min(_CALL_S, deadline.remaining_s())))

    def read(self, partition: int, offset: int) -> list[QueuedNotification]:
        """What has come to this client, else by a question for the log's end; DataLossError below its start."""
        self._check(partition)

        def end() -> int:
            start = self.start(partition)
            if offset < start:
                raise DataLossError(
                    f"{self._where(partition)}: retention has freed offsets {offset} to {start - 1}; go on at {start}"
                )
            return self.end(partition)

        try:
            return self._logs.read(partition, offset, end, Deadline.after(_CALL_S))
        except BrokerError as error:
            if not error.retryable and not isinstance(error, DataLossError):
                end()  # out of range is most often freed: that says so
            raise

    def start(self, partition: int) -> int:
        """The log's start offset."""
        self._check(partition)
        where = (self._name, partition)
        return self._cluster.earliest_offsets([where])[where]

    def end(self, partition: int) -> int:
        """The high watermark."""
        self._check(partition)
        where = (self._name, partition)
        return self._cluster.end_offsets([where])[where]

    def offset_at(self, partition: int, ms: int) -> int:
        """By the broker's index of times; a writer's clock, or the broker's where the topic says LogAppendTime."""
        self._check(partition)
        where = (self._name, partition)
        offset = self._cluster.offsets_for_times({where: ms})[where]
        return self.end(partition) if offset is None else offset

    def free(self, partition: int, offset: int) -> None:
        """By Kafka's own deletion of records."""
        self._check(partition)
        if offset > self.end(partition):
            raise InvalidRangeError(f"{self._where(partition)} does not reach up to offset {offset}")
        if offset > self.start(partition):
            self._admin.delete_records(partition, offset)

    def provide(self, partitions: int) -> None:
        """Make the Kafka topic, with the broker's own replication and retention, or give it more partitions."""
        self._admin.provide(partitions)
        with self._lock:
            self._known_partitions = None

    def forgets_ms(self) -> int | None:
        """``retention.ms`` of the Kafka topic; None for ever."""
        text = self._state.topic_settings([self._name])[self._name].get("retention.ms", "-1")
        return None if int(text) < 0 else int(text)

    def member(self, group: str) -> KafkaGroup:
        """A member of a group of Kafka's."""
        return KafkaGroup(self._properties, group, self._name, self._cluster)

    def groups(self) -> dict[str, list[GroupPartition]]:
        """Kafka's groups that have committed something here."""
        return group_states(self._properties, self._name, self._cluster, self.partitions, _CALL_S)

    def _check(self, partition: int) -> None:
        if not 0 <= partition < self.partitions:
            raise InvalidRangeError(f"topic {self._topic} has {self.partitions} read partitions, and no {partition}")

    def _where(self, partition: int) -> str:
        return f"queue {self._topic}/{partition} ({self._name} in Kafka)"


def _producer_configuration(properties: Mapping[str, str], send_s: float) -> dict[str, str]:
    """The configuration of the producer: what it says for long is given up, and looked for."""
    common = TopicAdmin.configuration(properties)
    return {
        **common,
        "enable.idempotence": "true",
        "linger.ms": "0",
        "message.timeout.ms": str(int(send_s * 1000)),
        "request.timeout.ms": str(int(min(send_s, 10.0) * 1000)),
    }


def _discard(producer: LiveProducer) -> None:
    producer.purge()
    producer.poll(0)


_AT_ONCE: Final = 500
_MOST_HELD: Final = 2_000
_WAIT_S: Final = 0.1
_SAID_S: Final = 30.0


@dataclass(slots=True)
class _Stream:
    """What has come of a partition: all from ``start`` up to ``end`` that was not given yet."""

    start: int
    end: int
    held: deque[QueuedNotification] = field(default_factory=deque[QueuedNotification])
    is_paused: bool = False

    def has(self, offset: int) -> bool:
        return self.start <= offset <= self.end


class PartitionLogs:
    """Reads partitions of ``topic`` from wherever it is asked to. Thread-safe; a forked child has its own client."""

    def __init__(self, configuration: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._client = PerProcess(lambda: LiveConsumer(configuration), LiveConsumer.close)
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._of: LiveConsumer | None = None

    def read(self, partition: int, offset: int, end: Callable[[], int], deadline: Deadline) -> list[QueuedNotification]:
        """What there is from ``offset`` on, some of it; empty when ``end()``, which is asked only then, is not behind
        it. BrokerUnavailableError when what there must be does not come by the deadline."""
        with self._lock:
            consumer = self._client.get()
            if consumer is not self._of:
                self._of, self._streams = consumer, {}
            stream = self._stream_at(consumer, partition, offset)
            try:
                self._fill(consumer, partition, stream, end, deadline)
            except BaseException:
                # The place is lost: whoever asks again begins anew.
                self._drop(consumer, partition)
                raise
            entries = list(stream.held)
            stream.held.clear()
            if entries:
                stream.start = stream.end = max(stream.end, entries[-1].offset + 1)
            self._resume(consumer, partition, stream)
            return entries

    def _fill(
        self, consumer: LiveConsumer, partition: int, stream: _Stream, end: Callable[[], int], deadline: Deadline
    ) -> None:
        self._take(consumer, 0.0)
        if stream.held:
            return
        stop = end()
        while not stream.held and stream.end < stop:
            if deadline.remaining_s() <= 0:
                doing = f"the notifications of {self._topic}-{partition} cannot be read"
                raise consumer.trouble.unavailable(doing, _SAID_S)
            self._take(consumer, _WAIT_S)

    def _drop(self, consumer: LiveConsumer, partition: int) -> None:
        if self._streams.pop(partition, None) is not None:
            consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def close(self) -> None:
        """Let the client go; another read makes another."""
        with self._lock:
            self._client.close()

    def _stream_at(self, consumer: LiveConsumer, partition: int, offset: int) -> _Stream:
        stream = self._streams.get(partition)
        if stream is not None and stream.has(offset):
            while stream.held and stream.held[0].offset < offset:
                stream.held.popleft()
            return stream
        with translate_errors(f"{self._topic}-{partition} cannot be read from {offset}"):
            self._drop(consumer, partition)
            consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])
        self._streams[partition] = stream = _Stream(offset, offset)
        return stream

    def _take(self, consumer: LiveConsumer, timeout_s: float) -> None:
        for message in consumer.consume(_AT_ONCE, timeout_s):
            self._sort_in(consumer, message)

    def _sort_in(self, consumer: LiveConsumer, message: Message) -> None:
        error = message.error()
        partition = message.partition()  # None of trouble that is no partition's
        stream = None if partition is None else self._streams.get(partition)
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            failure = fault(error, f"the notifications of {self._topic} cannot be read")
            # What passes the client tries again by itself, until the deadline.
            if stream is not None and not isinstance(failure, BrokerUnavailableError):
                raise failure
            return
        offset = _offset(message)
        if partition is None or stream is None or offset < stream.end:
            return
        if error is not None:
            # Nothing lies before the end: a transaction's marker, or what compaction took, has an offset too.
            stream.end = offset
            return
        stream.held.append(QueuedNotification(offset, message.timestamp()[1], message.value() or b""))
        stream.end = offset + 1
        if len(stream.held) >= _MOST_HELD and not stream.is_paused:
            consumer.pause([TopicPartition(self._topic, partition)])
            stream.is_paused = True

    def _resume(self, consumer: LiveConsumer, partition: int, stream: _Stream) -> None:
        if stream.is_paused:
            consumer.resume([TopicPartition(self._topic, partition)])
            stream.is_paused = False


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
