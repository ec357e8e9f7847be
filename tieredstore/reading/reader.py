"""Reads topics: snapshots, windows and records. All front ends read through this module."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Self

from tieredstore.errors import ConfigError, CorruptDataError, DataLossError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.model import name_of
from tieredstore.process.closing import Closing
from tieredstore.reading.losses import Losses, losses_between
from tieredstore.reading.plan import WindowSplit, plan_windows
from tieredstore.reading.split_reads import LiveSplit, QuerySources, StoredRead, open_reader
from tieredstore.reading.survey import survey_logs
from tieredstore.reading.tail import LogTail
from tieredstore.reading.windows import PlaceLookup, time_offset
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit, SplitLimits

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.live import LiveCluster, LiveReader
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.partitions.position import Position
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote import RemoteStorageManager

_logger: Final = logging.getLogger(__name__)


class TopicReader(Closing):
    """Reads the topics that a query selects from bucket and broker. Several threads may read at once.

    The reader opens connections to the broker when needed, and closes them. It calls ``open_source`` only if the bucket
    is needed, and does not close the source. The query's isolation and loss policy replace those of ``settings``.
    """

    def __init__(
        self,
        open_source: Callable[[], RemoteStorageManager],
        query: LogQuery,
        settings: ReadSettings | None = None,
        *,
        live: LiveReader | None = None,
    ) -> None:
        """Create a reader. The caller closes ``live``. Without ``live``, the reader opens clients at the first use."""
        self.query = query
        self.settings: ReadSettings = settings or ReadSettings()
        self._open_source = open_source
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()
        self._live = live

    def look(self) -> LogSnapshot:
        """Return a snapshot of the selected logs that exist."""
        return survey_logs(self._open_source(), self.query, cluster=self._cluster())

    def snapshot(self) -> LogSnapshot:
        """Return a snapshot of the selected logs, and log its problems.

        Raise ResourceNotFoundError for named topics and partitions that do not exist. If the query does not accept
        losses, raise DataLossError for unreadable partitions, and for contradictions between bucket and broker.
        """
        snapshot = self.look()
        for problem in snapshot.problems:
            _logger.warning("%s", problem)
        Losses(self.query).check_readable(snapshot, {})
        snapshot.check_selected(self.query, self._open_source())
        return snapshot

    def begin(self) -> tuple[Self, LogSnapshot]:
        """Return this reader and a snapshot. Close the reader if the snapshot fails."""
        try:
            return self, self.snapshot()
        except BaseException:
            self.close()
            raise

    def lookup(self, snapshot: LogSnapshot) -> PlaceLookup:
        """Return an object that finds the offsets of places (a time, the last records) in a snapshot's logs."""
        return PlaceLookup(snapshot, self.query, self.offset_at, self.start_of_last)

    def offset_at(self, log: PartitionLog, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after ``timestamp_ms``; None if the log has none."""
        return time_offset(self._open_source(), self._cluster(), log, timestamp_ms)

    def read(
        self, log: PartitionLog, start: int, stop: int, *, aborted: set[AbortedTransaction] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the records with offsets in ``[start, stop)``, each once and in order. No record batch is empty.

        Records of the bucket come first, then records of the broker, with the same columns. If records of the bucket
        are damaged, and the broker has them, the read continues at the broker. Memory is bounded for any window.
        ``aborted`` collects the aborted transactions of the bucket's part. It may include later transactions of the
        same segment. Exhaust or close the generator.

        Raise DataLossError at once for missing offsets, and later if retention deletes offsets during the read. If the
        query accepts losses, log a warning for each gap instead.
        """
        if not 0 <= start <= stop:
            raise ConfigError(f"there are no offsets from {start} up to {stop} of {log.topic_id_partition}")
        # Apply the loss policy once, before the first record. The reads below then only report a loss, instead of
        # raising an error.
        Losses(self.query).accept_missing(losses_between(log, start, stop))
        return _read(self._sources(self.settings), log, start, stop, aborted)

    def start_of_last(self, log: PartitionLog, count: int, stop: int) -> int:
        """Return the offset from which ``count`` records remain up to ``stop``, or the log's first offset if the log
        has fewer records.

        Markers, aborted transactions and compaction leave gaps in the offsets, so records must be read to be counted.
        Read the last ``count`` offsets before ``stop``. If they contain too few records, read four times as many
        offsets, and so on. Lost offsets are ignored. Memory does not grow with ``count``.
        """
        sources = replace(
            self._sources(replace(self.settings, columns=("offset",))),
            query=replace(self.query, on_data_loss="report"),
        )

        def offsets_from(start: int) -> Generator[Sequence[int], None, None]:
            for records in _read(sources, log, start, stop):
                yield int64_values(records, "offset")

        width = count
        while True:
            start = max(stop - width, log.earliest)
            if start >= stop or (start == log.earliest and width == count):
                return min(start, stop)
            with closing(offsets_from(start)) as batches:
                sizes = [(offsets[0], len(offsets)) for offsets in batches]
            surplus = sum(rows for _, rows in sizes) - count
            if surplus >= 0:
                remaining = iter(sizes)
                first, rows = next(remaining)
                while surplus >= rows:
                    surplus -= rows
                    first, rows = next(remaining)
                # If retention deletes these records before the second read, return the batch's first offset.
                with closing(offsets_from(first)) as batches:
                    return next(islice(chain.from_iterable(batches), surplus, None), first)
            if start == log.earliest:
                return start
            width *= 4

    def splits(
        self, snapshot: LogSnapshot, windows: Mapping[TopicPartition, OffsetWindow], limits: SplitLimits
    ) -> list[WindowSplit]:
        """Return splits that read the windows, each offset in exactly one split: see :func:`plan_windows`."""
        return plan_windows(self._open_source(), snapshot, windows, self.query, limits)

    def read_split(self, split: WindowSplit, settings: ReadSettings | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of a split, which this or another process planned."""
        chosen = settings or self.settings
        if isinstance(split, RecordSplit):
            return QuerySources(self._open_source, self.query, chosen).read_record_split(split)
        return self._sources(chosen).read_live_split(split)

    def follow(self, positions: Mapping[TopicPartition, int | Position], settings: ReadSettings) -> LogTail:
        """Follow new records of partitions, from these positions on. The tail opens its own connections."""
        return LogTail(self._open_source(), self.query, positions, settings=settings)

    def live(self) -> LiveReader | None:
        """Return the clients that read the broker; None for the bucket alone."""
        if self._live is not None or self.query.client is None:
            return self._live
        with self._lock:
            if self._live is None:
                self._live = self._open.enter_context(open_reader(self.query))
            return self._live

    def _sources(self, settings: ReadSettings) -> QuerySources:
        return QuerySources(self._open_source, self.query, settings, self.live())

    def _cluster(self) -> LiveCluster | None:
        live = self.live()
        return None if live is None else live.cluster

    def close(self) -> None:
        """Close the connections to the broker."""
        self._open.close()


def _read(
    sources: QuerySources, log: PartitionLog, start: int, stop: int, aborted: set[AbortedTransaction] | None = None
) -> Generator[pa.RecordBatch, None, None]:
    damage: CorruptDataError | None = None
    seam = min(stop, log.seam)
    if log.lineage is not None and start < seam:
        stored = StoredRead(sources, log.lineage, (start, seam), aborted)
        try:
            yield from stored.batches()
        except CorruptDataError as error:
            if log.live_start is None or not log.live_start <= stored.position < log.end:
                raise
            damage = error
        if damage is not None:
            at = stored.position
            _logger.warning("%s; %s is read from the broker from offset %d on", damage, name_of(log.where), at)
            # The broker may lack these records after all. This is damage in the bucket, which no loss policy accepts.
            strict = replace(sources, query=replace(sources.query, on_data_loss="fail"))
            try:
                yield from strict.read_live_split(LiveSplit.of(log, at, seam))
            except DataLossError as error:
                raise damage from error
    if log.live_start is None:
        return
    # Skip missing offsets before the broker's first offset, because the loss policy has already been applied to these
    # offsets.
    live = LiveSplit.of(log, max(start, log.seam, log.live_start), min(stop, log.end))
    if live.start < live.stop:
        yield from sources.read_live_split(live)
