"""Reads one partition's records from the bucket, in runs: sequences of segments without a gap."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.kafka.batches import first_batch_size
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.kafka.records import RecordDecoder
from tieredstore.kafka.records.columns import first_rows, int64_values
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.process.closing import Closing
from tieredstore.records.report import LostOffsets, ReadReport, SkippedInSegment
from tieredstore.records.sections import SectionReader
from tieredstore.records.settings import ReadSettings
from tieredstore.records.transactions import Transactions

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)

_ATTRIBUTES_END: Final = 23
"""Bytes from a record batch's start to the end of its attributes. Messages of the older formats are never smaller."""

_TRANSACTIONAL: Final = 16


class PartitionRead(Closing):
    """The records of one partition with offsets from ``start`` up to ``stop`` (exclusive), or to the log's end if that
    is earlier. No record batch is empty.

    Not thread-safe. Iterate over it once, and close it, which cancels running work. Gaps are skipped, because the
    caller has applied the loss policy to them.
    """

    def __init__(
        self, source: RemoteStorageManager, lineage: Lineage, start: int, stop: int, settings: ReadSettings
    ) -> None:
        self.start = start
        self.stop = stop
        self.report: ReadReport = ReadReport(start)
        self._batches = self._read(SectionReader(source, settings), lineage)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def _read(self, reader: SectionReader, lineage: Lineage) -> Generator[pa.RecordBatch, None, None]:
        for spans in runs_of_spans(lineage, self.start, self.stop):
            yield from RunRead(reader, spans, self.start, self.stop, self.report).read()
            if self.report.undecided is not None:
                break

    def close(self) -> None:
        """End the read and cancel running work."""
        self._batches.close()


class RunRead:
    """Reads the offsets from ``start`` up to ``stop`` (exclusive) of ``spans``, which are parts of segments.

    The spans follow each other without a gap, and the first contains ``start``. They continue after ``stop``, because
    transactions before ``stop`` may have their outcome there.
    """

    def __init__(self, reader: SectionReader, spans: Sequence[Span], start: int, stop: int, report: ReadReport) -> None:
        self._reader = reader
        self._spans = spans
        self._start = start
        self._stop = stop
        self._settings = reader.settings
        self._report = report
        self._committed = reader.settings.isolation == "read_committed"
        self._transactions = Transactions(reader.source, spans, start)
        # Read outcomes of transactions only after a transaction is found, so that topics without transactions cost no
        # such requests.
        self._watching = self._committed

    def read(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the records and update ``report``. If a transaction without an outcome ends the read, record the
        transaction in ``report``.
        """
        first = self._read_of(0)
        # No transaction is open before offset 0, so most reads of whole topics need no producer snapshot.
        if self._committed and first is not None and first.start > 0 and self._transactions.reach_over(first.start):
            self._settle()
        for number in range(len(self._spans)):
            span = self._read_of(number)
            if span is None:
                return
            section = self._reader.section_of(span)
            is_watching = self._watching
            decoder = self._settings.decoder(*(["offset"] if is_watching else []))
            aborted = self._find_aborted(number, span) if self._committed and not is_watching else ()
            meet = partial(self._meet_transaction, number, span, decoder)
            look = _TransactionWatch(span.stop, meet).watch if is_watching else iter
            lost: LostOffsets | None = None
            noted = 0
            for records in self._reader.read(section, decoder, aborted, partial(self._find_next, number), look):
                kept = self._before_undecided(records) if is_watching else records
                # Note damage before the records that follow it, because the caller may end the read after them.
                noted = self._note_skipped(decoder, span.segment, noted)
                if kept.num_rows:
                    yield kept
                if kept.num_rows < records.num_rows:
                    break
            else:
                # Usually the next segment's start confirms the last offset in the manifest. No segment follows this
                # one, so compare the last offset with the log's end.
                if number == len(self._spans) - 1:
                    lost = self._reader.check_reached(section, decoder)
            self._note_skipped(decoder, span.segment, noted)
            self._report.next_offset = min(span.stop, self._stop) if lost is None else lost.start
            if lost is not None:
                self._report.lost = (*self._report.lost, lost)

    def _read_of(self, number: int) -> Span | None:
        """Return the part of span ``number`` that lies between the read's start and stop; None if no part does."""
        if number >= len(self._spans):
            return None
        span = self._spans[number]
        start, stop = max(span.start, self._start), min(span.stop, self._stop)
        return Span(span.segment, start, stop) if start < stop else None

    def _meet_transaction(self, number: int, span: Span, decoder: RecordDecoder) -> None:
        self._transactions.skip_to(number)
        # Read the transaction indexes first, because they may prove that every transaction in the read has an outcome.
        decoder.leave_out(self._find_aborted(number, span))
        self._settle()

    def _find_aborted(self, number: int, span: Span) -> Sequence[AbortedTransaction]:
        aborted = self._transactions.find_aborted(number, span.start, span.stop)
        self._report.aborted.update(aborted)
        return aborted

    def _find_next(self, number: int) -> RemoteLogSegmentMetadata | None:
        """Return the next segment if it is read as a whole, and so can be read ahead; None otherwise."""
        span = self._read_of(number + 1)
        if span is None or span.start > span.segment.start_offset or span.stop <= span.segment.end_offset:
            return None
        return span.segment

    def _before_undecided(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records before the end of the read. A transaction without an outcome may have moved this end to an
        earlier offset.
        """
        count = bisect_left(int64_values(records, "offset"), self._stop)
        return first_rows(records, self._settings.schema, count)

    def _settle(self) -> None:
        """If a transaction without an outcome begins before the read's end, end the read before this transaction."""
        self._watching = False
        undecided = self._transactions.first_undecided(self._stop)
        if undecided is not None:
            # If the transaction began before the read's start, nothing is read.
            self._stop = max(undecided.first_offset, self._start)
            self._report.undecided = undecided
            _logger.warning("%s", undecided)

    def _note_skipped(self, decoder: RecordDecoder, segment: RemoteLogSegmentMetadata, noted: int) -> int:
        """Log and report the skipped batches, except the first ``noted``, which were reported before. Return the number
        of batches reported so far.
        """
        skipped = decoder.skipped
        for batch in skipped[noted:]:
            self._report.skipped.append(SkippedInSegment(segment, batch))
            _logger.warning("%s", self._report.skipped[-1])
        return len(skipped)


class _TransactionWatch:
    """Finds the first transaction in the bytes of a log, before the decoder gets them.

    Calls ``act`` once: at the first transactional batch before offset ``stop``, or at bytes that are not a batch. The
    decoder gets the buffer with these bytes only after the call. The first buffer must begin with a batch.
    """

    def __init__(self, stop: int, act: Callable[[], None]) -> None:
        self._has_seen_one = False
        self._stop = stop
        self._act = act
        self._head = bytearray()
        self._to_skip = 0

    def watch(self, buffers: Iterable[memoryview]) -> Iterator[memoryview]:
        """Scan each buffer for the first transaction, then yield the buffer unchanged."""
        for buffer in buffers:
            self._look(buffer)
            yield buffer

    def _look(self, buffer: memoryview) -> None:
        at = 0
        while not self._has_seen_one:
            passed = min(self._to_skip, len(buffer) - at)
            self._to_skip -= passed
            at += passed
            taken = buffer[at : at + _ATTRIBUTES_END - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) < _ATTRIBUTES_END:
                return
            self._judge()

    def _judge(self) -> None:
        """Examine one batch header, and skip to the next header."""
        size = first_batch_size(self._head)
        transactional = self._head[16] == 2 and bool(self._head[22] & _TRANSACTIONAL)
        if size is None or (transactional and int.from_bytes(self._head[:8], "big", signed=True) < self._stop):
            self._has_seen_one = True
            self._act()
            return
        self._to_skip = size - _ATTRIBUTES_END
        self._head.clear()


def runs_of_spans(lineage: Lineage, start: int, stop: int) -> Iterator[list[Span]]:
    """Yield the runs (sequences of segments without a gap) that have any offset from ``start`` up to ``stop``.

    The first run begins with the segment that contains ``start``, or the next one. A run extends to the next gap, even
    beyond ``stop``.
    """
    runs: list[list[Span]] = []
    for span in lineage.spans:
        if span.stop <= start:
            continue
        # A gap ends a run, because it may contain the outcomes of transactions that are open before it.
        if not runs or runs[-1][-1].stop < span.start:
            runs.append([])
        runs[-1].append(span)
    return (run for run in runs if run[0].start < stop)
