"""Tests of the offsets of a partition: those in the bucket, on the broker, and in neither."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, cast

import pytest

from tieredstore.api.rows import Partition
from tieredstore.errors import ConfigError
from tieredstore.live import LiveCluster, LiveTopic
from tieredstore.model import AtTime, TopicId, TopicPartition, Uuid
from tieredstore.ops.offsets import BrokerLog, Extent, ask_broker
from tieredstore.testing.segments import PARTITION

Extents = tuple[Extent, ...]

OTHER_ID = Uuid(bytes(range(16, 32)))


def partition(stored: Extents, broker: BrokerLog | None) -> Partition:
    if not stored:
        return Partition(0, None, None, broker=broker)
    gaps = tuple((before[1], after[0]) for before, after in itertools.pairwise(stored))
    return Partition(0, stored[0][0], stored[-1][1], gaps, broker=broker)


@pytest.mark.parametrize(
    ("stored", "broker", "lost", "not_stored"),
    [
        (((0, 10),), None, (), ()),
        (((0, 10), (15, 20)), None, ((10, 15),), ()),
        (((5, 10),), (8, 30), (), ((10, 30),)),
        (((5, 10),), (10, 30), (), ((10, 30),)),
        (((5, 10),), (12, 30), ((10, 12),), ((12, 30),)),
        (((5, 10),), (0, 8), (), ((0, 5),)),
        (((0, 10), (15, 20), (21, 30)), (40, 40), ((10, 15), (20, 21), (30, 40)), ()),
        (((0, 10), (15, 20)), (5, 30), (), ((10, 15), (20, 30))),  # the broker has the offsets that the bucket lost
        ((), (7, 9), (), ((7, 9),)),
    ],
)
def test_offsets_that_neither_holds_are_lost(
    stored: Extents, broker: Extent | None, lost: Extents, not_stored: Extents
) -> None:
    known = partition(stored, None if broker is None else BrokerLog(*broker))
    assert known.stored == stored
    assert known.lost == lost
    assert known.not_stored == not_stored


@pytest.mark.parametrize(
    ("stored", "until", "missing"),
    [
        (((5, 20),), 20, ()),
        (((5, 20),), 25, ((20, 25),)),
        (((5, 10), (12, 20)), 11, ((10, 11),)),
        (((5, 10), (12, 20)), 10, ()),
        (((9, 20),), 15, ((8, 9),)),  # the broker still has it: it was never copied, or was deleted from the bucket
        ((), 8, ()),
        ((), 12, ((8, 12),)),
        (((0, 5),), 12, ((5, 12),)),
    ],
)
def test_a_partition_is_complete_up_to_a_time_if_all_before_it_is_stored(
    stored: Extents, until: int, missing: Extents
) -> None:
    assert partition(stored, BrokerLog(8, 30, until)).missing_until == missing


@pytest.mark.parametrize("broker", [None, BrokerLog(8, 30)])
def test_without_a_brokers_answer_it_is_not_known(broker: BrokerLog | None) -> None:
    assert partition(((0, 10),), broker).missing_until is None


class Cluster:
    """A broker with partitions 1 and 2 of the topic, and a third one that has no leader yet."""

    def __init__(self, topic_id: Uuid | None) -> None:
        self.topic_id = topic_id

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        (topic,) = set(topics)
        return {} if self.topic_id is None else {topic: LiveTopic(topic, self.topic_id, (1, 2, 3))}

    def earliest_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: 8 for place in places if place[1] < 3}

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 20)

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {place: 15 if place[1] == 1 else None for place in times}


def asked(topic_id: Uuid | None, *known: TopicId, until: AtTime | None = None) -> dict[Uuid, dict[int, BrokerLog]]:
    cluster = cast("LiveCluster", cast("Any", Cluster(topic_id)))
    lives = [(PARTITION.topic, one) for one in known or (TopicId(PARTITION.topic_id),)]
    return {life: logs for (_, life), logs in ask_broker(cluster, lives, until).items()}


def test_partitions_of_the_broker_are_told() -> None:
    log = BrokerLog(8, 20)
    assert asked(PARTITION.topic_id) == {PARTITION.topic_id: {1: log, 2: log}}


def test_where_no_record_is_so_late_all_is_earlier() -> None:
    logs = asked(PARTITION.topic_id, until=AtTime(7))[PARTITION.topic_id]
    assert {number: log.until for number, log in logs.items()} == {1: 15, 2: 20}


def test_a_broker_without_the_topic_adds_nothing() -> None:
    assert asked(None) == {}


def test_another_topic_of_the_name_is_not_compared() -> None:
    with pytest.raises(ConfigError, match=f"was created again: it is {OTHER_ID} on the broker"):
        asked(OTHER_ID)


def test_of_several_lives_the_brokers_own_is_compared() -> None:
    assert set(asked(OTHER_ID, TopicId(PARTITION.topic_id), TopicId(OTHER_ID))) == {OTHER_ID}


def test_a_derived_id_is_compared_with_no_other() -> None:
    assert set(asked(OTHER_ID, TopicId(PARTITION.topic_id, is_real=False))) == {PARTITION.topic_id}
