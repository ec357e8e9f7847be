"""The topics that a broker knows, and the brokers that serve them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.config import Settings
from tieredstore.errors import ConfigError, CorruptDataError, StoreError, TieredStoreError, TopicNotFoundError
from tieredstore.process.log_once import LogOnce
from tieredstore.pubsub.format.packets import BrokerAddress, TopicMetadata
from tieredstore.pubsub.governor.assigning import TopicLoad
from tieredstore.pubsub.queue.queues import KAFKA
from tieredstore.pubsub.queue.topics import Topic, Topics
from tieredstore.pubsub.settings import BatchSettings

_logger: Final = logging.getLogger(__name__)

_UNKNOWN_S: Final = 2.0
_MOST_UNKNOWN: Final = 1000


class Assignment(ABC):
    """The brokers of each topic. The event loop calls these methods for each request, so they must answer from
    memory."""

    @abstractmethod
    def serves(self, topic: str) -> bool:
        """Return True if this broker takes Messages of the topic."""

    @abstractmethod
    def writers(self, topic: str) -> tuple[BrokerAddress, ...]:
        """Return the brokers that take Messages of the topic."""

    @abstractmethod
    def readers(self, topic: str) -> tuple[BrokerAddress, ...]:
        """Return the brokers that serve reads of the topic."""


class AllTopics(Assignment):
    """A single broker with all topics."""

    def __init__(self, address: Callable[[], BrokerAddress], *, serves_reads: bool) -> None:
        self._address = address
        self._serves_reads = serves_reads

    def serves(self, topic: str) -> bool:  # noqa: ARG002  the same for every topic
        """Return True."""
        return True

    def writers(self, topic: str) -> tuple[BrokerAddress, ...]:  # noqa: ARG002  as above
        """Return this broker."""
        return (self._address(),)

    def readers(self, topic: str) -> tuple[BrokerAddress, ...]:  # noqa: ARG002  as above
        """Return this broker if it serves reads."""
        return (self._address(),) if self._serves_reads else ()


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as brokers know it: its load, and the storage that metadata answers describe to clients.

    ``stored`` is the topic's cluster and definition. It is None if this broker cannot store the topic, because MemQ
    keeps it in another bucket, or with another storage handler. Clients still get the topic's metadata. ``document`` is
    the topic's JSON in MemQ's format, or None.
    """

    load: TopicLoad
    handler: str
    properties: tuple[tuple[str, str], ...]
    stored: tuple[Topics, Topic] | None = None
    document: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.load.topic

    def metadata(self, assignment: Assignment) -> TopicMetadata:
        """Return the metadata for clients: the topic's brokers and storage."""
        writers, readers = assignment.writers(self.name), assignment.readers(self.name)
        return TopicMetadata(self.name, writers, self.handler, self.properties, readers)


class TopicSource(ABC):
    """A source of topics, such as a store or ZooKeeper. Its methods may block, so brokers call them on a thread."""

    @abstractmethod
    def all(self) -> Iterable[KnownTopic]:
        """Return all topics."""

    @abstractmethod
    def get(self, name: str) -> KnownTopic | None:
        """Return the topic of this name; None if there is none."""

    def close(self) -> None:
        """Release resources."""
        return


class StoreTopics(TopicSource):
    """Topics created by ``pubsub topics --create``."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._once = LogOnce(_logger)

    def all(self) -> Iterable[KnownTopic]:
        """Yield the topics that can be read from the store. Log each error about other topics once."""
        for name in self._topics.names():
            try:
                topic = self._topics.get(name)
            except TopicNotFoundError:
                continue
            except (ConfigError, CorruptDataError) as error:
                self._once.warn(f"skipping a topic: {error}")
                continue
            yield self._make_known(topic)

    def get(self, name: str) -> KnownTopic | None:
        """Return a topic of the store."""
        try:
            return self._make_known(self._topics.get(name))
        except (TopicNotFoundError, ConfigError):
            return None

    def _make_known(self, topic: Topic) -> KnownTopic:
        settings = self._topics.settings
        load = TopicLoad(topic.name, settings.section(BatchSettings).batch_bytes)
        handler, properties = _handler(topic, settings)
        return KnownTopic(load, handler, tuple(properties.items()), (self._topics, topic))


class Directory:
    """The topics that were read last. ``refresh`` and ``look`` send requests, so brokers call them on a thread."""

    def __init__(self, *sources: TopicSource, monotonic: Callable[[], float] = time.monotonic) -> None:
        """If several ``sources`` have a topic of the same name, use the topic of the first of these sources."""
        self._sources, self._monotonic = sources, monotonic
        self._known: dict[str, KnownTopic] = {}
        self._unknown: dict[str, float] = {}
        self._once = LogOnce(_logger)

    def refresh(self) -> None:
        """Read all topics again. A deleted topic stays known, as with MemQ's brokers, so that Messages for it can still
        be stored."""
        for source in reversed(self._sources):
            self._known |= {known.name: known for known in source.all()}

    def try_refresh(self) -> bool:
        """Refresh the topics. If a source fails, log each error once, keep the known topics and return False."""
        try:
            self.refresh()
        except TieredStoreError as error:
            self._once.warn(f"cannot refresh the topics: {error}")
            return False
        return True

    def look(self, name: str) -> KnownTopic | None:
        """Look up a topic that may be new. Return None if there is none. Any error becomes a TieredStoreError."""
        try:
            known = next((known for source in self._sources if (known := source.get(name)) is not None), None)
        except TieredStoreError:
            raise
        except Exception as error:
            # Turn every error into an answer, because until then the clients wait, and their requests hold the broker's
            # memory.
            _logger.exception("cannot look up topic %r", name)
            raise own_error(error) from error
        if known is None:
            # Limit the memory, because clients may ask for any number of names that do not exist.
            if len(self._unknown) >= _MOST_UNKNOWN:
                self._unknown.clear()
            self._unknown[name] = self._monotonic() + _UNKNOWN_S
            return None
        self._known |= {name: known}
        return known

    def close(self) -> None:
        """Close the sources."""
        for source in self._sources:
            source.close()

    def get(self, name: str) -> KnownTopic | None:
        """Return a topic from memory; None if it was never read from a source."""
        return self._known.get(name)

    def is_unknown(self, name: str) -> bool:
        """Return True if a recent lookup found no topic of this name."""
        return self._unknown.get(name, 0.0) > self._monotonic()

    def has_looked(self, name: str) -> bool:
        """Return True if the topic is known, or a recent lookup found no such topic."""
        return name in self._known or self.is_unknown(name)

    def all(self) -> list[KnownTopic]:
        """Return all topics that were read, by name."""
        return sorted(self._known.values(), key=lambda known: known.name)


def _handler(topic: Topic, settings: Settings) -> tuple[str, dict[str, str]]:
    """Return MemQ's storage handler and its properties."""
    properties = {"path": topic.path, "enableHashing": "true" if topic.is_hashed else "false"}
    if topic.queue == KAFKA:
        properties["notificationTopic"] = topic.queue_name
    if settings.s3 is None:
        return settings.storage_backend, properties
    s3 = {"bucket": settings.s3.bucket_name, "region": settings.s3.region}
    return "s3v2", {**{name: text for name, text in s3.items() if text}, **properties}


def own_error(error: Exception) -> TieredStoreError:
    """Return the error that clients get for an unforeseen error. Its text names the type of ``error``, but no
    details."""
    return StoreError(f"internal error of the broker: {type(error).__name__}")


TICK_S: Final = 1.5
"""Seconds between ticks."""


def rest_s(took_s: float) -> float:
    """Return the pause in seconds after a tick that took ``took_s``, so that ticks begin at the even intervals that
    other brokers expect."""
    return max(TICK_S / 5, TICK_S - took_s)


class Governor(Assignment):
    """An assignment decided by the elected (governing) broker. Only one thread calls ``tick`` and ``leave``."""

    generation: int | None = None
    """A number that grows with each change of the governing broker; None if this broker does not govern."""

    @abstractmethod
    def tick(self) -> None:
        """Announce this broker, find the other brokers, assign topics if this broker governs, and read the
        assignments.
        """

    @abstractmethod
    def leave(self) -> bool:
        """Withdraw this broker, so that its topics go to other brokers. Call :meth:`follow` to learn when they have
        moved. Return False if there is no other broker.
        """

    @abstractmethod
    def follow(self) -> None:
        """After :meth:`leave`, read the assignments. A topic stays at this broker until another broker has it."""

    def close(self) -> None:
        """Release resources."""
        return
