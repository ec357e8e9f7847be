"""Partitions of a Kafka topic read at any offset by one client, without groups and without waiting for what comes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, Message, TopicPartition

from tieredstore.errors import BrokerUnavailable
from tieredstore.live.clients import LiveConsumer
from tieredstore.live.faults import fault, translated
from tieredstore.process.deadline import Deadline
from tieredstore.process.per_process import PerProcess
from tieredstore.pubsub.queue.queues import QueuedNotification

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
        it. BrokerUnavailable when what there must be does not come by the deadline."""
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
        with translated(f"{self._topic}-{partition} cannot be read from {offset}"):
            self._drop(consumer, partition)
            consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])
        self._streams[partition] = stream = _Stream(offset, offset)
        return stream

    def _take(self, consumer: LiveConsumer, timeout_s: float) -> None:
        for message in consumer.consume(_AT_ONCE, timeout_s):
            self._sort_in(consumer, message)

    def _sort_in(self, consumer: LiveConsumer, message: Any) -> None:
        error: KafkaError | None = message.error()
        stream = self._streams.get(message.partition())
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            failure = fault(error, f"the notifications of {self._topic} cannot be read")
            # What passes the client tries again by itself, until the deadline.
            if stream is not None and not isinstance(failure, BrokerUnavailable):
                raise failure
            return
        offset = _offset(message)
        if stream is None or offset < stream.end:
            return
        if error is not None:
            # Nothing lies before the end: a transaction's marker, or what compaction took, has an offset too.
            stream.end = offset
            return
        stream.held.append(QueuedNotification(offset, message.timestamp()[1], message.value() or b""))
        stream.end = offset + 1
        if len(stream.held) >= _MOST_HELD and not stream.is_paused:
            consumer.pause([TopicPartition(self._topic, message.partition())])
            stream.is_paused = True

    def _resume(self, consumer: LiveConsumer, partition: int, stream: _Stream) -> None:
        if stream.is_paused:
            consumer.resume([TopicPartition(self._topic, partition)])
            stream.is_paused = False


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
