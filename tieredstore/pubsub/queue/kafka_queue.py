"""A notification queue in Kafka, compatible with MemQ. Each record's value is a notification as JSON. The Kafka topic's
partitions are the read partitions.

An idempotent producer writes the records. A notification's offset is the offset of its Kafka record, so MemQ's
consumers can read the queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message

from tieredstore.errors import (
    BrokerError,
    ConfigError,
    DataLossError,
    InvalidRangeError,
    ResourceNotFoundError,
    StoreUnavailableError,
    TieredStoreError,
    TopicNotFoundError,
)
from tieredstore.live.clients import LiveProducer
from tieredstore.live.faults import fault
from tieredstore.live.properties import producer_configuration
from tieredstore.live.reader import LiveReader
from tieredstore.model import TopicPartition
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import PerProcess
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
_COLUMNS: Final = ("offset", "timestamp", "value")


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
        self._reader = LiveReader(properties, isolation="read_uncommitted", timeout_s=_CALL_S)
        self._cluster = self._reader.cluster
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
        self._reader.close()

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
        floor: int | None = None
        while True:
            try:
                offset = None if floor is None else self._search(partition, raw, floor)
                if offset is None:
                    # Keep the floor of the first try, because other threads raise it by their own records.
                    floor = self._floor(partition) if floor is None else floor
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
        if deadline.remaining_s() <= 0:  # the search for the record may have taken all the time
            raise StoreUnavailableError(f"{doing}: the time for the delivery is over")
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

    def _search(self, partition: int, raw: bytes, floor: int) -> int | None:
        """Return the offset of the record ``raw`` at or after ``floor``; None if it is not in the log yet."""
        start, end = self.start(partition), self.end(partition)
        with closing(self._fetch(partition, min(max(floor, start), end), end)) as batches:
            entries = chain.from_iterable(map(_entries_in, batches))
            return next((entry.offset for entry in entries if entry.raw == raw), None)

    def read(self, partition: int, offset: int) -> list[QueuedNotification]:
        """Return the entries of one fetch.

        Raise DataLossError if ``offset`` is below the log's start or beyond its end.
        """
        with closing(self._fetch(partition, offset, self._end_from(partition, offset))) as batches:
            try:
                records = next(batches, None)
            except DataLossError:
                # Retention may have overtaken the read. If so, raise an error that says where to continue.
                self._end_from(partition, offset)
                raise
        return [] if records is None else _entries_in(records)

    def _end_from(self, partition: int, offset: int) -> int:
        """Return the end. Raise DataLossError if the log does not reach from ``offset`` to its end."""
        start, end = self.start(partition), self.end(partition)
        if not start <= offset <= end:
            lost = f"retention has freed offsets {offset} to {start - 1}"
            why = lost if offset < start else f"offset {offset} is beyond the end, {end}"
            raise DataLossError.until(start, f"{self._where(partition)}: {why}")
        return end

    def _fetch(self, partition: int, offset: int, end: int) -> Generator[pa.RecordBatch]:
        return self._reader.read(self._name, partition, offset, end, columns=_COLUMNS)

    def start(self, partition: int) -> int:
        """Return the log's start offset."""
        where = self._check(partition)
        return self._cluster.earliest_offsets([where])[where]

    def end(self, partition: int) -> int:
        """Return the high watermark."""
        where = self._check(partition)
        return self._cluster.end_offsets([where])[where]

    def offset_at(self, partition: int, ms: int) -> int:
        """Search the broker's time index, which has the writers' timestamps or, with LogAppendTime, the broker's
        timestamps."""
        where = self._check(partition)
        offset = self._cluster.offsets_for_times({where: ms})[where]
        return self.end(partition) if offset is None else offset

    def free(self, partition: int, offset: int) -> None:
        """Delete the partition's Kafka records before ``offset``."""
        where = self._check(partition)
        if offset > self.end(partition):
            raise InvalidRangeError(f"{self._where(partition)} ends before offset {offset}")
        if offset > self.start(partition):
            self._cluster.delete_records(where, offset)

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

    def _check(self, partition: int) -> TopicPartition:
        if not 0 <= partition < self.partitions:
            raise InvalidRangeError(
                f"topic {self._topic} has no read partition {partition}, only 0 to {self.partitions - 1}"
            )
        return self._name, partition

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


def _entries_in(records: pa.RecordBatch) -> list[QueuedNotification]:
    columns = (records.column(name).to_pylist() for name in _COLUMNS)
    return [QueuedNotification(offset, ms, raw or b"") for offset, ms, raw in zip(*columns, strict=True)]
