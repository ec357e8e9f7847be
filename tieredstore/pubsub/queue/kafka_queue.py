"""A notification queue in Kafka, compatible with MemQ. Each record's value is a notification as JSON. The Kafka topic's
partitions are the read partitions.

An idempotent producer writes the records. A notification's offset is the offset of its Kafka record, so MemQ's
consumers can read the queue.
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
from tieredstore.live.clients import LiveConsumer, LiveProducer, reading_configuration
from tieredstore.live.cluster import LiveCluster
from tieredstore.live.faults import fault, translate_errors
from tieredstore.live.properties import client_configuration, producer_configuration
from tieredstore.process.deadline import Deadline
from tieredstore.process.per_process import PerProcess
from tieredstore.pubsub.queue.kafka_group import KafkaGroup, group_states
from tieredstore.pubsub.queue.queues import (
    LOOK_AGAIN_S,
    GroupPartition,
    NotificationQueue,
    QueuedNotification,
    QueueSite,
)

_CALL_S: Final = 30.0
_POLL_S: Final = 0.05
_AGAIN_S: Final = 0.2


@dataclass(slots=True)
class _Receipt:
    """The Kafka client's final report on the delivery of one record."""

    error: KafkaError | None = None
    offset: int | None = None
    answered: threading.Event = field(default_factory=threading.Event)

    def note(self, error: KafkaError | None, message: Message) -> None:
        self.error, self.offset = error, message.offset()
        self.answered.set()


class KafkaQueue(NotificationQueue):
    """The notifications of one topic in the Kafka topic ``name``. ``properties`` configure the Kafka client."""

    def __init__(self, properties: Mapping[str, str], name: str, topic: str) -> None:
        self._properties = dict(properties)
        self._name = name
        self._topic = topic
        self._cluster = LiveCluster(properties, isolation="read_uncommitted", timeout_s=_CALL_S)
        reading = reading_configuration(client_configuration(properties, "read_uncommitted"), _CALL_S)
        self._logs = PartitionLogs(reading, name)
        self._tail = PartitionLogs(reading, name)  # separate, because a search must not move readers' positions
        self._producer = PerProcess(lambda: LiveProducer(_producer_configuration(properties)), _discard)
        self._lock = threading.Lock()
        self._known_partitions: tuple[int, float] | None = None
        self._floors: dict[int, int] = {}  # by partition: the least offset that a new record can get

    @classmethod
    def open(cls, site: QueueSite) -> KafkaQueue:
        """Return the queue in the Kafka cluster of the settings ``pubsub.kafka.*``."""
        properties = {name: text.get_secret_value() for name, text in site.settings.kafka}
        if not properties.get("bootstrap.servers"):
            raise ConfigError(
                f"topic {site.topic} has its queue in Kafka: set pubsub.kafka.bootstrap.servers (host:port,host:port)"
            )
        return cls(properties, site.name, site.topic)

    def close(self) -> None:
        """Close the clients."""
        self._producer.close()
        self._logs.close()
        self._tail.close()
        self._cluster.close()

    @property
    def partitions(self) -> int:
        """Number of partitions of the Kafka topic, refreshed every 30 s."""
        with self._lock:
            known = self._known_partitions
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        try:
            count = len(self._cluster.existing_topic(self._name).partitions)
        except ResourceNotFoundError as error:
            raise TopicNotFoundError(
                f"the queue of topic {self._topic} does not exist: {error}; create that Kafka topic"
            ) from error
        with self._lock:
            self._known_partitions = count, time.monotonic() + LOOK_AGAIN_S
        return count

    def append(self, partition: int, notifications: Sequence[bytes], deadline: Deadline) -> list[int]:
        """Append each notification as a Kafka record. The next record is sent after the acknowledgement of the previous
        record, to keep the order."""
        self._check(partition)
        return [self._append(partition, raw, deadline) for raw in notifications]

    def _append(self, partition: int, raw: bytes, deadline: Deadline) -> int:
        """Append one record and return its offset.

        The client retries by itself, and the broker removes duplicates. After the client has given up, the record may
        still be in the log, so search for it before sending it again."""
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
                late = StoreUnavailableError(
                    f"{self._where(partition)}: the notification was not appended, or its state is unknown: {error}"
                )
                if deadline.remaining_s() <= _AGAIN_S:
                    raise late from error
                time.sleep(_AGAIN_S)
                if deadline.remaining_s() <= 0:  # the process may have been suspended during the pause
                    raise late from error
            else:
                with self._lock:
                    self._floors[partition] = max(self._floors.get(partition, 0), offset + 1)
                return offset

    def _floor(self, partition: int) -> int:
        """Return the least offset that a new record of the partition can get."""
        with self._lock:
            floor = self._floors.get(partition)
        if floor is None:
            floor = self.end(partition)
            with self._lock:
                floor = self._floors.setdefault(partition, floor)
        return floor

    def _send(self, partition: int, raw: bytes, deadline: Deadline) -> int:
        producer, receipt = self._producer.get(), _Receipt()
        doing = f"{self._where(partition)}: cannot send the notification"
        try:
            producer.produce(self._name, raw, partition=partition, on_delivery=receipt.note)
        except BufferError as error:
            raise StoreUnavailableError(f"{doing}: the client's buffer is full") from error
        except KafkaException as error:
            raise self._failure(producer, error.args[0], doing) from error
        while not receipt.answered.is_set():
            producer.poll(_POLL_S)
            if deadline.remaining_s() <= 0:
                raise StoreUnavailableError(f"{doing}: no acknowledgement in time")
        if receipt.error is not None:
            raise self._failure(producer, receipt.error, doing)
        if receipt.offset is None:
            raise BrokerError(f"{doing}: the broker returned no offset")
        return receipt.offset

    def _failure(self, producer: LiveProducer, error: KafkaError, doing: str) -> TieredStoreError:
        if error.fatal() or error.code() == KafkaError._FATAL or producer.is_lost:
            # An idempotent producer cannot continue after a fatal error, so close this one. The next send opens another
            # producer.
            self._producer.close()
            return StoreUnavailableError(f"{doing}: {error.str()}")
        return fault(error, doing)

    def _search(self, partition: int, raw: bytes, floor: int, deadline: Deadline) -> int | None:
        """Return the offset of the record at or after ``floor``; None if the record is not there yet."""
        stop, at = self.end(partition), floor
        while at < stop:
            by = Deadline.after(max(0.0, min(_CALL_S, deadline.remaining_s())))
            entries = self._tail.read(partition, at, lambda: stop, by)
            for entry in entries:
                if entry.raw == raw:
                    return entry.offset
            if not entries:
                break
            at = entries[-1].offset + 1
        return None

    def read(self, partition: int, offset: int) -> list[QueuedNotification]:
        """Return entries that the client has received. If there are none, wait for the entries up to the current end of
        the log.

        Raise DataLossError if ``offset`` is below the log's start.
        """
        self._check(partition)

        def end() -> int:
            start = self.start(partition)
            if offset < start:
                raise DataLossError.until(
                    start, f"{self._where(partition)}: retention has freed offsets {offset} to {start - 1}"
                )
            return self.end(partition)

        try:
            return self._logs.read(partition, offset, end, Deadline.after(_CALL_S))
        except BrokerError as error:
            if not error.retryable and not isinstance(error, DataLossError):
                # The read usually fails because retention has freed the offset. Then ``end`` raises DataLossError
                # instead of this error.
                end()
            raise

    def start(self, partition: int) -> int:
        """Return the log's start offset."""
        self._check(partition)
        where = (self._name, partition)
        return self._cluster.earliest_offsets([where])[where]

    def end(self, partition: int) -> int:
        """Return the high watermark."""
        self._check(partition)
        where = (self._name, partition)
        return self._cluster.end_offsets([where])[where]

    def offset_at(self, partition: int, ms: int) -> int:
        """Search the broker's time index, which has the writers' timestamps or, with LogAppendTime, the broker's
        timestamps."""
        self._check(partition)
        where = (self._name, partition)
        offset = self._cluster.offsets_for_times({where: ms})[where]
        return self.end(partition) if offset is None else offset

    def free(self, partition: int, offset: int) -> None:
        """Delete the partition's Kafka records before ``offset``."""
        self._check(partition)
        if offset > self.end(partition):
            raise InvalidRangeError(f"{self._where(partition)} ends before offset {offset}")
        if offset > self.start(partition):
            self._cluster.delete_records((self._name, partition), offset)

    def provide(self, partitions: int) -> None:
        """Create the Kafka topic, with the broker's default replication and retention, or add partitions."""
        self._cluster.provide_topic(self._name, partitions)
        with self._lock:
            self._known_partitions = None

    def forgets_ms(self) -> int | None:
        """Return ``retention.ms`` of the Kafka topic; None if unlimited."""
        entry = self._cluster.settings_of(self._name).get("retention.ms")
        ms = int((entry and entry.value) or -1)
        return None if ms < 0 else ms

    def member(self, group: str) -> KafkaGroup:
        """Return a member of a Kafka consumer group."""
        return KafkaGroup(self._properties, group, self._name, self._cluster)

    def groups(self) -> dict[str, list[GroupPartition]]:
        """Return Kafka's consumer groups that have committed offsets of this topic or own its partitions."""
        return group_states(self._properties, self._name, self._cluster, self.partitions, _CALL_S)

    def _check(self, partition: int) -> None:
        if not 0 <= partition < self.partitions:
            raise InvalidRangeError(
                f"topic {self._topic} has no read partition {partition}, only 0 to {self.partitions - 1}"
            )

    def _where(self, partition: int) -> str:
        return f"queue {self._topic}/{partition} ({self._name} in Kafka)"


def _producer_configuration(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the producer's configuration. Its timeouts are short, because this queue itself searches for the record
    after a timeout."""
    return {
        **producer_configuration(properties, "read_uncommitted"),
        "enable.idempotence": "true",
        "linger.ms": "0",
        "message.timeout.ms": "15000",
        "request.timeout.ms": "10000",
    }


def _discard(producer: LiveProducer) -> None:
    producer.purge()
    producer.poll(0)


_AT_ONCE: Final = 500
_MOST_HELD: Final = 2_000
_WAIT_S: Final = 0.1
_ANSWER_S: Final = 30.0


@dataclass(slots=True)
class _Stream:
    """Entries of a partition, from ``start`` to ``end``, that the client has received and this queue has not returned
    yet."""

    start: int
    end: int
    held: deque[QueuedNotification] = field(default_factory=deque[QueuedNotification])
    is_paused: bool = False

    def has(self, offset: int) -> bool:
        return self.start <= offset <= self.end


class PartitionLogs:
    """Reads partitions of ``topic`` from any offset. Thread-safe; each forked child has its own client."""

    def __init__(self, configuration: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._client = PerProcess(lambda: LiveConsumer(configuration), LiveConsumer.close)
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._of: LiveConsumer | None = None

    def read(self, partition: int, offset: int, end: Callable[[], int], deadline: Deadline) -> list[QueuedNotification]:
        """Return some entries from ``offset`` on.

        If no entries have arrived, ask ``end()`` for the log's end. Return an empty list if ``offset`` is at the end;
        else wait. Raise BrokerUnavailableError if no entry arrives by the deadline.
        """
        with self._lock:
            consumer = self._client.get()
            if consumer is not self._of:
                self._of, self._streams = consumer, {}
            stream = self._stream_at(consumer, partition, offset)
            try:
                self._fill(consumer, partition, stream, end, deadline)
            except BaseException:
                # After an error the stream's position is unknown, so drop the stream. The next read assigns the
                # partition again.
                self._drop(consumer, partition)
                raise
            entries = list(stream.held)
            stream.held.clear()
            if entries:
                stream.start = stream.end = max(stream.end, entries[-1].offset + 1)
            if stream.is_paused:
                consumer.resume([TopicPartition(self._topic, partition)])
                stream.is_paused = False
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
                doing = f"cannot read the notifications of {self._topic}-{partition}"
                raise consumer.trouble.unavailable(doing, _ANSWER_S)
            self._take(consumer, _WAIT_S)

    def _drop(self, consumer: LiveConsumer, partition: int) -> None:
        if self._streams.pop(partition, None) is not None:
            consumer.incremental_unassign([TopicPartition(self._topic, partition)])

    def close(self) -> None:
        """Close the Kafka client; a later read opens a new client."""
        with self._lock:
            self._client.close()

    def _stream_at(self, consumer: LiveConsumer, partition: int, offset: int) -> _Stream:
        stream = self._streams.get(partition)
        if stream is not None and stream.has(offset):
            while stream.held and stream.held[0].offset < offset:
                stream.held.popleft()
            return stream
        with translate_errors(f"cannot read {self._topic}-{partition} from {offset}"):
            self._drop(consumer, partition)
            consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])
        self._streams[partition] = stream = _Stream(offset, offset)
        return stream

    def _take(self, consumer: LiveConsumer, timeout_s: float) -> None:
        for message in consumer.consume(_AT_ONCE, timeout_s):
            self._sort_in(consumer, message)

    def _sort_in(self, consumer: LiveConsumer, message: Message) -> None:
        error = message.error()
        partition = message.partition()  # None for errors of the whole client
        stream = None if partition is None else self._streams.get(partition)
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            failure = fault(error, f"cannot read the notifications of {self._topic}")
            # Ignore temporary errors, because the client retries by itself; the caller stops at its deadline.
            if stream is not None and not isinstance(failure, BrokerUnavailableError):
                raise failure
            return
        offset = message.offset()
        if partition is None or stream is None or offset is None or offset < stream.end:
            return
        if error is not None:
            # The client reports the partition's end. Move on to the end, because the offsets before it may be
            # transaction markers or compacted records.
            stream.end = offset
            return
        stream.held.append(QueuedNotification(offset, message.timestamp()[1], message.value() or b""))
        stream.end = offset + 1
        if len(stream.held) >= _MOST_HELD and not stream.is_paused:
            consumer.pause([TopicPartition(self._topic, partition)])
            stream.is_paused = True
