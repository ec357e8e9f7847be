"""Records of windows out of bucket and broker, read in this process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tieredstore.pipelines.run.stores import COLUMNS
from tieredstore.reading.live_window import open_reader
from tieredstore.reading.window import read_window
from tieredstore.records.settings import ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.live import LiveReader
    from tieredstore.partitions.log import PartitionLog
    from tieredstore.reading.query import LogQuery
    from tieredstore.remote.source import SegmentSource


class LogReading:
    """Reads logs as a query says; for several threads, which share one connection to the broker. To be closed."""

    def __init__(self, source: SegmentSource, query: LogQuery) -> None:
        self._source, self._query = source, query
        self._open = ExitStack()
        self._lock = threading.Lock()
        self._live: LiveReader | None = None

    def close(self) -> None:
        """Close the connection to the broker; the source is its owner's."""
        self._open.close()

    def records(self, log: PartitionLog, start: int, stop: int) -> Generator[pa.RecordBatch]:
        """The records of the offsets ``start`` up to ``stop`` (half-open)."""
        return read_window(
            log, start, stop, source=self._source, query=self._query, reader=self._reader(),
            settings=ReadSettings(columns=COLUMNS, isolation=self._query.isolation),
        )  # fmt: skip

    def _reader(self) -> LiveReader | None:
        with self._lock:
            if self._live is None and self._query.client is not None:
                self._live = open_reader(self._query)
                self._open.callback(self._live.close)
            return self._live
