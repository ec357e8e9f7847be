"""Where a later leader took over: what was shipped behind that is no part of the log any more."""

from __future__ import annotations

import contextlib

from tieredstore.catalog.watermark import Watermark
from tieredstore.errors import TieredStoreError
from tieredstore.kafka.log_scan import scan_log
from tieredstore.uploader.closed_segment import ClosedSegment
from tieredstore.uploader.partition import Partition


def later_epoch_began(partition: Partition, watermark: Watermark) -> int | None:
    """Where the first leader epoch began that is later than the watermark's; None if there is none.

    Where retention has cut the checkpoint, that epoch seems to begin where the log begins now. Then the batches of what
    is still here before that, marked deleted, say it.
    """
    later = [start for epoch, start in partition.epochs if epoch > watermark.leader_epoch >= 0]
    if not later or partition.epochs[0][0] <= watermark.leader_epoch:
        return later[0] if later else None
    for segment in partition.pending(lambda segment: segment.place.base_offset < later[0]):
        began = _first_later(segment, watermark.leader_epoch)
        if began is not None:
            return min(began, later[0])
    return later[0]


def _first_later(segment: ClosedSegment, epoch: int) -> int | None:
    """The first offset of the segment that a later leader has written; None if none has, or if it cannot be read."""
    place = segment.place
    with contextlib.ExitStack() as opened, contextlib.suppress(TieredStoreError, OSError):
        held = segment.held
        if held is None:
            held = segment.open()
            opened.callback(held.close)
        extent = scan_log(held.log.descriptor, held.size_in_bytes, place.base_offset, str(place))
        return next((start for own, start in extent.leader_epochs if own > epoch), None)
    return None
