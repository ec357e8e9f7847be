"""One step of one partition: its next segment into the store, its watermark behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.catalog.watermark import ShippedSegment
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.kafka.held_segment import OpenSegment, SegmentIncomplete, describe_open
from tieredstore.kafka.logdir import LogSegment
from tieredstore.uploader.clocks import Clocks
from tieredstore.uploader.closed_segment import ClosedSegment
from tieredstore.uploader.counts import Counts
from tieredstore.uploader.losses import LOST, Losses
from tieredstore.uploader.page_cache import cache_as_it_was
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.progress import Progress
from tieredstore.uploader.settling import Standing
from tieredstore.uploader.steps import Step
from tieredstore.uploader.target import Target
from tieredstore.uploader.uploads import Uploads

_DELETED: Final = "its files were deleted before they could be read"


@dataclass(frozen=True, slots=True)
class ShipperSettings:
    """How to ship."""

    broker_id: int
    start: str
    check_crcs: bool


class Shipper:
    """Makes steps; one at a time for each partition, any number of partitions side by side."""

    def __init__(
        self,
        settings: ShipperSettings,
        uploads: Uploads,
        counts: Counts,
        relist: Callable[[Partition], None],
        clocks: Clocks | None = None,
    ) -> None:
        self._settings, self._uploads = settings, uploads
        clocks = clocks or Clocks()
        self._progress = Progress(settings.broker_id, settings.start, counts, relist, clocks)
        self._losses = Losses(settings.broker_id, self._progress.move, counts, relist, clocks)

    def step(self, target: Target, partition: Partition, standing: Standing) -> Step:
        """Ship the next segment, if there is one that may be. The caller has marked the partition busy.

        Raises what keeps the store from taking it; what keeps the segment from being taken becomes a hole.
        """
        partition.forget_cut()
        if partition.must_reload:
            partition.forget_watermark()
        if partition.first is None and not self.must_begin(partition) and not partition.is_unsure:
            self._progress.catch_up(target, partition)
            return Step.IDLE
        watermark = self._progress.watermark(target, partition)
        if partition.is_unsure:
            watermark = self._progress.made_sure(target, partition, watermark)
        partition.shipped_to(watermark.next_offset)
        segment = partition.first
        if segment is None:
            self._progress.catch_up(target, partition)
            return Step.IDLE
        if segment.place.base_offset > watermark.next_offset:
            return self._losses.close_gap(target, partition, watermark)
        if segment.is_gone:
            return self._losses.hole(target, partition, segment, segment.lost or _DELETED)
        if (obstacle := self._obstacle(segment, partition, standing)) is not None:
            partition.waits_for = obstacle
            self._progress.catch_up(target, partition)
            return Step.WAITS
        partition.waits_for = None
        # Of what was shipped before a segment that fails again and again the object tells all the same.
        self._progress.keep_up(target, partition)
        if segment.lost is not None and not segment.has_come():
            return self._losses.lost(target, partition, segment, segment.lost)
        return self._ship(target, partition, segment, standing)

    def must_begin(self, partition: Partition) -> bool:
        """Whether a watermark is to be written before anything is shipped: that this is where it begins."""
        return self._settings.start == "latest" and partition.watermark is None and partition.first_active is not None

    def plan(self, target: Target, partition: Partition) -> list[ClosedSegment]:
        """What steps would ship, sooner or later; reads, and writes nothing."""
        stored = partition.watermark or target.watermarks.load(partition.where, partition.epochs)
        value = self._progress.begun(partition, stored)
        value = target.watermarks.advanced(value, partition.epochs) if stored.value is not None else value
        return partition.pending(lambda segment: segment.next_offset is None or segment.next_offset > value.next_offset)

    def _obstacle(self, segment: ClosedSegment, partition: Partition, standing: Standing) -> str | None:
        if standing.only_deleted and not segment.place.is_deleted:
            return "nobody knows who leads"
        if standing.settled is None:
            return "nobody has said yet how far it is settled"
        end = segment.next_offset
        last = segment.place.base_offset if end is None else end - 1
        return standing.settled.obstacle(last, partition.epochs, is_deleted=segment.place.is_deleted)

    def _ship(self, target: Target, partition: Partition, segment: ClosedSegment, standing: Standing) -> Step:
        with contextlib.ExitStack() as opened:
            held, epochs = segment.held, segment.epochs
            try:
                if held is None:
                    held = segment.open()
                    opened.callback(held.close)
                opened.enter_context(cache_as_it_was(held.log.descriptor))
                described = segment.described
                if described is None:
                    described = describe_open(
                        held, partition.where.topic_id, segment.epochs, check_crcs=self._settings.check_crcs
                    )
                    # Of files that stay open only: the others are other ones the next time.
                    segment.described = described if segment.held is held else None
            except SegmentIncomplete as error:
                partition.waits_for = str(error)
                return Step.WAITS
            except LOST as error:
                return self._losses.quarantined(target, partition, segment, held, error)
            except OSError as error:
                return self._losses.unread(target, partition, segment, held, error)
            # A segment whose end only its batches tell was let through by its beginning.
            if standing.settled is not None and described.end_offset >= standing.settled.high_watermark:
                partition.waits_for = f"the high watermark is {standing.settled.high_watermark}"
                return Step.WAITS
            return self._copied(target, partition, segment, described, held, epochs)

    def _copied(
        self,
        target: Target,
        partition: Partition,
        segment: ClosedSegment,
        described: LogSegment,
        held: OpenSegment,
        epochs: LeaderEpochs,
    ) -> Step:
        try:
            segment_id, is_new = self._uploads.store(target, described)
        except LOST as error:
            return self._losses.quarantined(target, partition, segment, held, error)
        except OSError as error:
            # A store translates what its system says: this is the broker's disk.
            return self._losses.unread(target, partition, segment, held, error)
        if segment.is_cut:
            partition.waits_for = "a later leader has taken it back meanwhile: what is written in its place is shipped"
            return Step.WAITS
        shipped = ShippedSegment(str(segment_id), described.base_offset, described.end_offset)
        self._progress.advance(target, partition, shipped, described, epochs)
        return Step.SHIPPED if is_new else Step.STORED
