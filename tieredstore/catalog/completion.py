"""Completion of manifests without ``remoteLogSegmentMetadata``, from the segment's indexes and batch headers."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Final

from tieredstore.catalog.lineage import check_segment, epochs_fit
from tieredstore.catalog.log_sections import offset_index_of, open_log
from tieredstore.errors import BatchCorruptError, IndexesCorruptError, SegmentCorruptError
from tieredstore.kafka.checkpoints import LeaderEpochs, parse_leader_epochs, segment_leader_epochs
from tieredstore.kafka.indexes import read_offset_index, read_time_index
from tieredstore.model import IndexType, RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.catalog.stored import StoredSegment
    from tieredstore.kafka.batches import BatchHeader
    from tieredstore.remote import RemoteStorageManager

_NEEDED: Final = (IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.LEADER_EPOCH)


def describe_segment(source: RemoteStorageManager, stored: StoredSegment) -> RemoteLogSegmentMetadata:
    """Return complete and checked metadata of a segment. Fields that its manifest lacks are read from the segment
    itself.

    The call makes requests in only two cases. Either the manifest has no segment metadata, or its leader epochs
    contradict the segment's offsets.

    Raise CorruptDataError if the metadata contradict themselves.
    """
    metadata = stored.metadata
    if stored.manifest.metadata is None:
        metadata = _complete(source, metadata)
    elif not epochs_fit(metadata):
        epochs = segment_leader_epochs(read_history(source, metadata), metadata.start_offset, metadata.end_offset)
        metadata = dataclasses.replace(metadata, segment_leader_epochs=epochs)
    # Set ``txn_idx_empty`` from the size in the manifest, because some writers leave the field out. If it is True, a
    # read_committed read saves the request for the transaction index.
    entry = stored.manifest.segment_indexes.transaction
    is_empty = entry is None or entry.size == 0
    if source.layout.tells_transactions and metadata.txn_idx_empty is not is_empty:
        metadata = dataclasses.replace(metadata, txn_idx_empty=is_empty)
    check_segment(metadata)
    return metadata


def read_history(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> LeaderEpochs:
    """Read the segment's leader-epoch index with two requests. The index has the partition's epochs up to the segment's
    end.

    Return () if the index is empty. Raise IndexesCorruptError if it is damaged.
    """
    with source.fetch_index(segment, IndexType.LEADER_EPOCH) as stream:
        return _parse_epochs(segment, stream.read())


def last_batch(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> BatchHeader | None:
    """Return the header of the log's last batch, or None. This takes three requests: manifest, indexes and the log's
    end.

    Without a usable offset index, read the whole log. Raise CorruptDataError for a damaged log.
    """
    try:
        index = offset_index_of(source, segment)
        start = index[-1].position if len(index) else 0
        return _last_from(source, segment, start)
    except (BatchCorruptError, IndexesCorruptError):
        return _last_from(source, segment, 0)


def _last_from(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata, position: int) -> BatchHeader | None:
    with open_log(source, segment, position) as batches:
        return next(iter(deque(batches.headers(), maxlen=1)), None)


def _complete(source: RemoteStorageManager, known: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Complete ``known`` with end offset, greatest timestamp and leader epochs.

    The end offset comes from the log's last batch. (Kafka would take the offset before the next segment, but the next
    segment is unknown here.)

    The call reads the indexes, and the log from the last entry of the offset index on. This part has a few KiB. If the
    index is empty, the whole log is read.
    """
    indexes = {kind: stream.read() for kind, stream in source.fetch_indexes(known, _NEEDED).items()}
    try:
        offsets = read_offset_index(indexes[IndexType.OFFSET], known.start_offset)
        times = read_time_index(indexes[IndexType.TIMESTAMP], known.start_offset)
    except BatchCorruptError as error:
        raise IndexesCorruptError(f"{known}: {error}") from error
    end_offset, max_timestamp = -1, times[-1].timestamp if len(times) else -1
    # Begin at the offset index's last entry, which is near the end. With an empty index, read the whole log.
    with open_log(source, known, offsets[-1].position if len(offsets) else 0) as batches:
        for header in batches.headers():
            end_offset, max_timestamp = header.last_offset, max(max_timestamp, header.max_timestamp)
    if end_offset < known.start_offset:
        raise SegmentCorruptError(f"neither a batch nor the manifest gives the end offset of {known}")
    epochs = _parse_epochs(known, indexes[IndexType.LEADER_EPOCH])
    return dataclasses.replace(
        known,
        end_offset=end_offset,
        max_timestamp_ms=max_timestamp,
        segment_leader_epochs=segment_leader_epochs(epochs, known.start_offset, end_offset),
    )


def _parse_epochs(segment: RemoteLogSegmentMetadata, raw: bytes) -> LeaderEpochs:
    try:
        return parse_leader_epochs(raw) if raw else ()
    except BatchCorruptError as error:
        raise IndexesCorruptError(f"{segment}: {error}") from error
