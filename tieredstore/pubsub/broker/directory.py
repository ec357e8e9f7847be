"""The topics that a broker knows, and who serves them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from tieredstore.config import Settings
from tieredstore.errors import ConfigError, TieredStoreError, TopicNotFound
from tieredstore.pubsub.format.packets import BrokerAddress, TopicMetadata
from tieredstore.pubsub.topics import Topic, Topics

_logger: Final = logging.getLogger(__name__)

_UNKNOWN_S: Final = 2.0
_MOST_UNKNOWN: Final = 1000


class Assignment(ABC):
    """Which broker has which topics. Asked on the broker's loop, for each request: it answers from memory."""

    @abstractmethod
    def serves(self, topic: str) -> bool:
        """Whether this broker takes Messages of the topic."""

    @abstractmethod
    def writers(self, topic: str) -> tuple[BrokerAddress, ...]:
        """The brokers that take Messages of the topic."""

    @abstractmethod
    def readers(self, topic: str) -> tuple[BrokerAddress, ...]:
        """The brokers that give out objects of the topic."""


class AllTopics(Assignment):
    """One broker alone, which has all."""

    def __init__(self, address: Callable[[], BrokerAddress], *, serves_reads: bool) -> None:
        self._address = address
        self._serves_reads = serves_reads

    def serves(self, topic: str) -> bool:  # noqa: ARG002  of every topic the same
        """Yes."""
        return True

    def writers(self, topic: str) -> tuple[BrokerAddress, ...]:  # noqa: ARG002  as above
        """This one."""
        return (self._address(),)

    def readers(self, topic: str) -> tuple[BrokerAddress, ...]:  # noqa: ARG002  as above
        """This one, if it does that."""
        return (self._address(),) if self._serves_reads else ()


class Directory:
    """The topics as they were last read. ``refresh`` and ``look`` ask the store, on a thread; the rest is memory."""

    def __init__(self, topics: Topics, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._topics = topics
        self._monotonic = monotonic
        self._known: dict[str, Topic] = {}
        self._unknown: dict[str, float] = {}

    def refresh(self) -> None:
        """Read all topics. One that is gone stays known, as at MemQ's brokers: what was sent for it has its place."""
        self._known |= {topic.name: topic for topic in self._topics.list()}

    def look(self, name: str) -> Topic | None:
        """Ask the store for a topic that may be new; None if there is none. An error of the store is raised."""
        try:
            topic = self._topics.get(name)
        except (TopicNotFound, ConfigError):
            if len(self._unknown) >= _MOST_UNKNOWN:  # names that a client makes up cost no memory
                self._unknown.clear()
            self._unknown[name] = self._monotonic() + _UNKNOWN_S
            return None
        self._known |= {name: topic}
        return topic

    def known(self, name: str) -> Topic | None:
        """A topic that was read."""
        return self._known.get(name)

    def is_unknown(self, name: str) -> bool:
        """Whether the store was asked a moment ago, and had none of that name."""
        return self._unknown.get(name, 0.0) > self._monotonic()

    def all(self) -> list[Topic]:
        """All that were read, by name."""
        return sorted(self._known.values(), key=lambda topic: topic.name)


def metadata_of(topic: Topic, settings: Settings, assignment: Assignment) -> TopicMetadata:
    """What a client is told of a topic: who takes its Messages, and how they are stored."""
    handler, properties = _handler(topic, settings)
    writers, readers = assignment.writers(topic.name), assignment.readers(topic.name)
    return TopicMetadata(topic.name, writers, handler, tuple(properties.items()), readers)


def _handler(topic: Topic, settings: Settings) -> tuple[str, dict[str, str]]:
    """MemQ's storage handler and its properties."""
    properties = {"path": topic.path, "enableHashing": "true" if topic.is_hashed else "false"}
    if settings.s3 is None:
        return settings.storage_backend, properties
    s3 = {"bucket": settings.s3.bucket_name, "region": settings.s3.region}
    return "s3v2", {**{name: text for name, text in s3.items() if text}, **properties}


def refreshed(directory: Directory) -> bool:
    """Refresh; False, and a line in the log, if the store does not answer: what was known holds."""
    try:
        directory.refresh()
    except TieredStoreError as error:
        _logger.warning("the topics could not be read again: %s", error)
        return False
    return True
