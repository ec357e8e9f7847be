"""Producers: records to a topic, by batches that the producer stores itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.process.closing import Closing
from tieredstore.process.deadline import Deadline
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.counts import PRODUCERS
from tieredstore.pubsub.errors import DeliveryFailedError
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import ADDRESS_BYTES, Compression, Headers, ProducerRequest, message_header
from tieredstore.pubsub.produce.batch_writer import BatchMemory, BatchWriter, SealedBatch, room_for
from tieredstore.pubsub.produce.futures import UNTOLD, RecordPlace
from tieredstore.pubsub.produce.outbox import Acks, OpenMessage, Outbox, Packer, PlainPacker, Sending
from tieredstore.pubsub.queue.auditor import auditor_of
from tieredstore.pubsub.queue.topics import Topic, Topics


class RecordProducer(Closing):
    """Sends records by an outbox, which ``new_outbox`` makes. Thread-safe.

    A forked child has a new, empty outbox, which names its Messages otherwise: what the parent holds, the parent
    delivers.
    """

    def __init__(self, sending: Sending, new_outbox: Callable[[Sending], Outbox]) -> None:
        self.counts = sending.counts
        self._sending = sending
        self._new_outbox = new_outbox
        self._is_unacked = sending.acks == "0"
        self._is_closed = False
        self._outbox = new_outbox(sending)
        self._forget_counts = PRODUCERS.add(self._count)
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """In a forked child: nothing was sent."""
        self.counts.begin_again()
        self._outbox = self._new_outbox(self._sending)
        if self._is_closed:
            self._outbox.close(0.0)

    def send(
        self,
        value: bytes,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        message_id: bytes | None = None,
    ) -> Future[RecordPlace]:
        """Take a record; its future is done with its place, or fails with DeliveryFailedError.

        Waits when the buffer is full, up to ``pubsub.max.block.ms``, then BufferFullError. InvalidRecordError for what
        the format does not hold, or a Message (``pubsub.message.bytes``). The timestamp is now unless it is given. With
        ``pubsub.audit.topic`` a record without a message id gets one of 8 bytes. An id of another length than those of
        the open Message begins another one.
        """
        future = self._outbox.put(value, key, headers, timestamp_ms, message_id)
        if self._is_unacked:
            taken: Future[RecordPlace] = Future()
            taken.set_result(UNTOLD)
            return taken
        return future

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all that was sent is stored, or has failed, which the futures tell. DeliveryFailedError if that
        takes longer than ``timeout_s``; without it, than the delivery time-out."""
        self._outbox.flush(self._longest_s(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver what was sent, and take no more."""
        self._is_closed = True
        try:
            self._outbox.close(self._longest_s(timeout_s))
        finally:
            if self._sending.auditor is not None:
                self._sending.auditor.close()
            self._forget_counts()

    def _count(self) -> dict[str, int]:
        return self._outbox.count()

    def _longest_s(self, timeout_s: float | None) -> float:
        return 2 * self._sending.settings.delivery_timeout_ms / 1000 if timeout_s is None else timeout_s


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
        settings, found = topics.batches, topics.get(topic)
        auditor = auditor_of(settings, topic, is_producer=True)

        def new_outbox(sending: Sending) -> Outbox:
            delivery = StoreDelivery(sending, topics, found)
            return Outbox(sending, delivery.packer, delivery)

        super().__init__(Sending(settings, acks, auditor, settings.message_bytes, monotonic), new_outbox)


_HEADER_BYTES: Final = message_header(b"", 0, ProducerRequest(bytes(ADDRESS_BYTES), 0, 0), Compression.NONE).size
_LEAST_SHARE: Final = 8
"""What is left of a batch is no Message any more when it is less than this share of one."""


class BatchPacker:
    """Has the records of a Message that is stored as it is come at once to where it lies in its batch."""

    def __init__(self, sending: Sending, pool: SlabPool) -> None:
        self._settings = sending.settings
        self._message_bytes = sending.message_bytes
        self._pool = pool
        self._memory: BatchMemory | None = None

    def open(self) -> tuple[BodyWriter, BatchMemory | None]:
        """What is left of the batch, or of a new one."""
        settings = self._settings
        if self._memory is None:
            messages = room_for(settings.batch_messages, settings.batch_bytes, self._message_bytes)
            least = _HEADER_BYTES + self._message_bytes
            self._memory = BatchMemory(self._pool, settings.batch_bytes, messages, least=least)
        return self._memory.body(self._message_bytes, _HEADER_BYTES), self._memory

    def close(self, message: OpenMessage) -> bool:
        """Hold the Message; whether what is left is too little for another one."""
        if (memory := message.memory) is None:
            return False
        memory.hold(_HEADER_BYTES + len(message.body))
        is_last = memory.left < _HEADER_BYTES + self._message_bytes // _LEAST_SHARE
        if is_last:
            self._memory = None
        return is_last

    def has_other_room(self) -> bool:
        """A new batch has more than what is left of one with Messages."""
        if self._memory is None or not self._memory.messages:
            return False
        self._memory = None
        return True

    def end_batch(self) -> None:
        """The next Message begins another one."""
        self._memory = None


@dataclass(slots=True)
class _Batch(SealedBatch):
    """One whose Messages somebody waits for."""

    waiting: list[OpenMessage] = field(default_factory=list[OpenMessage])
    first_s: float = 0.0
    memory: BatchMemory | None = None
    """Where its Messages lie already as they are stored."""


class StoreDelivery:
    """Gathers batches on a thread of its own, and writes them on others."""

    def __init__(self, sending: Sending, topics: Topics, topic: Topic) -> None:
        self._sending = sending
        self._settings = sending.settings
        self._topics = topics
        self._topic = topic
        is_plain = sending.compression is Compression.NONE
        self.packer: Packer = BatchPacker(sending, topics.memory) if is_plain else PlainPacker(sending.message_bytes)
        self._started: tuple[BatchWriter, ThreadPool] | None = None

    def start(self, outbox: Outbox) -> None:
        """Have the threads run, if they do not yet."""
        if self._started is None:
            writer = BatchWriter(self._topics, self._topic, self._topics.queue(self._topic))
            self._started = writer, ThreadPool(self._settings.uploads, "tieredstore-pubsub-upload")
            name = "tieredstore-pubsub-batches"
            threading.Thread(target=self._gather, args=(outbox, *self._started), name=name, daemon=True).start()

    def stop(self) -> None:
        """Begin no more."""
        if self._started is not None:
            writer, uploads = self._started
            uploads.shutdown(wait=False)
            writer.close()

    def _gather(self, outbox: Outbox, writer: BatchWriter, uploads: ThreadPool) -> None:
        batch = _Batch(self._settings)

        def dispatch() -> None:
            nonlocal batch
            if batch.messages:
                deadline = Deadline.after(self._settings.delivery_timeout_ms / 1000)
                uploads.submit(_deliver, outbox, writer, batch, deadline)
            batch = _Batch(self._settings)

        linger_s = self._settings.batch_ms / 1000
        while (message := outbox.next(batch.first_s if batch.messages else None, linger_s)) is not None:
            if not isinstance(message, OpenMessage):
                dispatch()
                continue
            sealed = message.seal(self._sending.compression)
            # Where Messages lie as a batch, it has its end from where they were laid.
            is_laid = message.memory is not None
            if not is_laid and not batch.has_room_for(sealed):
                dispatch()
            if not batch.messages:
                batch.first_s, batch.memory = message.first_s, message.memory
            batch.add(sealed)
            batch.waiting.append(message)
            if not is_laid and batch.is_full:
                dispatch()


def _deliver(outbox: Outbox, writer: BatchWriter, batch: _Batch, deadline: Deadline) -> None:
    try:
        place = writer.write(batch.messages, deadline, memory=batch.memory)
    except TieredStoreError as error:
        failure = (
            error if isinstance(error, DeliveryFailedError) else DeliveryFailedError(str(error), maybe_stored=True)
        )
        outbox.fail(batch.waiting, failure)
    else:
        outbox.settle(batch.waiting, place)
