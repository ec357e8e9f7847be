"""Segments that follow each other without a hole, read as one log."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.catalog.lineage import Span
from tieredstore.catalog.log_extents import LogExtent, extent_of_span
from tieredstore.errors import BatchCorrupt, IndexesCorrupt
from tieredstore.kafka.records import RecordDecoder
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.records.numbers import int64_values, leading
from tieredstore.records.report import ReadReport, SkippedInSegment
from tieredstore.records.settings import ReadSettings
from tieredstore.records.transaction_watch import TransactionWatch
from tieredstore.records.transactions import Transactions

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)


class Stretch:
    """Reads the offsets ``start`` up to ``stop`` (half-open) of ``spans``.

    The spans follow each other without a gap; the first holds ``start``. Those behind ``stop`` are there because the
    outcome of transactions may be told in them.
    """

    def __init__(
        self,
        source: SegmentSource,
        spans: Sequence[Span],
        start: int,
        stop: int,
        *,
        settings: ReadSettings,
        report: ReadReport,
    ) -> None:
        self._source = source
        self._spans = spans
        self._start = start
        self._stop = stop
        self._settings = settings
        self._report = report
        self._committed = settings.isolation == "read_committed"
        self._transactions = Transactions(source, spans)
        # Topics without transactions should not pay for them: their outcome is asked for when the first one is met.
        self._watching = self._committed

    def read(self) -> Iterator[pa.RecordBatch]:
        """The records. ``report`` is kept up to date; it has ``undecided`` where the read ended early."""
        first = self._read_of(0)
        # At offset 0 no transaction can reach over the beginning: most reads of whole topics ask for no snapshot.
        if self._committed and first is not None and first.start > 0 and self._transactions.reach_over(first.start):
            self._settle()
        for number in range(len(self._spans)):
            span = self._read_of(number)
            if span is None:
                return
            yield from self._read_span(number, span)
            self._report.next_offset = min(span.stop, self._stop)

    def _read_of(self, number: int) -> Span | None:
        """What is to be read of a span, if anything."""
        if number >= len(self._spans):
            return None
        span = self._spans[number]
        start, stop = max(span.start, self._start), min(span.stop, self._stop)
        return Span(span.segment, start, stop) if start < stop else None

    def _read_span(self, number: int, span: Span) -> Iterator[pa.RecordBatch]:
        extent = extent_of_span(self._source, span)
        aborted = self._transactions.aborted(number, span.start, span.stop) if self._committed else ()
        watch = TransactionWatch(span.stop) if self._watching else None
        decoder = self._settings.decoder(*([] if watch is None else ["offset"]))
        # A span that ends before its segment does is cut by another copy or by the window.
        to_its_end = span.stop > span.segment.end_offset
        with extent.opened(self._source, self._settings.piece_bytes, lambda: self._following(number)) as pieces:
            decoded = decoder.decode(
                pieces if watch is None else watch.watch(pieces),
                start_offset=span.start,
                # A log that is read to its last byte leaves nothing on its way that was read ahead.
                stop_offset=None if to_its_end else span.stop,
                end_offset=span.segment.end_offset + 1,
                aborted=aborted,
                position=extent.byte_range.start,
            )
            for records in _of_segment(decoded, span.segment):
                kept = records if watch is None else self._before_undecided(records, watch)
                if kept.num_rows:
                    yield kept
                if kept.num_rows < records.num_rows:
                    break
            else:
                _check_end(decoder, extent, span)
        self._note_skipped(decoder, span.segment)

    def _following(self, number: int) -> RemoteLogSegmentMetadata | None:
        """The segment to read ahead into: only one that will be read from its first byte to its last."""
        span = self._read_of(number + 1)
        if span is None or span.start > span.segment.start_offset or span.stop <= span.segment.end_offset:
            return None
        return span.segment

    def _before_undecided(self, records: pa.RecordBatch, watch: TransactionWatch) -> pa.RecordBatch:
        """The records without those from the first undecided transaction on; the read is shortened to that."""
        if self._watching and watch.has_seen_one:
            self._settle()
        # Settling has moved the stop; what was decoded before that is cut to it.
        count = bisect_left(int64_values(records, "offset"), self._stop)
        return leading(records, self._settings.schema, count)

    def _settle(self) -> None:
        """Shorten the read to what is decided."""
        self._watching = False
        undecided = self._transactions.first_undecided(self._stop)
        if undecided is not None:
            # One that began before this read shortens it to nothing, not to less.
            self._stop = max(undecided.first_offset, self._start)
            self._report.undecided = undecided
            _logger.warning("%s", undecided)

    def _note_skipped(self, decoder: RecordDecoder, segment: RemoteLogSegmentMetadata) -> None:
        for batch in decoder.skipped:
            self._report.skipped.append(SkippedInSegment(segment, batch))
            _logger.warning("%s", self._report.skipped[-1])


def _of_segment(decoded: Iterator[pa.RecordBatch], segment: RemoteLogSegmentMetadata) -> Iterator[pa.RecordBatch]:
    """The record batches of a segment's log; errors name the segment."""
    try:
        yield from decoded
    except BatchCorrupt as error:
        raise BatchCorrupt(f"{segment}: {error}") from error


def _check_end(decoder: RecordDecoder, extent: LogExtent, span: Span) -> None:
    """An extent that the offset index made too short lacks records, and nothing that comes later would tell."""
    # A damaged batch that is left out may have been the last one: its end is not known then.
    ends_early = extent.byte_range.stop < span.segment.segment_size_in_bytes
    if ends_early and decoder.next_offset < span.stop and not decoder.skipped:
        raise IndexesCorrupt(
            f"the offset index of {span.segment} leads to byte {extent.byte_range.stop} for offset {span.stop}, and "
            f"the record batches before it end at offset {decoder.next_offset - 1}"
        )
