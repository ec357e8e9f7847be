"""Offsets by time, as Kafka looks them up, by reading no more of a log than its indexes leave open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.errors import BatchCorrupt
from tieredstore.kafka.records import RecordDecoder
from tieredstore.records.numbers import int64_values
from tieredstore.records.parts import part_for_time
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource


def offset_at(source: SegmentSource, lineage: Lineage, timestamp_ms: int, settings: ReadSettings) -> int:
    """The offset of the first record, by offset, whose timestamp is ``timestamp_ms`` or later; else the log's end.

    As Kafka's ``offsetsForTimes`` finds it, end markers of transactions included. For a segment that may hold it: two
    requests for manifest and indexes, and those of the few batches that its indexes leave open.
    """
    found = (_search(source, span, timestamp_ms, settings) for span in lineage.spans_since(timestamp_ms))
    return next((offset for offset in found if offset is not None), lineage.end_offset)


def _search(source: SegmentSource, span: Span, timestamp_ms: int, settings: ReadSettings) -> int | None:
    part = part_for_time(source, span, timestamp_ms)
    decoder = RecordDecoder(
        ("offset", "timestamp"),
        check_crc=settings.check_crc,
        on_corrupt=settings.on_corrupt,
        keep_headers=True,
        max_batch_bytes=settings.max_batch_bytes,
    )
    with part.opened(source, settings.piece_bytes) as pieces:
        records = decoder.decode(pieces, start_offset=span.start, stop_offset=span.stop, position=part.extent.start)
        try:
            record = next(_offsets_at_or_after(records, timestamp_ms), None)
        except BatchCorrupt as error:
            raise BatchCorrupt(f"{span.segment}: {error}") from error
    # The decoder shows no markers, but the headers of all batches up to the record are there.
    markers = [
        header.base_offset
        for header in decoder.take_headers()
        if header.is_control and header.max_timestamp >= timestamp_ms and span.start <= header.base_offset < span.stop
    ]
    return min([*markers, *([] if record is None else [record])], default=None)


def _offsets_at_or_after(records: Iterator[pa.RecordBatch], timestamp_ms: int) -> Iterator[int]:
    for batch in records:
        for row, timestamp in enumerate(int64_values(batch, "timestamp")):
            if timestamp >= timestamp_ms:
                yield int64_values(batch, "offset")[row]
