"""Which queue a topic has: in the store, in Kafka, or a class of an installed package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from tieredstore.config.installed import QUEUES, installed_class
from tieredstore.config.pubsub import PubsubSettings
from tieredstore.errors import ConfigError
from tieredstore.pubsub.own_objects import OwnFolder
from tieredstore.pubsub.queues import NotificationQueue

STORE: Final = "store"
KAFKA: Final = "kafka"
_CLASSES: Final = {
    STORE: "tieredstore.pubsub.store_queue:StoreQueue",
    KAFKA: "tieredstore.pubsub.kafka_queue:KafkaQueue",
}


@dataclass(frozen=True, slots=True)
class QueueSite:
    """What a queue is opened by. ``name`` is what the queue is called where it lies, ``partitions`` what the topic was
    made with."""

    folder: OwnFolder
    topic: str
    partitions: int
    name: str
    settings: PubsubSettings


class _OpenedBySite(Protocol):
    def open(self, site: QueueSite) -> NotificationQueue: ...


def open_queue(kind: str, site: QueueSite) -> NotificationQueue:
    """The queue of a topic: ``store``, ``kafka``, or what an installed package calls ``kind`` among its entry points
    ``tieredstore.queues``: a class that derives from NotificationQueue, with a class method ``open(site)``.

    Nothing is connected to yet. ConfigError for a kind that there is not.
    """
    return cast("_OpenedBySite", _queue_class(kind)).open(site)


def queue_name(kind: str, topic: str, settings: PubsubSettings) -> str:
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
