"""Fills holes: offsets that a partition's upload watermark records as not uploaded.

If this broker has the missing records, from the leader epochs that the hole names, it uploads its own copy, even if
another broker leads. This is a separate module because holes are filled in any role and outside the schedule.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tieredstore.catalog.watermark import Hole, Watermark
from tieredstore.errors import CorruptDataError, InvalidSegmentError, SegmentTooLargeError, TieredStoreError
from tieredstore.kafka.checkpoints import LeaderEpochs, epoch_at, have_same_leaders
from tieredstore.kafka.held_segment import describe_open
from tieredstore.kafka.logdir import LogSegment, discover_deleted
from tieredstore.model import TopicIdPartition
from tieredstore.process.stopping import nothing_under_way
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.segment import Segment, cache_as_it_was, is_stub
from tieredstore.uploader.settled import high_watermarks, is_compacted
from tieredstore.uploader.shipping import DISK_TRIES, PASSING, Uploads
from tieredstore.uploader.target import Target

_logger: Final = logging.getLogger(__name__)

_MOST_FAILED: Final = 10_000


@dataclass(slots=True)
class Filler:
    """Fills holes (offsets missing in the store). Only one thread at a time may use a filler.

    ``relist`` lists a partition's folder again, and returns False if it cannot.
    ``failed`` has the device, inode and modification time of each log that cannot be uploaded, for example because it
    is damaged. These logs are not read again, but a file that replaces one of them is.
    """

    uploads: Uploads
    relist: Callable[[Partition], bool]
    check_crcs: bool
    failed: set[tuple[int, int, int]] = field(default_factory=set[tuple[int, int, int]])

    def fill(self, target: Target, partitions: Iterable[Partition]) -> Collection[TopicIdPartition]:
        """Upload this broker's segments for the holes in the store. Return the partitions that still have holes.

        If there are no holes, a call costs one listing, plus a check of each partition that has left the broker. The
        next call retries failed uploads. Raise StoreError if the listing fails.
        """
        with nothing_under_way():
            holey = set(target.watermarks.with_holes())
        left = set(holey)
        for partition in partitions:
            is_marked, is_unfilled = partition.where in holey, partition.where in self.uploads.counts.unfilled
            if is_unfilled:
                # Another uploader may have removed the mark, and been killed before it marked the hole again.
                left.add(partition.where)
            if is_marked or is_unfilled or partition.role is Role.LEAVING or partition.has_early:
                try:
                    if not _Filling(self, target, partition, is_marked).fill():
                        left.discard(partition.where)
                except (TieredStoreError, OSError) as error:
                    _logger.warning("%s: cannot fill its holes now: %s", partition.where, error)
        return left


@dataclass(slots=True)
class _Filling:
    """One pass over the holes of one partition."""

    filler: Filler
    target: Target
    partition: Partition
    is_marked: bool

    def fill(self) -> bool:
        """Fill as many holes as possible; return True if some remain."""
        target, where = self.target, self.partition.where
        stored = target.watermarks.load(where, ())
        watermark = stored.value
        if watermark is None:
            # Without an upload watermark, the leader's uploader has not begun, and has recorded no holes (offsets that
            # it could not upload). So keep no segments for holes.
            self._unmark()
            return False
        if watermark.holes and not self.is_marked:
            target.watermarks.mark_holes(where)
            self.is_marked = True
        known = watermark.fill(self._find_stored(watermark))
        gaps, is_before = list(known.holes), self.partition.role is Role.LEAVING or self.partition.has_early
        if is_before:
            gaps += self._before_the_first()
        shipped = [(segment.base_offset, segment.end_offset) for segment in self._ship_missing(watermark, gaps)]
        filled = known.fill(shipped)
        if filled.holes != watermark.holes:
            target.watermarks.move(stored, filled)
        before = replace(known, holes=tuple(gaps))
        after = before.fill(shipped)
        if count := before.missing - after.missing:
            self.filler.uploads.counts.filled_offsets += count
            _logger.warning("%s: filled %d missing offsets from this broker", where, count)
        if not filled.holes:
            self._unmark()
        if is_before:
            self._release(watermark, after.missing_extents)
        return bool(filled.holes)

    def _unmark(self) -> None:
        if self.is_marked:
            self.target.watermarks.unmark(self.partition.where)

    def _find_stored(self, watermark: Watermark) -> Iterator[tuple[int, int]]:
        """Yield the offsets of holes that the store has after all, because another uploader stored their segment while
        the hole was being recorded. Such a hole can be closed even if no disk has the segment any more.
        """
        for hole in watermark.holes:
            for segment in self.target.watermarks.segments(watermark.where, hole.first_offset, hole.last_offset + 1):
                extent = segment.start_offset, segment.end_offset
                if agrees(extent, segment.segment_leader_epochs, hole, self.partition.epochs, watermark):
                    yield extent

    def _before_the_first(self) -> Iterator[Hole]:
        """Yield one hole: the offsets before the first stored segment, if there are any.

        The leader's uploader began at the first stored segment because its disk had no earlier offsets.
        """
        first = self.target.watermarks.first(self.partition.where)
        if first is not None and first.start_offset > 0 and first.segment_leader_epochs:
            epochs = ((first.segment_leader_epochs[0][0], first.start_offset),)
            yield Hole(
                0, first.start_offset - 1, "the leader's disk did not have these offsets", 0, leader_epochs=epochs
            )

    def _release(self, watermark: Watermark, extents: Sequence[tuple[int, int]]) -> None:
        """Drop the open files and links (pins) of segments that are stored, and of segments that cannot fill a hole.
        ``extents`` are the offsets that the store still lacks.
        """
        for segment in self.partition.pending():
            if segment.next_offset > watermark.next_offset or segment.may_fill(extents):
                continue
            if segment.meets(extents):
                self.filler.uploads.counts.abandoned_segments += 1
                _logger.warning(
                    "%s: dropped offsets %d to %d without shipping them: the log now has other records there",
                    self.partition.where, segment.base_offset, segment.next_offset - 1,
                )  # fmt: skip
            self.partition.forget(segment)

    def _ship_missing(self, watermark: Watermark, gaps: Sequence[Hole]) -> Iterator[LogSegment]:
        """Upload local segments with offsets that the store lacks (``gaps``); yield each segment after its upload."""
        partition = self.partition
        high = self._high_watermark()
        for segment in self._candidates(gaps):
            holes = [hole for hole in gaps if segment.meets([(hole.first_offset, hole.last_offset)])]
            if not holes:
                continue
            # Skip records that are not replicated, because a new leader may still truncate them.
            if high is not None and segment.next_offset > high:
                continue
            if partition.folder is None and not segment.is_replicated and not all(hole.leader_epochs for hole in holes):
                continue
            try:
                described = self._ship(segment, holes, watermark)
            except OSError as error:
                if error.errno in PASSING:
                    raise
                # The disk may be able to read the segment later, and perhaps only this broker has it.
                _logger.info("%s cannot be read now to fill a hole: %s", segment.place, error)
                segment.unreadable += 1
                segment.fills_nothing = segment.unreadable > DISK_TRIES
                continue
            if described is None:
                segment.fills_nothing = True
            else:
                yield described

    def _candidates(self, gaps: Sequence[Hole]) -> list[Segment]:
        """Return deleted segments that open files or links keep, and all closed segments in the folder.

        The uploader forgets segments after their upload, but a hole may need one of these segments. So the partition's
        folder must be listed.
        """
        partition, folder = self.partition, self.partition.folder
        extents = [(gap.first_offset, gap.last_offset) for gap in gaps]
        known = {segment.base_offset: segment for segment in partition.pending() if segment.may_fill(extents)}
        for place in () if folder is None or not gaps else discover_deleted(folder):
            # Skip the active segment, which may still grow.
            if place.next_base_offset is not None and not is_stub(place):
                known.setdefault(place.base_offset, Segment(place, 0.0, partition.epochs))
        return [known[base] for base in sorted(known)]

    def _high_watermark(self) -> int | None:
        """Return the high watermark in the broker's checkpoint, or None if there is no checkpoint or no folder.

        Without a high watermark, only leader epochs decide which segments may fill a hole.
        """
        folder = self.partition.folder
        highs = None if folder is None else high_watermarks(folder.parent)
        return None if highs is None else highs.get(self.partition.name, 0)

    def _ship(self, segment: Segment, holes: list[Hole], watermark: Watermark) -> LogSegment | None:
        """Upload the segment and return it. Return None if it is damaged or does not match the holes.

        Raise OSError if the disk fails.
        """
        partition, filler, log = self.partition, self.filler, None
        with contextlib.ExitStack() as opened:
            try:
                with partition.lock:
                    held = segment.open()
                opened.callback(held.close)
                status = os.fstat(held.log.descriptor)
                log = status.st_dev, status.st_ino, status.st_mtime_ns
                opened.enter_context(cache_as_it_was(held.log.descriptor))
                if log in filler.failed or not self._confirm(segment):
                    return None
                described = describe_open(
                    held, partition.where.topic_id, partition.epochs, check_crcs=filler.check_crcs,
                    is_compacted=is_compacted(partition, segment),
                )  # fmt: skip
                # Take the end from the segment's log. It may be before the base offset of the next known segment,
                # because a listing may have missed a segment in between.
                segment.place = replace(segment.place, next_base_offset=described.end_offset + 1)
                holes = [hole for hole in holes if hole.first_offset <= described.end_offset]
                extent, own = (described.base_offset, described.end_offset), described.segment_leader_epochs
                if holes and all(agrees(extent, own, hole, partition.epochs, watermark) for hole in holes):
                    filler.uploads.store(self.target, described)
                    return described
            except (InvalidSegmentError, SegmentTooLargeError, CorruptDataError) as error:
                if log is not None and len(filler.failed) < _MOST_FAILED:
                    filler.failed.add(log)
                _logger.info("%s cannot fill a hole: %s", segment.place, error)
        return None

    def _confirm(self, segment: Segment) -> bool:
        """List the folder again, unless that was done since the segment was pinned. Return False if the segment has
        changed: its files may belong to a truncated log or a re-created topic, or a listing missed the next segment.
        """
        partition, folder = self.partition, self.partition.folder
        if segment.is_pinned:
            if not segment.is_confirmed:
                self.filler.relist(partition)
            return partition.has(segment)
        return folder is not None and self.filler.relist(partition) and segment.place in discover_deleted(folder)


def agrees(extent: tuple[int, int], own: LeaderEpochs, hole: Hole, epochs: LeaderEpochs, watermark: Watermark) -> bool:
    """Return True if a segment has the records of ``hole``, written in the leader epochs that the hole names.

    ``extent`` has the segment's first and last offset, and ``own`` its leader epochs. ``epochs`` are the leader epochs
    of the local log.

    The segment may begin before the first epoch that the hole names. Then the local log must have this epoch at the
    epoch's start. Two replicas with the same epoch at an offset have the same records up to that offset, so this proves
    the earlier records. If the hole names no epochs, the segment matches if it is part of the local log, and the log's
    last epoch is not earlier than the upload watermark's epoch.
    """
    known = hole.leader_epochs
    first, last = max(extent[0], hole.first_offset), min(extent[1], hole.last_offset)
    if not known:
        is_new = bool(epochs) and epochs[-1][0] >= watermark.leader_epoch
        return is_new and have_same_leaders(own, epochs, first, last)
    epoch, start = known[0]
    if first < start and epoch_at(epochs, start) != epoch:
        return False
    return have_same_leaders(own, known, first, last)
