"""Segments that follow each other without a hole, read as one log."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.catalog.lineage import Span
from tieredstore.errors import DataLoss
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records import RecordDecoder
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.records.numbers import int64_values, leading
from tieredstore.records.report import ReadReport, SkippedInSegment
from tieredstore.records.sections import LogSection, lost_behind_end, read_section, section_of_span, unreached
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
        self._transactions = Transactions(source, spans, start)
        # Topics without transactions should not pay for them: their outcome is asked for when the first one is met.
        self._watching = self._committed
        self._reached: int | None = None

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
            self._report.next_offset = min(span.stop, self._stop) if self._reached is None else self._reached

    def _read_of(self, number: int) -> Span | None:
        """What is to be read of a span, if anything."""
        if number >= len(self._spans):
            return None
        span = self._spans[number]
        start, stop = max(span.start, self._start), min(span.stop, self._stop)
        return Span(span.segment, start, stop) if start < stop else None

    def _read_span(self, number: int, span: Span) -> Iterator[pa.RecordBatch]:
        section = section_of_span(self._source, span)
        is_watching = self._watching
        aborted = self._aborted(number, span) if self._committed and not is_watching else ()
        decoder = self._settings.decoder(*(["offset"] if is_watching else []))

        def meet_transaction() -> None:
            self._transactions.skip_to(number)
            # First of all: they may tell that all is decided that is read.
            decoder.leave_out(self._aborted(number, span))
            self._settle()

        decoded = read_section(
            self._source,
            section,
            decoder,
            piece_bytes=self._settings.piece_bytes,
            aborted=aborted,
            next_segment=lambda: self._following(number),
            look=TransactionWatch(span.stop, meet_transaction).watch if is_watching else iter,
            decode_ahead=self._settings.decode_ahead,
        )
        for records in decoded:
            kept = self._before_undecided(records) if is_watching else records
            if kept.num_rows:
                yield kept
            if kept.num_rows < records.num_rows:
                break
        else:
            if number == len(self._spans) - 1:
                self._check_reached(section, decoder)
        self._note_skipped(decoder, span.segment)

    def _aborted(self, number: int, span: Span) -> Sequence[AbortedTransaction]:
        aborted = self._transactions.aborted(number, span.start, span.stop)
        self._report.aborted.update(aborted)
        return aborted

    def _check_reached(self, section: LogSection, decoder: RecordDecoder) -> None:
        """Nothing follows on the segment, so that only its own log tells where it ends."""
        lost = unreached(section, decoder)
        if lost is None:
            return
        sentence = lost_behind_end(lost, section)
        if self._settings.on_data_loss == "fail":
            raise DataLoss(f"{sentence}; {self._settings.accept_loss} to go on")
        _logger.warning("%s", sentence)
        self._report.lost = (*self._report.lost, lost)
        self._reached = lost.start

    def _following(self, number: int) -> RemoteLogSegmentMetadata | None:
        """The segment to read ahead into: only one that will be read from its first byte to its last."""
        span = self._read_of(number + 1)
        if span is None or span.start > span.segment.start_offset or span.stop <= span.segment.end_offset:
            return None
        return span.segment

    def _before_undecided(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records without those from the first undecided transaction on.

        The read may have been shortened to that since they were asked for.
        """
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
