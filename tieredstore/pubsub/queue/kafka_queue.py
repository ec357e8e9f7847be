"""A notification queue in Kafka, as MemQ has it: JSON as the value, a topic's partitions as read partitions.

An idempotent producer writes; the offset of the record is that of the notification. Whoever reads, MemQ's consumers
among them, needs nothing of ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from tieredstore.errors import (
    BrokerError,
    ConfigError,
    DataLoss,
    InvalidRange,
    ResourceNotFound,
    StoreUnavailable,
    TieredStoreError,
)
from tieredstore.live.broker_state import BrokerState
from tieredstore.live.clients import LiveProducer, reading_configuration
from tieredstore.live.cluster import LiveCluster
from tieredstore.live.faults import fault
from tieredstore.live.properties import client_configuration
from tieredstore.process.deadline import Deadline
from tieredstore.process.per_process import PerProcess
from tieredstore.pubsub.errors import TopicNotFound
from tieredstore.pubsub.queue.kafka_group import KafkaGroup, group_states
from tieredstore.pubsub.queue.kafka_reading import PartitionLogs
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

    def note(self, error: KafkaError | None, message: Any) -> None:
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
        self._producer = PerProcess(lambda: LiveProducer(_producing(properties, send_s)), _flushed)
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
        except ResourceNotFound as error:
            raise TopicNotFound(
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
                    raise StoreUnavailable(
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
            raise StoreUnavailable(f"{doing}: the client holds as many as it may") from error
        except KafkaException as error:
            raise self._failure(producer, error.args[0], doing) from error
        while not receipt.said.is_set():
            producer.poll(_POLL_S)
            if deadline.remaining_s() <= 0:
                raise StoreUnavailable(f"{doing}: no broker has it in time")
        if receipt.error is not None:
            raise self._failure(producer, receipt.error, doing)
        if receipt.offset is None:
            raise BrokerError(f"{doing}: the broker tells no offset")
        return receipt.offset

    def _failure(self, producer: LiveProducer, error: KafkaError, doing: str) -> TieredStoreError:
        if error.fatal() or error.code() == KafkaError._FATAL or producer.is_lost:
            # An idempotent producer that cannot tell any more what the broker has: the next one begins anew.
            self._producer.close()
            return StoreUnavailable(f"{doing}: {error.str()}")
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
        """What has come to this client, else by a question for the log's end; DataLoss below its start."""
        self._check(partition)

        def end() -> int:
            start = self.start(partition)
            if offset < start:
                raise DataLoss(
                    f"{self._where(partition)}: retention has freed offsets {offset} to {start - 1}; go on at {start}"
                )
            return self.end(partition)

        try:
            return self._logs.read(partition, offset, end, Deadline.after(_CALL_S))
        except BrokerError as error:
            if not error.retryable and not isinstance(error, DataLoss):
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
            raise InvalidRange(f"{self._where(partition)} does not reach up to offset {offset}")
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
            raise InvalidRange(f"topic {self._topic} has {self.partitions} read partitions, and no {partition}")

    def _where(self, partition: int) -> str:
        return f"queue {self._topic}/{partition} ({self._name} in Kafka)"


def _producing(properties: Mapping[str, str], send_s: float) -> dict[str, str]:
    """The configuration of the producer: what it says for long is given up, and looked for."""
    common = TopicAdmin.configuration(properties)
    return {
        **common,
        "enable.idempotence": "true",
        "linger.ms": "0",
        "message.timeout.ms": str(int(send_s * 1000)),
        "request.timeout.ms": str(int(min(send_s, 10.0) * 1000)),
    }


def _flushed(producer: LiveProducer) -> None:
    producer.purge()
    producer.poll(0)
