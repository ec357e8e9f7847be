"""The partitions that this broker leads, according to the settings, the cluster's metadata or ZooKeeper."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tieredstore.config.named_class import import_class
from tieredstore.errors import BrokerDeniedError, BrokerUnavailableError, ConfigError, TieredStoreError
from tieredstore.installation import Extra
from tieredstore.model import TopicPartition, Uuid
from tieredstore.process.forks import ForkSafeLock
from tieredstore.uploader.broker import AUTO, STATIC, ZOOKEEPER, BrokerEnvironment
from tieredstore.uploader.topics import name_topics

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from tieredstore.live.broker_state import BrokerState

_logger: Final = logging.getLogger(__name__)

UNKNOWN_S = 30.0
"""After this time without an answer, leadership counts as unknown."""


class Leadership(ABC):
    """Finds the partitions that this uploader's broker leads. Subclasses take the environment as their only
    argument.
    """

    def __init__(self, environment: BrokerEnvironment) -> None:
        self.environment = environment

    @abstractmethod
    def led(self) -> Collection[TopicPartition] | None:
        """Return the partitions that this broker leads now, or None if it leads all local partitions. The uploader
        calls this every second.

        Raise a TieredStoreError if leadership is unknown. The caller then uses its last answer for up to 30 seconds.
        """

    def watch(self, partitions: Collection[TopicPartition]) -> None:  # noqa: B027  subclasses may ignore the call
        """Record the local partitions, so that ``led`` may leave out all others. The uploader calls this after each
        check of the folders.
        """

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, Uuid | None] | None:
        """Return the topics' present ids in the cluster; None if there is no source to ask.

        The id is None for a topic that does not exist, and zero for a topic without an id. Omit a topic if it is
        unknown whether it exists. The uploader calls this when a partition's folder is gone. Raise a TieredStoreError
        if nothing is known about any topic now.
        """
        del topics
        return None

    def close(self) -> None:  # noqa: B027  the default has no connections
        """Release connections."""


class StaticLeadership(Leadership):
    """Leadership for ``uploader.leadership=static``: this broker leads all partitions in its log directories."""

    def led(self) -> None:
        """Return None, for all local partitions."""
        return


class ClusterLeadership(Leadership):
    """Leadership from the cluster's metadata, with KRaft and ZooKeeper alike."""

    def __init__(self, environment: BrokerEnvironment, broker: BrokerState) -> None:
        super().__init__(environment)
        self._broker = broker
        self._topics: frozenset[str] = frozenset()
        self._unlisted: frozenset[str] = frozenset()

    def watch(self, partitions: Collection[TopicPartition]) -> None:
        """Record the local topics, to warn of those that the cluster does not show to this login."""
        self._topics = frozenset(topic for topic, _ in partitions)

    def led(self) -> Collection[TopicPartition]:
        """Read all leaders by one metadata request."""
        own, leaders = self.environment.broker_id, self._broker.leaders()
        self._warn_of_denied(self._topics - {topic for topic, _ in leaders})
        return frozenset(where for where, leader in leaders.items() if leader == own)

    def _warn_of_denied(self, unlisted: frozenset[str]) -> None:
        """Warn of the topics that the login may not describe. The list of all topics omits them, as it omits deleted
        topics, so ask by name."""
        if new := unlisted - self._unlisted:
            try:
                denied = new - self._broker.topic_ids(new).keys()
            except BrokerDeniedError:
                denied = new
            except TieredStoreError:
                return  # ask again at the next call
            if denied:
                _logger.warning(
                    "%s: not shipped: this Kafka login has no right Describe on the topic, so its leader is unknown; "
                    "grant the right, or set uploader.topics.exclude",
                    name_topics(sorted(denied)),
                )
        self._unlisted = unlisted

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, Uuid | None]:
        """Read the ids by one metadata request."""
        return self._broker.topic_ids(topics)


class LeadershipView:
    """The last answer of a `Leadership`, and its age. Thread-safe."""

    def __init__(self, leadership: Leadership, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.source = leadership
        self._monotonic = monotonic
        self._lock = ForkSafeLock()
        self._led: Collection[TopicPartition] | None = ()
        self._answered_s: float | None = None

    def refresh(self) -> None:
        """Read the partitions' leaders again. On an error, keep the last answer and raise the error."""
        led = self.source.led()
        with self._lock:
            self._led, self._answered_s = led, self._monotonic()

    @property
    def is_known(self) -> bool:
        """True if the last answer is still valid."""
        answered_s = self._answered_s
        return answered_s is not None and self._monotonic() - answered_s <= UNKNOWN_S

    @property
    def is_new(self) -> bool:
        """True if the last answer is at most a third of ``UNKNOWN_S`` old."""
        answered_s = self._answered_s
        return answered_s is not None and self._monotonic() - answered_s <= UNKNOWN_S / 3

    @property
    def was_ever_known(self) -> bool:
        """True if there ever was an answer."""
        return self._answered_s is not None

    def leads(self, where: TopicPartition) -> bool:
        """Return True if this broker leads the partition according to the last answer."""
        led = self._led
        return led is None or where in led


def leadership_of(name: str, environment: BrokerEnvironment, broker: BrokerState | None) -> Leadership:
    """Create the leadership that ``uploader.leadership`` names. Raise ConfigError if ``name`` is a class that
    cannot be used.
    """
    if name == STATIC:
        return StaticLeadership(environment)
    if name == AUTO:
        assert broker is not None
        return ClusterLeadership(environment, broker)
    if name == ZOOKEEPER:
        return ZooKeeperLeadership(environment)
    own_class: type[Leadership] = import_class(
        "uploader.leadership", name, Leadership,
        "not auto, zookeeper, static or a Python class that can be imported",
    )  # fmt: skip
    return own_class(environment)


_SESSION_S: Final = 18.0
_AT_ONCE: Final = 1000
_NOBODY: Final = -1


class ZooKeeperLeadership(Leadership):
    """Leadership from ``/brokers/topics/<topic>/partitions/<partition>/state`` in ZooKeeper.

    A partition's state is read again after ZooKeeper reports a change. Only states of local partitions are read (see
    :meth:`watch`). Without a connection, leadership is unknown.
    """

    def __init__(self, environment: BrokerEnvironment, *, answer_s: float = 10.0, again_s: float = 60.0) -> None:
        """Wait at most ``answer_s`` for an answer. Read each state again after ``again_s``, even if no watch reports a
        change."""
        super().__init__(environment)
        self._answer_s, self._again_s = answer_s, again_s
        self._lock = ForkSafeLock()
        self._leaders: dict[TopicPartition, int] = {}
        self._stale: set[TopicPartition] = set()
        self._read_all_s = time.monotonic()
        self._client: KazooClient | None = None
        self._is_live = threading.Event()
        with Extra("uploader.leadership=zookeeper", "uploader"):
            self._kazoo = importlib.import_module("kazoo.client")
            self._errors = importlib.import_module("kazoo.exceptions")

    def watch(self, partitions: Collection[TopicPartition]) -> None:
        """Read the states of exactly these partitions from now on."""
        with self._lock:
            wanted = set(partitions)
            for where in self._leaders.keys() - wanted:
                del self._leaders[where]
            self._stale &= wanted
            self._stale |= wanted - self._leaders.keys()

    def led(self) -> Collection[TopicPartition]:
        """Read the changed partition states from ZooKeeper. Raise BrokerUnavailableError if there is no connection."""
        client = self._connect()
        if time.monotonic() - self._read_all_s > self._again_s:
            self._forget()
        with self._lock:
            stale, self._stale = sorted(self._stale), set()
        try:
            for first in range(0, len(stale), _AT_ONCE):
                self._read(client, stale[first : first + _AT_ONCE])
        except BaseException:
            with self._lock:
                self._stale.update(stale)
            raise
        own = self.environment.broker_id
        with self._lock:
            return frozenset(where for where, leader in self._leaders.items() if leader == own)

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, Uuid | None]:
        """Read ``/brokers/topics/<topic>`` of each topic. Raise BrokerUnavailableError if there is no connection."""
        client, ids = self._connect(), dict[str, Uuid | None]()
        for topic in topics:
            path = f"/brokers/topics/{topic}"
            try:
                raw, _ = client.get_async(path).get(timeout=self._answer_s)
            except self._errors.NoNodeError:
                ids[topic] = None
            except Exception as error:
                raise BrokerUnavailableError(
                    f"ZooKeeper at {self.environment.zookeeper} gave no answer for {path}: {error!r}"
                ) from error
            else:
                ids[topic] = _topic_id_of(raw)
        return ids

    def close(self) -> None:
        """End the ZooKeeper session."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.stop()
                client.close()

    def _connect(self) -> KazooClient:
        """Return the client. The first call connects the client, which later reconnects by itself."""
        if self._client is None:
            try:
                client: KazooClient = self._kazoo.KazooClient(
                    self.environment.zookeeper,
                    timeout=_SESSION_S,
                    # Retry forever, at most a second apart.
                    connection_retry={"max_tries": -1, "max_delay": 1.0},
                    **self.environment.zookeeper_tls,
                )
            except ValueError as error:
                raise ConfigError(f"uploader.zookeeper.connect is not a list of hosts: {error}") from error
            client.add_listener(self._connection_changed)
            client.start_async()
            self._client = client
        # Wait for the ZooKeeper connection, because a single run (``--once``) asks only once.
        if not self._is_live.wait(self._answer_s):
            raise BrokerUnavailableError(f"ZooKeeper at {self.environment.zookeeper} is not connected")
        return self._client

    def _connection_changed(self, state: object) -> None:
        """Set or clear the flag of a live connection. A new connection has no watches, so all states become stale."""
        if state == self._kazoo.KazooState.CONNECTED:
            self._forget()
            self._is_live.set()
        else:
            self._is_live.clear()

    def _forget(self) -> None:
        with self._lock:
            self._stale |= self._leaders.keys()
            self._read_all_s = time.monotonic()

    def _read(self, client: KazooClient, partitions: Iterable[TopicPartition]) -> None:
        """Read the partitions' states: send all requests first, then wait for the answers."""
        asked = [(where, client.get_async(_state_path(where), watch=self._watcher(where))) for where in partitions]
        end = time.monotonic() + self._answer_s
        for where, answer in asked:
            try:
                raw, _ = answer.get(timeout=max(0.01, end - time.monotonic()))
            except self._errors.NoNodeError:
                # The topic is being created or deleted, so read its leaders again in the next round.
                self._note(where, _NOBODY, is_stale=True)
                continue
            except (self._errors.NoAuthError, self._errors.AuthFailedError) as error:
                raise BrokerDeniedError(
                    f"ZooKeeper at {self.environment.zookeeper} denies reading {_state_path(where)}"
                ) from error
            except Exception as error:
                raise BrokerUnavailableError(
                    f"ZooKeeper at {self.environment.zookeeper} gave no answer for {_state_path(where)}: {error!r}"
                ) from error
            self._note(where, _leader_of(raw, where), is_stale=False)

    def _watcher(self, where: TopicPartition) -> Callable[[object], None]:
        def note_change(_: object) -> None:
            self._note(where, None, is_stale=True)

        return note_change

    def _note(self, where: TopicPartition, leader: int | None, *, is_stale: bool) -> None:
        with self._lock:
            if leader is not None:
                self._leaders[where] = leader
            if is_stale:
                self._stale.add(where)


def _state_path(where: TopicPartition) -> str:
    return f"/brokers/topics/{where[0]}/partitions/{where[1]}/state"


def _leader_of(raw: bytes, where: TopicPartition) -> int:
    """Parse the leading broker's id. Return -1 if there is no leader, or if the state is unreadable."""
    try:
        leader = json.loads(raw)["leader"]
    except (ValueError, TypeError, KeyError, RecursionError):
        leader = None
    if type(leader) is not int:
        _logger.error("the state of %s-%d in ZooKeeper names no leader: %.200r", *where, raw)
        return _NOBODY
    return leader


def _topic_id_of(raw: bytes) -> Uuid:
    """Parse the topic's id. Return a zero id for a topic from before Kafka 2.8, and for unreadable data, because the
    topic exists in both cases.
    """
    try:
        return Uuid.parse(json.loads(raw)["topic_id"])
    except (ValueError, TypeError, KeyError, RecursionError, ConfigError):
        return Uuid(bytes(16))
