"""What one task of a query writes: its records into Messages, these into batches, which are stored and not notified."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import Future
from typing import Final

from tieredstore.errors import TieredStoreError
from tieredstore.process.closing import Closing
from tieredstore.process.deadline import Deadline
from tieredstore.process.futures import outcome
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.errors import InvalidRecord
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, Headers, ProducerRequest, new_address, seal_message
from tieredstore.pubsub.format.notifications import Notification
from tieredstore.pubsub.produce.batch_writer import BatchWriter, SealedMessage
from tieredstore.pubsub.produce.sink import StoredBatch
from tieredstore.pubsub.queue.topics import Topic, Topics

_MAX_INT64: Final = (1 << 63) - 1


class SinkBatches(Closing):
    """Stores the batches of a task, whose keys have ``name`` in them; memory holds a batch more than there are uploads.

    Each has keys and a producer of its own, so that two tries of one task never meet: the driver notifies of one. For
    one thread.
    """

    def __init__(self, topics: Topics, topic: Topic, name: str) -> None:
        self._topics = topics
        self._settings = topics.batches
        self._compression = Compression.named(self._settings.compression)
        self._writer = BatchWriter(topics, topic, topics.queue(topic), host=name)
        self._pool = ThreadPool(self._settings.uploads, "tieredstore-pubsub-sink")
        self._under_way: deque[Future[Notification]] = deque()
        self._stored: list[StoredBatch] = []
        self._address, self._epoch_ms = new_address(), time.time_ns() // 1_000_000
        self._next_request = 0
        self._sealed: list[SealedMessage] = []
        self._sealed_bytes = 0
        self._body = BodyWriter(self._settings.message_bytes)
        self._id_size = 0
        self._first_ms, self._last_ms = _MAX_INT64, -_MAX_INT64 - 1

    def add(
        self, value: bytes, key: bytes | None, headers: Headers | None, message_id: bytes | None, timestamp_ms: int
    ) -> None:
        """Take a record; InvalidRecord for what the format, or a Message, does not hold. Waits for uploads."""
        if message_id and self._id_size not in (0, len(message_id)) and self._body.count:
            self._seal_message()  # MemQ's reader ends at a Message with ids of two lengths
        if not self._body.append(value, key, headers, message_id, timestamp_ms):
            if not self._body.count:
                raise InvalidRecord(f"a record does not fit a Message of {self._settings.message_bytes} bytes")
            self._seal_message()
            self.add(value, key, headers, message_id, timestamp_ms)
            return
        self._id_size = len(message_id or b"") or self._id_size
        self._first_ms, self._last_ms = min(self._first_ms, timestamp_ms), max(self._last_ms, timestamp_ms)

    def finish(self) -> tuple[StoredBatch, ...]:
        """All that was taken is stored, as these batches; DeliveryFailed if it cannot be."""
        if self._body.count:
            self._seal_message()
        self._seal_batch()
        while self._under_way:
            self._take_stored()
        return tuple(self._stored)

    def discard(self) -> None:
        """Delete what was stored, as far as that is possible: the rest are orphans, which ``pubsub gc`` names."""
        while self._under_way:
            with contextlib.suppress(TieredStoreError):
                self._take_stored()
        with contextlib.suppress(TieredStoreError):
            self._topics.store.delete([batch.key for batch in self._stored])

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._writer.close()

    def _seal_message(self) -> None:
        request = ProducerRequest(self._address, self._epoch_ms, self._next_request)
        self._next_request += 1
        stored = seal_message(self._body, self._body.count, request, self._compression)
        if self._sealed and self._sealed_bytes + len(stored) > self._settings.batch_bytes:
            self._seal_batch()
        self._sealed.append(SealedMessage(stored, request, self._body.count, self._first_ms, self._last_ms))
        self._sealed_bytes += len(stored)
        self._body, self._id_size = BodyWriter(self._settings.message_bytes), 0
        self._first_ms, self._last_ms = _MAX_INT64, -_MAX_INT64 - 1
        if self._sealed_bytes >= self._settings.batch_bytes or len(self._sealed) >= self._settings.batch_messages:
            self._seal_batch()

    def _seal_batch(self) -> None:
        if not self._sealed:
            return
        if len(self._under_way) >= self._settings.uploads:
            self._take_stored()
        deadline = Deadline.after(self._settings.delivery_timeout_ms / 1000)
        self._under_way.append(self._pool.submit(self._writer.store, self._sealed, deadline))
        self._sealed, self._sealed_bytes = [], 0

    def _take_stored(self) -> None:
        notification = outcome(self._under_way.popleft())
        assert notification.key is not None
        self._stored.append(StoredBatch(notification.key, notification.to_json()))
