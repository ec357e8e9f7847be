"""The topics that a broker knows, and who serves them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.config import Settings
from tieredstore.errors import ConfigError, CorruptDataError, StoreError, TieredStoreError, TopicNotFoundError
from tieredstore.pubsub.format.packets import BrokerAddress, TopicMetadata
from tieredstore.pubsub.governor.assigning import TopicLoad
from tieredstore.pubsub.queue.queues import KAFKA
from tieredstore.pubsub.queue.topics import Topic, Topics
from tieredstore.pubsub.settings import BatchSettings

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


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as brokers speak of it: what it needs of them, and what clients are told of how it is stored.

    ``topic`` and ``topics``, with its settings, are there if this broker can store it: a topic of MemQ's may be in
    another bucket, or have another handler, and is told of all the same. ``document`` is MemQ's JSON, if it has any.
    """

    load: TopicLoad
    handler: str
    properties: tuple[tuple[str, str], ...]
    topic: Topic | None = None
    topics: Topics | None = None
    document: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.load.topic


class TopicSource(ABC):
    """Where topics are looked up. Asked on a thread; an error of it is raised."""

    @abstractmethod
    def all(self) -> Iterable[KnownTopic]:
        """Each of them."""

    @abstractmethod
    def get(self, name: str) -> KnownTopic | None:
        """The one of that name, None if there is none."""

    def close(self) -> None:
        """Let go of what it holds."""
        return


class StoreTopics(TopicSource):
    """Topics that ``pubsub topics --create`` made."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._complaints: dict[str, str] = {}

    def all(self) -> Iterable[KnownTopic]:
        """Each of the store that can be read; others are a line in the log, once."""
        for name in self._topics.names():
            try:
                topic = self._topics.get(name)
            except TopicNotFoundError:
                continue
            except (ConfigError, CorruptDataError) as error:
                if self._complaints.get(name) != str(error):
                    self._complaints[name] = str(error)
                    _logger.warning("a topic is passed over: %s", error)
                continue
            self._complaints.pop(name, None)
            yield self._known(topic)

    def get(self, name: str) -> KnownTopic | None:
        """One of the store."""
        try:
            return self._known(self._topics.get(name))
        except (TopicNotFoundError, ConfigError):
            return None

    def _known(self, topic: Topic) -> KnownTopic:
        settings = self._topics.settings
        load = TopicLoad(topic.name, settings.section(BatchSettings).batch_bytes)
        handler, properties = _handler(topic, settings)
        return KnownTopic(load, handler, tuple(properties.items()), topic, self._topics)


class Directory:
    """The topics as they were last read. ``refresh`` and ``look`` ask the sources, on a thread; the rest is memory."""

    def __init__(self, *sources: TopicSource, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Of a name that several ``sources`` have, the first one's topic counts."""
        self._sources = sources
        self._monotonic = monotonic
        self._known: dict[str, KnownTopic] = {}
        self._unknown: dict[str, float] = {}

    def refresh(self) -> None:
        """Read all topics. One that is gone stays known, as at MemQ's brokers: what was sent for it has its place."""
        for source in reversed(self._sources):
            self._known |= {known.name: known for known in source.all()}

    def look(self, name: str) -> KnownTopic | None:
        """Ask for a topic that may be new; None if there is none. A TieredStoreError for whatever error of a source."""
        try:
            known = next((known for source in self._sources if (known := source.get(name)) is not None), None)
        except TieredStoreError:
            raise
        except Exception as error:
            # Clients wait for an answer, and keep the broker's room until they have one.
            _logger.exception("topic %r cannot be looked up", name)
            raise own_error(error) from error
        if known is None:
            if len(self._unknown) >= _MOST_UNKNOWN:  # names that a client makes up cost no memory
                self._unknown.clear()
            self._unknown[name] = self._monotonic() + _UNKNOWN_S
            return None
        self._known |= {name: known}
        return known

    def close(self) -> None:
        """Let go of what the sources hold."""
        for source in self._sources:
            source.close()

    def known(self, name: str) -> KnownTopic | None:
        """A topic that was read."""
        return self._known.get(name)

    def is_unknown(self, name: str) -> bool:
        """Whether it was asked for a moment ago, and there was none of that name."""
        return self._unknown.get(name, 0.0) > self._monotonic()

    def all(self) -> list[KnownTopic]:
        """All that were read, by name."""
        return sorted(self._known.values(), key=lambda known: known.name)


def metadata_of(known: KnownTopic, assignment: Assignment) -> TopicMetadata:
    """What a client is told of a topic: who takes its Messages, and how they are stored."""
    writers, readers = assignment.writers(known.name), assignment.readers(known.name)
    return TopicMetadata(known.name, writers, known.handler, known.properties, readers)


def _handler(topic: Topic, settings: Settings) -> tuple[str, dict[str, str]]:
    """MemQ's storage handler and its properties."""
    properties = {"path": topic.path, "enableHashing": "true" if topic.is_hashed else "false"}
    if topic.queue == KAFKA:
        properties["notificationTopic"] = topic.queue_name
    if settings.s3 is None:
        return settings.storage_backend, properties
    s3 = {"bucket": settings.s3.bucket_name, "region": settings.s3.region}
    return "s3v2", {**{name: text for name, text in s3.items() if text}, **properties}


def own_error(error: Exception) -> TieredStoreError:
    """What clients are told of an error that should not be."""
    return StoreError(f"an error of the broker's own: {type(error).__name__}")


def refresh_known(directory: Directory) -> bool:
    """Refresh; False, and a line in the log, if the store does not answer: what was known holds."""
    try:
        directory.refresh()
    except TieredStoreError as error:
        _logger.warning("the topics could not be read again: %s", error)
        return False
    return True


TICK_S: Final = 1.5
"""Seconds from one tick to the next."""


def rest_s(took_s: float) -> float:
    """How long to wait after a tick that took so long: others count the seconds from beat to beat."""
    return max(TICK_S / 5, TICK_S - took_s)


class Governor(Assignment):
    """``tick``, and ``leave`` at the end, are for one thread; what it answers to the broker's loop is from memory."""

    generation: int | None = None
    """Grows from one that governs to the next; None while another broker does."""

    @abstractmethod
    def tick(self) -> None:
        """Say that this broker lives, look who does, govern if it is this one's turn, read what is assigned."""

    @abstractmethod
    def leave(self) -> bool:
        """Give up the seat: others have its topics soon, which :meth:`follow` tells. False if there is no other."""

    @abstractmethod
    def follow(self) -> None:
        """After :meth:`leave`: read what is assigned by now. Topics that nobody has taken yet are this broker's."""

    def close(self) -> None:
        """Let go of everything."""
        return
