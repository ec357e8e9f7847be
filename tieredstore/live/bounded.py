"""A consumer that reads one partition up to an offset, and knows when it is there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tieredstore.errors import DataLoss, TieredStoreError
from tieredstore.live.clients import LiveConsumer
from tieredstore.live.faults import fault
from tieredstore.live.messages import MessageColumns, before, last_offset, pieces, size_of
from tieredstore.process.forks import is_inherited

_ROWS: Final = 10_000
_TARGET_BYTES: Final = 4 * 1024 * 1024
_FIRST_ROWS: Final = 256
"""How large messages are is not known before the first have come."""

_WAIT_S: Final = 0.1
_OUT_OF_RANGE: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)
_OF_GROUPS: Final = frozenset(
    {
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.NOT_COORDINATOR,
    }
)
"""A consumer looks for its group though it needs none here, and may have no right to it."""

_STATISTICS_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Window:
    """The offsets ``start`` up to ``stop`` (half-open) of a partition at ``servers``."""

    servers: str
    topic: str
    partition: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at {self.servers}"


class BoundedConsumer:
    """Reads a window once. To be closed; for one thread."""

    def __init__(
        self, configuration: Mapping[str, str], window: Window, columns: MessageColumns, timeout_s: float
    ) -> None:
        """ConfigError for what librdkafka does not take."""
        self._window = window
        self._columns = columns
        self._timeout_s = timeout_s
        self._doing = f"{window} cannot be read"
        self._position = window.start
        self._fetch_position = -1
        self._pending: list[Message] = []
        self._pending_bytes = 0
        self._rows = _FIRST_ROWS
        self._error: TieredStoreError | None = None
        # The log's end, where it was met. Behind it nothing comes until the log grows.
        self._end = -1
        self._deadline = 0.0
        bounded = {
            "auto.offset.reset": "error",
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",
            "max.poll.interval.ms": "86400000",
            "statistics.interval.ms": str(_STATISTICS_MS),
            # How long a topic may be unknown, as a new one is at first. Shorter than we wait, for a better sentence.
            "topic.metadata.propagation.max.ms": str(int(min(30.0, timeout_s / 2) * 1000)),
        }
        self._consumer = LiveConsumer({**configuration, **bounded}, stats_cb=self._hear_statistics)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records. What came before an error is given before it is raised."""
        window = self._window
        self._consumer.assign([TopicPartition(window.topic, window.partition, window.start)])
        self._progress()
        while not self._is_done():
            self._take(self._arrived())
            if self._pending and (
                self._is_done() or self._pending_bytes >= _TARGET_BYTES or len(self._pending) >= _ROWS
            ):
                yield from self._flush()
                # The time until the caller asks for more is not the broker's.
                self._progress()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the connections; not in a forked child, which has none of the threads that this waits for."""
        if not is_inherited(self._consumer):
            self._consumer.close()

    def _is_done(self) -> bool:
        return self._error is not None or max(self._position, self._end) >= self._window.stop

    def _arrived(self) -> list[Message]:
        """What is there, else what comes within a moment.

        Asked to wait for many, the consumer would wait its whole time for the last of them, which never come at the
        log's end.
        """
        # librdkafka would fill any number of rows while the next ones arrive: the memory is bounded here.
        return self._consumer.consume(self._rows, 0) or self._consumer.consume(1, _WAIT_S)

    def _take(self, messages: list[Message]) -> None:
        nothing = not messages
        if any(map(Message.error, messages)):
            messages = self._without_errors(messages)
        if messages:
            self._progress()
            self._position = last_offset(messages) + 1
            kept = before(messages, self._window.stop)
            self._pending += kept
            size = size_of(kept)
            self._pending_bytes += size
            self._rows = max(1, min(_ROWS, _TARGET_BYTES * len(messages) // max(1, size)))
        elif nothing:
            self._error = self._denial_or_timeout()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        messages, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        # Only where messages were larger than those before them, by which it was guessed how many to take at once.
        for run in pieces(messages, _TARGET_BYTES) if size > 2 * _TARGET_BYTES else (messages,):
            yield self._columns.build(run)

    def _without_errors(self, messages: list[Message]) -> list[Message]:
        """The records before the first error that ends the read."""
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                self._position = _offset(message) + 1
            elif (ends := self._judge(error, message)) is not None:
                self._error = ends
                break
        return records

    def _judge(self, error: KafkaError, message: Message) -> TieredStoreError | None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._end = _offset(message)
            self._progress()
            return None
        if code in _OF_GROUPS:
            return None
        if code in _OUT_OF_RANGE:
            return self._out_of_range(error)
        made = fault(error, self._doing)
        if made.retryable:
            self._consumer.trouble.note(error)
            return None
        return made

    def _out_of_range(self, error: KafkaError) -> TieredStoreError:
        window, position = self._window, self._position
        try:
            first, end = self._consumer.get_watermark_offsets(
                TopicPartition(window.topic, window.partition), timeout=self._timeout_s
            )
        except KafkaException as failure:
            return fault(failure.args[0], self._doing)
        if position < first:
            lost = f"offsets {position} to {min(first, window.stop) - 1} are gone"
            return DataLoss(f"{lost} from {window}, which begins at offset {first} now; read from there on")
        if position > end:
            return DataLoss(f"{window} ends before offset {end} now, and was to be read from offset {position} on")
        return DataLoss(f"{self._doing} from offset {position} on: {error.str()}")

    def _denial_or_timeout(self) -> TieredStoreError | None:
        trouble = self._consumer.trouble
        denial = trouble.denial(self._doing)
        if denial is not None or time.monotonic() < self._deadline:
            return denial
        if trouble.noted is None and 0 <= self._end < self._window.stop:
            return DataLoss(
                f"{self._window} ends before offset {self._end}, and was to be read up to offset {self._window.stop}: "
                f"it was cut, or that is no end that the broker has told"
            )
        return self._topic_fault() or trouble.unavailable(self._doing, self._timeout_s)

    def _topic_fault(self) -> TieredStoreError | None:
        """What the brokers say of the topic, where that is why nothing comes: a consumer is not told."""
        topic = self._window.topic
        try:
            listed = self._consumer.list_topics(topic, timeout=min(5.0, self._timeout_s))
        except KafkaException:
            return None
        error = listed.topics[topic].error if topic in listed.topics else None
        return None if error is None else fault(error, self._doing)

    def _hear_statistics(self, text: str) -> None:
        """Records of aborted transactions never come, but the fetcher's position moves over them."""
        topics: dict[str, Any] = json.loads(text).get("topics", {})
        partitions = topics.get(self._window.topic, {}).get("partitions", {})
        position = partitions.get(str(self._window.partition), {}).get("next_offset", -1)
        if position > self._fetch_position:
            self._fetch_position = position
            self._progress()

    def _progress(self) -> None:
        self._deadline = time.monotonic() + self._timeout_s
        if self._position > self._window.start or self._end >= 0:
            self._consumer.trouble.forget()


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset
