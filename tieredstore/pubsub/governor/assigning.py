"""Strategies for assigning topics to brokers: an interface that operators can implement, and MemQ's default
strategy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tieredstore.config.named_class import import_class
from tieredstore.pubsub.format.packets import BrokerAddress

DEFAULT: Final = "free-capacity"

STICKY_MS: Final = 5 * 60_000
"""Time in ms for which a topic stays at its living broker, even if other brokers have more free capacity."""

FORMING_MS: Final = 60_000
"""Time in ms for which an assigned topic may still move to a broker without topics, because otherwise the first of
several starting brokers would keep all topics for ``STICKY_MS``.
"""


@dataclass(frozen=True, slots=True)
class BrokerSeat:
    """A living broker: its name, address and capacity."""

    name: str
    address: BrokerAddress
    capacity_mb: int
    serves_reads: bool = False


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic, and the load that decides its number of brokers. ``input_mb`` is MB per second."""

    topic: str
    batch_bytes: int
    input_mb: float = 0.0
    clustering_multiplier: float = 3.0

    def partitions(self, racks: int) -> int:
        """Return the number of write partitions by MemQ's formula. Each rack has the same number of write partitions,
        at least one."""
        wanted = math.floor(self.input_mb * (1 << 20) / (self.batch_bytes * self.clustering_multiplier))
        # Round as Java does: halves up.
        return max(racks, math.floor(wanted / racks + 0.5) * racks)

    def share_mb(self, racks: int) -> float:
        """Return the input of one write partition in MB per second."""
        return self.input_mb / self.partitions(racks)


Assignments = Mapping[str, Mapping[str, int]]
"""The brokers of each topic. Each broker's value is the time when the broker got the topic, in ms of the governor's
clock."""


class AssignmentStrategy(ABC):
    """Decides on assignments, without blocking or I/O."""

    @abstractmethod
    def assign(
        self, topics: Sequence[TopicLoad], brokers: Sequence[BrokerSeat], current: Assignments, now_ms: int
    ) -> dict[str, dict[str, int]]:
        """Return the new assignments, equal to ``current`` if nothing needs to change. Brokers in ``current`` may be
        gone.
        """


@dataclass(slots=True)
class _Seat:
    broker: BrokerSeat
    free_mb: float
    topics: set[str] = field(default_factory=set[str])
    is_new: bool = False

    def rank(self) -> tuple[float, int, str]:
        """Return a sort key: most free capacity first, then fewest topics. The first broker gets the next topic."""
        return -self.free_mb, len(self.topics), self.broker.name


class FreeCapacity(AssignmentStrategy):
    """Chooses the brokers with the most free capacity in each rack.

    In its first minute at a broker, a topic may move only to a broker without topics. It then stays until it has been
    there for five minutes. After that, it moves once another broker has clearly more capacity. If no broker has enough
    capacity, the least loaded broker gets the topic.
    """

    def assign(
        self, topics: Sequence[TopicLoad], brokers: Sequence[BrokerSeat], current: Assignments, now_ms: int
    ) -> dict[str, dict[str, int]]:
        """In each rack, leave a topic at its brokers where possible. Then add missing brokers, and move topics to
        balance the load."""
        racks: dict[str, list[_Seat]] = {}
        for broker in sorted(brokers, key=lambda broker: broker.name):
            racks.setdefault(broker.address.locality, []).append(_Seat(broker, broker.capacity_mb))
        loads = sorted(topics, key=lambda load: (-load.input_mb, load.topic))
        assigned: dict[str, dict[str, int]] = {load.topic: {} for load in loads}
        if not racks:
            return assigned
        # Add the load of topics that stay before assigning other topics.
        for load in loads:
            holders = current.get(load.topic, {})
            for seats in racks.values():
                wanted = load.partitions(len(racks)) // len(racks)
                # If more brokers than ``wanted`` have the topic, those with the most free capacity keep it.
                here = sorted((seat for seat in seats if seat.broker.name in holders), key=_Seat.rank)
                for seat in here[:wanted]:
                    assigned[load.topic][seat.broker.name] = holders[seat.broker.name]
                    _seat(seat, load.topic, load.share_mb(len(racks)))
        for seats in racks.values():
            for seat in seats:
                seat.is_new = not seat.topics
        for load in loads:
            for seats in racks.values():
                self._fill(load, len(racks), seats, assigned[load.topic], now_ms)
        return assigned

    def _fill(self, load: TopicLoad, racks: int, seats: list[_Seat], assigned: dict[str, int], now_ms: int) -> None:
        wanted, share = min(len(seats), load.partitions(racks) // racks), load.share_mb(racks)
        here = [seat for seat in seats if load.topic in seat.topics]
        others = sorted((seat for seat in seats if load.topic not in seat.topics), key=_Seat.rank)
        for seat in others[: wanted - len(here)]:
            assigned[seat.broker.name] = now_ms
            _seat(seat, load.topic, share)
        left = others[max(0, wanted - len(here)) :]
        for seat in here:
            age_ms = now_ms - assigned[seat.broker.name]
            open_to = [other for other in left if age_ms >= STICKY_MS or (age_ms < FORMING_MS and other.is_new)]
            if not open_to:
                continue
            best = min(open_to, key=_Seat.rank)
            if _is_clearly_better(best, seat, share):
                del assigned[seat.broker.name]
                seat.topics.discard(load.topic)
                seat.free_mb += share
                assigned[best.broker.name] = now_ms
                _seat(best, load.topic, share)
                left.remove(best)


def _seat(seat: _Seat, topic: str, share: float) -> None:
    seat.topics.add(topic)
    seat.free_mb -= share


def _is_clearly_better(other: _Seat, holder: _Seat, share: float) -> bool:
    """Return True if ``other`` would still be the better broker after the move. Otherwise, the topic would move
    back."""
    if share > 0:
        return other.free_mb - share > holder.free_mb
    return other.free_mb >= holder.free_mb and len(other.topics) + 1 < len(holder.topics)


def strategy_of(name: str) -> AssignmentStrategy:
    """Return an instance of the strategy that ``pubsub.broker.assignment`` names. Raise ConfigError if its class cannot
    be used."""
    if name == DEFAULT:
        return FreeCapacity()
    own_class: type[AssignmentStrategy] = import_class(
        "pubsub.broker.assignment", name, AssignmentStrategy, f"expected {DEFAULT} or an importable class"
    )
    return own_class()
