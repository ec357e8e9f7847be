"""A closed segment whose files are open: they stay readable after the broker renames or deletes them.

:func:`open_segment` finds the files under their plain names, or under the names by which the broker marks them deleted.
:func:`describe_open` describes open files. :func:`tieredstore.kafka.logdir.describe` describes files by name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.errors import InvalidSegmentError
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    format_leader_epochs,
    join_epochs,
    segment_leader_epochs,
    truncate_from_end,
)
from tieredstore.kafka.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, is_trimmed
from tieredstore.kafka.log_scan import LogSummary, scan_log
from tieredstore.kafka.logdir import DELETED, FoundSegment, LogSegment
from tieredstore.model import LogSegmentData, OpenFile, Uuid

_TO_READ: Final = os.O_RDONLY | os.O_CLOEXEC
_TRIMMED: Final = (("index", OFFSET_ENTRY_SIZE), ("timeindex", TIME_ENTRY_SIZE))


class SegmentIncompleteError(InvalidSegmentError):
    """A file of the segment is absent or incomplete. A retry may help, because a broker writes some files of a segment
    after it has begun the next segment.
    """


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A closed segment and its open files."""

    place: FoundSegment
    log: OpenFile
    offset_index: OpenFile
    time_index: OpenFile
    transaction_index: OpenFile | None
    producer_snapshot: OpenFile

    @property
    def files(self) -> tuple[OpenFile, ...]:
        """All open files."""
        transaction = () if self.transaction_index is None else (self.transaction_index,)
        return (self.log, self.offset_index, self.time_index, *transaction, self.producer_snapshot)

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the log."""
        return os.fstat(self.log.descriptor).st_size

    def data(self, leader_epochs: bytes) -> LogSegmentData:
        """Return the files for a copy, with the text of the leader-epoch checkpoint."""
        return LogSegmentData(
            self.log, self.offset_index, self.time_index, self.transaction_index, self.producer_snapshot, leader_epochs
        )

    def close(self) -> None:
        """Close all files. Call it once, after the last read."""
        for file in self.files:
            with contextlib.suppress(OSError):
                os.close(file.descriptor)


def open_segment(segment: FoundSegment) -> OpenSegment:
    """Open the files of a closed segment. The caller closes them.

    Raise SegmentIncompleteError if a file is absent, except the transaction index, which is optional. Also raise it if
    an index still ends in preallocated zeros, or if the broker replaces the files meanwhile, as compaction does. Raise
    OSError if the system refuses to open a file, for example because too many files are open.
    """
    with contextlib.ExitStack() as undone:

        def open_file(path: Path) -> OpenFile:
            file = _open(path, segment)
            undone.callback(os.close, file.descriptor)
            return file

        log = open_file(segment.path("log"))
        indexes = [open_file(segment.path(suffix)) for suffix, _ in _TRIMMED]
        for index, (_, entry_size) in zip(indexes, _TRIMMED, strict=True):
            if not is_trimmed(_last_entry(index, entry_size), entry_size):
                raise SegmentIncompleteError(f"the broker has not closed {index.path} yet")
        transaction = None
        with contextlib.suppress(SegmentIncompleteError):  # most segments have no transaction index
            transaction = open_file(segment.path("txnindex"))
        if transaction is None:
            # A broker deletes the log before the other files. So if the log still exists, the broker has not deleted a
            # transaction index just now.
            os.close(_open(segment.path("log"), segment).descriptor)
        _refuse_replaced(segment, [log, *indexes])
        snapshot = open_file(segment.snapshot_path(_end_offset(segment, log)))
        undone.pop_all()
    return OpenSegment(segment, log, indexes[0], indexes[1], transaction, snapshot)


def reopen_segment(segment: OpenSegment) -> OpenSegment:
    """Open the same files again under new descriptors, independent of the old ones. The caller must close both the old
    and the new files."""
    with contextlib.ExitStack() as undone:

        def duplicate(file: OpenFile) -> OpenFile:
            descriptor = os.dup(file.descriptor)
            undone.callback(os.close, descriptor)
            return OpenFile(file.path, descriptor)

        transaction = None if segment.transaction_index is None else duplicate(segment.transaction_index)
        files = [duplicate(file) for file in (segment.log, segment.offset_index, segment.time_index)]
        snapshot = duplicate(segment.producer_snapshot)
        undone.pop_all()
    return OpenSegment(segment.place, files[0], files[1], files[2], transaction, snapshot)


def describe_open(
    segment: OpenSegment, topic_id: Uuid, epochs: LeaderEpochs, *, check_crcs: bool = False, is_compacted: bool = False
) -> LogSegment:
    """Describe the segment for a copy. ``epochs`` come from the current or an earlier checkpoint of the partition.

    A log from which compaction has removed records ends just before the next segment, as in Kafka. Any other log ends
    with its last record. The next listed segment would not be a safe end, because the listing may lack a segment
    between the two. With ``is_compacted``, compaction may also have removed only the last records.

    The broker may have dropped an epoch from the checkpoint. Such an epoch is taken from the batches, because each
    batch names its epoch.

    Raise InvalidSegmentError for contradictions, BatchCorruptError for damage, OSError for a failing disk. Damaged
    records are found only with ``check_crcs``.
    """
    place, size = segment.place, segment.size_in_bytes
    summary = scan_log(segment.log.descriptor, size, place.base_offset, str(place), check_crcs=check_crcs)
    if not size:
        raise InvalidSegmentError(f"segment {place} is closed, but its log is empty")
    supposed_end = place.end_before_next(summary.last_offset)
    end_offset = summary.last_offset if summary.is_contiguous and not is_compacted else supposed_end
    history = _history(place, epochs, summary, end_offset)
    transaction = segment.transaction_index
    return LogSegment(
        topic_id=topic_id,
        topic=place.topic,
        partition=place.partition,
        base_offset=place.base_offset,
        end_offset=end_offset,
        size_in_bytes=size,
        max_timestamp_ms=summary.max_timestamp_ms,
        segment_leader_epochs=segment_leader_epochs(history, place.base_offset, end_offset),
        closed_files=segment.data(format_leader_epochs(truncate_from_end(history, end_offset))),
        txn_idx_empty=transaction is None or os.fstat(transaction.descriptor).st_size == 0,
    )


def _history(place: FoundSegment, epochs: LeaderEpochs, summary: LogSummary, end_offset: int) -> LeaderEpochs:
    """Return the partition's leader epochs, including the epoch of the segment's first offset. If ``epochs`` no longer
    goes back to that offset, take the older epochs from the batch headers."""
    if epochs and epochs[0][1] <= place.base_offset:
        return epochs
    if not summary.leader_epochs:
        raise InvalidSegmentError(f"segment {place}, which ends at offset {end_offset}, has no known leader epoch")
    # The segment may start before its first batch. No leader has written in between, so the first epoch begins with the
    # segment.
    (first_epoch, _), *later = summary.leader_epochs
    of_batches = ((first_epoch, place.base_offset), *later)
    return join_epochs(of_batches, epochs) if epochs else of_batches


def _last_entry(index: OpenFile, entry_size: int) -> bytes:
    """Read only the last entry of an index, because an index may have megabytes. Read one byte more, so that
    :func:`is_trimmed` knows whether the index has several entries."""
    size = os.fstat(index.descriptor).st_size
    return os.pread(index.descriptor, entry_size + 1, max(0, size - entry_size - 1))


def _end_offset(segment: FoundSegment, log: OpenFile) -> int:
    if segment.next_base_offset is not None:
        return segment.next_base_offset - 1
    size = os.fstat(log.descriptor).st_size
    return scan_log(log.descriptor, size, segment.base_offset, str(segment)).last_offset


def _open(path: Path, segment: FoundSegment) -> OpenFile:
    with contextlib.suppress(FileNotFoundError):
        return OpenFile(path, os.open(path, _TO_READ))
    plain = path.with_name(path.name.removesuffix(DELETED))
    # The broker renames a file only once, from the plain name to the name that marks it deleted. So one attempt with
    # each name, in this order, is enough.
    for name in (plain, _mark(plain)) if segment.is_deleted else (_mark(plain),):
        with contextlib.suppress(FileNotFoundError):
            return OpenFile(name, os.open(name, _TO_READ))
    raise SegmentIncompleteError(f"segment {segment} has no file {plain}, and cannot be copied without it")


def _refuse_replaced(segment: FoundSegment, files: Sequence[OpenFile]) -> None:
    """Raise SegmentIncompleteError if some files may be from before a compaction, and others from after it.

    A broker marks the old files as deleted, and then gives the new files their plain names, the log first.
    """
    plain = [file.path.with_name(file.path.name.removesuffix(DELETED)) for file in files]
    are_mixed = len({file.path == path for file, path in zip(files, plain, strict=True)}) > 1
    is_replaced = are_mixed and plain[0].exists() and _mark(plain[0]).exists()
    for file, path in zip(files, plain, strict=True):
        with contextlib.suppress(FileNotFoundError):
            is_replaced |= not os.path.samestat(path.stat(), os.fstat(file.descriptor))
    if is_replaced:
        raise SegmentIncompleteError(f"the broker replaced files of segment {segment} while they were opened")


def _mark(path: Path) -> Path:
    return path.with_name(path.name + DELETED)
