"""Which partitions are this broker's to ship."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from tieredstore.config.named_class import named_class
from tieredstore.model import TopicPartition, Uuid
from tieredstore.process.forks import ForkSafeLock
from tieredstore.uploader.broker import AUTO, STATIC, ZOOKEEPER, BrokerEnvironment

if TYPE_CHECKING:
    from tieredstore.live.broker_state import BrokerState

UNKNOWN_S = 30.0
"""After so long without an answer nobody knows any more who leads."""


class Leadership(ABC):
    """Says which partitions the broker beside this uploader leads. Subclasses are made with the environment."""

    def __init__(self, environment: BrokerEnvironment) -> None:
        self.environment = environment

    @abstractmethod
    def led(self) -> Collection[TopicPartition] | None:
        """The partitions that are led now; None for all that lie here. Called each second.

        A TieredStoreError if it is not known now: what was answered last holds for 30 seconds.
        """

    def watch(self, partitions: Collection[TopicPartition]) -> None:  # noqa: B027  who asks for all has no use for it
        """These lie here now, told after each look at the folders; nobody asks about others."""

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, Uuid | None] | None:
        """Return the ids of these topics in the cluster now; None for a topic that is not there, a zero id where the
        cluster has none, and nothing of a topic that is not known. None for all if nobody can be asked.

        Asked when the folder of a partition is gone. A TieredStoreError if it is not known now.
        """
        del topics
        return None

    def close(self) -> None:  # noqa: B027  who holds nothing open has nothing to close
        """The uploader ends."""


class StaticLeadership(Leadership):
    """All partitions that lie in the log directories."""

    def led(self) -> None:
        """All."""
        return


class ClusterLeadership(Leadership):
    """What the cluster's metadata say, on KRaft and ZooKeeper alike."""

    def __init__(self, environment: BrokerEnvironment, broker: BrokerState) -> None:
        super().__init__(environment)
        self._broker = broker

    def led(self) -> Collection[TopicPartition]:
        """One request."""
        own = self.environment.broker_id
        return frozenset(where for where, leader in self._broker.leaders().items() if leader == own)

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, Uuid | None]:
        """One request."""
        return self._broker.topic_ids(topics)


class LeadershipView:
    """The last answer, and whether it still holds. Thread-safe."""

    def __init__(self, leadership: Leadership, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._leadership = leadership
        self._monotonic = monotonic
        self._lock = ForkSafeLock()
        self._led: Collection[TopicPartition] | None = ()
        self._answered_s: float | None = None

    def watch(self, partitions: Collection[TopicPartition]) -> None:
        """What lies here, for whom it is of use."""
        self._leadership.watch(partitions)

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, Uuid | None] | None:
        """As the leadership says."""
        return self._leadership.topic_ids(topics)

    def refresh(self) -> None:
        """Ask; raises what the leadership raises, and the last answer stays."""
        led = self._leadership.led()
        with self._lock:
            self._led, self._answered_s = led, self._monotonic()

    @property
    def is_known(self) -> bool:
        """Whether there is an answer that holds."""
        answered_s = self._answered_s
        return answered_s is not None and self._monotonic() - answered_s <= UNKNOWN_S

    @property
    def was_ever_known(self) -> bool:
        """Whether there ever was an answer."""
        return self._answered_s is not None

    def leads(self, where: TopicPartition) -> bool:
        """Whether the partition is led, as the last answer said."""
        led = self._led
        return led is None or where in led

    def count(self) -> int | None:
        """How many are led, of all topics; None for all that lie here."""
        led = self._led
        return None if led is None else len(led)


def leadership_of(name: str, environment: BrokerEnvironment, broker: BrokerState | None) -> Leadership:
    """What ``uploader.leadership`` names; ConfigError for a class that cannot be used."""
    if name == STATIC:
        return StaticLeadership(environment)
    if name == AUTO:
        assert broker is not None
        return ClusterLeadership(environment, broker)
    if name == ZOOKEEPER:
        # It wants a package that the others do without.
        from tieredstore.uploader.zookeeper import ZooKeeperLeadership  # noqa: PLC0415

        return ZooKeeperLeadership(environment)
    own_class: type[Leadership] = named_class(
        "uploader.leadership", name, Leadership,
        "which is none of auto, zookeeper and static, nor a class that can be imported",
    )  # fmt: skip
    return own_class(environment)
