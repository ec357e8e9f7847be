"""A producer's buffer: it packs records into Messages, and completes the records' futures after delivery."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from tieredstore.errors import AlreadyClosedError, TieredStoreError
from tieredstore.pubsub.counts import ProducerCounts
from tieredstore.pubsub.errors import BufferFullError, DeliveryFailedError, InvalidRecordError
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import (
    ADDRESS_BYTES,
    Compression,
    Headers,
    MessageHeader,
    ProducerRequest,
    new_address,
    seal_body,
)
from tieredstore.pubsub.produce.batch_writer import BatchMemory, SealedMessage, room_for
from tieredstore.pubsub.produce.futures import MessageOutcome, RecordFuture
from tieredstore.pubsub.settings import BatchSettings

if TYPE_CHECKING:
    from tieredstore.kafka.records._slabs import SlabPool
    from tieredstore.pubsub.queue.kafka_audit import Auditor

Acks: TypeAlias = Literal["0", "1", "all"]

_logger: Final = logging.getLogger(__name__)
_LENGTHS: Final = 21  # bytes of a written record besides its data: lengths and timestamp


@dataclass(slots=True)
class OpenMessage:
    """A Message that still takes records, and the outcome for the records' futures."""

    body: BodyWriter
    request: ProducerRequest
    first_s: float
    memory: BatchMemory | None = None
    """The memory of the batch, if records are written directly into it."""
    outcome: MessageOutcome = field(default_factory=MessageOutcome)
    ids_hash: int = 0
    id_size: int = 0
    """The common length of the Message's message ids, because MemQ's reader stops at a Message with ids of different
    lengths."""

    def takes(self, message_id: bytes | None) -> bool:
        """Return True if a record with this id may be added to the Message. A record without an id may always be
        added."""
        return not message_id or self.id_size in (0, len(message_id)) or not self.body.count

    def note_id(self, message_id: bytes | None, *, is_audited: bool) -> None:
        """Note the id of an added record."""
        if message_id:
            self.id_size = len(message_id)
            if is_audited:
                self.ids_hash ^= int.from_bytes(message_id)

    def seal(self, compression: Compression) -> SealedMessage:
        """Return the finished Message."""
        stored = seal_body(self.body, self.request, compression)
        return SealedMessage(stored, self.request, self.body.count, self.body.least_ms, self.body.most_ms)


@dataclass(frozen=True, slots=True)
class Sending:
    """Settings of a producer's delivery, and the producer's counts. A forked child keeps the settings, and resets the
    counts."""

    settings: BatchSettings
    acks: Acks
    auditor: Auditor | None
    message_bytes: int
    pool: SlabPool | None
    """The memory of batches, if Messages are written directly into their batch."""
    monotonic: Callable[[], float] = time.monotonic
    counts: ProducerCounts = field(default_factory=ProducerCounts)

    @property
    def compression(self) -> Compression:
        """Compression of Messages."""
        return Compression.of(self.settings.compression)


class BatchEnd:
    """Marks the end of a batch, after its last Message."""


_HEADER_BYTES: Final = MessageHeader(ProducerRequest(bytes(ADDRESS_BYTES), 0, 0), 0, Compression.NONE, 0, 0).size
_LEAST_SHARE: Final = 8
"""A batch is closed once its free space is smaller than a Message's maximum size divided by this number."""


class Packer:
    """Gives each Message its memory: with ``Sending.pool`` a place in the memory of its batch; without it separate
    memory, and the delivery combines Messages into batches later.

    The outbox holds its lock when it calls the packer."""

    def __init__(self, sending: Sending) -> None:
        self._settings = sending.settings
        self._message_bytes = sending.message_bytes
        self._pool = sending.pool
        self._memory: BatchMemory | None = None

    def open(self) -> tuple[BodyWriter, BatchMemory | None]:
        """Return a writer for the next Message, and the batch's memory if the Message is written in place."""
        if self._pool is None:
            return BodyWriter(self._message_bytes), None
        settings = self._settings
        if self._memory is None:
            messages = room_for(settings.batch_messages, settings.batch_bytes, self._message_bytes)
            least = _HEADER_BYTES + self._message_bytes
            self._memory = BatchMemory(self._pool, settings.batch_bytes, messages, least=least)
        return self._memory.body(self._message_bytes, _HEADER_BYTES), self._memory

    def close(self, message: OpenMessage) -> bool:
        """Finish a Message. Return True if the rest of its batch's memory is too small for another Message."""
        if (memory := message.memory) is None:
            return False
        memory.hold(_HEADER_BYTES + len(message.body))
        is_last = memory.left < _HEADER_BYTES + self._message_bytes // _LEAST_SHARE
        if is_last:
            self._memory = None
        return is_last

    @property
    def has_messages(self) -> bool:
        """True if the batch's memory has Messages, so that a new batch has more room."""
        return self._memory is not None and self._memory.messages > 0

    def end_batch(self) -> None:
        """Finish the batch: the next Message begins a new batch."""
        self._memory = None


class Delivery(Protocol):
    """Takes closed Messages out of an outbox on its own threads, and reports each as stored (``settle``) or failed."""

    def start(self, outbox: Outbox) -> None:
        """Start the threads if they do not run yet. The caller holds the outbox's lock. An error refuses the record
        that was to begin a Message."""
        ...

    def stop(self) -> None:
        """End the threads. Called once the outbox is empty, or once ``close`` has waited long enough."""
        ...


class Outbox:
    """A producer's records that are neither stored nor failed yet. One lock makes it thread-safe. A forked child needs
    a new outbox.

    At first, a Message is open. Then it is closed, and waits for its delivery. At the end it is settled (stored) or
    failed. Until then, its bytes count as held.
    """

    def __init__(self, sending: Sending, delivery: Delivery) -> None:
        self._sending = sending
        self._settings = sending.settings
        self._counts = sending.counts
        self._packer = Packer(sending)
        self._delivery = delivery
        self._address = new_address()
        self._epoch_ms = time.time_ns() // 1_000_000
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open: OpenMessage | None = None
        self._closed: deque[OpenMessage | BatchEnd] = deque()
        self._next_request = 0
        # Bytes and records of closed Messages that are not stored yet, and the size to which the open Message may grow.
        self._closed_bytes = self._closed_records = self._room_for_open = 0
        self._is_closed = self._is_flushing = False
        self._blocked: list[int] = []  # sizes of the records whose threads wait for room now
        self._is_plain = sending.auditor is None
        self._next_id = secrets.randbits(63)

    def put(
        self,
        value: bytes,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        message_id: bytes | None,
    ) -> RecordFuture:
        """Take a record. Raise BufferFullError, InvalidRecordError or AlreadyClosedError."""
        with self._lock:
            message = self._open
            number = -1
            if self._is_plain and message is not None and (not message_id or len(message_id) == message.id_size):
                number = message.body.take(value, key, headers, message_id, timestamp_ms, self._room_for_open)
            if message is None or number < 0:
                message, number = self._take(value, key, headers, message_id, timestamp_ms)
        return RecordFuture(message.outcome, number)

    def flush(self, longest_s: float) -> None:
        """Wait until every record is stored or has failed. Raise DeliveryFailedError after ``longest_s`` seconds."""
        with self._changed:
            self._is_flushing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self.waiting_records == 0, longest_s):
                waiting = self.waiting_records
                raise DeliveryFailedError(f"{waiting} records are not stored after {longest_s:g} s", maybe_stored=True)

    def close(self, longest_s: float) -> None:
        """Accept no more records, deliver the records already accepted, and stop the delivery."""
        with self._changed:
            self._is_closed, self._is_plain = True, False
        try:
            self.flush(longest_s)
        finally:
            with self._changed:
                self._changed.notify_all()
            self._delivery.stop()

    def count(self) -> dict[str, int]:
        """Return counts and levels, with the open Message included."""
        with self._changed:
            counted = asdict(self._counts)
            if self._open is not None:
                counted["records"] += self._open.body.count
                counted["record_bytes"] += self._open.body.payload
            return counted | {"held_bytes": self.held_bytes, "waiting_records": self.waiting_records}

    # --- packing, with the lock held ---

    def _take(
        self,
        value: bytes,
        key: bytes | None,
        headers: Headers | None,
        message_id: bytes | None,
        timestamp_ms: int | None,
    ) -> tuple[OpenMessage, int]:
        """Add a record on the slow path, which may wait for room, begin a Message or make an id. Return the record's
        Message and the record's number in that Message.
        """
        size = len(value or b"") + len(key or b"") + _LENGTHS
        if self._is_closed or self._is_full_for(size):
            self._wait_for_room(size)
        if self._sending.auditor is not None and not message_id:
            # Every record needs an id, because an audit compares hashes of ids.
            self._next_id = (self._next_id + 1) % (1 << 64)
            message_id = self._next_id.to_bytes(8)
        while True:
            message = self._open or self._new_message()
            if not message.takes(message_id):
                self._close_message()
                continue
            number = message.body.take(value, key, headers, message_id, timestamp_ms)
            if number >= 0:
                break
            if message.body.count:
                self._close_message()
            elif self._packer.has_messages:
                self._end_batch()
            else:
                self._counts.refused_records += 1
                raise InvalidRecordError(f"a record does not fit a Message of {self._sending.message_bytes} bytes")
        if self._open is None:
            # Use a request id only once the delivery runs and the Message has accepted its first record, so that a
            # refused record leaves no gap in the request ids.
            self._delivery.start(self)
            self._open = message
            self._next_request += 1
            self._changed.notify_all()
        message.note_id(message_id, is_audited=self._sending.auditor is not None)
        self._room_for_open = self._settings.buffer_bytes - self._closed_bytes
        return message, number

    @property
    def held_bytes(self) -> int:
        """Bytes of records that are neither stored nor failed."""
        return self._closed_bytes + (0 if self._open is None else len(self._open.body))

    @property
    def waiting_records(self) -> int:
        """Number of records that are neither stored nor failed."""
        return self._closed_records + (0 if self._open is None else self._open.body.count)

    def _wait_for_room(self, size: int) -> None:
        if self._is_closed:
            raise AlreadyClosedError("the producer is closed")
        longest_s = self._settings.max_block_ms / 1000

        def has_room() -> bool:
            return self._is_closed or not self.held_bytes or not self._is_full_for(size)

        if not has_room():
            self._counts.blocked_sends += 1
        self._blocked.append(size)
        self._changed.notify_all()
        try:
            is_free = self._changed.wait_for(has_room, longest_s)
        finally:
            self._blocked.remove(size)
        if not is_free:
            self._counts.full_buffers += 1
            raise BufferFullError(
                f"the buffer is full: {self.held_bytes} bytes are not stored after {longest_s:g} s: the store is slow"
            )
        if self._is_closed:
            raise AlreadyClosedError("the producer was closed")

    def _is_full_for(self, size: int) -> bool:
        return self.held_bytes + size > self._settings.buffer_bytes

    def _new_message(self) -> OpenMessage:
        body, memory = self._packer.open()
        request = ProducerRequest(self._address, self._epoch_ms, self._next_request)
        return OpenMessage(body, request, self._sending.monotonic(), memory)

    def _end_batch(self) -> None:
        """Close the open Message, and end its batch."""
        if not self._close_message():
            self._packer.end_batch()
            self._closed.append(BatchEnd())
            self._changed.notify_all()

    def _close_message(self) -> bool:
        """Close the open Message. Return True if the Message was the last of its batch."""
        message, self._open = self._open, None
        if message is None:
            return False
        self._closed.append(message)
        self._closed_bytes += len(message.body)
        self._closed_records += message.body.count
        self._counts.messages += 1
        self._counts.records += message.body.count
        self._counts.record_bytes += message.body.payload
        is_last = self._packer.close(message)
        if is_last:
            self._closed.append(BatchEnd())
        self._changed.notify_all()
        return is_last

    # --- for the delivery ---

    def next(self, batch: Sequence[OpenMessage], linger_s: float) -> OpenMessage | BatchEnd | None:
        """Return the next closed Message, and wait for it if needed. After the last Message of a batch, return
        BatchEnd. Return None once the outbox is closed and empty.

        ``batch`` has the Messages of the current batch. ``linger_s`` seconds after the first of them began, the batch
        ends even if it is not full. It also ends if a thread waits for room that only this batch can make."""
        with self._changed:
            while True:
                if self._closed:
                    return self._closed.popleft()
                first = batch[0] if batch else self._open
                if first is None:
                    self._is_flushing = False
                    if self._is_closed:
                        return None
                    self._changed.wait()
                    continue
                wait_s = first.first_s + linger_s - self._sending.monotonic()
                if self._is_flushing or self._is_closed or wait_s <= 0 or (
                    # A thread that has room again may not have run yet.
                    any(map(self._is_full_for, self._blocked))
                    and self._closed_bytes == sum(len(message.body) for message in batch)
                ):  # fmt: skip
                    self._end_batch()
                else:
                    self._changed.wait(wait_s)

    def settle(self, messages: Sequence[OpenMessage], place: tuple[int, int] | None) -> None:
        """Complete the futures of a batch that is stored at ``place`` (a partition and an offset). ``place`` is None if
        the broker does not report the place."""
        if self._sending.auditor is not None:
            for message in messages:
                ids_hash = message.ids_hash.to_bytes(message.id_size)
                self._sending.auditor.tell(message.request, ids_hash, message.body.count)
        for number, message in enumerate(messages):
            message.outcome.succeed(None if place is None else (*place, number))
        with self._changed:
            self._counts.delivered_batches += 1
            self._counts.delivered_records += sum(message.body.count for message in messages)
        self._release(messages)

    def fail(self, messages: Sequence[OpenMessage], error: Exception) -> None:
        """Fail the futures of these Messages, whatever the error, so that no caller waits forever. The Messages may be
        stored nevertheless."""
        failure = error if isinstance(error, DeliveryFailedError) else DeliveryFailedError(str(error))
        if not isinstance(error, TieredStoreError):
            _logger.error("cannot deliver Messages", exc_info=error)
            failure = DeliveryFailedError(f"internal error: {error!r:.200}")
        if self._sending.acks == "0":
            _logger.warning("%d records were not delivered: %s", sum(each.body.count for each in messages), failure)
        for message in messages:
            message.outcome.fail(failure)
        with self._changed:
            self._counts.failed_records += sum(message.body.count for message in messages)
        self._release(messages)

    def _release(self, messages: Sequence[OpenMessage]) -> None:
        with self._changed:
            self._closed_bytes -= sum(len(message.body) for message in messages)
            self._closed_records -= sum(message.body.count for message in messages)
            self._changed.notify_all()
