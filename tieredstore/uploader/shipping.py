"""One step of one partition: upload its next segment, then advance its upload watermark in the store.

A step reads the partition's progress and closes a gap before the next segment. If a segment's files are gone or cannot
be uploaded, the step records the segment as a hole. If a segment is not replicated yet or has an open transaction, the
step waits. The watermark object may lag behind the uploads, but is never ahead: each offset before the watermark is in
a segment with a stored manifest, or in a recorded hole.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tieredstore.catalog.committed import SegmentIdentity
from tieredstore.catalog.watermark import Hole, ShippedSegment, Watermark, epochs_within, reason_of
from tieredstore.errors import (
    CorruptDataError,
    InvalidSegmentError,
    SegmentTooLargeError,
    StoreUnavailableError,
    TieredStoreError,
)
from tieredstore.kafka.checkpoints import LeaderEpochs, format_leader_epochs
from tieredstore.kafka.held_segment import OpenSegment, SegmentIncompleteError, describe_open
from tieredstore.kafka.logdir import LogSegment
from tieredstore.limits import MAX_INT64
from tieredstore.model import LogSegmentData, Uuid, human_bytes
from tieredstore.process.stopping import nothing_under_way
from tieredstore.uploader.metrics import Counts
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.segment import Segment, cache_as_it_was
from tieredstore.uploader.settled import Standing, is_compacted
from tieredstore.uploader.target import Target, Tries, TryLimit

_logger: Final = logging.getLogger(__name__)

LOST: Final = (InvalidSegmentError, SegmentTooLargeError, CorruptDataError)
"""Errors in the segment itself, which no retry solves."""

PASSING: Final = frozenset(
    (errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ETIMEDOUT)
)
"""Transient errors of the operating system, which say nothing about the disk."""

DISK_TRIES: Final = 5
"""Number of failed reads of a segment after which the disk counts as unable to read the segment."""

_MOVES_S: Final = 1.0
_ABSENT: Final = "the log directory no longer has these offsets, and they were not shipped before"
_DELETED: Final = "the segment's files were deleted before they could be read"
_TAKEN_BACK: Final = "a later leader has truncated the segment; the records that replace it will be shipped"


class Step(enum.Enum):
    """The result of a step."""

    SHIPPED = "shipped"
    STORED = "stored"
    """The segment was in the store already."""
    HOLE = "hole"
    WAITS = "waits"
    IDLE = "idle"


MOVED_ON: Final = frozenset({Step.SHIPPED, Step.STORED, Step.HOLE})
"""Results that have moved the partition's upload watermark (the offset up to which everything is stored)."""


@dataclass(slots=True)
class Uploads:
    """Uploads segments that are not in the store yet. Several threads may upload in parallel."""

    tries: Tries
    counts: Counts
    broker_id: int
    limit: TryLimit
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def store(self, target: Target, described: LogSegment) -> tuple[Uuid, bool]:
        """Upload the segment unless it is stored already. Return its id in the store, and True if it was uploaded
        now.
        """
        identity = SegmentIdentity.of(described)
        copy = target.committed.find(identity)
        if copy is not None:
            return copy.segment_id.id, False
        segment_id = Uuid.random()
        try:
            self._send(target, described, segment_id)
        finally:
            # After a failed upload, the manifest may still exist if only the response was lost. So tell the cache that
            # the partition has changed.
            target.committed.recheck(identity)
        return segment_id, True

    def _send(self, target: Target, described: LogSegment, segment_id: Uuid) -> None:
        metadata = described.to_metadata(segment_id, self.broker_id, self.now_ms())
        self.counts.tries += 1
        began_s = time.monotonic()
        try:
            allowed_s = self.limit.time_for(target.settings, described.size_in_bytes)
            with self.tries.under_way(str(metadata), allowed_s) as on_progress:
                copied = target.manager.copy_segment(metadata, described.files, on_progress=on_progress)
        except BaseException:
            self.counts.failed_tries += 1
            raise
        self.counts.segments += 1
        self.counts.bytes += described.size_in_bytes
        self.counts.stored_bytes += copied.sizes.total
        _logger.info(
            "shipped %s-%d %d..%d (%s, %.1f s)",
            described.topic, described.partition, described.base_offset, described.end_offset,
            human_bytes(described.size_in_bytes), time.monotonic() - began_s,
        )  # fmt: skip


@dataclass(slots=True)
class Shipper:
    """Uploads segments: one step at a time for each partition, any number of partitions in parallel."""

    uploads: Uploads
    relist: Callable[[Partition], bool]
    start: str
    check_crcs: bool
    monotonic: Callable[[], float] = time.monotonic

    def step(self, target: Target, partition: Partition, standing: Standing) -> Step:
        """Upload the next segment, if one is ready. The caller has marked the partition busy.

        Errors of the store are raised. A segment that cannot be uploaded because of an error in its files is recorded
        as a hole.
        """
        return _Work(self, target, partition, standing).step()

    def must_begin(self, partition: Partition) -> bool:
        """Return True if the start offset must be saved before the first upload (``uploader.start=latest``)."""
        return self.start == "latest" and partition.progress.stored is None and partition.first_active is not None

    def plan(self, target: Target, partition: Partition) -> list[Segment]:
        """Return the segments that this and later steps would upload, without writing anything."""
        return _Work(self, target, partition, Standing(None)).plan()


@dataclass(slots=True)
class _Work:
    """One step of one partition."""

    shipper: Shipper
    target: Target
    partition: Partition
    standing: Standing
    opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def step(self) -> Step:
        partition = self.partition
        if partition.progress.must_reload:
            partition.progress.distrust()
        if partition.first is None and not self.shipper.must_begin(partition) and not partition.progress.is_unsaved:
            return Step.IDLE
        watermark = self._know_progress()
        partition.ship_to(watermark.next_offset)
        segment = partition.first
        if segment is None:
            self._catch_up()
            return Step.IDLE
        if segment.base_offset > watermark.next_offset:
            return self._close_gap()
        if segment.is_gone:
            return self._pass_over(segment, segment.lost or _DELETED)
        if (obstacle := self._obstacle(segment)) is not None:
            self._catch_up()
            return self._wait_for(obstacle)
        partition.turn.waits_for = None
        # Save the progress so far, in case the next segment keeps failing.
        self._keep_up()
        with self.opened:
            if segment.lost is not None and not segment.has_come():
                return self._lose(segment, segment.lost)
            return self._ship(segment)

    def plan(self) -> list[Segment]:
        partition = self.partition
        value = partition.progress.value
        if value is None:
            value = self.target.watermarks.load(partition.where, partition.epochs, self._begin).value
            if value is not None:
                value = self.target.watermarks.advance(value, partition.epochs)
        next_offset = self._where_it_begins() if value is None else value.next_offset
        return [segment for segment in partition.pending() if segment.next_offset > next_offset]

    # Progress: the upload watermark and its object in the store

    def _know_progress(self) -> Watermark:
        """Return the partition's watermark. Read it from the store if it is unknown. Move it back if a later leader's
        epoch begins before it.
        """
        progress = self.partition.progress
        if progress.stored is None:
            self._load()
        value = progress.value
        if value is None:
            value = self._first_watermark()
            progress.value = value
            if self.shipper.start == "latest":
                self._save(value)
        self._refuse_deposed(value)
        value = self._move_back(value)
        if progress.attempt is not None:
            value = self._make_sure(value)
        return value

    def _load(self) -> None:
        partition, progress = self.partition, self.partition.progress
        with nothing_under_way():
            loaded = self.target.watermarks.load(partition.where, partition.epochs, self._begin)
        is_remade = loaded.is_remade
        if progress.attempt is not None:
            known, wanted = progress.attempt
            if known.is_in(loaded):
                # No other process has changed the watermark object, so this process's own progress is right.
                loaded, is_remade = known, True
            elif loaded.value == wanted:
                # The earlier write of the watermark succeeded, and only its response was lost, so the write is no
                # longer in doubt.
                progress.attempt = None
        value = loaded.value
        if value is not None:
            self.target.reach(value)
            self.shipper.uploads.counts.recorded[partition.where] = len(value.holes)
            if value.holes:
                self.target.watermarks.mark_holes(partition.where)
            partition.keep_early(value.next_offset, lambda: self.target.watermarks.begin(partition.where))
            if value.next_offset < (partition.shipped or 0):
                # Another uploader has moved the upload watermark back. So list the folder again, to find segments that
                # were dropped as uploaded.
                partition.shipped = value.next_offset
                self.shipper.relist(partition)
        else:
            # List again, because the upload watermark will begin with the first listed segment, and one listing may
            # miss a file that is being renamed.
            partition.shipped = None
            self.shipper.relist(partition)
        progress.load(loaded)
        if is_remade:
            # If the watermark object is missing, damaged, or behind this process's uploads, save the watermark soon.
            progress.fall_behind(self.shipper.monotonic())

    def _begin(self) -> int | None:
        """Return the log's first offset on this disk. Return None if only segments closed from now on are uploaded."""
        if self.shipper.start == "latest":
            return None
        self.shipper.relist(self.partition)
        first = self.partition.first
        return None if first is None else first.base_offset

    def _where_it_begins(self) -> int:
        first = self.partition.first
        if first is None or self.shipper.start == "latest":
            return self.partition.first_active or 0
        return first.base_offset

    def _first_watermark(self) -> Watermark:
        """Return an upload watermark for a partition that has no stored segments."""
        uploads = self.shipper.uploads
        return Watermark(self.partition.where, self._where_it_begins(), -1, uploads.broker_id, uploads.now_ms())

    def _refuse_deposed(self, value: Watermark) -> None:
        """Raise StoreUnavailableError if a later leader has moved the upload watermark. This broker must then not
        upload until it leads again."""
        partition = self.partition
        if partition.epochs and partition.last_epoch < value.leader_epoch:
            partition.progress.forget()
            raise StoreUnavailableError(
                f"{partition.where}: a leader of epoch {value.leader_epoch} has moved the upload watermark, but the "
                f"log here only reaches epoch {partition.last_epoch}"
            )

    def _move_back(self, value: Watermark) -> Watermark:
        """Move the upload watermark back to the start of a later leader's epoch, because uploads after that offset are
        no longer part of the log.
        """
        partition, uploads = self.partition, self.shipper.uploads
        began = partition.epoch_began_after(value.leader_epoch)
        if began is None:
            return value
        epoch = partition.last_epoch
        if partition.epochs[0][0] < value.leader_epoch not in dict(partition.epochs):
            # The local log never had the watermark's epoch. So it may differ from the uploads even before its own first
            # later epoch.
            until = min(began, value.next_offset)
            began = self.target.watermarks.agreed_end(value, partition.epochs, until)
            if began >= value.next_offset:
                # An earlier upload may have stored this log's records, and a former leader others at the same offsets.
                value = self.target.watermarks.without_other(value, partition.epochs)
                value = value.behind(None, began, epoch, uploads.broker_id, uploads.now_ms())
                partition.progress.advance(value, self.shipper.monotonic())
        if began >= value.next_offset:
            return value
        back = value.back(began, epoch, uploads.broker_id, uploads.now_ms())
        _logger.error(
            "%s: the log of leader epoch %d differs from offset %d on, before the watermark %d (an unclean election): "
            "records shipped between these offsets are no longer part of the log; now shipping the new log's records",
            partition.where, epoch, began, value.next_offset,
        )  # fmt: skip
        self._save(back)
        self.shipper.uploads.counts.moved_back += 1
        partition.shipped = began
        self.shipper.relist(partition)
        return back

    def _make_sure(self, value: Watermark) -> Watermark:
        """Advance the watermark over stored segments after a save of unknown outcome. This cannot wait for the next
        upload, because the local files of these segments may be gone already."""
        progress, before = self.partition.progress, value
        if progress.unsaved_since_s is None:
            # Another uploader has changed or deleted the object, so read the progress from the stored segments.
            until = MAX_INT64 if progress.attempt is None else progress.attempt[1].next_offset
            value = self.target.watermarks.advance(value, self.partition.epochs, until)
        if progress.unsaved_since_s is not None or value.next_offset > before.next_offset:
            self._save(value)
        progress.attempt = None
        return value

    def _save(self, value: Watermark) -> None:
        """Replace the watermark object by ``value`` if the object is still the version that was read or written
        last."""
        progress = self.partition.progress
        assert progress.stored is not None
        try:
            self.target.reach(value)
            progress.save(self.target.watermarks.move(progress.stored, value))
        except TieredStoreError:
            # The write may have succeeded, or another uploader may have written first. The next step reads the object
            # to find out.
            progress.doubt(value)
            raise

    def _catch_up(self) -> None:
        """Save the upload watermark if its object lags."""
        progress = self.partition.progress
        if progress.unsaved_since_s is not None and progress.value is not None:
            self._save(progress.value)

    def _keep_up(self) -> None:
        """Save the upload watermark if its object has lagged for over a second."""
        since_s = self.partition.progress.unsaved_since_s
        if since_s is not None and self.shipper.monotonic() - since_s > _MOVES_S:
            self._catch_up()

    # Uploads

    def _obstacle(self, segment: Segment) -> str | None:
        settled, is_doomed = self.standing.settled, segment.place.is_deleted
        if self.standing.only_deleted and not is_doomed:
            return "its leader is unknown"
        if settled is None:
            return "its high watermark is not known yet"
        return settled.obstacle(segment.next_offset - 1, self.partition.epochs, is_deleted=is_doomed)

    def _ship(self, segment: Segment) -> Step:
        partition, held = self.partition, None
        # Remember the epoch before reading the segment. If a later epoch appears during the read, the next step checks
        # where that epoch began.
        epoch = partition.last_epoch
        try:
            opened = self._open_listed(segment)
            if not partition.has(segment):
                return self._wait_for(_TAKEN_BACK)
            held = replace(opened, place=segment.place)  # the listing may have corrected the segment's end
            described = segment.described
            if described is None:
                described = describe_open(
                    held, partition.where.topic_id, segment.epochs, check_crcs=self.shipper.check_crcs,
                    is_compacted=is_compacted(partition, segment),
                )  # fmt: skip
                # If the files are closed now, other files may have these names later. So keep the description only
                # while these files stay open.
                segment.described = None if segment.held is None else described
            described = replace(described, closed_files=held.data(described.files.leader_epoch_index))
            segment_id, is_new = self.shipper.uploads.store(self.target, described)
        except SegmentIncompleteError as error:
            return self._wait_for(str(error))
        except LOST as error:
            return self._lose(segment, reason_of(error), held)
        except OSError as error:
            # An OSError comes from the broker's disk, because stores raise their own error classes. So retry the upload
            # for a while.
            return self._try_disk_again(segment, held, error)
        if not partition.has(segment):
            return self._wait_for(_TAKEN_BACK)
        self._advance(described, segment_id, epoch)
        if segment.next_offset <= (partition.shipped or 0):
            partition.forget(segment)
        if described.end_offset + 1 < segment.next_offset:
            self._close_end(segment)
        return Step.SHIPPED if is_new else Step.STORED

    def _open_listed(self, segment: Segment) -> OpenSegment:
        """Open the segment's files. List the folder again, unless that was done since the segment was pinned."""
        with self.partition.lock:
            opened = self._open(segment)
            is_pinned = segment.is_pinned  # opening unpins a segment whose open files are stale
        # A listing may have missed the next segment. If the segment was not pinned, its files may also belong to a
        # truncated log or a re-created topic now.
        if not is_pinned:
            self._relist()
        elif not segment.is_confirmed:
            self.shipper.relist(self.partition)
        return opened

    def _open(self, segment: Segment) -> OpenSegment:
        """Open the segment's files. The end of this step closes them, and leaves the page cache as it was before."""
        with self.partition.lock:
            held = segment.open()
        self.opened.callback(held.close)
        self.opened.enter_context(cache_as_it_was(held.log.descriptor))
        return held

    def _advance(self, described: LogSegment, segment_id: Uuid, epoch: int) -> None:
        """Advance the upload watermark by one uploaded segment. Save the watermark object now or within about a
        second."""
        partition, uploads = self.partition, self.shipper.uploads
        value = partition.progress.value
        assert value is not None
        shipped = ShippedSegment(str(segment_id), described.base_offset, described.end_offset)
        if epoch < 0:
            epoch = described.segment_leader_epochs[-1][0]
        next_offset = max(described.end_offset + 1, value.next_offset)
        # If the uploaded segment comes before the first stored segment, neither the watermark nor its last segment
        # changes.
        last = shipped if next_offset == described.end_offset + 1 else None
        value = value.behind(last, next_offset, epoch, uploads.broker_id, uploads.now_ms())
        partition.progress.advance(value, self.shipper.monotonic())
        # During consecutive uploads, save the watermark object once a second. The object may lag behind the uploads,
        # because each upload first looks for its segment in the store. The object must never be ahead of the uploads.
        if partition.ends_by(value.next_offset):
            # Save the upload watermark before the local files are dropped. If the process is killed in between, the
            # next process finds the files and saves the watermark.
            self._catch_up()
        partition.ship_to(value.next_offset)
        self._keep_up()

    # Segments that cannot be uploaded

    def _close_gap(self) -> Step:
        """Close the gap between the upload watermark and the first local segment."""
        # List the partition's folder again, because a listing may miss a file that is being renamed.
        partition, value = self.partition, self.partition.progress.value
        assert value is not None
        self._relist()
        segment = partition.first
        if segment is None or segment.base_offset <= value.next_offset:
            return Step.STORED
        return self._close_until(segment.base_offset, _ABSENT, partition.epochs)

    def _close_end(self, segment: Segment) -> None:
        """Account for the offsets between the last record of the stored ``segment`` and the segment's assumed end.

        The assumed end is the base offset of the next known segment. A segment in between may be missing: a listing may
        have missed a file that was being renamed, or an earlier process linked only some segments. If the missing
        segment is neither listed now nor stored by another uploader, record a hole.

        If a segment is missing, the producer snapshot that is stored with ``segment`` is the snapshot of the assumed
        end. The snapshot of the true end belongs to the missing segment, and may be lost with it.
        """
        partition = self.partition
        self._relist()
        if partition.has(segment):
            while (until := self._end_of(segment)) is not None:
                self._close_until(until, _ABSENT, partition.epochs)
            partition.forget(segment)

    def _end_of(self, segment: Segment) -> int | None:
        """Return the end of the offsets that only ``segment`` can have. These offsets are neither in the store nor in
        another known segment. Return None if there are no such offsets.
        """
        value = self.partition.progress.value
        assert value is not None
        others = (other for other in self.partition.pending() if other.next_offset > value.next_offset)
        later = (other.base_offset for other in others if other.base_offset > segment.base_offset)
        until = min((segment.next_offset, *later))
        return until if until > value.next_offset else None

    def _close_until(
        self, until: int, reason: str, epochs: LeaderEpochs, keep_aside: Callable[[], str | None] = lambda: None
    ) -> Step:
        """Advance the upload watermark over stored segments. If no stored segment follows the watermark, record the
        offsets before ``until`` as a hole."""
        partition, uploads, watermark = self.partition, self.shipper.uploads, self.partition.progress.value
        assert watermark is not None
        first, last = watermark.next_offset, until - 1
        value = self.target.watermarks.advance(watermark, partition.epochs, until)
        if value.next_offset > first:
            self._save(value)
            return Step.STORED
        epochs = epochs_within(epochs, first, last)
        return self._over(Hole(first, last, reason, uploads.now_ms(), uploads.broker_id, keep_aside(), epochs))

    def _relist(self) -> None:
        """List the partition's folder. Raise OSError if that fails, for example because the partition has moved to
        another folder."""
        if not self.shipper.relist(self.partition):
            raise OSError(errno.ESTALE, "the partition's folder cannot be listed now", str(self.partition.folder))

    def _wait_for(self, obstacle: str) -> Step:
        self.partition.turn.waits_for = obstacle
        return Step.WAITS

    def _try_disk_again(self, segment: Segment, held: OpenSegment | None, error: OSError) -> Step:
        """Raise the disk's read error. The caller then retries the step. After five retries, count the segment as
        lost."""
        if held is None or error.errno in PASSING:
            raise error
        segment.unreadable += 1
        if segment.unreadable <= DISK_TRIES:
            raise error
        return self._lose(segment, f"{held.log.path} cannot be read: {error.strerror}", held)

    def _lose(self, segment: Segment, reason: str, held: OpenSegment | None = None) -> Step:
        """Copy the existing files of a lost or damaged segment to quarantine, and record the segment as a hole."""
        partition = self.partition
        # List the folder again. If the broker has truncated the log meanwhile, a damaged segment is no loss.
        self._relist()
        if not partition.has(segment):
            return self._wait_for(_TAKEN_BACK)

        return self._pass_over(segment, reason, lambda: self._keep_aside(segment, held))

    def _keep_aside(self, segment: Segment, held: OpenSegment | None) -> str | None:
        """Store the segment's files in quarantine; if a file other than the log is missing or unreadable, only the log.
        Return None if the log is unreadable too.
        """
        epochs, nothing = format_leader_epochs(segment.epochs), Path(os.devnull)
        with contextlib.suppress(*LOST, OSError):
            held = held or self._open(segment)
            return self._quarantine(segment, held.data(epochs), held.size_in_bytes)
        with contextlib.suppress(*LOST, OSError):
            path = segment.place.path("log") if segment.link is None else segment.link.log
            log, size = (path, path.stat().st_size) if held is None else (held.log, held.size_in_bytes)
            return self._quarantine(segment, LogSegmentData(log, nothing, nothing, None, nothing, epochs), size)
        return None

    def _quarantine(self, segment: Segment, files: LogSegmentData, size: int) -> str:
        partition, uploads = self.partition, self.shipper.uploads
        log_segment = LogSegment(
            partition.where.topic_id, *partition.name, segment.base_offset, segment.next_offset - 1, size, -1, (),
            files, True,
        )  # fmt: skip
        metadata = log_segment.to_metadata(Uuid.random(), uploads.broker_id, uploads.now_ms())
        return self.target.quarantine(metadata, log_segment)

    def _pass_over(self, segment: Segment, reason: str, keep_aside: Callable[[], str | None] = lambda: None) -> Step:
        """Record the segment's remaining offsets as a hole, with the reason and the quarantine's prefix."""
        until = self._end_of(segment)
        step = Step.STORED if until is None else self._close_until(until, reason, segment.epochs, keep_aside)
        if self._end_of(segment) is None:
            self.partition.forget(segment)
        return step

    def _over(self, hole: Hole) -> Step:
        partition, value = self.partition, self.partition.progress.value
        assert value is not None
        epoch = partition.last_epoch
        # Mark the partition first. Uploaders look only at marked partitions, so an unmarked hole would never be filled.
        self.target.watermarks.mark_holes(partition.where)
        self._save(value.over(hole, epoch))
        partition.ship_to(hole.last_offset + 1)
        self.shipper.uploads.counts.hole(partition.where, hole.first_offset, hole.last_offset, hole.reason)
        _logger.error(
            "%s: offsets %d to %d are not shipped: %s%s",
            partition.where, hole.first_offset, hole.last_offset, hole.reason,
            f"; what remains of their data is under {hole.quarantine}" if hole.quarantine else "",
        )  # fmt: skip
        # Mark it again, because another replica may have seen the mark without a hole before the save, and removed the
        # mark.
        self.target.watermarks.mark_holes(partition.where)
        return Step.HOLE
