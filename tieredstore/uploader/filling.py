"""Holes of watermarks that this broker's disk can fill, whoever leads: with the same offsets under the same epochs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tieredstore.catalog.watermark import Hole, Watermark
from tieredstore.errors import CorruptData, InvalidSegment, SegmentTooLarge, TieredStoreError
from tieredstore.kafka.checkpoints import LeaderEpochs, segment_leader_epochs
from tieredstore.kafka.held_segment import OpenSegment, describe_open, open_segment
from tieredstore.kafka.logdir import FoundSegment, LogSegment, discover_deleted
from tieredstore.model import TopicIdPartition
from tieredstore.process.stopping import nothing_under_way
from tieredstore.uploader.counts import Counts
from tieredstore.uploader.losses import PASSING
from tieredstore.uploader.page_cache import cache_as_it_was
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.settling import high_watermarks
from tieredstore.uploader.target import Target
from tieredstore.uploader.uploads import Uploads

_logger: Final = logging.getLogger(__name__)

_MOST_FAILED: Final = 10_000


@dataclass(slots=True)
class Filler:
    """Fills holes; called by one thread at a time.

    ``failed`` are segments that cannot be shipped from here either, damaged for instance: they are not read again.
    """

    uploads: Uploads
    counts: Counts
    check_crcs: bool
    failed: set[tuple[TopicIdPartition, int]] = field(default_factory=set[tuple[TopicIdPartition, int]])

    def fill(self, target: Target, partitions: Iterable[Partition]) -> Collection[TopicIdPartition]:
        """Ship what this disk has of the holes that the store tells of; which partitions have holes still.

        One listing where there are none. What fails is tried the next time; StoreError if the listing does.
        """
        with nothing_under_way():
            holey = set(target.watermarks.with_holes())
        left = set(holey)
        for partition in partitions:
            if partition.where in holey and not partition.is_moving:
                try:
                    if not self._fill(target, partition):
                        left.discard(partition.where)
                except (TieredStoreError, OSError) as error:
                    _logger.warning("%s: its holes cannot be filled now: %s", partition.where, error)
        return left

    def _fill(self, target: Target, partition: Partition) -> bool:
        """Whether holes are left."""
        stored = target.watermarks.load(partition.where, ())
        watermark = stored.value
        if watermark is None or not watermark.holes:
            target.watermarks.unmark(partition.where)
            return False
        shipped = [
            (described.base_offset, described.end_offset) for described in self._shipped(target, partition, watermark)
        ]
        if not shipped:
            return True
        filled = watermark.filled(shipped)
        target.watermarks.move(stored, filled)
        count = watermark.missing - filled.missing
        self.counts.filled_offsets += count
        _logger.warning("%s: %d offsets that were holes are shipped from here", partition.where, count)
        if not filled.holes:
            target.watermarks.unmark(partition.where)
        return bool(filled.holes)

    def _shipped(self, target: Target, partition: Partition, watermark: Watermark) -> Iterator[LogSegment]:
        """The segments here with offsets of a hole, each in the store by now."""
        highs = high_watermarks(partition.folder.parent)
        high = None if highs is None else highs.get(partition.name, 0)
        with contextlib.ExitStack() as opened:
            listed = discover_deleted(partition.folder)
            held = {segment.place.base_offset: segment for segment in partition.held_again(watermark.missing_extents)}
            for segment in held.values():
                opened.callback(segment.close)
            # Held is what the broker has deleted, or is about to.
            gone = [
                segment.place for base, segment in held.items() if base not in {place.base_offset for place in listed}
            ]
            for place in (*gone, *listed):
                holes = [hole for hole in watermark.holes if _meet(place, hole)]
                end = place.next_base_offset
                if not holes or (partition.where, place.base_offset) in self.failed:
                    continue
                # The active one may still grow, and what is not replicated may be cut off again.
                if (end is None and not place.is_deleted) or (high is not None and (end or place.base_offset) > high):
                    continue
                described = self._filled(target, partition, watermark, holes, place, held.get(place.base_offset), high)
                if described is None:
                    partition.fills_nothing(place.base_offset)
                else:
                    yield described

    def _filled(
        self,
        target: Target,
        partition: Partition,
        watermark: Watermark,
        holes: list[Hole],
        place: FoundSegment,
        held: OpenSegment | None,
        high: int | None,
    ) -> LogSegment | None:
        """The segment, in the store by now; None if it cannot be, or is not what is missing."""
        with contextlib.ExitStack() as opened:
            try:
                if held is None:
                    held = open_segment(place)
                    opened.callback(held.close)
                opened.enter_context(cache_as_it_was(held.log.descriptor))
                described = describe_open(held, partition.where.topic_id, partition.epochs, check_crcs=self.check_crcs)
                if high is not None and described.end_offset >= high:
                    return None
                if all(agrees(described, hole, partition.epochs, watermark) for hole in holes):
                    self.uploads.store(target, described)
                    return described
            except (InvalidSegment, SegmentTooLarge, CorruptData, OSError) as error:
                if isinstance(error, OSError) and error.errno in PASSING:
                    raise
                if len(self.failed) < _MOST_FAILED:
                    self.failed.add((partition.where, place.base_offset))
                _logger.info("%s fills no hole: %s", place, error)
        return None


def _meet(place: FoundSegment, hole: Hole) -> bool:
    end = place.next_base_offset
    return place.base_offset <= hole.last_offset and (end is None or end > hole.first_offset)


def agrees(described: LogSegment, hole: Hole, epochs: LeaderEpochs, watermark: Watermark) -> bool:
    """Whether these are the records that are missing: written by the same leaders.

    Where the hole does not say by which, a log does whose last leader is not older than whoever moved the watermark:
    below its high watermark it is that leader's.
    """
    first, last = max(described.base_offset, hole.first_offset), min(described.end_offset, hole.last_offset)
    if not hole.leader_epochs:
        return bool(epochs) and epochs[-1][0] >= watermark.leader_epoch
    own = segment_leader_epochs(described.segment_leader_epochs, first, last)
    return own == segment_leader_epochs(hole.leader_epochs, first, last)
