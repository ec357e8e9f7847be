"""Holes of watermarks that this broker can fill, whoever leads: with the same offsets under the same epochs.

Kept apart from ``uploader``, which assembles the parts: holes are filled for partitions in any role, out of turn.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tieredstore.catalog.watermark import Hole, Watermark
from tieredstore.errors import CorruptDataError, InvalidSegmentError, SegmentTooLargeError, TieredStoreError
from tieredstore.kafka.checkpoints import LeaderEpochs, epoch_at, have_same_leaders
from tieredstore.kafka.held_segment import describe_open
from tieredstore.kafka.logdir import LogSegment, discover_deleted
from tieredstore.model import TopicIdPartition
from tieredstore.process.stopping import nothing_under_way
from tieredstore.uploader.metrics import Counts
from tieredstore.uploader.page_cache import cache_as_it_was
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.segment import Segment, is_stub
from tieredstore.uploader.settled import high_watermarks
from tieredstore.uploader.shipping import PASSING, Uploads
from tieredstore.uploader.target import Target

_logger: Final = logging.getLogger(__name__)

_MOST_FAILED: Final = 10_000


@dataclass(slots=True)
class Filler:
    """Fills holes; called by one thread at a time.

    ``failed`` are segments that cannot be uploaded from here either, for example damaged ones: they are not read again.
    """

    uploads: Uploads
    counts: Counts
    check_crcs: bool
    failed: set[tuple[TopicIdPartition, int]] = field(default_factory=set[tuple[TopicIdPartition, int]])

    def fill(self, target: Target, partitions: Iterable[Partition]) -> Collection[TopicIdPartition]:
        """Upload this broker's segments for the holes in the store; return the partitions that still have holes.

        One listing if there are none, and a check of each partition that has left the broker. Failures are retried the
        next time; raise StoreError if the listing fails.
        """
        with nothing_under_way():
            holey = set(target.watermarks.with_holes())
        left = set(holey)
        for partition in partitions:
            if partition.where in holey or partition.role is Role.LEAVING:
                try:
                    if not _Filling(self, target, partition, partition.where in holey).fill():
                        left.discard(partition.where)
                except (TieredStoreError, OSError) as error:
                    _logger.warning("%s: its holes cannot be filled now: %s", partition.where, error)
        return left


@dataclass(slots=True)
class _Filling:
    """One pass over the holes of one partition."""

    filler: Filler
    target: Target
    partition: Partition
    is_marked: bool

    def fill(self) -> bool:
        """Fill holes as far as possible; return True if some remain."""
        target, where = self.target, self.partition.where
        stored = target.watermarks.load(where, ())
        watermark = stored.value
        if watermark is None:
            # The leader's uploader has not begun.
            self._unmark()
            return False
        gaps, is_leaving = list(watermark.holes), self.partition.role is Role.LEAVING
        if is_leaving:
            gaps += self._before_the_first()
        shipped = [(segment.base_offset, segment.end_offset) for segment in self._ship_missing(watermark, gaps)]
        filled = watermark.filled(shipped)
        if filled.holes != watermark.holes:
            target.watermarks.move(stored, filled)
        count = sum(_size(gap.first_offset, gap.last_offset) for gap in gaps) - sum(
            _size(rest.first_offset, rest.last_offset) for gap in gaps for rest in _rest(gap, shipped)
        )
        if count:
            self.filler.counts.filled_offsets += count
            _logger.warning("%s: %d offsets that were holes are shipped from here", where, count)
        if not filled.holes:
            self._unmark()
        if is_leaving:
            self._release(watermark, [rest for gap in gaps for rest in _rest(gap, shipped)])
        return bool(filled.holes)

    def _unmark(self) -> None:
        if self.is_marked:
            self.target.watermarks.unmark(self.partition.where)

    def _before_the_first(self) -> Iterator[Hole]:
        """Yield offsets before the first stored segment: its uploader began there, because its disk had no earlier
        ones.
        """
        first = self.target.watermarks.first(self.partition.where)
        if first is not None and first.start_offset > 0 and first.segment_leader_epochs:
            epochs = ((first.segment_leader_epochs[0][0], first.start_offset),)
            yield Hole(0, first.start_offset - 1, "the leader's disk did not have it", 0, leader_epochs=epochs)

    def _release(self, watermark: Watermark, gaps: Sequence[Hole]) -> None:
        """Unpin segments that the store has, or that do not match a hole."""
        extents = [(gap.first_offset, gap.last_offset) for gap in gaps]
        for segment in self.partition.pending():
            if segment.next_offset > watermark.next_offset or segment.may_fill(extents):
                continue
            if segment.meets(extents):
                self.filler.counts.abandoned_segments += 1
                _logger.warning(
                    "%s: offsets %d to %d are let go unshipped: they are not the records that the log has there now",
                    self.partition.where, segment.base_offset, segment.next_offset - 1,
                )  # fmt: skip
            self.partition.forget(segment)

    def _ship_missing(self, watermark: Watermark, gaps: Sequence[Hole]) -> Iterator[LogSegment]:
        """Upload local segments with offsets of these holes, and yield each."""
        partition, filler = self.partition, self.filler
        high = self._high_watermark()
        for segment in self._candidates(gaps):
            holes = [hole for hole in gaps if segment.meets([(hole.first_offset, hole.last_offset)])]
            if not holes or (partition.where, segment.base_offset) in filler.failed:
                continue
            # Records that are not replicated may be truncated again.
            if high is not None and segment.next_offset > high:
                continue
            if partition.folder is None and not segment.is_replicated and not all(hole.leader_epochs for hole in holes):
                continue
            described = self._ship(segment, holes, watermark)
            if described is None:
                segment.fills_nothing = True
            else:
                yield described

    def _candidates(self, gaps: Sequence[Hole]) -> list[Segment]:
        """Return the pinned segments that the broker has deleted, and the closed ones in its folder: most of these
        are uploaded and no longer known.
        """
        partition, folder = self.partition, self.partition.folder
        extents = [(gap.first_offset, gap.last_offset) for gap in gaps]
        known = {segment.base_offset: segment for segment in partition.pending() if segment.may_fill(extents)}
        for place in () if folder is None or not gaps else discover_deleted(folder):
            # The active one may still grow.
            if place.next_base_offset is not None and not is_stub(place):
                known.setdefault(place.base_offset, Segment(place, 0.0, partition.epochs))
        return [known[base] for base in sorted(known)]

    def _high_watermark(self) -> int | None:
        """Return the high watermark of the broker's checkpoint; None without one, and for a partition that has left:
        then only epochs decide.
        """
        folder = self.partition.folder
        highs = None if folder is None else high_watermarks(folder.parent)
        return None if highs is None else highs.get(self.partition.name, 0)

    def _ship(self, segment: Segment, holes: list[Hole], watermark: Watermark) -> LogSegment | None:
        """Upload the segment and return it; None if it fails, or does not match the hole."""
        partition, filler = self.partition, self.filler
        with contextlib.ExitStack() as opened:
            try:
                with partition.lock:
                    held = segment.open()
                opened.callback(held.close)
                opened.enter_context(cache_as_it_was(held.log.descriptor))
                described = describe_open(
                    held, partition.where.topic_id, partition.epochs, check_crcs=filler.check_crcs
                )
                if all(agrees(described, hole, partition.epochs, watermark) for hole in holes):
                    filler.uploads.store(self.target, described)
                    return described
            except (InvalidSegmentError, SegmentTooLargeError, CorruptDataError, OSError) as error:
                if isinstance(error, OSError) and error.errno in PASSING:
                    raise
                if len(filler.failed) < _MOST_FAILED:
                    filler.failed.add((partition.where, segment.base_offset))
                _logger.info("%s fills no hole: %s", segment.place, error)
        return None


def _rest(hole: Hole, shipped: Iterable[tuple[int, int]]) -> list[Hole]:
    rest = [hole]
    for first, last in shipped:
        rest = [part for one in rest for part in one.without(first, last)]
    return rest


def _size(first: int, last: int) -> int:
    return last - first + 1


def agrees(described: LogSegment, hole: Hole, epochs: LeaderEpochs, watermark: Watermark) -> bool:
    """Return True if these are the missing records: written by the same leaders; ``epochs`` are the local log's.

    For earlier offsets, the first epoch that the hole knows decides: two replicas with the same epoch at an offset have
    the same records up to there. If the hole knows none, a log matches whose last leader is not older than the
    watermark's last writer: below its high watermark it is that leader's.
    """
    known = hole.leader_epochs
    if not known:
        return bool(epochs) and epochs[-1][0] >= watermark.leader_epoch
    first, last = max(described.base_offset, hole.first_offset), min(described.end_offset, hole.last_offset)
    epoch, start = known[0]
    if first < start and epoch_at(epochs, start) != epoch:
        return False
    return have_same_leaders(described.segment_leader_epochs, known, first, last)
