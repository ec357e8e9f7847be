"""Assignment of topics to brokers: MemQ's numbers, racks, capacity, and how long a topic stays."""

from __future__ import annotations

import random

import pytest

from tieredstore.errors import ConfigError
from tieredstore.pubsub.format.packets import BrokerAddress
from tieredstore.pubsub.governor.assigning import (
    FORMING_MS,
    STICKY_MS,
    BrokerSeat,
    FreeCapacity,
    TopicLoad,
    strategy_of,
)

MIB = 1 << 20


def seats(*racks: str, capacity: int = 200) -> list[BrokerSeat]:
    return [
        BrokerSeat(f"b{number}", BrokerAddress(rack, f"10.0.0.{number}", 9092), capacity)
        for number, rack in enumerate(racks)
    ]


def assign(
    topics: list[TopicLoad],
    brokers: list[BrokerSeat],
    current: dict[str, dict[str, int]] | None = None,
    now_ms: int = 0,
) -> dict[str, dict[str, int]]:
    return FreeCapacity().assign(topics, brokers, current or {}, now_ms)


@pytest.mark.parametrize(
    ("input_mb", "batch_bytes", "racks", "partitions"),
    [(0, 100 * MIB, 3, 3), (100, 10 * MIB, 1, 3), (100, 10 * MIB, 2, 4), (300, 10 * MIB, 3, 9), (320, 10 * MIB, 4, 12)],
)
def test_write_partitions_are_counted_as_memq_counts_them(
    input_mb: float, batch_bytes: int, racks: int, partitions: int
) -> None:
    assert TopicLoad("t", batch_bytes, input_mb).partitions(racks) == partitions


def test_each_rack_has_each_topic_and_topics_without_traffic_are_spread_too() -> None:
    topics = [TopicLoad(f"t{number}", 16 * MIB) for number in range(6)]
    assigned = assign(topics, seats("a", "a", "b", "b", "b"))
    for holders in assigned.values():
        assert sorted("aabbb"[int(name[1:])] for name in holders) == ["a", "b"]
    counts = [sum(f"b{number}" in holders for holders in assigned.values()) for number in range(5)]
    assert counts == [3, 3, 2, 2, 2]


def test_who_has_most_room_comes_first_and_no_topic_is_without_a_broker() -> None:
    large, small = TopicLoad("large", 100 * MIB, 150.0), TopicLoad("small", 100 * MIB, 10.0)
    brokers = seats("a", "a")
    assert assign([small, large], brokers) == {"large": {"b0": 0}, "small": {"b1": 0}}
    assert assign([TopicLoad("huge", 1000 * MIB, 900.0)], brokers)["huge"] == {"b0": 0}
    assert assign([small], []) == {"small": {}}


def test_a_topic_stays_for_five_minutes_and_then_moves_only_where_it_is_clearly_better() -> None:
    topics = [TopicLoad(f"t{number}", 16 * MIB) for number in range(4)]
    first = assign(topics, seats("a"))
    two = seats("a", "a")
    assert assign(topics, two, first, FORMING_MS) == first
    assert assign(topics, two, first, STICKY_MS - 1) == first  # a new broker moves nothing
    later = assign(topics, two, first, STICKY_MS)
    assert sorted(name for holders in later.values() for name in holders) == ["b0", "b0", "b1", "b1"]
    assert assign(topics, two, later, 10 * STICKY_MS) == later  # the topic does not move back and forth


def test_brokers_that_are_started_one_after_the_other_share_the_topics_at_once() -> None:
    topics = [TopicLoad(f"t{number}", 16 * MIB) for number in range(9)]
    first = assign(topics, seats("a"))
    second = assign(topics, seats("a", "a"), first, 3000)
    third = assign(topics, seats("a", "a", "a"), second, 6000)
    had = [sum(f"b{number}" in holders for holders in third.values()) for number in range(3)]
    assert min(had) >= 2
    assert sum(had) == 9
    moved = [topic for topic in first if third[topic] != first[topic]]
    assert all(third[topic].keys() <= {"b1", "b2"} for topic in moved)
    assert assign(topics, seats("a", "a", "a"), third, 9000) == third
    # A broker that joins a settled cluster, or returns to it, waits until topics may move.
    assert assign(topics, seats("a", "a", "a", "a"), third, FORMING_MS + 6000) == third


def test_topics_of_a_lost_broker_move_and_all_others_stay() -> None:
    topics = [TopicLoad(f"t{number}", 16 * MIB) for number in range(9)]
    brokers = seats("a", "a", "a")
    before = assign(topics, brokers)
    after = assign(topics, brokers[1:], before, 7)
    for topic, holders in before.items():
        assert after[topic] == (holders if "b0" not in holders else after[topic])
        assert after[topic].keys() <= {"b1", "b2"}
        assert len(after[topic]) == 1


def test_whatever_comes_and_goes_each_rack_has_what_it_can() -> None:
    source = random.Random(5)
    for _ in range(100):
        current: dict[str, dict[str, int]] = {}
        topics = [TopicLoad(f"t{n}", MIB * source.choice((1, 16, 100)), source.choice((0, 5, 50))) for n in range(5)]
        for step in range(6):
            racks = [source.choice("abc") for _ in range(source.randrange(1, 7))]
            brokers = [seat for seat in seats(*racks) if source.random() < 0.8] or seats("a")
            current = assign(topics, brokers, current, step * STICKY_MS // 2)
            here = {seat.address.locality for seat in brokers}
            for topic in topics:
                holders = current[topic.topic]
                assert holders.keys() <= {seat.name for seat in brokers}
                for rack in here:
                    of_rack = [seat.name for seat in brokers if seat.address.locality == rack]
                    wanted = topic.partitions(len(here)) // len(here)
                    assert len(holders.keys() & set(of_rack)) == min(wanted, len(of_rack))


def test_a_strategy_of_ones_own() -> None:
    assert isinstance(strategy_of(f"{__name__}.Own"), Own)
    for name, why in (("a.b", "or an importable class"), ("builtins.dict", "not a subclass")):
        with pytest.raises(ConfigError, match=why):
            strategy_of(name)


class Own(FreeCapacity):
    """A strategy of a third party."""
