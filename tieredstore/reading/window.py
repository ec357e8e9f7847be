"""One partition's records between two offsets, across the seam between bucket and broker."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tieredstore.errors import ConfigError
from tieredstore.reading.losses import Losses, losses_between
from tieredstore.reading.split_reads import LiveSplit, StoredRead, read_live_split
from tieredstore.records.columns import int64_values
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.live import LiveReader
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote.source import SegmentSource


def read_window(
    log: PartitionLog,
    start: int,
    stop: int,
    *,
    source: SegmentSource,
    query: LogQuery,
    settings: ReadSettings | None = None,
    reader: LiveReader | None = None,
    aborted: set[AbortedTransaction] | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """The records with offsets in ``[start, stop)``, each once, ascending, in record batches without empty ones.

    The bucket's come first, then the broker's; they have the same columns, those of ``settings``, of which isolation
    and loss policy are the query's instead. What neither has is DataLoss at once, or by the query's policy a warning
    for each extent; so is what retention takes during the read. Memory is bounded whatever the window. Reads of one
    query share their connections by ``reader``. ``aborted`` gets the transactions of the bucket's part whose records
    are left out, some too that lie further on in a segment that is read. To be exhausted or closed.
    """
    if not 0 <= start <= stop:
        raise ConfigError(f"there are no offsets from {start} up to {stop} of {log.topic_id_partition}")
    # Below, losses are only told of: they are judged here, once for the whole window and before any record is given.
    chosen = replace(settings or ReadSettings(), isolation=query.isolation, on_data_loss="report")
    Losses(query).accept_missing(losses_between(log, start, stop))
    return _read(log, start, stop, source, query, chosen, reader, set() if aborted is None else aborted)


def start_of_last(
    log: PartitionLog,
    count: int,
    stop: int,
    *,
    source: SegmentSource,
    query: LogQuery,
    settings: ReadSettings | None = None,
    reader: LiveReader | None = None,
) -> int:
    """The offset from which on ``count`` records are left up to ``stop``; the log's first where it has fewer.

    Records are counted, and not offsets, of which markers, aborted transactions and compaction leave holes. So the end
    of the log is read, as many offsets as records are wanted, and four times as many where these have too few. Lost
    offsets are none of this look's concern. Memory does not grow with ``count``.
    """
    query = replace(query, on_data_loss="report")
    chosen = replace(settings or ReadSettings(), columns=("offset",), isolation=query.isolation, on_data_loss="report")

    def offsets_from(start: int) -> Generator[Sequence[int], None, None]:
        for records in _read(log, start, stop, source, query, chosen, reader, set()):
            yield int64_values(records, "offset")

    width = count
    while True:
        start = max(stop - width, log.earliest)
        if start >= stop or (start == log.earliest and width == count):
            return min(start, stop)
        with closing(offsets_from(start)) as batches:
            pieces = [(offsets[0], len(offsets)) for offsets in batches]
        surplus = sum(rows for _, rows in pieces) - count
        if surplus >= 0:
            first, skipped = _piece_of(pieces, surplus)
            with closing(offsets_from(first)) as batches:
                return _nth(batches, skipped, first)
        if start == log.earliest:
            return start
        width *= 4


def _piece_of(pieces: Sequence[tuple[int, int]], number: int) -> tuple[int, int]:
    """The first offset of the piece that has the record of this number, and that record's number within it."""
    for first, rows in pieces:
        if number < rows:
            return first, number
        number -= rows
    raise IndexError(number)


def _nth(batches: Iterable[Sequence[int]], number: int, otherwise: int) -> int:
    """The offset of this number, or ``otherwise`` if by now there are fewer: retention passed by meanwhile."""
    for offsets in batches:
        if number < len(offsets):
            return offsets[number]
        number -= len(offsets)
    return otherwise


def _read(
    log: PartitionLog,
    start: int,
    stop: int,
    source: SegmentSource,
    query: LogQuery,
    settings: ReadSettings,
    reader: LiveReader | None,
    aborted: set[AbortedTransaction],
) -> Generator[pa.RecordBatch, None, None]:
    if log.lineage is not None and start < min(stop, log.seam):
        window = StoredRead(source, log.lineage, (start, min(stop, log.seam)), query, settings)
        window.aborted = aborted
        yield from window.batches()
    if log.live_start is None:
        return
    # What lies between the seam and the broker's first offset was judged above.
    live = LiveSplit.of(log, max(start, log.seam, log.live_start), min(stop, log.end))
    if live.start < live.stop:
        columns = tuple(settings.columns)
        yield from read_live_split(live, lambda: source, query, columns=columns, settings=settings, reader=reader)
