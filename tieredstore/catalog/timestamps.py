"""Look-up of offsets by time as in Kafka: by the time index, then the offset index, then the batches.

Only a small part of a log is read, because the wanted record lies between two entries of the time index.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.catalog.log_sections import LogSection, open_log, sections_for_time, time_index_of
from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.installation import Extra
from tieredstore.kafka.batches import BatchHeader, TimestampType
from tieredstore.limits import MAX_INT64
from tieredstore.model import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.kafka.records import RecordDecoder
    from tieredstore.remote import RemoteStorageManager

_PIECE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """Offset and timestamp (ms) of a record."""

    offset: int
    timestamp_ms: int


def offset_for_time(source: RemoteStorageManager, lineage: Lineage, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """Return the record with the smallest offset among those at ``timestamp_ms`` or later; None if there is none.

    As in Kafka's ``offsetsForTimes``, timestamps need not ascend, and the end marker of a transaction counts as a
    record.

    Segments whose greatest timestamp is earlier are skipped. Each other segment takes two requests for manifest and
    indexes, and one or more for its batches. The indexes leave only a few batches to read.

    The manifest of the last skipped segment may be wrong. So if no record is found, or if the found record directly
    follows that segment, two more requests check the segment's time index.

    Without ``tieredstore[arrow]``, batches are not decoded and CRCs are not checked. If the batch headers are then not
    enough, raise ConfigError.
    """
    passed: Span | None = None
    for span in lineage.spans:
        if 0 <= span.segment.max_timestamp_ms < timestamp_ms:
            passed = span
            continue
        record = _search(source, span, timestamp_ms)
        if record is not None:
            # The manifest of the skipped segment may be wrong, so check that segment if the found record is the first
            # of its span. Otherwise, the records between the skipped segment and the found record are earlier than
            # ``timestamp_ms``, which agrees with the manifest.
            doubtful = passed if record.offset == span.start else None
            return _search_doubtful(source, doubtful, timestamp_ms) or record
        passed = None
    return _search_doubtful(source, passed, timestamp_ms)


def first_timestamp(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> int | None:
    """Return the timestamp (ms) of the segment's first record; None if the segment has no record, or the record has no
    timestamp.

    The call takes two requests: for the manifest, and for the log's first chunk. The rest of the log is read only if
    this chunk does not have the first record. Markers of transactions do not count as records.

    The time in a batch's header may differ from the time of the first record, for example after compaction with a
    delete horizon. So the batch is decoded, and its CRC is checked.

    Raise ConfigError without ``tieredstore[arrow]``, EncryptionError without the key, BatchCorruptError for a damaged
    batch.
    """
    # Decode only up to the first record. With this setting, the decoder returns records as soon as it has any.
    decoder = _decoder("reading the times of first records", target_bytes=1)
    try:
        with (
            closing(_chunk_by_chunk(source, segment)) as pieces,
            closing(_records_since(decoder.decode(pieces, start_offset=segment.start_offset), -MAX_INT64)) as records,
        ):
            record = next(records, None)
    except BatchCorruptError as error:
        raise BatchCorruptError(f"{segment}: {error}") from error
    return None if record is None or record.timestamp_ms < 0 else record.timestamp_ms


def _chunk_by_chunk(source: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Generator[memoryview]:
    """Yield the log's first chunk, read alone, then the others."""
    size = segment.segment_size_in_bytes
    first = source.fetch_manifest(segment).chunk_index.original_chunk_size
    for start, stop in ((0, min(first, size)), (first, size)):
        if start < stop:
            with source.fetch_log_segment(segment, start, stop - 1) as stream:
                yield from stream.chunks()


def _search_doubtful(source: RemoteStorageManager, span: Span | None, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """Search a skipped span if its time index shows a late enough record.

    The span was skipped because of the greatest timestamp in its manifest. A manifest has no checksum, so one wrong
    digit of this timestamp would hide all records of the segment.
    """
    if span is None:
        return None
    times = time_index_of(source, span.segment)
    # The last entry of a broker's time index has the segment's greatest timestamp.
    is_hidden = len(times) > 0 and times[-1].timestamp >= timestamp_ms
    return _search(source, span, timestamp_ms) if is_hidden else None


def _search(source: RemoteStorageManager, span: Span, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """Return the first record in the span whose timestamp is ``timestamp_ms`` or later, or None."""
    # Use the time index first. It limits the bytes to read, however long the segment is.
    for section in sections_for_time(source, span, timestamp_ms):
        record = _search_section(source, section, timestamp_ms)
        if record is not None:
            return record
    return None


def _search_section(source: RemoteStorageManager, section: LogSection, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """Return the first record in the section whose timestamp is ``timestamp_ms`` or later, or None."""
    segment, start, stop = section.segment, section.start_offset, section.stop_offset
    try:
        decoder = _decoder()
    except ConfigError as missing:  # without pyarrow, search the headers
        return _search_headers(source, section, timestamp_ms, missing)
    with section.open(source, _PIECE_BYTES) as buffers:
        batches = decoder.decode(
            buffers,
            start_offset=start,
            stop_offset=None if section.is_read_to_its_end else stop,
            end_offset=segment.end_offset + 1,
            position=section.begin.position,
        )
        try:
            record = next(_records_since(batches, timestamp_ms), None)
            headers = decoder.take_headers()
            # Read the next batch's header too, because its base offset confirms the base offset of the record's batch,
            # which no checksum covers.
            while record is not None and not any(header.base_offset > record.offset for header in headers):
                if next(batches, None) is None:
                    break
                headers += decoder.take_headers()
        except BatchCorruptError as error:
            raise BatchCorruptError(f"{segment}: {error}") from error
        headers += decoder.take_headers()
        if len(section.byte_range) and not any(record and header.base_offset > record.offset for header in headers):
            buffers.check_end(decoder)
    # The decoder leaves out end markers. It returns the headers of all batches up to the record, so find the markers in
    # the headers.
    markers = [
        OffsetAndTimestamp(header.base_offset, header.max_timestamp)
        for header in headers
        if header.is_control and header.record_count
        if header.max_timestamp >= timestamp_ms and start <= header.base_offset < stop
    ]
    records = markers if record is None else [*markers, record]
    return min(records, key=lambda candidate: candidate.offset, default=None)


def _records_since(batches: Iterator[pa.RecordBatch], timestamp_ms: int) -> Generator[OffsetAndTimestamp]:
    for batch in batches:
        columns: Any = batch
        # Use typed views of the buffers, which make no objects for skipped records.
        offsets, timestamps = (
            memoryview(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)]
            for column in (columns.column("offset"), columns.column("timestamp"))
        )
        for row, timestamp in enumerate(timestamps):
            if timestamp >= timestamp_ms:
                yield OffsetAndTimestamp(offsets[row], timestamp)


def _search_headers(
    source: RemoteStorageManager, section: LogSection, timestamp_ms: int, missing: ConfigError
) -> OffsetAndTimestamp | None:
    """Search without a decoder. Raise ``missing`` if the batch headers are not enough."""
    start, stop = section.start_offset, section.stop_offset
    with open_log(source, section.segment, section.begin.position) as batches:
        for header in batches.headers():
            if header.position == section.begin.position:
                _check_first(section, header)
            if header.position >= section.end.position:
                break
            if header.max_timestamp < timestamp_ms or header.last_offset < start or header.record_count == 0:
                continue
            first = _by_header(header, timestamp_ms)
            if first is None or not start <= first.offset < stop:
                raise missing
            return first
    return None


def _check_first(section: LogSection, header: BatchHeader) -> None:
    try:
        section.check_first(header.base_offset)
    except BatchCorruptError as error:
        raise BatchCorruptError(f"{section.segment}: {error}") from error


def _by_header(header: BatchHeader, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """Return the batch's first record if the header proves its offset and a late enough timestamp; otherwise None."""
    if header.record_count is None or header.record_count != header.last_offset - header.base_offset + 1:
        return None
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME or header.record_count == 1:
        return OffsetAndTimestamp(header.base_offset, header.max_timestamp)
    if header.base_timestamp >= timestamp_ms and not header.has_delete_horizon:
        return OffsetAndTimestamp(header.base_offset, header.base_timestamp)
    return None


def _decoder(doing: str = "looking offsets up by time", *, target_bytes: int = _PIECE_BYTES) -> RecordDecoder:
    """Return a decoder. Without pyarrow, raise ConfigError, which says that ``doing`` needs pyarrow."""
    with Extra(doing, "arrow"):
        from tieredstore.kafka.records import RecordDecoder  # noqa: PLC0415
    return RecordDecoder(("offset", "timestamp"), keep_headers=True, target_bytes=target_bytes)
