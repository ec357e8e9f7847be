"""What all producers are: records into Messages within a buffer, and what becomes of them to whoever waits for it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, TypeAlias

from tieredstore.errors import AlreadyClosed, BufferFull, DeliveryFailed, InvalidRecord
from tieredstore.process.closing import Closing
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.pubsub.counts import PRODUCERS, ProducerCounts
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, Headers, ProducerRequest, new_address, seal_body
from tieredstore.pubsub.produce.batch_memory import BatchMemory
from tieredstore.pubsub.produce.batch_writer import SealedMessage
from tieredstore.pubsub.produce.futures import UNTOLD, MessageOutcome, RecordFuture, RecordPlace
from tieredstore.pubsub.queue.auditor import auditor_of
from tieredstore.pubsub.settings import BatchSettings

Acks: TypeAlias = Literal["0", "1", "all"]

_logger: Final = logging.getLogger(__name__)
_MOST: Final = (1 << 63) - 1
_LENGTHS: Final = 21  # what a record has beside its bytes as it is written: lengths, and its time


@dataclass(slots=True)
class OpenMessage:
    """A Message in the making, and what its futures are told."""

    body: BodyWriter
    request: ProducerRequest
    first_s: float
    memory: BatchMemory | None = None
    """Of the batch in which it lies already."""
    outcome: MessageOutcome = field(default_factory=MessageOutcome)
    ids_hash: int = 0
    id_size: int = 0
    """Bytes of its message ids: MemQ's reader ends at a Message with ids of two lengths."""

    def takes(self, message_id: bytes | None) -> bool:
        """Whether a record with this id may be in it; one without any always may."""
        return not message_id or self.id_size in (0, len(message_id)) or not self.body.count

    def note_id(self, message_id: bytes | None, *, is_audited: bool) -> None:
        """A record with this id is in it."""
        if message_id:
            self.id_size = len(message_id)
            if is_audited:
                self.ids_hash ^= int.from_bytes(message_id)

    def seal(self, compression: Compression) -> SealedMessage:
        """The Message as it goes out; nothing comes behind."""
        stored = seal_body(self.body, self.request, compression)
        return SealedMessage(stored, self.request, self.body.count, self.body.least_ms, self.body.most_ms)


class RecordProducer(Closing):
    """Takes records into Messages, within a buffer; where they go is said by who derives. Thread-safe; a forked child
    has a new, empty producer under another name."""

    def __init__(
        self,
        settings: BatchSettings,
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
        self._begin()
        self._forget_counts = PRODUCERS.add(self._counted)
        begin_again_after_fork(self)

    def _begin(self) -> None:
        self._address = new_address()
        self._epoch_ms = time.time_ns() // 1_000_000
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open: OpenMessage | None = None
        self._closed: deque[OpenMessage | Literal["due"]] = deque()
        self._next_request = 0
        # Of Messages that are closed and neither stored nor failed; what the open one may come to beside them.
        self._closed_bytes = self._closed_records = self._room_for_open = 0
        self._is_plain = not self._is_closed and self._auditor is None
        self._is_flushing = False
        self._next_id = secrets.randbits(63)

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
        ``pubsub.audit.topic`` a record without a message id gets one of 8 bytes. An id of another length than those of
        the open Message begins another one.
        """
        with self._lock:
            message = self._open
            number = -1
            if self._is_plain and message is not None and (not message_id or len(message_id) == message.id_size):
                number = message.body.take(value, key, headers, message_id, timestamp_ms, self._room_for_open)
            if message is None or number < 0:
                message, number = self._take(value, key, headers, message_id, timestamp_ms)
        if self._acks == "0":
            taken: Future[RecordPlace] = Future()
            taken.set_result(UNTOLD)
            return taken
        return RecordFuture(message.outcome, number)

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
            self._is_closed, self._is_plain = True, False
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

    def _take(
        self,
        value: bytes,
        key: bytes | None,
        headers: Headers | None,
        message_id: bytes | None,
        timestamp_ms: int | None,
    ) -> tuple[OpenMessage, int]:
        """A record that may need room, another Message, or an id: its Message, and its number there."""
        size = len(value or b"") + len(key or b"") + _LENGTHS
        if self._is_closed or self._held_bytes + size > self._settings.buffer_bytes:
            self._wait_for_room(size)
        if self._auditor is not None:
            message_id = self._audited_id(message_id)
        while True:
            message = self._open or self._new_message()
            if not message.takes(message_id):
                self._close_message()
                continue
            number = message.body.take(value, key, headers, message_id, timestamp_ms, _MOST)
            if number >= 0:
                break
            if message.body.count:
                self._close_message()
            elif not self._has_more_room():
                self.counts.refused_records += 1
                raise InvalidRecord(f"a record does not fit a Message of {self._message_bytes} bytes")
        if self._open is None:
            # Only now that a record is in it: a refused one begins no Message, and request ids stay dense.
            self._open = message
            self._next_request += 1
            self._start()
            self._changed.notify_all()
        message.note_id(message_id, is_audited=self._auditor is not None)
        self._room_for_open = self._settings.buffer_bytes - self._closed_bytes
        return message, number

    def _has_more_room(self) -> bool:
        """Whether the next Message has room for what did not fit the last one, which was empty."""
        return False

    @property
    def _held_bytes(self) -> int:
        """What records take that were sent, and are neither stored nor failed."""
        return self._closed_bytes + (0 if self._open is None else len(self._open.body))

    @property
    def _under_way(self) -> int:
        """How many these are."""
        return self._closed_records + (0 if self._open is None else self._open.body.count)

    def _wait_for_room(self, size: int) -> None:
        if self._is_closed:
            raise AlreadyClosed("the producer is closed")
        longest_s = self._settings.max_block_ms / 1000

        def has_room() -> bool:
            held = self._held_bytes
            return self._is_closed or not held or held + size <= self._settings.buffer_bytes

        if not has_room():
            self.counts.blocked_sends += 1
        if not self._changed.wait_for(has_room, longest_s):
            self.counts.full_buffers += 1
            raise BufferFull(f"{self._held_bytes} bytes wait to be stored, for over {longest_s:g} s: the store is slow")
        if self._is_closed:
            raise AlreadyClosed("the producer was closed")

    def _audited_id(self, message_id: bytes | None) -> bytes:
        """Hashes of ids tell nothing of records that have none."""
        if not message_id:
            self._next_id = (self._next_id + 1) % (1 << 64)
            message_id = self._next_id.to_bytes(8)
        return message_id

    def _new_message(self) -> OpenMessage:
        return OpenMessage(BodyWriter(self._message_bytes), self._next(), self._monotonic())

    def _next(self) -> ProducerRequest:
        """What names the next Message."""
        return ProducerRequest(self._address, self._epoch_ms, self._next_request)

    def _close_message(self) -> None:
        message, self._open = self._open, None
        if message is not None:
            self._closed.append(message)
            self._closed_bytes += len(message.body)
            self._closed_records += message.body.count
            self.counts.messages += 1
            self.counts.records += message.body.count
            self.counts.record_bytes += message.body.payload
            self._changed.notify_all()

    def _batch_ends(self) -> None:
        """Messages that begin from now on are another batch's."""

    def _next_closed(self, first_s: float | None, linger_s: float) -> OpenMessage | Literal["due"] | None:
        """The next Message that is closed; ``due`` behind the last one of a batch: ``linger_s`` have passed
        since ``first_s``, or the batch has no more room; None when all is done. For the thread that delivers."""
        with self._changed:
            while True:
                if self._closed:
                    return self._closed.popleft()
                first = first_s if first_s is not None else self._open.first_s if self._open else None
                wait_s = None if first is None else first + linger_s - self._monotonic()
                if first is not None and (self._is_flushing or self._is_closed or (wait_s or 0) <= 0):
                    self._batch_ends()
                    if self._open is None:
                        return "due"
                    self._close_message()
                    self._closed.append("due")
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
                ids_hash = message.ids_hash.to_bytes(message.id_size)
                self._auditor.tell(message.request, ids_hash, message.body.count)
        for number, message in enumerate(messages):
            if place is None:
                message.outcome.stands_somewhere()
            else:
                message.outcome.stands_at(*place, number)
        with self._changed:
            self.counts.delivered_batches += 1
            self.counts.delivered_records += sum(message.body.count for message in messages)
        self._release(messages)

    def _fail(self, messages: Sequence[OpenMessage], failure: DeliveryFailed) -> None:
        if self._acks == "0":
            _logger.warning("%d records were not delivered: %s", sum(each.body.count for each in messages), failure)
        for message in messages:
            message.outcome.failed(failure)
        with self._changed:
            self.counts.failed_records += sum(message.body.count for message in messages)
        self._release(messages)

    def _release(self, messages: Sequence[OpenMessage]) -> None:
        with self._changed:
            self._closed_bytes -= sum(len(message.body) for message in messages)
            self._closed_records -= sum(message.body.count for message in messages)
            self._changed.notify_all()

    def _counted(self) -> dict[str, int]:
        """What was counted, the open Message and what is the case now with it."""
        with self._lock:
            counted = asdict(self.counts)
            if self._open is not None:
                counted["records"] += self._open.body.count
                counted["record_bytes"] += self._open.body.payload
            return counted | {"held_bytes": self._held_bytes, "waiting_records": self._under_way}
