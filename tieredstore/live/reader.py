"""Reads of offset ranges from brokers; later reads reuse the Kafka clients."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tieredstore.errors import ConfigError, DataLossError, TieredStoreError
from tieredstore.kafka.records import COLUMNS
from tieredstore.limits import MAX_OFFSET
from tieredstore.live.clients import ConsumerPool, LiveConsumer, bounded_configuration
from tieredstore.live.cluster import LiveCluster
from tieredstore.live.faults import OF_GROUPS, OF_HOLES, OUT_OF_RANGE, fault, translate_errors
from tieredstore.live.messages import (
    FIRST_MESSAGES,
    MOST_MESSAGES,
    TARGET_BYTES,
    MessageColumns,
    before,
    next_count,
    offset_of,
    pieces,
    size_of,
)
from tieredstore.live.properties import client_configuration
from tieredstore.live.topic_watch import TopicWatch
from tieredstore.model import Isolation, Uuid
from tieredstore.process.closing import Closing
from tieredstore.process.forks import PerProcess


class LiveReader(Closing):
    """Reads from one cluster. All reads share the client of ``cluster`` and a pool of consumers.

    Thread-safe. A pickled reader includes the properties; clients are created again after a fork or unpickling. Close a
    reader after use.
    """

    def __init__(self, properties: Mapping[str, str], *, isolation: Isolation, timeout_s: float = 60.0) -> None:
        """Raise ConfigError for invalid properties. The constructor does not connect to a broker."""
        self.cluster: LiveCluster = LiveCluster(properties, isolation=isolation, timeout_s=timeout_s)
        configuration = client_configuration(properties, isolation)
        self._servers = configuration["bootstrap.servers"]
        self._timeout_s = timeout_s
        # Reads reuse consumers, because a new consumer has to connect and look up leaders before its first record.
        self._consumers = PerProcess(
            partial(ConsumerPool, bounded_configuration(configuration, timeout_s)), ConsumerPool.close
        )

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        *,
        columns: Sequence[str] = COLUMNS,
        topic_id: Uuid | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the records with offsets in ``[start, stop)``, in batches of about 4 MiB or 10,000 rows.

        ``stop`` must be an end reported by the broker. The last offsets of the range may have no records to return,
        only transaction markers or aborted records. The read then ends when the consumer has passed these offsets.
        Records before an error are yielded first.

        Raise ConfigError at once for invalid arguments. Raise BrokerUnavailableError (retryable) if nothing arrives for
        ``timeout_s``.

        Raise DataLossError in four cases: the broker lacks ``start``; retention overtakes the reader; the log ends
        before ``stop`` and does not grow for ``timeout_s``; or the topic's id differs from ``topic_id``. The check of
        the id takes one request before the read, and one after it. Other errors are ResourceNotFoundError,
        BrokerDeniedError and BatchCorruptError.
        """
        shape = MessageColumns(columns)
        if not 0 <= start <= stop <= MAX_OFFSET:
            raise ConfigError(f"there are no offsets from {start} up to {stop} of {topic}-{partition}")
        return self._read(LiveRange(self._servers, topic, partition, start, stop), shape, topic_id)

    def _read(
        self, extent: LiveRange, shape: MessageColumns, topic_id: Uuid | None
    ) -> Generator[pa.RecordBatch, None, None]:
        if extent.start == extent.stop:
            return
        self._check_identity(extent.topic, topic_id)
        # Check the topic's id before and after the read, because offsets do not show if the topic was created again
        # during the read.
        with self._consumers.get().lend() as consumer:
            read = BoundedRead(consumer, extent, shape, self._timeout_s)
            with consumer.statistics.pass_to(read.hear_statistics):
                yield from read.batches()
        self._check_identity(extent.topic, topic_id)

    def _check_identity(self, topic: str, topic_id: Uuid | None) -> None:
        """Raise DataLossError if the topic was re-created, because its offsets then belong to other records."""
        if topic_id is None:
            return
        known_id = self.cluster.existing_topic(topic).topic_id
        if known_id != topic_id:
            raise DataLossError(
                f"topic {topic} was created again: its id is {known_id} on the broker, but the records of {topic_id} "
                "were requested"
            )

    def close(self) -> None:
        """Close this process's connections, also those of ``cluster``. The next call opens new connections."""
        self._consumers.close()
        self.cluster.close()


_WAIT_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LiveRange:
    """The offsets from ``start`` to ``stop`` (exclusive) of a partition at the brokers ``servers``."""

    servers: str
    topic: str
    partition: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at {self.servers}"


class BoundedRead:
    """One read of a range, by a consumer that nothing else uses during the read. Not thread-safe."""

    def __init__(self, consumer: LiveConsumer, extent: LiveRange, columns: MessageColumns, timeout_s: float) -> None:
        self._consumer = consumer
        self._range = extent
        self._columns = columns
        self._timeout_s = timeout_s
        self._watch = TopicWatch(consumer, timeout_s)
        self._doing = f"{extent} cannot be read"
        self._position = extent.start
        self._fetch_position = -1
        self._pending: list[Message] = []
        self._pending_bytes = 0
        self._rows = FIRST_MESSAGES
        self._error: TieredStoreError | None = None
        # End of the log, or -1 as long as the read has not reached it. At the end nothing arrives until the log grows.
        self._end = -1
        self._deadline = 0.0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records. An error is raised only after all records that precede it."""
        extent = self._range
        with translate_errors(self._doing):
            self._consumer.assign([TopicPartition(extent.topic, extent.partition, extent.start)])
        self._progress()
        while not self._is_done():
            self._take(self._receive())
            if self._pending and (
                self._is_done() or self._pending_bytes >= TARGET_BYTES or len(self._pending) >= MOST_MESSAGES
            ):
                yield from self._flush()
                # Restart the timeout, because the time that the caller takes between two batches does not count.
                self._progress()
        if self._error is not None:
            raise self._error

    def _is_done(self) -> bool:
        # The position alone is not enough, because the last offsets may be transaction markers or aborted records.
        # These never arrive.
        return self._error is not None or max(self._position, self._end) >= self._range.stop

    def _receive(self) -> list[Message]:
        """Return the messages that have arrived; if there are none, wait a moment for one message.

        A call of ``consume(many, timeout)`` would wait until all requested messages have arrived. At the end of the
        log, this never happens.
        """
        # Limit the number of messages, and so the memory. Without a limit, librdkafka returns messages as long as more
        # arrive.
        return self._consumer.consume(self._rows, 0) or self._consumer.consume(1, _WAIT_S)

    def _take(self, messages: list[Message]) -> None:
        # Errors arrive as messages too, and show that a broker answers. So check the timeout only if nothing arrives.
        nothing = not messages
        if any(map(Message.error, messages)):
            messages = self._without_errors(messages)
        if messages:
            self._progress()
            self._position = offset_of(messages[-1]) + 1
            kept = before(messages, self._range.stop)
            self._pending += kept
            size = size_of(kept)
            self._pending_bytes += size
            self._rows = next_count(len(messages), size)
        elif nothing:
            self._error = self._silence()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        messages, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        # The number of messages was chosen by the size of earlier messages. If the new messages are much larger, split
        # them.
        for run in pieces(messages) if size > 2 * TARGET_BYTES else (messages,):
            yield from self._columns.build_each(run)

    def _without_errors(self, messages: list[Message]) -> list[Message]:
        """Return the records before the first error that ends the read."""
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                self._position = offset_of(message) + 1
            elif (ends := self._judge(error, message)) is not None:
                self._error = ends
                break
        return records

    def _judge(self, error: KafkaError, message: Message) -> TieredStoreError | None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._end = offset_of(message)
            self._progress()
            return None
        if code in OF_GROUPS | OF_HOLES:
            return None
        if code in OUT_OF_RANGE:
            return self._out_of_range(error)
        broker_error = fault(error, self._doing)
        if broker_error.retryable:
            self._consumer.trouble.note(error)
            return None
        return broker_error

    def _out_of_range(self, error: KafkaError) -> TieredStoreError:
        extent, position = self._range, self._position
        try:
            first, end = self._consumer.get_watermark_offsets(
                TopicPartition(extent.topic, extent.partition), timeout=self._timeout_s
            )
        except KafkaException as failure:
            return fault(failure.args[0], self._doing)
        if position < first:
            lost = f"offsets {position} to {min(first, extent.stop) - 1} are gone"
            return DataLossError(f"{lost} from {extent}, which begins at offset {first} now")
        if position > end:
            return DataLossError(f"{extent} now ends before offset {end}, but was read from offset {position} on")
        return DataLossError(f"{self._doing} from offset {position} on: {error.str()}")

    def _silence(self) -> TieredStoreError | None:
        """Return the error to raise if no message arrives: a permanent error at once, other errors after the
        timeout."""
        trouble = self._consumer.trouble
        final = trouble.final(self._doing) or self._topic_fault()
        if final is not None or time.monotonic() < self._deadline:
            return final
        # Without a connection error, the broker has answered that its log ends here: report a loss.
        if trouble.noted is None and 0 <= self._end < self._range.stop:
            return DataLossError(
                f"{self._range} ends before offset {self._end}, but was to be read up to offset {self._range.stop}: "
                f"the log was cut, or the broker never reported that end"
            )
        return trouble.unavailable(self._doing, self._timeout_s)

    def _topic_fault(self) -> TieredStoreError | None:
        topic, partition = self._range.topic, self._range.partition
        return self._watch.faults(topic, [partition], self._doing).get(partition) if self._watch.is_due else None

    def hear_statistics(self, text: str) -> None:
        """Restart the timeout if the fetch position advances, because records of aborted transactions are fetched but
        never arrive here.
        """
        topics: dict[str, Any] = json.loads(text).get("topics", {})
        partitions = topics.get(self._range.topic, {}).get("partitions", {})
        position = partitions.get(str(self._range.partition), {}).get("next_offset", -1)
        if position > self._fetch_position:
            self._fetch_position = position
            self._progress()

    def _progress(self) -> None:
        self._deadline = time.monotonic() + self._timeout_s
        self._watch.begin()
        if self._position > self._range.start or self._end >= 0:
            self._consumer.trouble.forget()
