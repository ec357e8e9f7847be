"""A producer without a broker: records into Messages, Messages into batches, batches into the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tieredstore.errors import ConfigError, DeliveryFailed, TieredStoreError
from tieredstore.process.deadline import Deadline
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.format.messages import ADDRESS_BYTES, Compression, ProducerRequest, message_header
from tieredstore.pubsub.produce.batch_memory import BatchMemory, room_for
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.produce.record_producer import Acks, OpenMessage, RecordProducer
from tieredstore.pubsub.queue.topics import Topics

_HEADER_BYTES: Final = message_header(b"", 0, ProducerRequest(bytes(ADDRESS_BYTES), 0, 0), Compression.NONE).size
_LEAST_SHARE: Final = 8
"""What is left of a batch is no Message any more when it is less than this share of one."""


@dataclass(slots=True)
class _Batch:
    """Sealed Messages that go together."""

    messages: list[SealedMessage] = field(default_factory=list[SealedMessage])
    waiting: list[OpenMessage] = field(default_factory=list[OpenMessage])
    stored_bytes: int = 0
    first_s: float = 0.0
    memory: BatchMemory | None = None
    """Where its Messages lie already as they are stored."""


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
        super().__init__(topics.batches, topic, acks=acks, monotonic=monotonic)

    def _begin(self) -> None:
        super()._begin()
        self._batcher: threading.Thread | None = None
        self._writer: BatchWriter | None = None
        self._uploads: ThreadPool | None = None
        self._memory: BatchMemory | None = None

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

    # --- into Messages; the lock is held ---

    def _new_message(self) -> OpenMessage:
        """What is stored as it is comes at once to where it lies in its batch; to be compressed it lies by itself."""
        if self._compression is not Compression.NONE:
            return super()._new_message()
        if self._memory is not None and self._memory.left < _HEADER_BYTES + self._message_bytes // _LEAST_SHARE:
            self._end_batch()
        memory = self._memory = self._memory or self._new_memory()
        body = memory.body(self._message_bytes, _HEADER_BYTES)
        return OpenMessage(body, self._next(), self._monotonic(), memory)

    def _new_memory(self) -> BatchMemory:
        settings = self._settings
        messages = room_for(settings.batch_messages, settings.batch_bytes, self._message_bytes)
        least = _HEADER_BYTES + self._message_bytes
        return BatchMemory(self._topics.memory, settings.batch_bytes, messages, least=least)

    def _has_more_room(self) -> bool:
        if self._memory is None or not self._memory.messages:
            return False
        self._end_batch()
        return True

    def _close_message(self) -> None:
        message = self._open
        super()._close_message()
        if message is not None and message.memory is not None:
            message.memory.hold(_HEADER_BYTES + len(message.body))

    def _end_batch(self) -> None:
        """All Messages of the batch are closed, and no more will come."""
        self._batch_ends()
        self._closed.append("due")
        self._changed.notify_all()

    def _batch_ends(self) -> None:
        self._memory = None

    # --- into batches; on a thread of its own ---

    def _gather(self) -> None:
        batch = _Batch()
        linger_s = self._settings.batch_ms / 1000
        while (message := self._next_closed(batch.first_s if batch.messages else None, linger_s)) is not None:
            batch = self._dispatch(batch) if message == "due" else self._gathered(message, batch)

    def _gathered(self, message: OpenMessage, batch: _Batch) -> _Batch:
        """The batch that is open once the Message is in one."""
        sealed = message.seal(self._compression)
        # Where Messages lie as a batch, it has its end from where they were laid.
        is_laid = message.memory is not None
        if not is_laid and batch.messages and batch.stored_bytes + len(sealed.stored) > self._settings.batch_bytes:
            batch = self._dispatch(batch)
        if not batch.messages:
            batch.first_s, batch.memory = message.first_s, message.memory
        batch.messages.append(sealed)
        batch.waiting.append(message)
        batch.stored_bytes += len(sealed.stored)
        return self._dispatch(batch) if not is_laid and self._is_full(batch) else batch

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
            place = self._writer.write(batch.messages, deadline, memory=batch.memory)
        except TieredStoreError as error:
            failure = error if isinstance(error, DeliveryFailed) else DeliveryFailed(str(error), maybe_stored=True)
            self._fail(batch.waiting, failure)
        else:
            self._settle(batch.waiting, place)
