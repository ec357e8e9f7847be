"""What cannot be shipped: kept aside as far as there is something of it, written into the watermark, passed over."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tieredstore.catalog.watermark import Hole, Watermark, epochs_within, reason_of
from tieredstore.errors import CorruptData, InvalidSegment, SegmentTooLarge, TieredStoreError
from tieredstore.kafka.checkpoints import format_leader_epochs
from tieredstore.kafka.held_segment import OpenSegment
from tieredstore.kafka.logdir import LogSegment
from tieredstore.model import LogSegmentData, Uuid
from tieredstore.uploader.clocks import Clocks
from tieredstore.uploader.closed_segment import ClosedSegment
from tieredstore.uploader.counts import Counts
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.steps import Step
from tieredstore.uploader.target import Target

_logger: Final = logging.getLogger(__name__)

LOST: Final = (InvalidSegment, SegmentTooLarge, CorruptData)
"""What no further try can mend: it is of the segment, and not of the store."""

_DISK_TRIES: Final = 5
PASSING: Final = frozenset(
    (errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ETIMEDOUT)
)
"""What is of the system and of the moment, and not of the disk."""


class Losses:
    """Of all partitions; called by the one worker that has the partition."""

    def __init__(
        self,
        broker_id: int,
        move: Callable[[Target, Partition, Watermark], None],
        counts: Counts,
        relist: Callable[[Partition], None],
        clocks: Clocks,
    ) -> None:
        self._broker_id, self._move, self._counts = broker_id, move, counts
        self._relist, self._clocks = relist, clocks

    def close_gap(self, target: Target, partition: Partition, watermark: Watermark) -> Step:
        """The watermark stands before the first segment that is here: others have shipped that, or it is lost."""
        # A listing may miss a file that is renamed meanwhile.
        self._relist(partition)
        segment = partition.first
        if segment is None or segment.place.base_offset <= watermark.next_offset:
            return Step.STORED
        value = target.watermarks.advanced(watermark, partition.epochs, segment.place.base_offset)
        if value.next_offset == watermark.next_offset:
            gone = Hole(
                watermark.next_offset,
                segment.place.base_offset - 1,
                "the log directory does not have it any more, and it was not shipped before",
                self._clocks.now_ms(),
                self._broker_id,
                leader_epochs=epochs_within(partition.epochs, watermark.next_offset, segment.place.base_offset - 1),
            )
            return self._over(target, partition, watermark, gone)
        self._move(target, partition, value)
        return Step.STORED

    def quarantined(
        self,
        target: Target,
        partition: Partition,
        segment: ClosedSegment,
        held: OpenSegment | None,
        error: TieredStoreError,
    ) -> Step:
        """Keep what there is of a segment that no reader could read, and go on behind it."""
        # What the broker has cut off meanwhile contradicts itself, and is no loss.
        self._relist(partition)
        if segment.is_cut:
            return Step.WAITS
        prefix: str | None = None
        if held is not None:
            with contextlib.suppress(*LOST, OSError):
                prefix = self._kept(target, partition, segment, held)
        return self.hole(target, partition, segment, reason_of(error), prefix)

    def unread(
        self, target: Target, partition: Partition, segment: ClosedSegment, held: OpenSegment | None, error: OSError
    ) -> Step:
        """The disk does not give what is in the files: an error that is raised again, until it has failed often."""
        if held is None or error.errno in PASSING:
            raise error
        segment.unreadable += 1
        if segment.unreadable <= _DISK_TRIES:
            raise error
        unreadable = InvalidSegment(f"{held.log.path} cannot be read: {error.strerror}")
        return self.quarantined(target, partition, segment, held, unreadable)

    def lost(self, target: Target, partition: Partition, segment: ClosedSegment, reason: str) -> Step:
        """A segment of which a file never came, or that was let go."""
        prefix: str | None = None
        log = segment.place.path("log") if segment.kept is None else segment.kept.log
        if segment.held is not None:
            with contextlib.suppress(*LOST, OSError):
                prefix = self._kept(target, partition, segment, segment.held)
        elif log.exists():
            with contextlib.suppress(*LOST, OSError):
                prefix = self._kept_log(target, partition, segment, log)
        return self.hole(target, partition, segment, reason, prefix)

    def _kept(self, target: Target, partition: Partition, segment: ClosedSegment, held: OpenSegment) -> str:
        files = LogSegmentData(
            held.log, held.offset_index, held.time_index, held.transaction_index, held.producer_snapshot,
            format_leader_epochs(segment.epochs),
        )  # fmt: skip
        return self._stored_aside(target, partition, segment, files, held.size_in_bytes)

    def _kept_log(self, target: Target, partition: Partition, segment: ClosedSegment, log: Path) -> str:
        nothing = Path(os.devnull)
        files = LogSegmentData(log, nothing, nothing, None, nothing, format_leader_epochs(segment.epochs))
        return self._stored_aside(target, partition, segment, files, log.stat().st_size)

    def _stored_aside(
        self, target: Target, partition: Partition, segment: ClosedSegment, files: LogSegmentData, size: int
    ) -> str:
        base, end = segment.place.base_offset, segment.next_offset
        log = LogSegment(
            partition.where.topic_id, *partition.name, base, base if end is None else end - 1, size, -1, (), files, True
        )
        return target.quarantine(log.to_metadata(Uuid.random(), self._broker_id, self._clocks.now_ms()), log)

    def hole(
        self, target: Target, partition: Partition, segment: ClosedSegment, reason: str, prefix: str | None = None
    ) -> Step:
        """What is left of the segment's offsets is a hole, with its reason and what was kept of it."""
        stored = partition.watermark
        assert stored is not None
        assert stored.value is not None
        end, first = segment.next_offset, max(segment.place.base_offset, stored.value.next_offset)
        last = first if end is None else end - 1
        epochs = epochs_within(segment.epochs, first, last)
        hole = Hole(first, last, reason, self._clocks.now_ms(), self._broker_id, prefix, epochs)
        return self._over(target, partition, stored.value, hole)

    def _over(self, target: Target, partition: Partition, watermark: Watermark, hole: Hole) -> Step:
        epoch = partition.epochs[-1][0] if partition.epochs else -1
        # First the mark, by which others look for it: a hole that nobody is told of is filled by nobody.
        target.watermarks.mark_holes(partition.where)
        self._move(target, partition, watermark.over(hole, epoch))
        partition.shipped_to(hole.last_offset + 1)
        self._counts.hole(partition.where, hole.first_offset, hole.last_offset, hole.reason)
        _logger.error(
            "%s: offsets %d to %d are not shipped: %s%s",
            partition.where, hole.first_offset, hole.last_offset, hole.reason,
            f"; what there is of them lies under {hole.quarantine}" if hole.quarantine else "",
        )  # fmt: skip
        return Step.HOLE
