"""Topics and their partitions, summed up from segments, with the broker's offsets.

The bucket imports this module on first use, because only its method ``topics`` needs ``ask_broker``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.api.rows import Partition, Table, Topic, time_of
from tieredstore.catalog.stored import StoredSegment
from tieredstore.catalog.watermark import find_watermark
from tieredstore.model import AtTime, TopicIdPartition, Uuid
from tieredstore.ops.listing import HeldOffsets, ListedSegment, SegmentTotals
from tieredstore.ops.offsets import ask_broker, why_missing
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.api.scopes import Scopes
    from tieredstore.ops.offsets import Bounds, BrokerLog

_Life: TypeAlias = tuple[str, Uuid]
"""An incarnation of a topic: name and id."""


@dataclass(frozen=True, slots=True)
class TopicSums:
    """The sums of a bucket's topics.

    With a broker, they have the broker's offsets in the window, and the topics in scope that the broker tiers. With a
    window, the time up to which a partition is complete stays unknown.
    """

    bucket: Bucket
    scopes: Scopes
    window: Bounds
    until: AtTime | None

    def of(self, listed: Iterator[ListedSegment], latest: Mapping[TopicIdPartition, ListedSegment]) -> Table[Topic]:
        """Return the topics of a listing. After the listing, ``latest`` has each partition's last segment, even if that
        segment is outside the window.
        """
        lives: dict[_Life, dict[int, _Held]] = {}
        for where, of_partition in itertools.groupby(listed, key=lambda one: one.partition):
            held = _Held(where.partition)
            for one in of_partition:
                held.add(one)
            lives.setdefault((where.topic, where.topic_id), {})[where.partition] = held
        if self.bucket.broker is None:
            return Table(_topic(*life, [held.row() for held in lives[life].values()]) for life in lives)
        is_empty = not lives
        for where in latest:
            lives.setdefault((where.topic, where.topic_id), {})
        now_ms = time.time_ns() // 1_000_000
        logs = self._ask_broker(list(lives), now_ms, check_start=is_empty)
        rows: dict[_Life, list[Partition]] = {
            life: [] for life in sorted({*lives, *logs}, key=lambda life: (life[0], str(life[1])))
        }
        only = self.scopes.partitions
        places = [
            (life, number)
            for life in rows
            for number in {*lives.get(life, {}), *(n for n in logs.get(life, {}) if only is None or n in only)}
        ]

        def compare(place: tuple[_Life, int]) -> Partition:
            life, number = place
            held = lives.get(life, {}).get(number) or _Held(number)
            row, log = held.row(self.bucket), logs.get(life, {}).get(number)
            if log is None:
                return row
            if self.window != (None, None):
                last = latest.get(TopicIdPartition(life[1], life[0], number))
                return replace(row, broker=_cut(log, row, self.window, last))
            return self._compare(life, held, replace(row, broker=log), log, now_ms)

        with ThreadPool(READERS, "tieredstore-watermarks") as pool:
            for (life, _), row in zip(places, in_parallel(pool, compare, places, at_once=2 * READERS), strict=True):
                rows[life].append(row)
        return Table(_topic(*life, of_topic) for life, of_topic in rows.items() if of_topic or life in logs)

    def _ask_broker(self, lives: list[_Life], now_ms: int, *, check_start: bool) -> dict[_Life, dict[int, BrokerLog]]:
        from tieredstore import live  # noqa: PLC0415  needs the extra `kafka`
        from tieredstore.reading.query import timeout_of  # noqa: PLC0415

        client = self.bucket.broker or {}
        layout = self.bucket.manager.layout
        ids = [(topic, layout.topic_id(topic, topic_id)) for topic, topic_id in lives]
        with live.LiveCluster(client, isolation="read_uncommitted", timeout_s=timeout_of(client)) as cluster:
            others = [topic for topic in cluster.topics() if self.scopes.matches(topic)] if self.scopes.is_open else []
            return ask_broker(
                cluster, ids, self.until, now_ms=now_ms, others=others, window=self.window, check_start=check_start
            )

    def _compare(self, life: _Life, held: _Held, row: Partition, log: BrokerLog, now_ms: int) -> Partition:
        """Return the partition with the time up to which it is complete, and the reasons for later missing offsets."""
        missing = row.missing_before(max(log.end_offset, row.end_offset or 0))
        up_to_ms = held.newest_before(missing[0][0], now_ms) if missing else now_ms
        # For the time ``until``, the broker names an offset of its own log, which may begin after the missing offsets.
        # If the bucket has all records before ``until``, the true offset is at most the first missing offset.
        until = self.until
        if until is not None and log.until is not None and missing and (up_to_ms or -1) >= until.timestamp_ms:
            row = replace(row, broker=replace(log, until=min(log.until, missing[0][0])))
        row = replace(row, complete_up_to=time_of(up_to_ms))
        if not row.missing_until:
            return row
        mark = find_watermark(self.bucket.manager, TopicIdPartition(life[1], life[0], row.number))
        return replace(row, why_missing=tuple(why_missing(row.missing_until, row.lost, log, mark)))


def _cut(log: BrokerLog, row: Partition, window: Bounds, last: ListedSegment | None) -> BrokerLog:
    """Return the broker's log up to the window's last segment, if the bucket has later segments.

    A window that stops at a time ends in the segment with the first record at or after that time. If the broker's log
    begins after that record, the broker answers with a later record, which is outside the window.
    """
    end = row.end_offset
    if end is None or last is None or last.objects.start_offset < end or not isinstance(window[1], AtTime):
        return log
    return log.within(min(log.earliest_offset, end), end)


def _topic(name: str, topic_id: Uuid, partitions: list[Partition]) -> Topic:
    rows = tuple(sorted(partitions, key=lambda one: one.number))
    segments, size = sum(one.segments for one in rows), sum(one.size for one in rows)
    return Topic(name, topic_id, rows, segments, size, sum(one.stored_size for one in rows))


@dataclass(slots=True)
class _Held:
    """Sums over the segments of a partition. The caller adds the segments in order of offsets.

    ``gaps`` has the ranges of offsets between the segments. Each gap has the greatest timestamp of the segment before
    it.
    """

    number: int
    held: HeldOffsets = field(default_factory=HeldOffsets)
    totals: SegmentTotals = field(default_factory=SegmentTotals)
    gaps: dict[tuple[int, int], int | None] = field(default_factory=dict[tuple[int, int], "int | None"])
    last: StoredSegment | None = None
    incomplete: int = 0
    damaged: int = 0

    def add(self, one: ListedSegment) -> None:
        """Add a segment."""
        if one.whole is None:
            self.incomplete += 1
            self.damaged += one.damage is not None
            return
        if (gap := self.held.add(one.whole.metadata)) is not None:
            self.gaps[gap[0], gap[1] + 1] = self.newest_ms
        self.totals.add(one.whole)
        self.last = one.whole

    def row(self, broker_of: Bucket | None = None) -> Partition:
        """Return the partition. If the last segment's manifest lacks the end offset, and ``broker_of`` is given, read
        the offset from the segment."""
        start, end = (self.held.spans[0][0], self.held.spans[-1][1] + 1) if self.held.spans else (None, None)
        if end is not None and self.last is not None and self.last.last_offset is None and broker_of is not None:
            from tieredstore.catalog.completion import describe_segment  # noqa: PLC0415  few calls need it

            end = max(end, describe_segment(broker_of.manager, self.last).end_offset + 1)
        return Partition(
            self.number, start, end, tuple(self.gaps), time_of(self.totals.newest_ms), None,
            time_of(self.totals.oldest_ms), self.totals.segments, self.totals.size, self.totals.stored_size,
            self.incomplete, self.damaged,
        )  # fmt: skip

    @property
    def newest_ms(self) -> int | None:
        """The greatest timestamp of the last segment, if known."""
        time_ms = -1 if self.last is None else self.last.metadata.max_timestamp_ms
        return None if time_ms < 0 else time_ms

    def newest_before(self, offset: int, now_ms: int) -> int | None:
        """Return the time up to which the bucket has all records if ``offset`` is the first missing offset; at most
        ``now_ms``.

        The time is the greatest timestamp of the segment before the offset. Earlier segments may have a later
        timestamp, because a producer's clock may have been ahead. Return None if the offset is before all segments.
        """
        if not self.held.spans or offset < self.held.spans[0][0]:
            return None
        newest = next((newest for (first, _), newest in self.gaps.items() if first == offset), self.newest_ms)
        return None if newest is None else min(newest, now_ms)
