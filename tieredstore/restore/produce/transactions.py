"""The transactional producer of a run of ``restore produce``. It sends records, verifies that their offsets are
consecutive, and commits them.

This module is separate from ``producing``, because this module handles the failures of librdkafka's transactions:

- *retryable*: the transaction may be committed or not. The caller begins again with a new producer, whose
  ``init_transactions`` completes or aborts the old transaction. After that, the control topic shows whether the
  transaction was committed.
- *fenced*: another process has begun the run of this name, and continues it.
- other errors are caused by the cluster's settings or by missing rights.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, TypeAlias

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message

from tieredstore.errors import BrokerError, BrokerUnavailableError, FencedError, TieredStoreError
from tieredstore.live.clients import LiveProducer
from tieredstore.live.faults import fault, kind_of
from tieredstore.live.properties import producer_configuration
from tieredstore.model import TopicPartition, name_of
from tieredstore.process.closing import Closing

Headers: TypeAlias = list[tuple[str, bytes | None]]
Row: TypeAlias = tuple[bytes | None, bytes | None, int, Headers | None]
"""Key, value, timestamp in milliseconds, and headers of a record."""

TRANSACTION_MS: Final = 180_000
"""Transaction timeout in ms. After this time, a broker aborts the transaction of a killed process. A new process of the
same run aborts that transaction at once.
"""

SETTLES_S: Final = TRANSACTION_MS / 1000 + 30
"""The longest time that a run waits for the transaction of another run, which may have been killed."""

_logger: Final = logging.getLogger(__name__)

_CALL_S: Final = 1.0
"""The longest time that one call of librdkafka blocks. Python handles no signals during the call."""
_ABORT_S: Final = 10.0
_ROOM_S: Final = 0.05
_POLL_ROWS: Final = 1000

_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_DEFAULTS: Final = {
    "compression.type": "lz4",
    "linger.ms": "20",
    # Limit the client's queue, because a transaction cannot end before all queued records are sent. Even if quotas slow
    # down the producer, sending the queued records must not take longer than the transaction timeout.
    "queue.buffering.max.kbytes": "32768",
    "transaction.timeout.ms": str(TRANSACTION_MS),
    # Allow messages of any size, because the broker limits their size. In librdkafka, this setting limits batches too.
    # ``_configuration`` therefore limits batches by ``batch.size``.
    "message.max.bytes": "1000000000",
}


class Transactions(Closing):
    """A producer with the transactional id of a run of ``restore produce``. Not thread-safe.

    ``most_batch_bytes`` is the smallest ``max.message.bytes`` of the target topics. A call raises an error if it makes
    no progress for ``timeout_s``.
    """

    def __init__(
        self, properties: Mapping[str, str], run: str, *, most_batch_bytes: int, timeout_s: float = 60.0
    ) -> None:
        self._run = run
        self._timeout_s = timeout_s
        self._is_open = False
        self._acknowledged: dict[TopicPartition, tuple[int, int]] = {}
        self._sent: dict[TopicPartition, int] = {}
        self._without_times: str | None = None
        self._failure: tuple[KafkaError, str] | None = None
        self._producer = LiveProducer(_configuration(properties, run, most_batch_bytes))

    def start(self) -> None:
        """Fence earlier producers of the same run, and end their transactions."""
        self._carry_out(self._producer.init_transactions, f"the run {self._run} cannot begin")

    def begin(self) -> None:
        """Begin a transaction."""
        self._acknowledged, self._sent, self._failure = {}, {}, None
        doing = f"a transaction of the run {self._run} cannot begin"
        self._carry_out(lambda _: self._producer.begin_transaction(), doing)
        self._is_open = True

    def send(self, topic: str, partition: int, rows: Iterable[Row], count: int) -> None:
        """Send ``count`` records in their order."""
        where, left = (topic, partition), iter(rows)
        self._sent[where] = self._sent.get(where, 0) + count
        # The delivery reports of the first and the last record are enough to verify all offsets: see ``flush``.
        self._send(where, islice(left, 1), self._note)
        for at in range(1, count - 1, _POLL_ROWS):
            self._send(where, islice(left, min(_POLL_ROWS, count - 1 - at)), None)
        self._send(where, left, self._note)

    def send_control(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Send a record of the control topic."""
        self._send((topic, 0), [(key, value, int(time.time() * 1000), None)], None)

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until all records are acknowledged. Return the offset of each partition's first record in the
        transaction.

        Check by the first and the last offset that a partition's records have consecutive offsets. A broker appends an
        idempotent producer's records in order, so the distance between the two offsets must fit the number of records.

        Raise BrokerUnavailableError if an offset is unknown, or if another producer wrote between the first and the
        last record.
        """
        doing = f"records of the run {self._run} were not acknowledged"
        left, end = -1, 0.0
        while (waiting := len(self._producer)) > 0:
            if waiting != left:
                left, end = waiting, time.monotonic() + self._timeout_s
            elif time.monotonic() > end:
                raise self._producer.trouble.unavailable(doing, self._timeout_s)
            else:
                self._check_open(doing)
            self._producer.flush(_CALL_S)
            if self._producer.is_lost:
                break
        self._check()
        if self._without_times is not None:
            # This error is retryable, because each broker learns of a changed setting with a short delay.
            raise BrokerUnavailableError(
                f"{self._without_times} replaced the records' times: its message.timestamp.type is not CreateTime "
                "on all brokers yet, or was changed during the run"
            )
        firsts: dict[TopicPartition, int] = {}
        for where, count in self._sent.items():
            first, last = self._acknowledged.get(where, (-1, -1))
            if first < 0 or last - first + 1 != count:
                raise BrokerUnavailableError(
                    f"records of the run {self._run} have unexpected offsets: {count} records of {name_of(where)} got "
                    f"the offsets {first} to {last}"
                )
            firsts[where] = first
        return firsts

    def commit(self) -> None:
        """Commit the transaction. After an error, the newest position in the control topic shows whether the
        transaction was committed."""
        self._carry_out(self._producer.commit_transaction, f"a transaction of the run {self._run} was not committed")
        self._is_open = False

    def close(self) -> None:
        """Abort an open transaction, so that readers of committed records do not wait for it."""
        # A fenced producer has no open transaction, because the later producer has ended it.
        if self._is_open and not self._producer.is_lost:
            self._is_open = False
            self._producer.purge()
            with suppress(TieredStoreError):
                self._carry_out(self._producer.abort_transaction, "the transaction was not aborted", _ABORT_S)
        self._producer.purge()
        self._producer.poll(0)

    def _send(self, where: TopicPartition, rows: Iterable[Row], report: Callable[..., None] | None) -> None:
        produce: Callable[..., None] = self._producer.produce
        topic, partition = where
        try:
            for key, value, timestamp, headers in rows:
                try:
                    produce(topic, value, key, partition, report, None, timestamp, headers)
                except BufferError:
                    self._send_with_patience(where, (key, value, timestamp, headers), report)
        except KafkaException as error:
            self._check_open(doing := f"{name_of(where)} cannot be written")
            raise self._error(error.args[0], doing) from error
        # Poll the client, because it keeps acknowledged records in memory until it is polled.
        self._producer.poll(0)
        self._check()

    def _send_with_patience(self, where: TopicPartition, row: Row, report: Callable[..., None] | None) -> None:
        """Send a record as soon as the Kafka client's queue has room for it."""
        produce: Callable[..., None] = self._producer.produce
        key, value, timestamp, headers = row
        left, end = -1, 0.0
        while True:
            if (waiting := len(self._producer)) != left:
                left, end = waiting, time.monotonic() + self._timeout_s
            elif time.monotonic() > end:
                raise self._producer.trouble.unavailable(f"{name_of(where)} cannot be written", self._timeout_s)
            self._producer.poll(_ROOM_S)
            with suppress(BufferError):
                produce(where[0], value, key, where[1], report, None, timestamp, headers)
                return

    def _note(self, error: KafkaError | None, message: Message) -> None:
        """Note the delivery report of a record."""
        if error is not None:
            self._failure = self._failure or (error, f"{message.topic()}-{message.partition()}")
            return
        if message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME:
            self._without_times = message.topic()
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        known = -1 if offset is None or offset < 0 else offset
        first, last = self._acknowledged.get((topic, partition), (known, known))
        self._acknowledged[topic, partition] = min(first, known), -1 if known < 0 else max(last, known)

    def _carry_out(self, call: Callable[[float], None], doing: str, timeout_s: float | None = None) -> None:
        """Repeat ``call`` while its errors are retriable. After a timeout, the next call continues the work of the
        previous call."""
        end = time.monotonic() + (timeout_s or self._timeout_s)
        while True:
            try:
                call(_CALL_S)
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                self._producer.poll(0)
                if error.fatal() or error.txn_requires_abort() or not error.retriable():
                    raise self._error(error, doing) from raised
                if (final := self._producer.trouble.final(doing)) is not None:
                    raise final from raised
                if time.monotonic() > end:
                    raise self._producer.trouble.unavailable(doing, self._timeout_s) from raised
            else:
                return

    def _check(self) -> None:
        """If a record has failed, raise its error. If the client dropped the record because the transaction failed, ask
        the client for the reason."""
        if self._failure is None:
            return
        failure, where = self._failure
        doing = f"a record of {where} was not acknowledged"
        if failure.code() in _DROPPED:
            try:
                self._producer.commit_transaction(_CALL_S)
            except KafkaException as error:
                raise self._error(error.args[0], doing) from error
        raise self._error(failure, doing)

    def _check_open(self, doing: str) -> None:
        """If the open transaction has failed, raise its error. librdkafka then sends no more records, and tells the
        reason only to the next call: a second transaction cannot begin, so this call changes nothing."""
        try:
            self._producer.begin_transaction()
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.fatal() or error.txn_requires_abort():
                raise self._error(error, doing) from raised

    def _error(self, error: KafkaError, doing: str) -> TieredStoreError:
        if error.code() in _FENCED:
            self._is_open = False
            return FencedError(
                f"{doing}: another process has begun the run {self._run}, or the transaction timed out "
                "(transaction.timeout.ms); this transaction was not committed. Run again after the "
                "other process has ended"
            )
        failure = fault(error, doing)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return BrokerError(f"{failure}; raise max.message.bytes of this topic")
        if kind_of(error) is not BrokerError or error.code() in _LASTING:
            return failure
        # Another transaction may succeed, so make the error retryable.
        return BrokerUnavailableError(str(failure))


_DROPPED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_LASTING: Final = frozenset(
    {
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError._UNSUPPORTED_FEATURE,
    }
)
"""Permanent errors: they would occur again if the same records were sent again."""


def _configuration(properties: Mapping[str, str], run: str, most_batch_bytes: int) -> dict[str, str]:
    own = producer_configuration(properties, "read_committed")
    batches = {"batch.size": str(min(1_000_000, most_batch_bytes))}
    return {**_DEFAULTS, **batches, **own, "transactional.id": f"tieredstore-restore-{run}"}
