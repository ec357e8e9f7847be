"""Which offsets of a topic there are: what the bucket holds, what a broker holds, and what neither does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.catalog import Catalog, Lineage
from tieredstore.errors import ConfigError
from tieredstore.model import TopicId, Uuid

if TYPE_CHECKING:
    from tieredstore.live import LiveCluster

Extent = tuple[int, int]
"""Offsets from the first up to the second, which is out."""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """One partition. ``lineage`` is None where the bucket has nothing of it, ``broker`` where no broker has."""

    partition: int
    lineage: Lineage | None
    broker: Extent | None = None

    @property
    def stored(self) -> tuple[Extent, ...]:
        """What the bucket holds, parted by what it lost."""
        lineage = self.lineage
        if lineage is None:
            return ()
        starts = [lineage.earliest_offset, *(gap.stop for gap in lineage.gaps)]
        stops = [*(gap.start for gap in lineage.gaps), lineage.end_offset]
        return tuple(zip(starts, stops, strict=True))

    @property
    def lost(self) -> tuple[Extent, ...]:
        """What is between offsets that there are, and is in neither; what lies before all of them was retention's."""
        held = sorted((*self.stored, *(() if self.broker is None else (self.broker,))))
        return tuple(_between(held))


def _between(held: list[Extent]) -> Iterator[Extent]:
    end: int | None = None
    for start, stop in held:
        if end is not None and start > end:
            yield end, start
        end = stop if end is None else max(end, stop)


def partition_offsets(catalog: Catalog, topic: str, topic_id: Uuid) -> list[PartitionOffsets]:
    """The partitions that the bucket has of one life of a topic."""
    numbers = catalog.partitions(topic, topic_id)
    return [PartitionOffsets(number, catalog.lineage(topic, number, topic_id)) for number in numbers]


def with_broker(
    stored: list[PartitionOffsets], cluster: LiveCluster, topic: str, topic_id: TopicId
) -> list[PartitionOffsets]:
    """The same beside what the broker has, and the partitions that it alone has.

    ConfigError where the broker's topic of this name is another one; where it has none, nothing is beside.
    """
    live = cluster.describe([topic]).get(topic)
    if live is None:
        return stored
    if topic_id.contradicts(TopicId(live.topic_id)):
        raise ConfigError(
            f"topic {topic!r} was created again: it is {live.topic_id} on the broker and {topic_id.value} in the bucket"
        )
    places = [(topic, number) for number in live.partitions]
    starts, ends = cluster.earliest_offsets(places), cluster.end_offsets(places)
    # A partition that was added a moment ago may have no beginning yet.
    extents: Mapping[int, Extent] = {
        place[1]: (starts[place], max(starts[place], ends[place])) for place in places if place in starts
    }
    lineages = {known.partition: known.lineage for known in stored}
    return [
        PartitionOffsets(number, lineages.get(number), extents.get(number)) for number in sorted({*lineages, *extents})
    ]
