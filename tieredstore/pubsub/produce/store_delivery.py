"""Messages of a producer into batches, and these into the store."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from tieredstore.errors import TieredStoreError
from tieredstore.kafka.records._slabs import SlabPool
from tieredstore.process.deadline import Deadline
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.errors import DeliveryFailed
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import ADDRESS_BYTES, Compression, ProducerRequest, message_header
from tieredstore.pubsub.produce.batch_memory import BatchMemory, room_for
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.produce.outbox import OpenMessage, Outbox, Packer, PlainPacker, Sending
from tieredstore.pubsub.queue.topics import Topic, Topics

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
class _Batch:
    """Sealed Messages that go together."""

    messages: list[SealedMessage] = field(default_factory=list[SealedMessage])
    waiting: list[OpenMessage] = field(default_factory=list[OpenMessage])
    stored_bytes: int = 0
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
        batch = _Batch()

        def dispatch() -> None:
            nonlocal batch
            if batch.messages:
                deadline = Deadline.after(self._settings.delivery_timeout_ms / 1000)
                uploads.submit(_deliver, outbox, writer, batch, deadline)
            batch = _Batch()

        linger_s = self._settings.batch_ms / 1000
        while (message := outbox.next(batch.first_s if batch.messages else None, linger_s)) is not None:
            if not isinstance(message, OpenMessage):
                dispatch()
                continue
            sealed = message.seal(self._sending.compression)
            # Where Messages lie as a batch, it has its end from where they were laid.
            is_laid = message.memory is not None
            if not is_laid and batch.messages and batch.stored_bytes + len(sealed.stored) > self._settings.batch_bytes:
                dispatch()
            if not batch.messages:
                batch.first_s, batch.memory = message.first_s, message.memory
            batch.messages.append(sealed)
            batch.waiting.append(message)
            batch.stored_bytes += len(sealed.stored)
            if not is_laid and self._is_full(batch):
                dispatch()

    def _is_full(self, batch: _Batch) -> bool:
        settings = self._settings
        return batch.stored_bytes >= settings.batch_bytes or len(batch.messages) >= settings.batch_messages


def _deliver(outbox: Outbox, writer: BatchWriter, batch: _Batch, deadline: Deadline) -> None:
    try:
        place = writer.write(batch.messages, deadline, memory=batch.memory)
    except TieredStoreError as error:
        failure = error if isinstance(error, DeliveryFailed) else DeliveryFailed(str(error), maybe_stored=True)
        outbox.fail(batch.waiting, failure)
    else:
        outbox.settle(batch.waiting, place)
