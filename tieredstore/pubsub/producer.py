"""A producer without a broker: records into Messages, Messages into batches, batches into the store."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, Literal, TypeAlias

from tieredstore.config.pubsub import PubsubSettings
from tieredstore.errors import AlreadyClosed, BufferFull, ConfigError, DeliveryFailed, InvalidRecord, TieredStoreError
from tieredstore.process.closing import Closing
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.auditing import auditor_of
from tieredstore.pubsub.counts import ProducerCounts
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, Headers, ProducerRequest, seal_body
from tieredstore.pubsub.record_futures import RecordFuture, RecordPlace, give_error, give_places
from tieredstore.pubsub.topics import Topics
from tieredstore.pubsub.writer import BatchWriter, SealedMessage

Acks: TypeAlias = Literal["0", "1", "all"]

_logger: Final = logging.getLogger(__name__)
_RECORD_OVERHEAD: Final = 100  # what a record takes in the buffer beside its bytes
_MAX_INT64: Final = (1 << 63) - 1


UNTOLD: Final = RecordPlace(-1, -1, -1, -1)
"""The place of a record of which nobody tells where it stands."""


@dataclass(slots=True)
class OpenMessage:
    """A Message in the making, and who waits for its records."""

    body: BodyWriter
    request: ProducerRequest
    first_s: float
    futures: list[RecordFuture] = field(default_factory=list[RecordFuture])
    lock: threading.Lock = field(default_factory=threading.Lock)  # of its futures
    held_bytes: int = 0
    min_timestamp: int = _MAX_INT64
    max_timestamp: int = -_MAX_INT64 - 1
    ids_hash: int = 0

    def seal(self, compression: Compression) -> SealedMessage:
        """The Message as it goes out; nothing comes behind."""
        stored = seal_body(self.body, self.request, compression)
        return SealedMessage(stored, self.request, self.body.count, self.min_timestamp, self.max_timestamp)


def _places(partition: int, offset: int, message: int, count: int) -> Iterator[RecordPlace]:
    return map(RecordPlace._make, zip(repeat(partition), repeat(offset), repeat(message), range(count)))


@dataclass(slots=True)
class _Batch:
    """Sealed Messages that go together."""

    messages: list[SealedMessage] = field(default_factory=list[SealedMessage])
    waiting: list[OpenMessage] = field(default_factory=list[OpenMessage])
    stored_bytes: int = 0
    first_s: float = 0.0


class RecordProducer(Closing):
    """Takes records into Messages, within a buffer; where they go is said by who derives. Thread-safe; a forked child
    has a new, empty producer under another name."""

    def __init__(
        self,
        settings: PubsubSettings,
        topic: str,
        *,
        acks: Acks,
        monotonic: Callable[[], float] = time.monotonic,
        message_bytes: int | None = None,
    ) -> None:
        self._settings = settings
        self._auditor = auditor_of(settings, topic, is_producer=True)
        self._compression = Compression.named(settings.compression)
        self._acks = acks
        self._monotonic = monotonic
        self._message_bytes = settings.message_bytes if message_bytes is None else message_bytes
        self._is_closed = False
        self.counts = ProducerCounts()
        self._forget_counts = self.counts.export()
        self._begin()
        begin_again_after_fork(self)

    def _begin(self) -> None:
        # As an address of IPv6 that is nobody's: no two producers have the same, so request ids always name a Message.
        self._address = b"\xfd" + os.urandom(15)
        self._epoch_ms = time.time_ns() // 1_000_000
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open: OpenMessage | None = None
        self._closed: deque[OpenMessage] = deque()
        self._next_request = 0
        self._held_bytes = 0
        self._under_way = 0  # records that were sent and are neither stored nor failed
        self._is_flushing = False
        self._next_id = secrets.randbits(63)
        self._id_size: int | None = None  # of all records of an audited topic

    def begin_again(self) -> None:
        """In a forked child: nothing was sent; what the parent holds, the parent delivers."""
        self.counts.begin_again()
        self._begin()

    def send(
        self,
        value: bytes,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        message_id: bytes | None = None,
    ) -> Future[RecordPlace]:
        """Take a record; its future is done with its place, or fails with DeliveryFailed.

        Waits when the buffer is full, up to ``pubsub.max.block.ms``, then BufferFull. InvalidRecord for what the format
        does not hold, or a Message (``pubsub.message.bytes``). The timestamp is now unless it is given. With
        ``pubsub.audit.topic`` a record without a message id gets one of 8 bytes, and all must have the same length.
        """
        timestamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        if not -_MAX_INT64 - 1 <= timestamp <= _MAX_INT64:
            raise InvalidRecord(f"a record's timestamp {timestamp} has more than 64 bits")
        size = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD
        counts = self.counts
        with self._lock:
            if self._is_closed or self._held_bytes + size > self._settings.buffer_bytes:
                self._wait_for_room(size)
            if self._auditor is not None:
                message_id = self._audited_id(message_id)
            message = self._append(value, key, headers, message_id, timestamp)
            if self._auditor is not None and message_id:
                message.ids_hash ^= int.from_bytes(message_id)
            message.held_bytes += size
            message.min_timestamp = min(message.min_timestamp, timestamp)
            message.max_timestamp = max(message.max_timestamp, timestamp)
            self._held_bytes = counts.held_bytes = self._held_bytes + size
            self._under_way = counts.waiting_records = self._under_way + 1
            counts.records += 1
            counts.record_bytes += size - _RECORD_OVERHEAD
            future = RecordFuture(message.lock)
            message.futures.append(future)
        if self._acks == "0":
            taken: Future[RecordPlace] = Future()
            taken.set_result(UNTOLD)
            return taken
        return future

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all that was sent is stored, or has failed, which the futures tell. DeliveryFailed if that takes
        longer than ``timeout_s``; without it, than the delivery time-out."""
        longest_s = timeout_s if timeout_s is not None else 2 * self._settings.delivery_timeout_ms / 1000
        with self._changed:
            self._is_flushing = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._under_way == 0, longest_s):
                raise DeliveryFailed(
                    f"{self._under_way} records are not stored after {longest_s:g} s", maybe_stored=True
                )

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what was sent, and take no more."""
        with self._changed:
            self._is_closed = True
        try:
            self.flush(timeout_s)
        finally:
            with self._changed:
                self._changed.notify_all()
            self._end()
            if self._auditor is not None:
                self._auditor.close()
            self._forget_counts()

    @abstractmethod
    def _start(self) -> None:
        """The first record of a new Message is there: have the threads that deliver run. The lock is held."""

    @abstractmethod
    def _end(self) -> None:
        """Give back what ``_start`` took."""

    # --- into Messages; the lock is held ---

    def _wait_for_room(self, size: int) -> None:
        if self._is_closed:
            raise AlreadyClosed("the producer is closed")
        longest_s = self._settings.max_block_ms / 1000

        def has_room() -> bool:
            return self._is_closed or not self._held_bytes or self._held_bytes + size <= self._settings.buffer_bytes

        if not has_room():
            self.counts.blocked_sends += 1
        if not self._changed.wait_for(has_room, longest_s):
            self.counts.full_buffers += 1
            raise BufferFull(f"{self._held_bytes} bytes wait to be stored, for over {longest_s:g} s: the store is slow")
        if self._is_closed:
            raise AlreadyClosed("the producer was closed")

    def _append(
        self, value: bytes, key: bytes | None, headers: Headers | None, message_id: bytes | None, timestamp: int
    ) -> OpenMessage:
        message = self._open or self._new_message()
        if not message.body.append(value, key, headers, message_id, timestamp):
            if not message.body.count:
                self.counts.refused_records += 1
                raise InvalidRecord(f"a record does not fit a Message of {self._message_bytes} bytes")
            self._close_message()
            return self._append(value, key, headers, message_id, timestamp)
        if self._open is None:
            # Only now that a record is in it: a refused one begins no Message, and request ids stay dense.
            self._open = message
            self._next_request += 1
            self._start()
            self._changed.notify_all()
        return message

    def _audited_id(self, message_id: bytes | None) -> bytes:
        """Hashes of ids tell nothing of records that have none, and MemQ's consumers fail at a longer one."""
        if not message_id:
            self._next_id = (self._next_id + 1) % (1 << 64)
            message_id = self._next_id.to_bytes(8)
        if len(message_id) != (self._id_size or len(message_id)):
            self.counts.refused_records += 1
            raise InvalidRecord(
                f"a record's message id has {len(message_id)} bytes: with pubsub.audit.topic all have one length, "
                f"here {self._id_size} (8 where none is given)"
            )
        self._id_size = len(message_id)
        return message_id

    def _new_message(self) -> OpenMessage:
        request = ProducerRequest(self._address, self._epoch_ms, self._next_request)
        return OpenMessage(BodyWriter(self._message_bytes), request, self._monotonic())

    def _close_message(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None
            self.counts.messages += 1
            self._changed.notify_all()

    def _next_closed(self, first_s: float | None, linger_s: float) -> OpenMessage | Literal["due"] | None:
        """The next Message that is closed; ``due`` when ``linger_s`` have passed since ``first_s`` and there is none
        that could come with it; None when all is done. For the thread that delivers."""
        with self._changed:
            while True:
                if self._closed:
                    return self._closed.popleft()
                first = first_s if first_s is not None else self._open.first_s if self._open else None
                wait_s = None if first is None else first + linger_s - self._monotonic()
                if first is not None and (self._is_flushing or self._is_closed or (wait_s or 0) <= 0):
                    if self._open is None:
                        return "due"
                    self._close_message()
                    continue
                if first is None:
                    self._is_flushing = False
                    if self._is_closed:
                        return None
                self._changed.wait(wait_s)

    def _settle(self, messages: Sequence[OpenMessage], place: tuple[int, int] | None) -> None:
        """The Messages of a batch are delivered, to this partition and offset; None where nobody tells."""
        if self._auditor is not None:
            for message in messages:
                ids_hash = message.ids_hash.to_bytes(self._id_size or 0)
                self._auditor.tell(message.request, ids_hash, len(message.futures))
        for number, message in enumerate(messages):
            untold = repeat(UNTOLD, len(message.futures))
            places = untold if place is None else _places(*place, number, len(message.futures))
            give_places(message.futures, message.lock, places)
        with self._changed:
            self.counts.delivered_batches += 1
            self.counts.delivered_records += sum(len(message.futures) for message in messages)
        self._release(messages)

    def _fail(self, messages: Sequence[OpenMessage], failure: DeliveryFailed) -> None:
        if self._acks == "0":
            _logger.warning("%d records were not delivered: %s", sum(len(each.futures) for each in messages), failure)
        for message in messages:
            give_error(message.futures, message.lock, failure)
        with self._changed:
            self.counts.failed_records += sum(len(message.futures) for message in messages)
        self._release(messages)

    def _release(self, messages: Sequence[OpenMessage]) -> None:
        with self._changed:
            self._held_bytes -= sum(message.held_bytes for message in messages)
            self._under_way -= sum(len(message.futures) for message in messages)
            self._note_levels()
            self._changed.notify_all()

    def _note_levels(self) -> None:
        self.counts.held_bytes, self.counts.waiting_records = self._held_bytes, self._under_way


class Producer(RecordProducer):
    """Sends records to a topic without a broker: it writes the batches itself.

    ``acks="all"``: a record's future is done once its batch is stored and notified. ``"0"``: at once, and what cannot
    be delivered is logged alone. ``"1"`` needs a broker, and is refused.
    """

    def __init__(
        self, topics: Topics, topic: str, *, acks: Acks = "all", monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if acks == "1":
            raise ConfigError("acks=1 says that a broker has the record, and there is none: use all, or 0")
        self._topics = topics
        self._topic = topics.get(topic)
        super().__init__(topics.settings.pubsub, topic, acks=acks, monotonic=monotonic)

    def _begin(self) -> None:
        super()._begin()
        self._batcher: threading.Thread | None = None
        self._writer: BatchWriter | None = None
        self._uploads: ThreadPool | None = None

    def _end(self) -> None:
        if self._uploads is not None:
            self._uploads.shutdown(wait=False)
        if self._writer is not None:
            self._writer.close()

    def _start(self) -> None:
        if self._batcher is None:
            self._writer = BatchWriter(self._topics, self._topic, self._topics.queue(self._topic))
            self._uploads = ThreadPool(self._settings.uploads, "tieredstore-pubsub-upload")
            self._batcher = threading.Thread(target=self._gather, name="tieredstore-pubsub-batches", daemon=True)
            self._batcher.start()

    # --- into batches; on a thread of its own ---

    def _gather(self) -> None:
        batch = _Batch()
        linger_s = self._settings.batch_ms / 1000
        while (message := self._next_closed(batch.first_s if batch.messages else None, linger_s)) is not None:
            if isinstance(message, OpenMessage):
                sealed = message.seal(self._compression)
                if batch.messages and batch.stored_bytes + len(sealed.stored) > self._settings.batch_bytes:
                    batch = self._dispatch(batch)
                if not batch.messages:
                    batch.first_s = message.first_s
                batch.messages.append(sealed)
                batch.waiting.append(message)
                batch.stored_bytes += len(sealed.stored)
                if not self._is_full(batch):
                    continue
            batch = self._dispatch(batch)

    def _is_full(self, batch: _Batch) -> bool:
        settings = self._settings
        return batch.stored_bytes >= settings.batch_bytes or len(batch.messages) >= settings.batch_messages

    def _dispatch(self, batch: _Batch) -> _Batch:
        if batch.messages:
            assert self._uploads is not None
            self._uploads.submit(self._deliver, batch, Deadline.after(self._settings.delivery_timeout_ms / 1000))
        return _Batch()

    # --- into the store; on the threads of uploads ---

    def _deliver(self, batch: _Batch, deadline: Deadline) -> None:
        assert self._writer is not None
        try:
            place = self._writer.write(batch.messages, deadline)
        except TieredStoreError as error:
            failure = error if isinstance(error, DeliveryFailed) else DeliveryFailed(str(error), maybe_stored=True)
            self._fail(batch.waiting, failure)
        else:
            self._settle(batch.waiting, place)
