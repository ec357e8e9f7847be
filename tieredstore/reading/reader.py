"""The one way to read topics: what there is, what of it is read, and the records."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from tieredstore.process.closing import Closing
from tieredstore.reading.losses import Losses
from tieredstore.reading.plan import SplitLimits, WindowSplit, plan_windows
from tieredstore.reading.split_reads import open_reader, read_live_split, read_record_split
from tieredstore.reading.survey import survey_logs
from tieredstore.reading.tail import LogTail
from tieredstore.reading.window import read_window, start_of_last
from tieredstore.reading.windows import PlaceLookup, time_offset
from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.kafka.indexes import AbortedTransaction
    from tieredstore.live import LiveCluster, LiveReader
    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow, PartitionLog
    from tieredstore.partitions.position import Position
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote.source import SegmentSource

_logger: Final = logging.getLogger(__name__)


class TopicReader(Closing):
    """Reads what a query selects, from bucket and broker, by connections that it opens as it needs them, and closes.

    Several threads may read at once. Sources are their owners' to close; ``open_source`` is called only where the
    bucket is needed. Isolation and loss policy of ``settings`` are the query's instead.
    """

    def __init__(
        self, open_source: Callable[[], SegmentSource], query: LogQuery, settings: ReadSettings | None = None
    ) -> None:
        self.query = query
        self.settings = settings or ReadSettings()
        self._open_source = open_source
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()
        self._live: LiveReader | None = None

    def look(self) -> LogSnapshot:
        """The logs as they are now, of whatever is there."""
        return survey_logs(self._open_source(), self.query, cluster=self._cluster())

    def snapshot(self) -> LogSnapshot:
        """The same. What of them does not count is logged.

        ResourceNotFound for topics and partitions that are named and not there, DataLoss by the policy for what is
        there and cannot be read.
        """
        snapshot = self.look()
        for problem in snapshot.problems:
            _logger.warning("%s", problem)
        Losses(self.query).check_readable(snapshot, {})
        snapshot.check_selected(self.query, self._open_source())
        return snapshot

    def begin(self) -> tuple[Self, LogSnapshot]:
        """This reader with a snapshot; closed if that cannot be had."""
        try:
            return self, self.snapshot()
        except BaseException:
            self.close()
            raise

    def lookup(self, snapshot: LogSnapshot) -> PlaceLookup:
        """What finds places in the logs of a snapshot."""
        return PlaceLookup(snapshot, self.query, self.offset_at, self.start_of_last)

    def offset_at(self, log: PartitionLog, timestamp_ms: int) -> int | None:
        """The offset of a log's first record of ``timestamp_ms`` or later; None if there is none before its end."""
        return time_offset(self._open_source(), self._cluster(), log, timestamp_ms)

    def read(
        self, log: PartitionLog, start: int, stop: int, *, aborted: set[AbortedTransaction] | None = None
    ) -> Generator[pa.RecordBatch]:
        """The records of the offsets ``start`` up to ``stop`` (half-open): see :func:`read_window`."""
        return read_window(
            log, start, stop, source=self._open_source(), query=self.query, settings=self.settings, reader=self.live(),
            aborted=aborted,
        )  # fmt: skip

    def start_of_last(self, log: PartitionLog, count: int, stop: int) -> int:
        """The offset from which on ``count`` records are left up to ``stop``: see :func:`start_of_last`."""
        return start_of_last(
            log, count, stop, source=self._open_source(), query=self.query, settings=self.settings, reader=self.live()
        )

    def splits(
        self, snapshot: LogSnapshot, windows: Mapping[TopicPartition, OffsetWindow], limits: SplitLimits
    ) -> list[WindowSplit]:
        """What tasks read of the windows, each offset in exactly one: see :func:`plan_windows`."""
        return plan_windows(self._open_source(), snapshot, windows, self.query, limits)

    def read_split(self, split: WindowSplit, settings: ReadSettings | None = None) -> Iterator[pa.RecordBatch]:
        """The records of a split that was planned, here or in another process."""
        chosen = replace(settings or self.settings, isolation=self.query.isolation)
        if isinstance(split, RecordSplit):
            return read_record_split(self._open_source(), split, self.query, chosen)
        return read_live_split(
            split, self._open_source, self.query, columns=chosen.columns, settings=chosen, reader=self.live()
        )

    def follow(self, positions: Mapping[TopicPartition, int | Position]) -> LogTail:
        """The records of partitions as they come, each from a position on, by connections of the tail's own."""
        return LogTail(self._open_source(), self.query, positions, settings=self.settings)

    def live(self) -> LiveReader | None:
        """The clients that read the broker; None for the bucket alone."""
        if self.query.client is None:
            return None
        with self._lock:
            if self._live is None:
                self._live = self._open.enter_context(open_reader(self.query))
            return self._live

    def _cluster(self) -> LiveCluster | None:
        live = self.live()
        return None if live is None else live.cluster

    def close(self) -> None:
        """Close the connections to the broker."""
        self._open.close()
