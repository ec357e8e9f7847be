"""What bucket and broker hold of a partition, and what neither does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from tests.support.records.small_segments import new_metadata
from tieredstore.catalog import Lineage
from tieredstore.catalog.lineage import Span
from tieredstore.errors import ConfigError
from tieredstore.live import LiveCluster, LiveTopic
from tieredstore.model import TopicId, TopicPartition, Uuid
from tieredstore.ops.offsets import Extent, PartitionOffsets, with_broker
from tieredstore.testing.segments import PARTITION

Extents = tuple[Extent, ...]

OTHER_ID = Uuid(bytes(range(16, 32)))


def lineage(*held: Extent) -> Lineage:
    return Lineage(PARTITION, (), tuple(Span(new_metadata(100), start, stop) for start, stop in held))


@pytest.mark.parametrize(
    ("stored", "broker", "lost"),
    [
        (((0, 10),), None, ()),
        (((0, 10), (15, 20)), None, ((10, 15),)),
        (((5, 10),), (8, 30), ()),
        (((5, 10),), (10, 30), ()),
        (((5, 10),), (12, 30), ((10, 12),)),
        (((0, 10), (15, 20), (21, 30)), (40, 40), ((10, 15), (20, 21), (30, 40))),
        (((0, 10), (15, 20)), (5, 30), ()),  # the broker has what the bucket lost
        ((), (7, 9), ()),
    ],
)
def test_what_neither_holds_is_lost(stored: Extents, broker: Extent | None, lost: Extents) -> None:
    known = PartitionOffsets(0, lineage(*stored) if stored else None, broker)
    assert known.stored == stored
    assert known.lost == lost


class Cluster:
    """A broker with partitions 1 and 2 of the topic, and a third one that has no leader yet."""

    def __init__(self, topic_id: Uuid | None) -> None:
        self.topic_id = topic_id

    def describe(self, topics: Iterable[str]) -> dict[str, LiveTopic]:
        (topic,) = topics
        return {} if self.topic_id is None else {topic: LiveTopic(topic, self.topic_id, (1, 2, 3))}

    def earliest_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: 8 for place in places if place[1] < 3}

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 20)


def beside(topic_id: Uuid | None, *, is_real: bool = True) -> list[PartitionOffsets]:
    stored = [PartitionOffsets(number, lineage((0, 10))) for number in range(2)]
    cluster = cast("LiveCluster", cast("Any", Cluster(topic_id)))
    return with_broker(stored, cluster, PARTITION.topic, TopicId(PARTITION.topic_id, is_real))


def test_partitions_of_either_are_told() -> None:
    known = beside(PARTITION.topic_id)
    assert [(each.partition, each.lineage is not None, each.broker) for each in known] == [
        (0, True, None),
        (1, True, (8, 20)),
        (2, False, (8, 20)),
    ]


def test_a_broker_without_the_topic_adds_nothing() -> None:
    assert [(each.partition, each.broker) for each in beside(None)] == [(0, None), (1, None)]


def test_another_topic_of_the_name_is_not_compared() -> None:
    with pytest.raises(ConfigError, match=f"was created again: it is {OTHER_ID} on the broker"):
        beside(OTHER_ID)


def test_a_derived_id_is_compared_with_no_other() -> None:
    assert [each.broker for each in beside(OTHER_ID, is_real=False)] == [None, (8, 20), (8, 20)]
