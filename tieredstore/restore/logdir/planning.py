"""Choice of the spans (offset ranges within segments) that become a partition's log. The log must not end within a
transaction.

This module is separate from ``restoring``, because this module only reads the bucket and uses no log directory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tieredstore.catalog.lineage import Gap, Lineage, Span
from tieredstore.errors import (
    BatchCorruptError,
    ConfigError,
    CorruptDataError,
    DataLossError,
    IndexesCorruptError,
    IndexNotRecordedError,
)
from tieredstore.kafka.checkpoints import parse_producer_snapshot
from tieredstore.model import AtTime, IndexType
from tieredstore.records.transactions import PendingTransactions
from tieredstore.restore.logdir.producers import Producers
from tieredstore.restore.logdir.segment_copy import batches_in, is_whole

if TYPE_CHECKING:
    from tieredstore.kafka.batches import BatchHeader
    from tieredstore.kafka.checkpoints import ProducerState
    from tieredstore.model import TopicIdPartition
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

OpenTransactions: TypeAlias = Literal["fail", "cut", "abort"]
"""How a restore handles transactions that are open at the end of the log. ``fail`` refuses the restore. ``cut`` ends
the log before the first such transaction. ``abort`` keeps all records and appends abort markers.
"""


def plan_spans(
    source: RemoteStorageManager,
    lineage: Lineage,
    bounds: tuple[int, int],
    start: int | AtTime | None = None,
    stop: int | AtTime | None = None,
    *,
    open_transactions: OpenTransactions = "fail",
) -> tuple[Span, ...]:
    """Return the spans to restore, in order; () if the window has no record.

    ``bounds`` are the start and the end (exclusive) of the log when the restore was prepared. The restore leaves out
    later offsets. ``start`` keeps whole segments, so the log begins with the segment that has the offset or time
    ``start``.

    ``stop`` ends the log between two batches. If ``stop`` is an offset, the log ends at or before it. If ``stop`` is a
    time, the log ends before the first batch with a record of this time or later.

    Raise DataLossError for a gap, and for offsets deleted since the restore was prepared. Raise ConfigError for an open
    transaction if ``open_transactions`` is ``fail``.
    """
    there = lineage.spans_between(*bounds)
    if gone := tuple(_find_gaps(lineage.partition, there, bounds, start, stop)):
        raise DataLossError(f"{'; '.join(map(str, gone))} any more, since the restore was prepared")
    spans = _until(source, _since(there, start), stop)
    if not spans:
        return ()
    if gaps := lineage.gaps_between(spans[0].start, spans[-1].stop):
        raise DataLossError("; ".join(map(str, gaps)))
    while open_transactions != "abort" and (still_open := find_open_at_end(source, spans)):
        first = still_open[0].current_txn_first_offset
        if open_transactions == "fail":
            raise ConfigError(
                f"{lineage.partition}: transactions are open at the end ({spans[-1].stop}), the first since offset "
                f"{first}. No coordinator would ever end them: cut them off or abort them (--open-transactions)"
            )
        spans = _until(source, spans, first)
    return spans


def log_size(source: RemoteStorageManager, span: Span) -> int:
    """Return the size of the span's batches in bytes. If the span is not a whole segment, read the log for this."""
    if is_whole(span):
        return span.segment.segment_size_in_bytes
    return sum(len(batch) for _, batch in batches_in(source, span))


def producers_at_end(
    source: RemoteStorageManager, spans: Sequence[Span], before: Sequence[ProducerState] = ()
) -> Producers:
    """Return the producers at the end of the spans, from the last stored snapshot and the batches after it.

    A snapshot has the producers at the end of a segment, so it is useless for a span that ends earlier. ``before`` has
    the producers at the beginning of the spans. In the raw layout, all batches are read.
    """
    later: list[Span] = []
    known: Sequence[ProducerState] | None = None
    for span in reversed(spans):
        if source.layout.tells_transactions and span.stop == span.segment.end_offset + 1:
            known = stored_producers(source, span)
        if known is not None:
            break
        later.insert(0, span)
    return _append_all(source, later, before if known is None else known)


def find_open_at_end(source: RemoteStorageManager, spans: Sequence[Span]) -> tuple[ProducerState, ...]:
    """Return the producers of the transactions that are open at the end of the spans, the oldest transaction first."""
    known = count_known(source, spans)
    return _append_all(source, spans[known:], producers_at_end(source, spans[:known]).states).in_transactions


def count_known(source: RemoteStorageManager, spans: Sequence[Span]) -> int:
    """Return the number of leading spans that need not be read to find the transactions open at the end of ``spans``.
    Snapshots of producers replace them.

    If a broker's log begins in the middle of a transaction, the broker's snapshots lack the transaction. So the spans
    from its start on must be read. In the raw layout, the result is 0, because computed snapshots lack the producers'
    epochs.
    """
    if not spans or not source.layout.tells_transactions:
        return 0
    unknown = PendingTransactions(source, spans, spans[0].start)
    try:
        unknown.find_ended(len(spans) - 1)
    except (CorruptDataError, IndexNotRecordedError) as error:
        _logger.warning("%s; all batches are read instead", error)
        return 0
    return sum(span.stop <= min(unknown.pending.values(), default=span.stop) for span in spans)


def _append_all(source: RemoteStorageManager, spans: Sequence[Span], before: Iterable[ProducerState]) -> Producers:
    producers = Producers(before)
    for span in spans:
        for header, batch in batches_in(source, span):
            producers.append(header, batch)
    return producers


def stored_producers(source: RemoteStorageManager, span: Span) -> tuple[ProducerState, ...] | None:
    """Return the producers at the end of the span's segment; None if the segment was stored without a snapshot of
    producers. Log a damaged snapshot, and return None, because the batches since an earlier snapshot give the same
    producers."""
    try:
        stored = source.fetch_indexes(span.segment, (IndexType.PRODUCER_SNAPSHOT,))
        if IndexType.PRODUCER_SNAPSHOT not in stored:
            return None
        states = parse_producer_snapshot(stored[IndexType.PRODUCER_SNAPSHOT].read())
    except (BatchCorruptError, IndexesCorruptError) as error:
        _logger.warning("%s: %s; its batches are read instead", span.segment, error)
        return None
    # Without this check, the snapshot of a later segment would hide transactions that are open at the end of this one.
    named = (offset for state in states for offset in (state.last_offset, state.current_txn_first_offset))
    if (last := max(named, default=-1)) > span.segment.end_offset:
        _logger.warning(
            "the snapshot of producers of %s names offset %d, beyond its end; its batches are read instead",
            span.segment, last,
        )  # fmt: skip
        return None
    return states


def _find_gaps(
    partition: TopicIdPartition,
    there: Sequence[Span],
    bounds: tuple[int, int],
    start: int | AtTime | None,
    stop: int | AtTime | None,
) -> Iterator[Gap]:
    """Yield the gaps at the beginning and at the end of ``bounds``: offsets that no segment has. Leave out a gap that
    ``start`` or ``stop`` excludes.

    The lineage reports the gaps between segments.
    """
    first, last = (there[0].start, there[-1].stop) if there else (bounds[1], bounds[1])
    if bounds[0] < first and not (isinstance(start, int) and start >= first):
        yield Gap(partition, bounds[0], first)
    if last < bounds[1] and not (isinstance(stop, int) and stop <= last):
        yield Gap(partition, last, bounds[1])


def _since(spans: Sequence[Span], start: int | AtTime | None) -> tuple[Span, ...]:
    if isinstance(start, AtTime):
        first_ms = start.timestamp_ms
        return tuple(dropwhile(lambda span: 0 <= span.segment.max_timestamp_ms < first_ms, spans))
    return tuple(span for span in spans if start is None or span.stop > start)


def _until(source: RemoteStorageManager, spans: Sequence[Span], stop: int | AtTime | None) -> tuple[Span, ...]:
    """Return the spans up to ``stop``. The last span ends with the last whole batch before ``stop``."""
    if stop is None:
        return tuple(spans)
    kept: list[Span] = []
    for span in spans:
        if not _may_reach(span, stop):
            kept.append(span)
            continue
        end = span.start
        if not isinstance(stop, AtTime) and stop <= end:
            # Do not read the first batch, because the restore may end here since that batch is damaged.
            break
        for header, _ in batches_in(source, span):
            if _reaches(header, stop):
                break
            end = header.last_offset + 1
            if end == stop:
                # Do not read the next batch, because the restore may end here since that batch is damaged.
                break
        else:
            if isinstance(stop, AtTime):
                # None of the span's batches reaches the time, so keep the whole span. The segment's latest record is
                # outside of the span, or compaction has removed the record.
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
