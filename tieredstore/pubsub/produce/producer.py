"""Producers: records to a topic, by batches that the producer stores itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from tieredstore.errors import ConfigError
from tieredstore.process.closing import Closing
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.pubsub.counts import PRODUCERS
from tieredstore.pubsub.format.messages import Headers
from tieredstore.pubsub.produce.futures import UNTOLD, RecordPlace
from tieredstore.pubsub.produce.outbox import Acks, Outbox, Sending
from tieredstore.pubsub.produce.store_delivery import StoreDelivery
from tieredstore.pubsub.queue.auditor import auditor_of
from tieredstore.pubsub.queue.topics import Topics


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
        self._forget_counts = PRODUCERS.add(self._counted)
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
        """Take a record; its future is done with its place, or fails with DeliveryFailed.

        Waits when the buffer is full, up to ``pubsub.max.block.ms``, then BufferFull. InvalidRecord for what the format
        does not hold, or a Message (``pubsub.message.bytes``). The timestamp is now unless it is given. With
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
        """Return when all that was sent is stored, or has failed, which the futures tell. DeliveryFailed if that takes
        longer than ``timeout_s``; without it, than the delivery time-out."""
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

    def _counted(self) -> dict[str, int]:
        return self._outbox.counted()

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
