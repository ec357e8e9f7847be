"""Offsets by time, as Kafka looks them up: through the time index, then the offset index, then the batches."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.catalog.log_batches import LogBatches, opened_log
from tieredstore.errors import ConfigError
from tieredstore.kafka.batches import BatchHeader, TimestampType
from tieredstore.kafka.indexes import read_offset_index, read_time_index
from tieredstore.model import IndexType, TopicIdPartition
from tieredstore.process.parallel import READERS, in_parallel

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_INDEXES: Final = (IndexType.OFFSET, IndexType.TIMESTAMP)


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A record's offset and timestamp (ms)."""

    offset: int
    timestamp_ms: int


def offset_for_time(source: SegmentSource, lineage: Lineage, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """The first record, by offset, whose timestamp is ``timestamp_ms`` or later; None if there is none.

    As Kafka's ``offsetsForTimes``: timestamps need not ascend, and the end marker of a transaction counts. Two
    requests for the manifest and the indexes of a segment that may hold it, then those of its chunks from there on;
    segments whose greatest timestamp is earlier are passed over. Needs ``tieredstore[arrow]`` where a batch has to be
    decoded: ConfigError without.
    """
    found = (_search(source, span, timestamp_ms) for span in lineage.spans_since(timestamp_ms))
    return next((record for record in found if record is not None), None)


def offsets_for_times(
    source: SegmentSource,
    times: Sequence[tuple[Lineage, int]],
    *,
    readers: int = READERS,
) -> dict[TopicIdPartition, OffsetAndTimestamp | None]:
    """:func:`offset_for_time` of many partitions, ``readers`` at once."""
    with ThreadPoolExecutor(readers, thread_name_prefix="tieredstore-times") as pool:
        jobs = in_parallel(pool, lambda item: offset_for_time(source, *item), times, at_once=len(times))
        return dict(zip((lineage.partition for lineage, _ in times), jobs, strict=True))


def offset_range(source: SegmentSource, lineage: Lineage, start_ms: int | None, stop_ms: int | None) -> tuple[int, int]:
    """The offsets (half-open) from the first record at ``start_ms`` or later up to the first at ``stop_ms`` or later.

    That is where a consumer begins and ends that seeks by time. None stands for the earliest offset and for the end; a
    time after all records stands for the end. Empty where the second would come before the first.
    """
    bounds = [lineage.earliest_offset, lineage.end_offset]
    for at, time in enumerate((start_ms, stop_ms)):
        if time is not None:
            found = offset_for_time(source, lineage, time)
            bounds[at] = lineage.end_offset if found is None else found.offset
    return bounds[0], max(bounds)  # times need not ascend with offsets


def _search(source: SegmentSource, span: Span, timestamp_ms: int) -> OffsetAndTimestamp | None:
    segment = span.segment
    indexes = {kind: stream.read() for kind, stream in source.fetch_indexes(segment, _INDEXES).items()}
    times = read_time_index(indexes[IndexType.TIMESTAMP], segment.start_offset)
    offsets = read_offset_index(indexes[IndexType.OFFSET], segment.start_offset)
    start = max(span.start, times.offset_for_timestamp(timestamp_ms))
    with opened_log(source, segment, offsets.position_for_offset(start)) as batches:
        for header in batches.headers():
            if header.max_timestamp >= timestamp_ms and header.last_offset >= span.start:
                found = _first_in(batches, header, span, timestamp_ms)
                if found is not None:
                    return found
            if header.last_offset >= span.stop - 1:
                break
    return None


def _first_in(batches: LogBatches, header: BatchHeader, span: Span, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """The first such record of one batch; only where the header does not settle it is the batch decoded."""
    first = _by_header(header, timestamp_ms)
    if first is not None and span.start <= first.offset < span.stop:
        return first
    for offset, timestamp in _record_times(batches.batch(header)):
        if timestamp >= timestamp_ms and span.start <= offset < span.stop:
            return OffsetAndTimestamp(offset, timestamp)
    return None


def _by_header(header: BatchHeader, timestamp_ms: int) -> OffsetAndTimestamp | None:
    """The batch's first record, where the header tells its offset and that its timestamp is late enough."""
    if header.record_count is None or header.record_count != header.last_offset - header.base_offset + 1:
        return None
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME or header.record_count == 1:
        return OffsetAndTimestamp(header.base_offset, header.max_timestamp)
    if header.base_timestamp >= timestamp_ms and not header.has_delete_horizon:
        return OffsetAndTimestamp(header.base_offset, header.base_timestamp)
    return None


def _record_times(batch: bytes) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record of one whole batch; BatchCorrupt if it is damaged."""
    for records in _decoder().decode([batch]):
        yield from zip(records.column(0).to_pylist(), records.column(1).to_pylist(), strict=True)


def _decoder() -> Any:
    try:
        records = importlib.import_module("tieredstore.kafka.records")
    except ModuleNotFoundError as error:
        raise ConfigError("looking offsets up by time needs pyarrow: install tieredstore[arrow]") from error
    return records.RecordDecoder(("offset", "timestamp"))
