"""Transactions that reach from one segment into the next: the next one's indexes have them as they began.

They do not where a replica copied the segment whose log began in the middle of the transaction. A stream, in key order;
held are the open transactions of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tieredstore.catalog.log_sections import position_before
from tieredstore.catalog.transactions import end_markers, opened_at_end
from tieredstore.errors import CorruptData, SegmentNotFound
from tieredstore.format.keys import Suffix
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.indexes import KnownTransactions
from tieredstore.ops.verification.subject import Extent, Subject

if TYPE_CHECKING:
    from tieredstore.ops.verification.segment_check import SegmentResult
    from tieredstore.remote import RemoteStorageManager


class OpenTransactions:
    """Takes what came of the segments, in key order; for one thread."""

    def __init__(self, manager: RemoteStorageManager) -> None:
        self._manager = manager
        self._before: RemoteLogSegmentMetadata | None = None
        self._extent = Extent(-1)
        self._opened: Mapping[int, int] | None = None
        """Those at the end of the segment before; None if nobody has looked yet."""

    def take(self, result: SegmentResult) -> Iterator[Finding]:
        """What shows of a segment of level data, where it goes on with the log of the one before it."""
        metadata, extent = _metadata_of(result), result.extent
        if metadata is None or extent is None or extent.end < 0:
            self._before = None
            return
        if self._is_behind(metadata):
            # Of an older epoch, or a copy: another segment is the log's.
            if extent.end <= self._extent.end or _last_epoch(extent) < _last_epoch(self._extent):
                return
            known = result.transactions
            if known is not None and result.is_sound and self._goes_on(extent, metadata):
                yield from self._check(result.subject, metadata, known)
            else:
                self._opened = None if known is None else known.opened
        else:
            self._opened = None if result.transactions is None else result.transactions.opened
        self._before, self._extent = metadata, extent

    def _is_behind(self, metadata: RemoteLogSegmentMetadata) -> bool:
        before = self._before
        return (
            before is not None
            and before.topic_id_partition == metadata.topic_id_partition
            and before.start_offset <= metadata.start_offset
        )

    def _goes_on(self, extent: Extent, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether the log at the end of the segment before is the one that this segment has."""
        reach = self._extent.end
        newer = [start for epoch, start in extent.epochs if epoch > _last_epoch(self._extent)]
        return metadata.start_offset <= reach + 1 and all(start > reach for start in newer)

    def _check(
        self, subject: Subject, metadata: RemoteLogSegmentMetadata, known: KnownTransactions
    ) -> Iterator[Finding]:
        assert self._before is not None
        reach, pending = self._extent.end, dict[int, int]()
        try:
            opened = opened_at_end(self._manager, self._before) if self._opened is None else self._opened
            claimed = {
                entry.producer_id: entry for entry in known.aborted if entry.first_offset <= reach < entry.last_offset
            }
            for producer, entry in claimed.items():
                if entry.first_offset != (first := opened.get(producer)):
                    began = "none is open" if first is None else f"it began at {first}"
                    yield _finding(subject, producer, entry.last_offset, f"begins at {entry.first_offset}", began)
            # Those that are open still, and known, have no marker here.
            pending = {
                producer: first
                for producer, first in opened.items()
                if producer not in claimed and known.opened.get(producer) != first
            }
            position = position_before(self._manager, metadata, reach + 1) if pending else 0
            for marker in end_markers(self._manager, metadata, reach + 1, pending, position) if pending else ():
                first = pending.pop(marker.producer_id)
                if marker.aborts:
                    yield _finding(
                        subject,
                        marker.producer_id,
                        marker.offset,
                        "has no entry that begins before this segment",
                        f"it began at {first}",
                    )
                if not pending:
                    break
        # The one before was deleted meanwhile, or is damaged, which is told.
        except (SegmentNotFound, CorruptData):
            pending = {}
        for producer, first in pending.items():
            detail = f"the producer snapshot lacks the transaction of producer {producer} that began at offset {first}"
            yield subject.finding(FindingKind.PRODUCER_SNAPSHOT, detail, Suffix.INDEXES)
        self._opened = {**known.opened, **pending}


def _finding(subject: Subject, producer: int, marker: int, index: str, before: str) -> Finding:
    detail = (
        f"the transaction index is not that of the log: the transaction of producer {producer} that offset {marker} "
        f"aborts {index}, and by the segments before {before}"
    )
    return subject.finding(FindingKind.TRANSACTION_INDEX, detail, Suffix.INDEXES)


def _last_epoch(extent: Extent) -> int:
    return extent.epochs[-1][0] if extent.epochs else -1


def _metadata_of(result: SegmentResult) -> RemoteLogSegmentMetadata | None:
    """What readers are told of the segment, None if nobody knows."""
    if result.stored is not None:
        return result.stored.metadata
    sound = result.subject.sound
    objects = result.subject.objects
    if sound is None:
        return None
    return RemoteLogSegmentMetadata(objects.segment_id, objects.start_offset, sound.extent.end, sound.log_size)
