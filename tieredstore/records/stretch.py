"""Segments that follow each other without a hole, read as one log."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.catalog.lineage import Span
from tieredstore.errors import BatchCorrupt, IndexesCorrupt
from tieredstore.kafka.records import RecordDecoder
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.records.numbers import int64_values, leading
from tieredstore.records.parts import LogPart, part_of_span
from tieredstore.records.report import ReadReport, SkippedInSegment
from tieredstore.records.settings import ReadSettings
from tieredstore.records.transactions import Transactions
from tieredstore.records.watching import TransactionWatch

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_log: Final = logging.getLogger(__name__)


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
        first = self._wanted(0)
        if self._committed and first is not None and first.start > 0 and self._transactions.reach_over(first.start):
            self._settle()
        for place in range(len(self._spans)):
            wanted = self._wanted(place)
            if wanted is None:
                return
            yield from self._read_span(place, wanted)
            self._report.next_offset = min(wanted.stop, self._stop)

    def _wanted(self, place: int) -> Span | None:
        """What is to be read of a span, if anything."""
        if place >= len(self._spans):
            return None
        span = self._spans[place]
        start, stop = max(span.start, self._start), min(span.stop, self._stop)
        return Span(span.segment, start, stop) if start < stop else None

    def _read_span(self, place: int, wanted: Span) -> Iterator[pa.RecordBatch]:
        part = part_of_span(self._source, wanted)
        aborted = self._transactions.aborted(place, wanted.start, wanted.stop) if self._committed else ()
        watch = TransactionWatch(wanted.stop) if self._watching else None
        decoder = self._settings.decoder(*([] if watch is None else ["offset"]))
        to_its_end = wanted.stop > wanted.segment.end_offset
        with part.opened(self._source, self._settings.piece_bytes, lambda: self._following(place)) as pieces:
            decoded = decoder.decode(
                pieces if watch is None else watch.watch(pieces),
                start_offset=wanted.start,
                # A log that is read to its last byte leaves nothing on its way that was read ahead.
                stop_offset=None if to_its_end else wanted.stop,
                end_offset=wanted.segment.end_offset + 1,
                aborted=aborted,
                position=part.extent.start,
            )
            for records in _of_segment(decoded, wanted.segment):
                kept = records if watch is None else self._before_undecided(records, watch)
                if kept.num_rows:
                    yield kept
                if kept.num_rows < records.num_rows:
                    break
            else:
                _check_end(decoder, part, wanted)
        self._note_skipped(decoder, wanted.segment)

    def _following(self, place: int) -> RemoteLogSegmentMetadata | None:
        """The segment to read ahead into: only one that will be read from its first byte to its last."""
        wanted = self._wanted(place + 1)
        if wanted is None or wanted.start > wanted.segment.start_offset or wanted.stop <= wanted.segment.end_offset:
            return None
        return wanted.segment

    def _before_undecided(self, records: pa.RecordBatch, watch: TransactionWatch) -> pa.RecordBatch:
        """The records without those from the first undecided transaction on; the read is shortened to that."""
        if self._watching and watch.found:
            self._settle()
        count = bisect_left(int64_values(records, "offset"), self._stop)
        return leading(records, self._settings.schema, count)

    def _settle(self) -> None:
        """Shorten the read to what is decided."""
        self._watching = False
        undecided = self._transactions.first_undecided(self._stop)
        if undecided is not None:
            self._stop = max(undecided.first_offset, self._start)
            self._report.undecided = undecided
            _log.warning("%s", undecided)

    def _note_skipped(self, decoder: RecordDecoder, segment: RemoteLogSegmentMetadata) -> None:
        for batch in decoder.skipped:
            self._report.skipped.append(SkippedInSegment(segment, batch))
            _log.warning("%s", self._report.skipped[-1])


def _of_segment(decoded: Iterator[pa.RecordBatch], segment: RemoteLogSegmentMetadata) -> Iterator[pa.RecordBatch]:
    """The record batches of a segment's log; errors name the segment."""
    try:
        yield from decoded
    except BatchCorrupt as error:
        raise BatchCorrupt(f"{segment}: {error}") from error


def _check_end(decoder: RecordDecoder, part: LogPart, wanted: Span) -> None:
    """A part that the offset index made too short lacks records, and nothing that comes later would tell."""
    ends_early = part.extent.stop < wanted.segment.segment_size_in_bytes
    if ends_early and decoder.next_offset < wanted.stop and not decoder.skipped:
        raise IndexesCorrupt(
            f"the offset index of {wanted.segment} leads to byte {part.extent.stop} for offset {wanted.stop}, and the "
            f"record batches before it end at offset {decoder.next_offset - 1}"
        )
