"""Batch topics for tests, on a store in memory or in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.stores.doubles import ScriptedStore
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.filesystem.store import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.errors import DataLossError
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.consume.partition_state import ConsumedRecord
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, seal_message
from tieredstore.pubsub.format.notifications import BatchFacts, Notification, parse_notification
from tieredstore.pubsub.produce.batch_writer import SealedMessage
from tieredstore.pubsub.produce.futures import RecordPlace
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.queues import QueuedNotification
from tieredstore.pubsub.queue.topics import Topics


def topics_on(store: ObjectStore | None = None, **properties: str) -> Topics:
    """Return the topics of a store. ``properties`` are ``pubsub`` settings, with ``_`` for dots."""
    given = {f"pubsub.{name.replace('_', '.')}": text for name, text in properties.items()}
    settings = settings_from({"storage.backend.class": "memory", "chunk.size": "4194304", **given})
    return Topics(MemoryObjectStore() if store is None else store, settings)


def topics_in(folder: Path, **properties: str) -> Topics:
    """Return the topics of a folder, which processes can share."""
    return topics_on(FilesystemObjectStore(folder), **properties)


def records_of(consumer: BatchConsumer, timeout_s: float = 0.01, at_least: int = 0) -> list[ConsumedRecord]:
    """Read records until there are ``at_least`` and the queue is empty, for two minutes at most.

    A read without records does not prove the end, because any thread may stall on a busy machine. So look at the queue
    too. This allows a short timeout.
    """
    records: list[ConsumedRecord] = []
    give_up_s = time.monotonic() + 120
    while time.monotonic() < give_up_s:
        got = list(consumer.records(timeout_s))
        records += got
        if len(records) >= at_least and not got and not _is_behind(consumer):
            break
    return records


def _is_behind(consumer: BatchConsumer) -> bool:
    """Return True if the queue has entries that the consumer has not returned."""
    queue = consumer._queue  # pyright: ignore[reportPrivateUsage]
    try:
        return any(queue.read(partition, position.offset) for partition, position in consumer.position().items())
    except DataLossError:  # the next read reports or skips the loss
        return True


def values_of(consumer: BatchConsumer, timeout_s: float = 0.01, at_least: int = 0) -> list[bytes]:
    """Return the values of :func:`records_of`."""
    return [record.value for record in records_of(consumer, timeout_s, at_least)]


def publish(topics: Topics, values: list[bytes], topic: str = "orders") -> list[RecordPlace]:
    """Send all values, wait until they are written, and return their places."""
    with BatchProducer(topics, topic) as producer:
        futures = [producer.send(value) for value in values]
        producer.flush()
        return [future.result(0) for future in futures]


def orders_on(store: ObjectStore | None = None, partitions: int = 1, **properties: str) -> Topics:
    """Return the result of :func:`topics_on`, after creating the topic ``orders`` in it."""
    topics = topics_on(store, **properties)
    topics.create("orders", partitions)
    return topics


def fresh_topics(partitions: int = 1, **properties: str) -> Topics:
    """Return topics in memory with the topic ``orders``.

    By default, a batch ends only by its size or a flush. An end by time would be random, because any time may pass
    between two records on a busy machine.
    """
    return orders_on(None, partitions, **{"batch_ms": "60000"} | properties)


def read_values(topics: Topics, at_least: int = 0) -> list[bytes]:
    """Return the values of ``orders``, read by a new consumer."""
    with BatchConsumer(topics, "orders") as consumer:
        return values_of(consumer, at_least=at_least)


def entries_of(topics: Topics, partition: int = 0) -> list[QueuedNotification]:
    """Return the queue of ``orders``."""
    with topics.queue(topics.get("orders")) as queue:
        return list(queue.walk(partition))


def notified(topics: Topics, partition: int = 0) -> list[Notification]:
    """Return the notifications of ``orders``."""
    return [parse_notification(entry.raw, "queue") for entry in entries_of(topics, partition)]


def facts_of(topics: Topics, partition: int = 0) -> list[BatchFacts]:
    """Return the facts that we add to MemQ's notifications."""
    told = [notification.facts for notification in notified(topics, partition)]
    assert None not in told
    return [facts for facts in told if facts is not None]


def request_ids(topics: Topics, partitions: int = 1) -> list[int]:
    """Return the ids of all requests in notifications, in order."""
    facts = [each for partition in range(partitions) for each in facts_of(topics, partition)]
    return sorted(request.request_id for each in facts for request in each.requests(1 << 30))


def sealed_message(request: ProducerRequest, *values: bytes, timestamp_ms: int = 0) -> SealedMessage:
    """Seal a Message like a producer, without compression."""
    body = BodyWriter(1 << 20)
    for value in values:
        assert body.take(value, None, None, None, timestamp_ms) >= 0
    stored = seal_message(body, len(values), request, Compression.NONE)
    return SealedMessage(stored, request, len(values), timestamp_ms, timestamp_ms)


def run_together(*works: Callable[[], object]) -> None:
    """Run each function on a separate thread, wait for all, and raise the first exception."""
    with ThreadPoolExecutor(len(works)) as pool:
        for running in [pool.submit(work) for work in works]:
            running.result(120)


def topics_later(topics: Topics, days: int) -> Topics:
    """Return the same topics in a store whose clock is this many days ahead."""
    later = ScriptedStore(topics.store).change("now_ms", change=lambda now_ms: now_ms and now_ms + days * 86_400_000)
    return Topics(later, topics.settings)


def batch_keys(topics: Topics) -> list[str]:
    """Return the objects of all topics."""
    return [info.key for info in topics.store.list() if "!tieredstore" not in info.key]
