"""One step of one partition: its next segment into the store, its watermark behind it."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.errors import CorruptData, InvalidSegment, SegmentTooLarge, StoreUnavailable, TieredStoreError
from tieredstore.kafka.checkpoints import format_leader_epochs
from tieredstore.kafka.held_segment import OpenSegment, SegmentIncomplete, describe_open
from tieredstore.kafka.logdir import LogSegment
from tieredstore.limits import MAX_INT64
from tieredstore.model import LogSegmentData, Uuid
from tieredstore.uploader.counts import Counts
from tieredstore.uploader.elections import later_epoch_began
from tieredstore.uploader.page_cache import cache_as_it_was
from tieredstore.uploader.partition import ClosedSegment, Partition
from tieredstore.uploader.settling import Settled
from tieredstore.uploader.target import Target
from tieredstore.uploader.uploads import Uploads
from tieredstore.uploader.watermark import Hole, ShippedSegment, Watermark, epochs_within, reason_of
from tieredstore.uploader.watermark_store import StoredWatermark

_logger: Final = logging.getLogger(__name__)

_DELETED: Final = "its files were deleted before they could be read"
_DISK_TRIES: Final = 5
_MOVES_S: Final = 1.0
_LOST: Final = (InvalidSegment, SegmentTooLarge, CorruptData)
"""What no further try can mend: it is of the segment, and not of the store."""


class Step(enum.Enum):
    """What came of a step."""

    SHIPPED = "shipped"
    STORED = "stored"
    """It was in the store already."""
    HOLE = "hole"
    WAITS = "waits"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a partition when a step is made: how far it is settled, and whether it is led for certain."""

    settled: Settled | None
    only_deleted: bool = False


@dataclass(frozen=True, slots=True)
class ShipperSettings:
    """How to ship."""

    broker_id: int
    start: str
    check_crcs: bool


class Deposed(StoreUnavailable):
    """A leader of a later epoch has moved the watermark: this one ships no more until it leads again."""


class Shipper:
    """Makes steps; one at a time for each partition, any number of partitions side by side."""

    def __init__(
        self,
        settings: ShipperSettings,
        uploads: Uploads,
        counts: Counts,
        relist: Callable[[Partition], None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._uploads, self._counts = settings, uploads, counts
        self._relist = relist
        self._now_ms, self._monotonic = now_ms, monotonic

    def step(self, target: Target, partition: Partition, standing: Standing) -> Step:
        """Ship the next segment, if there is one that may be. The caller has marked the partition busy.

        Raises what keeps the store from taking it; what keeps the segment from being taken becomes a hole.
        """
        partition.forget_cut()
        if partition.must_reload:
            partition.forget_watermark()
        if partition.first is None and not self.must_begin(partition) and not partition.is_unsure:
            self._catch_up(target, partition)
            return Step.IDLE
        watermark = self._watermark(target, partition)
        if partition.is_unsure:
            watermark = self._made_sure(target, partition, watermark)
        partition.shipped_to(watermark.next_offset)
        segment = partition.first
        if segment is None:
            self._catch_up(target, partition)
            return Step.IDLE
        if segment.place.base_offset > watermark.next_offset:
            return self._close_gap(target, partition, watermark)
        if segment.is_gone:
            return self._hole(target, partition, segment, segment.lost or _DELETED)
        if (obstacle := self._obstacle(segment, partition, standing)) is not None:
            partition.waits_for = obstacle
            self._catch_up(target, partition)
            return Step.WAITS
        partition.waits_for = None
        if segment.lost is not None:
            return self._lost(target, partition, segment, segment.lost)
        return self._ship(target, partition, segment, standing)

    def must_begin(self, partition: Partition) -> bool:
        """Whether a watermark is to be written before anything is shipped: that this is where it begins."""
        return self._settings.start == "latest" and partition.watermark is None and partition.first_active is not None

    def plan(self, target: Target, partition: Partition) -> list[ClosedSegment]:
        """What steps would ship, sooner or later; reads, and writes nothing."""
        stored = partition.watermark or target.watermarks.load(partition.where, partition.epochs)
        value = self._begun(partition, stored)
        value = target.watermarks.advanced(value, partition.epochs) if stored.value is not None else value
        return partition.pending(lambda segment: segment.next_offset is None or segment.next_offset > value.next_offset)

    # The watermark

    def _watermark(self, target: Target, partition: Partition) -> Watermark:
        """The partition's watermark, read from the store the first time."""
        if partition.watermark is None:
            stored = self._loaded(target, partition)
            loaded = stored.value
            if loaded is not None:
                target.reach(loaded)
            partition.watermark = stored
            if loaded is None:
                # It begins with what is here: one listing alone may miss a file that is renamed meanwhile.
                self._relist(partition)
            else:
                self._counts.known_holes(partition.where, len(loaded.holes))
                if loaded.holes:
                    target.watermarks.mark_holes(partition.where)
        value = self._begun(partition, partition.watermark)
        if partition.watermark.value is None:
            partition.watermark = StoredWatermark(value, partition.watermark.etag)
            if self._settings.start == "latest":
                self._move(target, partition, value)
        self._refuse_deposed(partition, value)
        began = later_epoch_began(partition, value)
        if began is not None and began < value.next_offset:
            back = value.back(began, partition.epochs[-1][0], self._settings.broker_id, self._now_ms())
            _logger.error(
                "%s: leader epoch %d began at offset %d, before the watermark %d (an unclean election): what was "
                "shipped behind it is no part of the log any more, and the new epoch's records are shipped",
                partition.where, partition.epochs[-1][0], began, value.next_offset,
            )  # fmt: skip
            self._move(target, partition, back)
            self._counts.moved_back += 1
            self._relist(partition)
            value = back
        return value

    def _loaded(self, target: Target, partition: Partition) -> StoredWatermark:
        """What the store has; with what this process has shipped behind it, if nobody has moved it since."""
        loaded = target.watermarks.load(partition.where, partition.epochs)
        partition.is_behind = False
        if partition.unmoved is None:
            return loaded
        known, moved = partition.unmoved
        if loaded.etag is not None and loaded.etag == known.etag:
            partition.is_behind = True
            return known
        if loaded.value == moved:
            # It was moved, and the answer was lost.
            partition.is_unsure, partition.unmoved = False, None
        return loaded

    def _begun(self, partition: Partition, stored: StoredWatermark) -> Watermark:
        """The watermark, or where one begins of which nothing is stored."""
        if stored.value is not None:
            return stored.value
        first = partition.first
        latest = self._settings.start == "latest" or first is None
        start = (partition.first_active or 0) if latest or first is None else first.place.base_offset
        return Watermark(partition.where, start, -1, self._settings.broker_id, self._now_ms())

    def _refuse_deposed(self, partition: Partition, value: Watermark) -> None:
        if partition.epochs and partition.epochs[-1][0] < value.leader_epoch:
            partition.watermark = None
            raise Deposed(
                f"{partition.where}: the watermark was moved by a leader of epoch {value.leader_epoch}, and the log "
                f"here knows of epoch {partition.epochs[-1][0]}"
            )

    def _move(self, target: Target, partition: Partition, value: Watermark) -> None:
        stored = partition.watermark
        assert stored is not None
        partition.is_behind = False
        try:
            target.reach(value)
            partition.watermark = target.watermarks.move(stored, value)
        except TieredStoreError:
            # Whoever moved it, or whether the move was made: the object says.
            partition.watermark, partition.is_unsure, partition.unmoved = None, True, (stored, value)
            raise
        partition.moved_s, partition.is_unsure, partition.unmoved = self._monotonic(), False, None

    def _made_sure(self, target: Target, partition: Partition, watermark: Watermark) -> Watermark:
        """The watermark behind what is stored, after a move that failed: what it was moved over may not be here."""
        value = watermark
        if not partition.is_behind:
            # Others have moved it, or nothing of it is left: the segments tell.
            until = MAX_INT64 if partition.unmoved is None else partition.unmoved[1].next_offset
            value = target.watermarks.advanced(watermark, partition.epochs, until)
        if partition.is_behind or value.next_offset > watermark.next_offset:
            self._move(target, partition, value)
        partition.is_unsure = False
        return value

    def _catch_up(self, target: Target, partition: Partition) -> None:
        """Move the object to where the watermark is."""
        if partition.is_behind and partition.watermark is not None and partition.watermark.value is not None:
            self._move(target, partition, partition.watermark.value)

    # What is shipped

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
            held = segment.held
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
            except _LOST as error:
                return self._quarantined(target, partition, segment, held, error)
            # A segment whose end only its batches tell was let through by its beginning.
            if standing.settled is not None and described.end_offset >= standing.settled.high_watermark:
                partition.waits_for = f"the high watermark is {standing.settled.high_watermark}"
                return Step.WAITS
            return self._copied(target, partition, segment, described, held)

    def _copied(
        self, target: Target, partition: Partition, segment: ClosedSegment, described: LogSegment, held: OpenSegment
    ) -> Step:
        try:
            segment_id, is_new = self._uploads.store(target, described)
        except _LOST as error:
            return self._quarantined(target, partition, segment, held, error)
        except OSError as error:
            # A store translates what its system says: this is the broker's disk.
            if partition.failures < _DISK_TRIES:
                raise
            unreadable = InvalidSegment(f"{held.log.path} cannot be read: {error.strerror}")
            return self._quarantined(target, partition, segment, held, unreadable)
        shipped = ShippedSegment(str(segment_id), described.base_offset, described.end_offset)
        self._advance(target, partition, shipped, described)
        return Step.SHIPPED if is_new else Step.STORED

    def _advance(self, target: Target, partition: Partition, shipped: ShippedSegment, described: LogSegment) -> None:
        stored = partition.watermark
        assert stored is not None
        assert stored.value is not None
        epoch = partition.epochs[-1][0] if partition.epochs else described.segment_leader_epochs[-1][0]
        value = stored.value.behind(shipped, described.end_offset + 1, epoch, self._settings.broker_id, self._now_ms())
        partition.watermark = StoredWatermark(value, stored.etag)
        partition.shipped_to(value.next_offset)
        # Of segments that are shipped one after the other one a second moves the object: it may stand before what is
        # shipped, since the store is looked at before anything is sent, but never behind it.
        moved_s = partition.moved_s
        if partition.first is None or moved_s is None or self._monotonic() - moved_s > _MOVES_S:
            self._move(target, partition, value)
        else:
            partition.is_behind = True

    # What cannot be shipped

    def _close_gap(self, target: Target, partition: Partition, watermark: Watermark) -> Step:
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
                self._now_ms(),
                self._settings.broker_id,
                leader_epochs=epochs_within(partition.epochs, watermark.next_offset, segment.place.base_offset - 1),
            )
            return self._over(target, partition, watermark, gone)
        self._move(target, partition, value)
        return Step.STORED

    def _quarantined(
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
            with contextlib.suppress(*_LOST, OSError):
                prefix = self._kept(target, partition, segment, held)
        return self._hole(target, partition, segment, reason_of(error), prefix)

    def _lost(self, target: Target, partition: Partition, segment: ClosedSegment, reason: str) -> Step:
        """A segment of which a file never came, or that was let go."""
        prefix: str | None = None
        log = segment.place.path("log") if segment.kept is None else segment.kept.log
        if segment.held is not None:
            with contextlib.suppress(*_LOST, OSError):
                prefix = self._kept(target, partition, segment, segment.held)
        elif log.exists():
            with contextlib.suppress(*_LOST, OSError):
                prefix = self._kept_log(target, partition, segment, log)
        return self._hole(target, partition, segment, reason, prefix)

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
        return target.quarantine(log.to_metadata(Uuid.random(), self._settings.broker_id, self._now_ms()), log)

    def _hole(
        self, target: Target, partition: Partition, segment: ClosedSegment, reason: str, prefix: str | None = None
    ) -> Step:
        stored = partition.watermark
        assert stored is not None
        assert stored.value is not None
        end, first = segment.next_offset, max(segment.place.base_offset, stored.value.next_offset)
        last = first if end is None else end - 1
        epochs = epochs_within(segment.epochs, first, last)
        hole = Hole(first, last, reason, self._now_ms(), self._settings.broker_id, prefix, epochs)
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
