"""How far a partition is shipped: its watermark, read, and moved behind what stands in the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tieredstore.catalog.watermark import ShippedSegment, Watermark
from tieredstore.errors import StoreUnavailable, TieredStoreError
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.kafka.logdir import LogSegment
from tieredstore.limits import MAX_INT64
from tieredstore.process.stopping import nothing_under_way
from tieredstore.uploader.clocks import Clocks
from tieredstore.uploader.counts import Counts
from tieredstore.uploader.elections import later_epoch_began
from tieredstore.uploader.partition import Partition
from tieredstore.uploader.target import Target
from tieredstore.uploader.watermark_store import StoredWatermark

_logger: Final = logging.getLogger(__name__)

_MOVES_S: Final = 1.0


class Deposed(StoreUnavailable):
    """A leader of a later epoch has moved the watermark: this one ships no more until it leads again."""


class Progress:
    """Of all partitions; called by the one worker that has the partition."""

    def __init__(
        self, broker_id: int, start: str, counts: Counts, relist: Callable[[Partition], None], clocks: Clocks
    ) -> None:
        self._broker_id, self._start, self._counts, self._relist = broker_id, start, counts, relist
        self._clocks = clocks

    def watermark(self, target: Target, partition: Partition) -> Watermark:
        """The partition's watermark, read from the store the first time."""
        if partition.watermark is None:
            with nothing_under_way():
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
        value = self.begun(partition, partition.watermark)
        if partition.watermark.value is None:
            partition.watermark = replace(partition.watermark, value=value)
            if self._start == "latest":
                self.move(target, partition, value)
        self._refuse_deposed(partition, value)
        began = later_epoch_began(partition, value)
        if began is not None and began < value.next_offset:
            back = value.back(began, partition.epochs[-1][0], self._broker_id, self._clocks.now_ms())
            _logger.error(
                "%s: leader epoch %d began at offset %d, before the watermark %d (an unclean election): what was "
                "shipped behind it is no part of the log any more, and the new epoch's records are shipped",
                partition.where, partition.epochs[-1][0], began, value.next_offset,
            )  # fmt: skip
            self.move(target, partition, back)
            self._counts.moved_back += 1
            self._relist(partition)
            value = back
        return value

    def _loaded(self, target: Target, partition: Partition) -> StoredWatermark:
        """What the store has; with what this process has shipped behind it, if nobody has moved it since."""
        loaded = target.watermarks.load(partition.where, partition.epochs)
        partition.is_behind = False
        if loaded.is_remade:
            # Whoever shipped that was killed before its first move, or the object was lost, or damaged.
            self._falls_behind(partition)
        if partition.unmoved is None:
            return loaded
        known, moved = partition.unmoved
        if known.is_in(loaded):
            self._falls_behind(partition)
            return known
        if loaded.value == moved:
            # It was moved, and the answer was lost.
            partition.is_unsure, partition.unmoved = False, None
        return loaded

    def begun(self, partition: Partition, stored: StoredWatermark) -> Watermark:
        """The watermark, or where one begins of which nothing is stored."""
        if stored.value is not None:
            return stored.value
        first = partition.first
        latest = self._start == "latest" or first is None
        start = (partition.first_active or 0) if latest or first is None else first.place.base_offset
        return Watermark(partition.where, start, -1, self._broker_id, self._clocks.now_ms())

    def _refuse_deposed(self, partition: Partition, value: Watermark) -> None:
        if partition.epochs and partition.epochs[-1][0] < value.leader_epoch:
            partition.watermark = None
            raise Deposed(
                f"{partition.where}: the watermark was moved by a leader of epoch {value.leader_epoch}, and the log "
                f"here knows of epoch {partition.epochs[-1][0]}"
            )

    def move(self, target: Target, partition: Partition, value: Watermark) -> None:
        """Move the object to there, on from where it was seen last."""
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
        partition.is_unsure, partition.unmoved = False, None

    def made_sure(self, target: Target, partition: Partition, watermark: Watermark) -> Watermark:
        """The watermark behind what is stored, after a move that failed: what it was moved over may not be here."""
        value = watermark
        if not partition.is_behind:
            # Others have moved it, or nothing of it is left: the segments tell.
            until = MAX_INT64 if partition.unmoved is None else partition.unmoved[1].next_offset
            value = target.watermarks.advanced(watermark, partition.epochs, until)
        if partition.is_behind or value.next_offset > watermark.next_offset:
            self.move(target, partition, value)
        partition.is_unsure = False
        return value

    def catch_up(self, target: Target, partition: Partition) -> None:
        """Move the object to where the watermark is."""
        if partition.is_behind and partition.watermark is not None and partition.watermark.value is not None:
            self.move(target, partition, partition.watermark.value)

    def advance(
        self,
        target: Target,
        partition: Partition,
        shipped: ShippedSegment,
        described: LogSegment,
        epochs: LeaderEpochs,
    ) -> None:
        """The watermark stands behind one segment more; its object follows at once, or soon.

        ``epochs`` are those that were known before it was read: of a later one it is seen then whether it began before.
        """
        stored = partition.watermark
        assert stored is not None
        assert stored.value is not None
        epoch = epochs[-1][0] if epochs else described.segment_leader_epochs[-1][0]
        value = stored.value.behind(shipped, described.end_offset + 1, epoch, self._broker_id, self._clocks.now_ms())
        partition.watermark = replace(stored, value=value)
        self._falls_behind(partition)
        # Of segments that are shipped one after the other one a second moves the object: it may stand before what is
        # shipped, since the store is looked at before anything is sent, but never behind it.
        if partition.ends_by(value.next_offset):
            # Before its files are let go: who is killed in between finds them, and moves it then.
            self.catch_up(target, partition)
        partition.shipped_to(value.next_offset)
        self.keep_up(target, partition)

    def keep_up(self, target: Target, partition: Partition) -> None:
        """Move the object if it has stood before the watermark for long enough."""
        if partition.is_behind and self._clocks.monotonic() - partition.behind_since_s > _MOVES_S:
            self.catch_up(target, partition)

    def _falls_behind(self, partition: Partition) -> None:
        if not partition.is_behind:
            partition.is_behind, partition.behind_since_s = True, self._clocks.monotonic()
