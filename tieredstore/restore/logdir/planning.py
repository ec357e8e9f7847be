"""Which spans of a bucket's segments become the log of a partition, up to an end that no transaction crosses.

Separate from ``restoring``, because it only reads, and knows no log directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, dropwhile
from typing import TYPE_CHECKING, Literal, TypeAlias

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.errors import ConfigError, DataLossError
from tieredstore.kafka.checkpoints import open_transactions, parse_producer_snapshot
from tieredstore.kafka.end_markers import MARKER_BYTES, TransactionStep, play_markers, transaction_steps
from tieredstore.model import AtTime, IndexType
from tieredstore.restore.logdir.segment_copy import is_whole, whole_batches

if TYPE_CHECKING:
    from tieredstore.kafka.batches import BatchHeader
    from tieredstore.kafka.checkpoints import ProducerState
    from tieredstore.remote.source import SegmentSource

OpenTransactions: TypeAlias = Literal["fail", "cut"]
"""What to do with transactions that are open at the end: refuse, or end the log before the first of them."""


def plan_spans(
    source: SegmentSource,
    lineage: Lineage,
    start: int | AtTime | None = None,
    stop: int | AtTime | None = None,
    *,
    open_transactions: OpenTransactions = "fail",
) -> tuple[Span, ...]:
    """Return the spans to restore, in order; () if the window has no record.

    ``start`` keeps whole segments: it begins with the segment of its first record. ``stop`` cuts at the border of
    batches at or before it; a time means the first batch with a record of this time or later. Raise DataLossError for
    a gap, and ConfigError for an open transaction unless it is cut off.
    """
    spans = _until(source, _since(lineage, start), stop)
    if not spans:
        return ()
    if gaps := lineage.gaps_between(spans[0].start, spans[-1].stop):
        raise DataLossError("; ".join(map(str, gaps)))
    if source.layout.raw_cluster is not None:
        # Its indexes are computed, each from those of the segment before. A run that resumes copies only some.
        for span in spans:
            _producers(source, span)
    while spans and (still_open := _open_at_end(source, spans)):
        first = min(still_open.values())
        if open_transactions == "fail":
            raise ConfigError(
                f"{lineage.partition}: transactions are open at the end ({spans[-1].stop}), the first since offset "
                f"{first}; no coordinator would ever end them: cut them off (--open-transactions cut)"
            )
        spans = _until(source, spans, first)
    return spans


def log_size(source: SegmentSource, span: Span) -> int:
    """Return the bytes of the span's batches; reads the log unless the span is a whole segment."""
    if is_whole(span):
        return span.segment.segment_size_in_bytes
    return sum(len(batch) for _, batch in _batches(source, span))


def _producers(source: SegmentSource, span: Span) -> tuple[ProducerState, ...] | None:
    """Return the producers at the end of the span's segment; None if the segment was copied without them."""
    stored = source.fetch_indexes(span.segment, (IndexType.PRODUCER_SNAPSHOT,))
    if IndexType.PRODUCER_SNAPSHOT not in stored:
        return None
    return parse_producer_snapshot(stored[IndexType.PRODUCER_SNAPSHOT].read())


def _since(lineage: Lineage, start: int | AtTime | None) -> tuple[Span, ...]:
    if isinstance(start, AtTime):
        first_ms = start.timestamp_ms
        return tuple(dropwhile(lambda span: 0 <= span.segment.max_timestamp_ms < first_ms, lineage.spans))
    return tuple(span for span in lineage.spans if start is None or span.stop > start)


def _until(source: SegmentSource, spans: Sequence[Span], stop: int | AtTime | None) -> tuple[Span, ...]:
    """Cut at the last border of batches at or before ``stop``."""
    if stop is None:
        return tuple(spans)
    kept: list[Span] = []
    for span in spans:
        if not _may_reach(span, stop):
            kept.append(span)
            continue
        end = span.start
        for header, _ in _batches(source, span):
            if _reaches(header, stop):
                break
            end = header.last_offset + 1
        else:
            if isinstance(stop, AtTime):
                # The later record is in a part of the segment that is not in the span, or compaction removed it.
                kept.append(span)
                continue
            end = min(span.stop, stop)
        if end > span.start:
            kept.append(replace(span, stop=end))
        break
    return tuple(kept)


def _may_reach(span: Span, stop: int | AtTime) -> bool:
    if isinstance(stop, AtTime):
        return not 0 <= span.segment.max_timestamp_ms < stop.timestamp_ms
    return span.stop > stop


def _reaches(header: BatchHeader, stop: int | AtTime) -> bool:
    return header.max_timestamp >= stop.timestamp_ms if isinstance(stop, AtTime) else header.last_offset >= stop


def _open_at_end(source: SegmentSource, spans: Sequence[Span]) -> Mapping[int, int]:
    """Return the producers with an open transaction at the end of the spans, and the first offset of each."""
    later: list[Span] = []
    for span in reversed(spans):
        if span.stop == span.segment.end_offset + 1 and (known := _producers(source, span)) is not None:
            break
        later.insert(0, span)
    else:
        known = ()
    _, still_open = play_markers(_steps(source, later), open_transactions(known))
    return still_open


def _steps(source: SegmentSource, spans: Sequence[Span]) -> Iterator[TransactionStep]:
    markers: dict[int, bytes] = {}

    def headers() -> Iterator[BatchHeader]:
        for header, batch in chain.from_iterable(_batches(source, span) for span in spans):
            if header.is_control:
                markers[header.base_offset] = bytes(batch[61 : 61 + MARKER_BYTES])
            yield header

    return transaction_steps(headers(), lambda header: markers.pop(header.base_offset))


def _batches(source: SegmentSource, span: Span) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of a span."""
    with source.fetch_log_segment(span.segment, 0) as stream:
        for header, batch in whole_batches(stream.chunks(), span.segment.segment_size_in_bytes):
            if header.base_offset >= span.stop:
                return
            if header.last_offset >= span.start:
                yield header, batch
