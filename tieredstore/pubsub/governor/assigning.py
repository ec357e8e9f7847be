"""Which broker gets which topics: pluggable, pure, and the default as MemQ's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tieredstore.config.named_class import named_class
from tieredstore.pubsub.format.packets import BrokerAddress

DEFAULT: Final = "free-capacity"

STICKY_MS: Final = 5 * 60_000
"""How long a topic stays at a broker that lives, whatever others have free."""

FORMING_MS: Final = 60_000
"""So long a topic is not bound to its first broker yet where another has none at all: of brokers that are started one
after the other the first would have all topics until they may move."""


@dataclass(frozen=True, slots=True)
class BrokerSeat:
    """A broker that lives: what it is called, where it is, and how much it can take in."""

    name: str
    address: BrokerAddress
    capacity_mb: int
    serves_reads: bool = False


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic, and what tells how many brokers it needs. ``input_mb`` is MB a second."""

    topic: str
    batch_bytes: int
    input_mb: float = 0.0
    clustering_multiplier: float = 3.0

    def partitions(self, racks: int) -> int:
        """Write partitions, as MemQ counts them: at least one a rack, and as many in each."""
        wanted = math.floor(self.input_mb * (1 << 20) / (self.batch_bytes * self.clustering_multiplier))
        # Java's rounding: halves go up.
        return max(racks, math.floor(wanted / racks + 0.5) * racks)

    def share_mb(self, racks: int) -> float:
        """MB a second of one of them."""
        return self.input_mb / self.partitions(racks)


Assignments = Mapping[str, Mapping[str, int]]
"""Of each topic the brokers that have it, with the ms of the governor's clock since when."""


class AssignmentStrategy(ABC):
    """Decides; it waits for nothing, and asks nobody."""

    @abstractmethod
    def assign(
        self, topics: Sequence[TopicLoad], brokers: Sequence[BrokerSeat], current: Assignments, now_ms: int
    ) -> dict[str, dict[str, int]]:
        """Who has what from now on. Brokers of ``current`` may be gone. Equal to ``current`` if nothing need change."""


@dataclass(slots=True)
class _Seat:
    broker: BrokerSeat
    free_mb: float
    topics: set[str] = field(default_factory=set[str])
    is_new: bool = False

    def rank(self) -> tuple[float, int, str]:
        """The first in order is the next to get a topic: most room, then fewest topics."""
        return -self.free_mb, len(self.topics), self.broker.name


class FreeCapacity(AssignmentStrategy):
    """In each rack the brokers with the most free capacity; a topic stays where it is for five minutes, and then as
    long as no other has clearly more room; in its first minute a broker that has none yet may get it. Where there is
    not room enough the least loaded has it all the same."""

    def assign(
        self, topics: Sequence[TopicLoad], brokers: Sequence[BrokerSeat], current: Assignments, now_ms: int
    ) -> dict[str, dict[str, int]]:
        """As the class says."""
        racks: dict[str, list[_Seat]] = {}
        for broker in sorted(brokers, key=lambda broker: broker.name):
            racks.setdefault(broker.address.locality, []).append(_Seat(broker, broker.capacity_mb))
        loads = sorted(topics, key=lambda load: (-load.input_mb, load.topic))
        assigned: dict[str, dict[str, int]] = {load.topic: {} for load in loads}
        if not racks:
            return assigned
        # Those that stay are counted before anybody is given more.
        for load in loads:
            for seats in racks.values():
                wanted = load.partitions(len(racks)) // len(racks)
                for seat in _staying(seats, current.get(load.topic, {}), wanted):
                    assigned[load.topic][seat.broker.name] = current[load.topic][seat.broker.name]
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


def _staying(seats: Iterable[_Seat], holders: Mapping[str, int], wanted: int) -> list[_Seat]:
    """Who keeps the topic: of more than are wanted, those that have most room."""
    return sorted((seat for seat in seats if seat.broker.name in holders), key=_Seat.rank)[:wanted]


def _seat(seat: _Seat, topic: str, share: float) -> None:
    seat.topics.add(topic)
    seat.free_mb -= share


def _is_clearly_better(other: _Seat, holder: _Seat, share: float) -> bool:
    """Whether the topic would still be better there once it is moved; else it would go to and fro."""
    if share > 0:
        return other.free_mb - share > holder.free_mb
    return other.free_mb >= holder.free_mb and len(other.topics) + 1 < len(holder.topics)


def strategy_of(name: str) -> AssignmentStrategy:
    """What ``pubsub.broker.assignment`` names; ConfigError for a class that cannot be used."""
    if name == DEFAULT:
        return FreeCapacity()
    own_class: type[AssignmentStrategy] = named_class(
        "pubsub.broker.assignment", name, AssignmentStrategy, f"neither {DEFAULT} nor a class that can be imported"
    )
    return own_class()
