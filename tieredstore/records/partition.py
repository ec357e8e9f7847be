"""One partition's records: stretches of segments, and the holes between them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.catalog.lineage import Lineage, Span
from tieredstore.catalog.problems import Problem
from tieredstore.errors import AlreadyClosed, DataLoss
from tieredstore.process.closing import Closing
from tieredstore.records.arrow_stream import ArrowStream
from tieredstore.records.report import LostOffsets, ReadReport
from tieredstore.records.settings import ReadSettings
from tieredstore.records.stretch import Stretch

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)
_SHOWN: Final = 5


class PartitionRead(ArrowStream, Closing):
    """The records of one partition with offsets in ``[start, stop)``, in record batches without empty ones.

    The log's end ends it too. For one thread; exhaust it, or close it, which ends what is under way. Closed before its
    end, or failed, it gives AlreadyClosed from then on, not an end.
    """

    def __init__(self, source: SegmentSource, lineage: Lineage, start: int, stop: int, settings: ReadSettings) -> None:
        """DataLoss if offsets were lost and ``settings`` don't say that they are to be reported."""
        self.partition = lineage.partition
        self.start = start
        self.stop = stop
        self.schema = settings.schema
        lost = checked_losses(lineage, start, stop, settings)
        self.report = ReadReport(start, lost, unreadable=unreadable_segments(lineage, start, stop))
        self._is_over = False
        self._batches = self._read(source, lineage, settings)

    def _read(
        self, source: SegmentSource, lineage: Lineage, settings: ReadSettings
    ) -> Generator[pa.RecordBatch, None, None]:
        for spans in stretches(lineage, self.start, self.stop):
            stretch = Stretch(source, spans, self.start, self.stop, settings=settings, report=self.report)
            yield from stretch.read()
            if self.report.undecided is not None:
                break
        self._is_over = True

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches, None)
        if batch is not None:
            return batch
        if self._is_over:
            raise StopIteration
        # Whoever reads must not take it for the end of the records.
        raise AlreadyClosed(f"this read of {self.partition} was closed, or failed, before its end; begin another")

    def reader(self) -> pa.RecordBatchReader:
        """The same records as a stream of pyarrow's; AlreadyClosed where they were read, since it would have none."""
        if inspect.getgeneratorstate(self._batches) == inspect.GEN_CLOSED:
            raise AlreadyClosed(f"this read of {self.partition} was read or closed before; begin another")
        return super().reader()

    def close(self) -> None:
        """End the read."""
        self._batches.close()


def stretches(lineage: Lineage, start: int, stop: int) -> Iterator[list[Span]]:
    """The runs of spans without a gap that hold any of the offsets.

    Each begins with the span that holds the first of them, and goes on to its own end, beyond ``stop`` too.
    """
    runs: list[list[Span]] = []
    for span in lineage.spans:
        if span.stop <= start:
            continue
        # A gap parts two runs: transactions that are open there stay without outcome for what is before it.
        if not runs or runs[-1][-1].stop < span.start:
            runs.append([])
        runs[-1].append(span)
    return (run for run in runs if run[0].start < stop)


def checked_losses(lineage: Lineage, start: int, stop: int, settings: ReadSettings) -> tuple[LostOffsets, ...]:
    """The lost offsets, each logged; DataLoss if there are any and ``settings`` don't say that they are reported.

    So are segments that nobody can read, within the window or right beside it: see :func:`unreadable_segments`.
    """
    lost = tuple(lost_offsets(lineage, start, stop))
    unreadable = unreadable_segments(lineage, start, stop)
    if (lost or unreadable) and settings.on_data_loss == "fail":
        raise DataLoss(_sentence(lost, unreadable, lineage, settings))
    for loss in (*lost, *unreadable):
        _logger.warning("%s", loss)
    return lost


def unreadable_segments(lineage: Lineage, start: int, stop: int) -> tuple[Problem, ...]:
    """The segments that nobody can read and that may have records of the offsets, or lie right beside them.

    Who names an offset to begin or to end at takes the problems beside it out of the lineage.
    """
    return lineage.unreadable_between(start, stop, starts_there=False, stops_there=False)


def lost_offsets(lineage: Lineage, start: int, stop: int) -> Iterator[LostOffsets]:
    """What of the offsets is in no segment, though later ones are in one: before the log's beginning, and in gaps."""
    # Retention took these, or they were never copied: a consumer would be out of range here.
    if start < min(stop, lineage.earliest_offset):
        yield LostOffsets(lineage.partition, start, min(stop, lineage.earliest_offset))
    yield from lineage.gaps_between(start, stop)


def _sentence(
    lost: tuple[LostOffsets, ...], unreadable: tuple[Problem, ...], lineage: Lineage, settings: ReadSettings
) -> str:
    damage = [str(problem) for problem in unreadable[:_SHOWN]]
    if len(unreadable) > _SHOWN:
        damage.append(f"and so it is with {len(unreadable) - _SHOWN} more")
    extents = ", ".join(f"{extent.start} to {extent.stop - 1}" for extent in lost[:_SHOWN])
    more = f" and {len(lost) - _SHOWN} more such ranges" if len(lost) > _SHOWN else ""
    missing = [f"offsets {extents}{more} of {lineage.partition} are in no segment"] if lost else []
    return (
        f"{'; '.join((*missing, *damage))}; there are {lineage.earliest_offset} to {lineage.end_offset - 1}. Ask for "
        f"what is there by its offsets, or {settings.accept_loss}"
    )
