"""The bucket's part of a window: read segment by segment, or split by split as it was planned."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.errors import DataLoss, SegmentNotFound
from tieredstore.reading.losses import report_losses
from tieredstore.records.numbers import int64_values, leading
from tieredstore.records.partition import PartitionRead
from tieredstore.records.report import LostOffsets
from tieredstore.records.splits import RecordSplit, read_split

if TYPE_CHECKING:
    from tieredstore.catalog.lineage import Lineage
    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.model import TopicIdPartition
    from tieredstore.partitions.log import OffsetWindow
    from tieredstore.reading.query import LogQuery
    from tieredstore.records.settings import ReadSettings
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)


def stored_runs(lineage: Lineage, start: int, stop: int) -> Iterator[OffsetWindow]:
    """What segments hold of the offsets ``start`` up to ``stop`` (half-open): windows without a gap inside."""
    edges = [max(start, lineage.earliest_offset)]
    for gap in lineage.gaps_between(start, stop):
        edges += [gap.start, gap.stop]
    edges.append(min(stop, lineage.end_offset))
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if first < last:
            yield first, last


class StoredWindow:
    """Reads a window of the bucket's offsets; ``position`` is always where to go on. For one thread.

    What was deleted since the lineage was traced is data loss by the query's policy, and so is what no segment that is
    left decides. Gaps are not told of here: the window is read past them.
    """

    def __init__(
        self, source: SegmentSource, lineage: Lineage, window: OffsetWindow, query: LogQuery, settings: ReadSettings
    ) -> None:
        self.position = window[0]
        self.aborted: set[AbortedTransaction] = set()
        """The aborted transactions whose records were left out, and some that lie ahead."""
        self._lost: list[LostOffsets] = []
        self._source = source
        self._lineage = lineage
        self._window = window
        self._query = query
        # The offsets tell how far a read has come; they are left out again where nobody asked for them.
        columns = tuple(dict.fromkeys((*settings.columns, "offset")))
        self._settings = replace(settings, columns=columns, isolation=query.isolation, on_data_loss="report")
        self._schema = replace(self._settings, columns=settings.columns).schema

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The records, in record batches without empty ones; ``position`` is behind a batch when it is given."""
        for first, last in stored_runs(self._lineage, *self._window):
            self.position = max(self.position, first)
            # More than one run only where a segment goes away meanwhile: the next one begins behind it.
            while self.position < last:
                yield from self._run(last)
        # Offsets at the end may have no record: markers take some, and so does what was aborted or lost.
        self.position = max(self.position, self._window[1])

    def take_lost(self) -> list[LostOffsets]:
        """What was lost since the last call, in front of ``position``, where the query puts up with that."""
        lost, self._lost = self._lost, []
        return lost

    def _run(self, stop: int) -> Iterator[pa.RecordBatch]:
        """The records up to ``stop``, or to a segment that is not there any more, behind which the next run begins."""
        try:
            with PartitionRead(self._source, self._lineage, self.position, stop, self._settings) as read:
                read.report.aborted = self.aborted
                for records in read:
                    self.position = int64_values(records, "offset")[-1] + 1
                    yield leading(records, self._schema, records.num_rows)
        except SegmentNotFound as error:
            end = min(stop, self._lineage.span_at(self.position).stop)
            sentence = deleted_meanwhile(self._lineage.partition, self.position, end, error)
            if self._query.fails_on_loss:
                raise DataLoss(sentence) from error
            _logger.warning("%s", sentence)
            self._lost.append(LostOffsets(self._lineage.partition, self.position, end))
            self.position = end
            return
        if read.report.lost:
            # A run has no holes: the last segment does not hold what it is said to.
            report_losses(read.report.lost, self._query)
            self._lost += read.report.lost
        if read.report.undecided is not None:
            # A window ends where all is decided: what decided this was in segments that are missing.
            first = max(self.position, read.report.undecided.first_offset)
            undecided = LostOffsets(self._lineage.partition, first, stop)
            report_losses([undecided], self._query)
            self._lost.append(undecided)
        self.position = stop


def read_record_split(
    source: SegmentSource, split: RecordSplit, query: LogQuery, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """The records of a split that was planned; by the query's policy without what was deleted since."""
    settings = replace(settings, on_data_loss=query.on_data_loss, accept_loss=query.words.accept_loss)
    if query.fails_on_loss:
        try:
            yield from read_split(source, split, settings)
        except SegmentNotFound as error:
            raise DataLoss(_deleted_split(split, error)) from error
        return
    # One by one, so that nothing but the segment that is gone is left out.
    for part in split.parts:
        alone = replace(split, parts=(part,))
        try:
            yield from read_split(source, alone, settings)
        except SegmentNotFound as error:
            _logger.warning("%s", _deleted_split(alone, error))


def _deleted_split(split: RecordSplit, error: SegmentNotFound) -> str:
    return deleted_meanwhile(split.partition, split.start_offset, split.stop_offset, error)


def deleted_meanwhile(partition: TopicIdPartition, start: int, stop: int, error: SegmentNotFound) -> str:
    """What to say of offsets whose segment retention took under a reader."""
    return f"offsets {start} to {stop - 1} of {partition} were deleted while they were read: {error}"
