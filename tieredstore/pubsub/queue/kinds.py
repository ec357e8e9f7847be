"""Which queue a topic has: in the store, in Kafka, or a class of an installed package."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from tieredstore.config.installed import QUEUES, installed_class
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.pubsub.queue.own_objects import OwnFolder
from tieredstore.pubsub.queue.queues import NotificationQueue
from tieredstore.pubsub.settings import BatchSettings

STORE: Final = "store"
KAFKA: Final = "kafka"
LOOK_AGAIN_S: Final = 30.0
"""As a queue in Kafka asks how many partitions there are."""

_CLASSES: Final = {
    STORE: "tieredstore.pubsub.queue.store_queue:StoreQueue",
    KAFKA: "tieredstore.pubsub.queue.kafka_queue:KafkaQueue",
}


@dataclass(frozen=True, slots=True)
class QueueSite:
    """What a queue is opened by. ``name`` is what the queue is called where it lies, ``partitions`` how many the topic
    had when it was looked up, and ``partitions_now`` looks again."""

    folder: OwnFolder
    topic: str
    partitions: int
    name: str
    settings: BatchSettings
    partitions_now: Callable[[], int] | None = None


class TopicPartitions:
    """How many read partitions a topic has, which may be given more while somebody writes or reads: looked up every
    30 s, and never fewer than were known."""

    def __init__(self, site: QueueSite, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._known = site.partitions
        self._look = site.partitions_now
        self._monotonic = monotonic
        self._until_s = monotonic() + LOOK_AGAIN_S

    def __call__(self) -> int:
        """By a request now and then; what was known where nobody answers."""
        if self._look is not None and self._monotonic() >= self._until_s:
            self._until_s = self._monotonic() + LOOK_AGAIN_S
            with contextlib.suppress(TieredStoreError):
                self._known = max(self._known, self._look())
        return self._known


class _OpenedBySite(Protocol):
    def open(self, site: QueueSite) -> NotificationQueue: ...


def open_queue(kind: str, site: QueueSite) -> NotificationQueue:
    """The queue of a topic: ``store``, ``kafka``, or what an installed package calls ``kind`` among its entry points
    ``tieredstore.queues``: a class that derives from NotificationQueue, with a class method ``open(site)``.

    Nothing is connected to yet. ConfigError for a kind that there is not.
    """
    return cast("_OpenedBySite", _queue_class(kind)).open(site)


def queue_name(kind: str, topic: str, settings: BatchSettings) -> str:
    """What the queue of a new topic is called."""
    return topic if kind == STORE else settings.queue_topic or f"{topic}_notifications"


def _queue_class(kind: str) -> type[NotificationQueue]:
    try:
        path = _CLASSES.get(kind) or installed_class(QUEUES, kind)
    except ValueError as error:
        raise ConfigError(f"pubsub.queue {kind!r:.120}: {error}") from error
    if path is None:
        known = ", ".join(_CLASSES)
        raise ConfigError(f"pubsub.queue {kind!r:.120} is neither one of {known} nor a queue of an installed package")
    module, _, name = path.partition(":")
    try:
        queue_class: object = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the queue {kind} cannot be loaded: {error}; is its extra installed?") from error
    if not (isinstance(queue_class, type) and issubclass(queue_class, NotificationQueue)):
        raise ConfigError(f"{path} is not a class that derives from NotificationQueue")
    if not callable(getattr(queue_class, "open", None)):
        raise ConfigError(f"{path} has no class method open(site) to open a topic's queue by")
    return queue_class
