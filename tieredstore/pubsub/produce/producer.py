"""The producer: sends records to a topic, either as batches to the store or as Messages to brokers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, get_args

from tieredstore.config import settings_from
from tieredstore.errors import ConfigError
from tieredstore.process.closing import Closing
from tieredstore.process.deadline import Deadline, boot_clock_s
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.counts import PRODUCERS, ProducerCounts
from tieredstore.pubsub.format.messages import Headers
from tieredstore.pubsub.produce.batch_writer import BatchMemory, BatchWriter, SealedBatch
from tieredstore.pubsub.produce.futures import UNREPORTED, RecordPlace
from tieredstore.pubsub.produce.outbox import Acks, Delivery, OpenMessage, Outbox, Sending
from tieredstore.pubsub.queue.auditor import auditor_of
from tieredstore.pubsub.queue.memq_topics import open_topics
from tieredstore.pubsub.queue.topics import BatchLog, Topic, Topics, check_topic_name
from tieredstore.pubsub.settings import BatchClientSettings, BatchSettings
from tieredstore.remote.stores import SETTINGS_VARIABLE, NamedStore, find_store, settings_of

if TYPE_CHECKING:
    from tieredstore.config import Settings
    from tieredstore.kafka.records._slabs import SlabPool
    from tieredstore.remote.stores import StoreLike

_NO_STORE: Final = {"storage.backend.class": "memory"}


class BatchProducer(Closing):
    """Sends records to a topic: the producer stores them in batches itself, or writes to brokers. Thread-safe.

    With ``acks="all"``, a record's future completes once its batch is stored and notified. With ``"0"`` the future
    completes at once, and delivery failures are only logged. With ``"1"``, which needs brokers, the future completes
    once a broker has the record.

    Close a producer, or use it as a context manager.

    Brokers do not report a record's place, so the four numbers of a place are −1 if the producer writes to brokers.

    A Message without an answer is sent again unchanged, to another broker if there is one. Several Messages are sent at
    the same time, so a retry may change their order.

    A forked child begins with an empty outbox and a new producer id. The parent delivers its own records.

    Example::

        with tieredstore.BatchProducer("store.properties", "orders") as producer:
            place = producer.send("a value", key="a key").result()
    """

    def __init__(
        self,
        source: StoreLike | Topics,
        topic: str,
        /,
        *,
        brokers: str | None = None,
        acks: Acks = "all",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``source`` names the store; ``brokers`` are ``host:port``, separated by commas, as in ``pubsub.bootstrap``.

        With ``brokers``, the producer opens no store: ``source`` may have only ``pubsub.*`` settings, or be None.

        Raise TopicNotFoundError if the store has no such topic. With ``brokers``, the first delivery reports a missing
        topic.
        """
        check_topic_name(topic)
        if acks not in get_args(Acks):
            raise ConfigError(f"acks is {acks!r:.60}; it must be all, 1 or 0")
        given = source if isinstance(source, Topics) else _settings_of(source, brokers)
        settings = given.settings if isinstance(given, Topics) else given
        client = settings.section(BatchClientSettings) if brokers is None else _client_of(settings, brokers)
        pool: SlabPool | None = None
        with contextlib.ExitStack() as opened:
            if brokers is not None or (client.bootstrap and not isinstance(given, Topics)):
                from tieredstore.pubsub.produce import broker_producer  # noqa: PLC0415  asyncio and TLS

                batches = settings.section(BatchSettings)
                message_bytes = min(batches.message_bytes, broker_producer.MOST_MESSAGE_BYTES)
                self._new_delivery: Callable[[Sending], Delivery] = partial(
                    broker_producer.BrokerDelivery, topic=topic, client=client
                )
            elif acks == "1":
                raise ConfigError("acks=1 waits for a broker, but no brokers are set: use all or 0")
            else:
                topics = opened.enter_context(open_topics(given))
                batches, message_bytes = topics.batches, topics.batches.message_bytes
                pool = topics.memory if batches.compression == "none" else None
                self._new_delivery = partial(StoreDelivery, topics=topics, topic=topics.get(topic))
            if (auditor := auditor_of(batches, topic, is_producer=True)) is not None:
                opened.enter_context(auditor)
            self._sending = Sending(batches, acks, auditor, message_bytes, pool, monotonic)
            self._outbox = Outbox(self._sending, self._new_delivery(self._sending))
            opened.callback(PRODUCERS.add(self._count))
            self._opened = opened.pop_all()
        self.counts: ProducerCounts = self._sending.counts
        self._is_unacked = acks == "0"
        self._is_closed = False
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset the producer in a forked child, because the child has sent nothing."""
        self.counts.begin_again()
        self._outbox = Outbox(self._sending, self._new_delivery(self._sending))
        if self._is_closed:
            self._outbox.close(0.0)

    def send(
        self,
        value: bytes | str,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        message_id: bytes | None = None,
    ) -> Future[RecordPlace]:
        """Send a record; return a future that completes with the record's place or fails with DeliveryFailedError.
        Strings are encoded as UTF-8.

        The timestamp defaults to now. With ``pubsub.audit.topic``, a record without a message id gets an id of 8 bytes.
        A Message has ids of one length only, so a record with an id of another length begins a new Message.

        If the buffer is full, wait up to ``pubsub.max.block.ms``, then raise BufferFullError. Raise InvalidRecordError
        if the record does not fit the format or a Message (``pubsub.message.bytes``).
        """
        value = value.encode() if isinstance(value, str) else value
        key = key.encode() if isinstance(key, str) else key
        future = self._outbox.put(value, key, headers, timestamp_ms, message_id)
        if self._is_unacked:
            taken: Future[RecordPlace] = Future()
            taken.set_result(UNREPORTED)
            return taken
        return future

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record is stored or has failed; the futures show which.

        Raise DeliveryFailedError after ``timeout_s``, by default twice the delivery timeout.
        """
        self._outbox.flush(self._longest_s(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver all records, and take no more."""
        self._is_closed = True
        with self._opened:
            self._outbox.close(self._longest_s(timeout_s))

    def _count(self) -> dict[str, int]:
        return self._outbox.count()

    def _longest_s(self, timeout_s: float | None) -> float:
        longest_s = 2 * self._sending.settings.delivery_timeout_ms / 1000 if timeout_s is None else timeout_s
        return min(longest_s, threading.TIMEOUT_MAX)  # the caller may give math.inf


def _settings_of(source: StoreLike, brokers: str | None) -> Settings:
    """Load the settings. With ``brokers``, the settings need not name a store."""
    if brokers is None:
        return settings_of(source)
    is_empty = source is None and not os.environ.get(SETTINGS_VARIABLE)
    found = find_store({} if is_empty else source)
    return found.load(_NO_STORE) if isinstance(found, NamedStore) else found


def _client_of(settings: Settings, brokers: str) -> BatchClientSettings:
    """Return the settings for clients of brokers, with ``brokers`` as the addresses to contact first."""
    if not brokers or not isinstance(brokers, str):  # pyright: ignore[reportUnnecessaryIsInstance]  unchecked input
        raise ConfigError(f"brokers is {brokers!r:.60}; give host:port, separated by commas")
    named = settings_from({**_NO_STORE, "pubsub.bootstrap": brokers}, source="brokers").section(BatchClientSettings)
    return settings.section(BatchClientSettings).model_copy(update={"bootstrap": named.bootstrap})


@dataclass(slots=True)
class _Batch(SealedBatch):
    """A batch, and the outbox's Messages that it stores."""

    waiting: list[OpenMessage] = field(default_factory=list[OpenMessage])
    memory: BatchMemory | None = None
    """Memory that already holds the batch's Messages in order. None if the Messages must first be copied together."""


class StoreDelivery:
    """Delivery to the store: combines Messages into batches on one thread, and writes the batches on upload threads."""

    def __init__(self, sending: Sending, topics: Topics, topic: Topic) -> None:
        self._sending = sending
        self._settings = sending.settings
        self._topics = topics
        self._topic = topic
        self._started: tuple[BatchWriter, ThreadPool] | None = None

    def start(self, outbox: Outbox) -> None:
        """Start the threads unless they run."""
        if self._started is None:
            writer = BatchWriter(BatchLog(self._topics, self._topic))
            self._started = writer, ThreadPool(self._settings.uploads, "tieredstore-pubsub-upload")
            name = "tieredstore-pubsub-batches"
            threading.Thread(target=self._gather, args=(outbox, *self._started), name=name, daemon=True).start()

    def stop(self) -> None:
        """Stop the threads after the remaining batches."""
        if self._started is not None:
            writer, uploads = self._started
            uploads.shutdown(wait=False)
            writer.close()

    def _gather(self, outbox: Outbox, writer: BatchWriter, uploads: ThreadPool) -> None:
        batch = _Batch(self._settings)

        def dispatch() -> None:
            nonlocal batch
            if batch.messages:
                deadline = Deadline.after(self._settings.delivery_timeout_ms / 1000, boot_clock_s)
                uploads.submit(_deliver, outbox, writer, batch, deadline)
            batch = _Batch(self._settings)

        linger_s = self._settings.batch_ms / 1000
        while (message := outbox.next(batch.waiting, linger_s)) is not None:
            if not isinstance(message, OpenMessage):
                dispatch()
                continue
            sealed = message.seal(self._sending.compression)
            # A Message written in place is already in the memory of its batch, so the batch has room for it. Only the
            # packer's BatchEnd ends that batch.
            is_in_place = message.memory is not None
            if not is_in_place and not batch.has_room_for(sealed):
                dispatch()
            if not batch.messages:
                batch.memory = message.memory
            batch.add(sealed)
            batch.waiting.append(message)
            if not is_in_place and batch.is_full:
                dispatch()


def _deliver(outbox: Outbox, writer: BatchWriter, batch: _Batch, deadline: Deadline) -> None:
    try:
        place = writer.write(batch.messages, deadline, memory=batch.memory)
    except Exception as error:  # noqa: BLE001  any error fails the Messages
        outbox.fail(batch.waiting, error)
    else:
        outbox.settle(batch.waiting, place)
