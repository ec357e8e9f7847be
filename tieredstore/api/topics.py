"""Topics and their partitions, summed up from segments, with the broker's offsets.

Separate from ``bucket``, because no other method asks a broker.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.api.rows import Partition, Topic, time_of
from tieredstore.api.tables import Table
from tieredstore.catalog.stored import StoredSegment
from tieredstore.errors import CorruptDataError
from tieredstore.model import AtTime, Uuid
from tieredstore.ops.listing import HeldOffsets, ListedSegment, SegmentTotals

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.ops.offsets import BrokerLog

_Lives: TypeAlias = dict[tuple[str, Uuid], dict[int, Partition]]
"""The partitions of each incarnation of a topic."""


def sum_up(
    bucket: Bucket, listed: Iterator[ListedSegment], until: AtTime | None, only: tuple[int, ...] | None
) -> Table[Topic]:
    """Return the topics of a listing; ``only`` restricts the broker's partitions."""
    lives: _Lives = {}
    for where, of_partition in itertools.groupby(listed, key=lambda one: one.partition):
        held = _Held(where.partition)
        for one in of_partition:
            held.add(one)
        lives.setdefault((where.topic, where.topic_id), {})[where.partition] = held.row(bucket)
    if bucket.broker is not None:
        for life, logs in _ask_broker(bucket, lives, until).items():
            for number, log in logs.items():
                if only is None or number in only:
                    known = lives[life].get(number) or Partition(number, None, None)
                    lives[life][number] = replace(known, broker=log)
    return Table(_topic(*life, partitions) for life, partitions in lives.items())


def _ask_broker(bucket: Bucket, lives: _Lives, until: AtTime | None) -> dict[tuple[str, Uuid], dict[int, BrokerLog]]:
    from tieredstore import live  # noqa: PLC0415  of the extra `kafka`
    from tieredstore.ops.offsets import ask_broker  # noqa: PLC0415
    from tieredstore.reading.query import timeout_of  # noqa: PLC0415

    client = bucket.broker or {}
    layout = bucket.manager.layout
    ids = [layout.topic_id(topic, topic_id) for topic, topic_id in lives]
    with live.LiveCluster(client, isolation="read_uncommitted", timeout_s=timeout_of(client)) as cluster:
        return ask_broker(cluster, list(zip((topic for topic, _ in lives), ids, strict=True)), until)


def _topic(name: str, topic_id: Uuid, partitions: dict[int, Partition]) -> Topic:
    rows = tuple(one for _, one in sorted(partitions.items()))
    segments, size = sum(one.segments for one in rows), sum(one.size for one in rows)
    return Topic(name, topic_id, rows, segments, size, sum(one.stored_size for one in rows))


@dataclass(slots=True)
class _Held:
    """Sums over the segments of a partition, which are added in order of offsets."""

    number: int
    held: HeldOffsets = field(default_factory=HeldOffsets)
    totals: SegmentTotals = field(default_factory=SegmentTotals)
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    last: StoredSegment | None = None
    incomplete: int = 0
    damaged: int = 0

    def add(self, one: ListedSegment) -> None:
        """Add a segment."""
        if one.whole is None:
            self.incomplete += 1
            self.damaged += isinstance(one.loaded, CorruptDataError)
            return
        self.last = one.whole
        self.totals.add(one.whole)
        if (gap := self.held.add(one.whole.metadata)) is not None:
            self.gaps.append((gap[0], gap[1] + 1))

    def row(self, bucket: Bucket) -> Partition:
        """Return the partition. If its last manifest lacks the end offset and there is a broker, look the end up."""
        start, end = (self.held.spans[0][0], self.held.spans[-1][1] + 1) if self.held.spans else (None, None)
        if end is not None and self.last is not None and self.last.last_offset is None and bucket.broker is not None:
            from tieredstore.catalog.completion import describe_segment  # noqa: PLC0415  few need it

            end = max(end, describe_segment(bucket.manager, self.last).end_offset + 1)
        return Partition(
            self.number, start, end, tuple(self.gaps), time_of(self.totals.newest_ms), None,
            time_of(self.totals.oldest_ms), self.totals.segments, self.totals.size, self.totals.stored_size,
            self.incomplete, self.damaged,
        )  # fmt: skip
