"""Transactions of one segment, from its indexes or its log."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tieredstore.catalog.log_sections import open_log
from tieredstore.errors import BatchCorruptError, IndexesCorruptError, IndexNotRecordedError
from tieredstore.kafka.checkpoints import open_transactions, parse_producer_snapshot
from tieredstore.kafka.end_markers import TransactionStep
from tieredstore.kafka.indexes import AbortedTransaction, read_txn_index
from tieredstore.model import IndexType, RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource


def find_open_at_end(source: SegmentSource, segment: RemoteLogSegmentMetadata) -> dict[int, int]:
    """Return the producers with open transactions at the segment's end, and the first offset of each transaction.

    The call makes two requests for the producer snapshot, or none if another index of the segment was read before.

    Raise IndexesCorruptError if the snapshot is damaged.
    """
    try:
        with source.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT) as stream:
            return open_transactions(parse_producer_snapshot(stream.read()))
    except BatchCorruptError as error:
        raise IndexesCorruptError(f"{segment}: {error}") from error


def read_aborted(source: SegmentSource, segment: RemoteLogSegmentMetadata) -> Sequence[AbortedTransaction]:
    """Return the entries of the segment's transaction index.

    The call takes two requests, or none if the segment is known to have no entries. Raise IndexesCorruptError if the
    index is damaged.
    """
    # If txn_idx_empty is None, the manifest does not say if the index is empty, so read the index.
    if segment.txn_idx_empty:
        return ()
    try:
        with source.fetch_index(segment, IndexType.TRANSACTION) as stream:
            return parse_aborted(stream.read(), segment)
    except IndexNotRecordedError:
        return ()


def parse_aborted(raw: bytes, segment: RemoteLogSegmentMetadata) -> Sequence[AbortedTransaction]:
    """Parse the segment's transaction index. Raise IndexesCorruptError if the index is damaged."""
    try:
        entries = read_txn_index(raw, segment.start_offset)
    except BatchCorruptError as error:
        raise IndexesCorruptError(f"{segment}: {error}") from error
    # An index has no checksum. Without this check, the index of a later segment would hide the aborts of this one.
    if entries and entries[-1].last_offset > segment.end_offset:
        raise IndexesCorruptError(
            f"the transaction index of {segment} has a marker at offset {entries[-1].last_offset}, beyond its end"
        )
    return entries


def end_markers(
    source: SegmentSource,
    segment: RemoteLogSegmentMetadata,
    start: int,
    producers: Collection[int],
    position: int = 0,
) -> Generator[TransactionStep]:
    """Yield the markers that end transactions of ``producers``, from offset ``start`` on, in order of offsets.

    The caller may remove entries of ``producers`` between two markers.

    Read the log from byte ``position`` on. A batch must begin at this byte.
    """
    with closing(steps_of(source, segment, position)) as steps:
        for step in steps:
            if step.aborts is not None and step.offset >= start and step.producer_id in producers:
                yield step


def steps_of(source: SegmentSource, segment: RemoteLogSegmentMetadata, position: int = 0) -> Generator[TransactionStep]:
    """Yield the beginnings and ends of transactions in a log, from byte ``position`` on. A batch must begin there.

    Raise SegmentCorruptError for an invalid batch.
    """
    with open_log(source, segment, position) as batches:
        yield from batches.steps()
