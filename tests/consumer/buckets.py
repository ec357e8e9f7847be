"""A bucket that grows during a test, and consumers that read it without a broker."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from confluent_kafka import TopicPartition

from tests.support.records.topic_buckets import Bucket, value_of
from tieredstore.consumer import Consumer
from tieredstore.errors import BrokerUnavailableError, StoreUnavailableError
from tieredstore.model import TopicIdPartition
from tieredstore.remote import RemoteStorageManager

ORDERS: Final = ("orders", 0)
OTHERS: Final = ("orders", 1)
PLACE: Final = TopicPartition(*ORDERS)
DEADLINE_S: Final = 60.0
"""Time limit of waits. A wait that succeeds takes much less."""


def at(offset: int, partition: int = 0) -> TopicPartition:
    return TopicPartition("orders", partition, offset)


@contextmanager
def reader_of(bucket: Bucket, *assigned: TopicPartition, makers: Any = None, **own: Any) -> Generator[Consumer]:
    """Yield a consumer of the bucket alone, with this assignment and properties ``own`` (``_`` means ``.``)."""
    named = {
        (f"tiered.storage.{name}" if name == "loss_cb" else name.replace("_", ".")): value
        for name, value in own.items()
    }
    given = {
        "group.id": "readers", "tiered.storage.mode": "remote_only",
        "tiered.storage.settings": bucket.options | {"chunk.size": "16384"}, "tiered.storage.refresh.ms": 50,
        "auto.offset.reset": "earliest", **named,
    }  # fmt: skip
    kind: Any = Consumer if makers is None else type("OwnConsumer", (Consumer,), {"_makers": makers})
    with kind(given) as consumer:
        if assigned:
            consumer.assign(list(assigned))
        yield consumer


def until(consumer: Consumer, is_enough: Callable[[list[Any]], bool], *, count: int = 100) -> list[Any]:
    """Consume until ``is_enough`` accepts the messages; return them."""
    messages: list[Any] = []
    end = time.monotonic() + DEADLINE_S
    while not is_enough(messages):
        assert time.monotonic() < end, [message.offset() for message in messages][-5:]
        messages += consumer.consume(count, 0.05)
    return messages


def read(consumer: Consumer, count: int) -> list[Any]:
    """Return this many messages. Assert that none is an error, and that each value matches the message's offset."""
    messages = until(consumer, lambda given: len(given) >= count)
    for message in messages:
        assert message.error() is None
        assert message.value() == value_of(message.topic(), message.partition(), message.offset())
    return messages


def read_patiently(consumer: Consumer, count: int) -> list[Any]:
    """Return this many messages after an outage. Ignore errors of the outage, which may come late on a busy machine."""
    messages: list[Any] = []
    end = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < end, [message.offset() for message in messages][-5:]
        with contextlib.suppress(BrokerUnavailableError, StoreUnavailableError):
            messages += consumer.consume(100, 0.05)
    return messages


def offsets_of(messages: list[Any], partition: int = 0) -> list[int]:
    return [message.offset() for message in messages if message.partition() == partition]


def raised(consumer: Consumer, kind: type[BaseException]) -> BaseException:
    """Poll until an error of this kind is raised; return it."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        try:
            consumer.poll(0.05)
        except kind as error:
            return error
    raise AssertionError(f"no {kind.__name__} was raised")


class Fetches:
    """Hook that runs before each fetch of a segment, by any consumer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[TopicIdPartition], object] = lambda _: None
        fetch = RemoteStorageManager.fetch_log_segment

        def fetch_log_segment(manager: RemoteStorageManager, metadata: Any, *rest: Any, **named: Any) -> Any:
            self.before(metadata.topic_id_partition)
            return fetch(manager, metadata, *rest, **named)

        monkeypatch.setattr(RemoteStorageManager, "fetch_log_segment", fetch_log_segment)

    def hold(self, partition: int | None = None) -> threading.Event:
        """Block fetches of all partitions, or of one, until the event is set."""
        goes_on = threading.Event()
        self.before = lambda where: goes_on.wait(2 * DEADLINE_S) if partition in (None, where.partition) else None
        return goes_on

    def fail(self, error: Exception) -> None:
        """Make each fetch raise this error."""

        def before(_: object) -> None:
            raise error

        self.before = before

    def go_on(self) -> None:
        """Remove the hook."""
        self.before = lambda _: None
