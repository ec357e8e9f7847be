"""The batch reader: offsets are resolved once, beside the driver, and cut into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tieredstore.reading.reader import TopicReader
from tieredstore.reading.unreadable import check_readable, named_partitions
from tieredstore.reading.windows import offset_windows
from tieredstore.spark.source.filters import Bounds, bounds_of
from tieredstore.spark.source.managers import manager_of
from tieredstore.spark.source.options import SourceOptions
from tieredstore.spark.source.queries import query_of
from tieredstore.spark.source.sentences import each_in_one_sentence, one_sentence
from tieredstore.spark.source.tasks import plan_tasks, read_task
from tieredstore.spark.source.workers import spare_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow
    from tieredstore.reading.log_snapshot import LogSnapshot


class BatchReader(DataSourceReader):
    """Reads what the options select."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds: Bounds | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the offsets, and cut them into tasks."""
        spare_modules()
        with one_sentence():
            return self._planned()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))

    def _planned(self) -> list[InputPartition]:
        options, query = self._options, query_of(self._options)
        open_source = partial(manager_of, options.store)
        with TopicReader(open_source, query) as reader:
            snapshot = reader.snapshot()
            windows = offset_windows(
                snapshot, query, options.starting, options.ending, if_too_late=options.timestamp_strategy
            )
        check_readable(
            snapshot, query, windows,
            starts_there=named_partitions(options.starting), stops_there=named_partitions(options.ending),
        )  # fmt: skip
        windows = self._narrowed(windows)
        since = None if self._bounds is None else self._bounds.since_ms
        options = replace(options, max_split_bytes=self._split_bytes(snapshot, windows))
        return plan_tasks(open_source(), snapshot, windows, options, since_ms=since)

    def _split_bytes(self, snapshot: LogSnapshot, windows: Mapping[TopicPartition, OffsetWindow]) -> int:  # noqa: ARG002  for others
        """How much of a log one task reads at most."""
        return self._options.max_split_bytes

    def _narrowed(self, windows: dict[TopicPartition, OffsetWindow]) -> dict[TopicPartition, OffsetWindow]:
        """What Spark's filters leave of the windows."""
        bounds = self._bounds
        if bounds is None:
            return windows
        return {where: bounds.window(*window) for where, window in windows.items() if bounds.admits(*where)}


class PushdownBatchReader(BatchReader):
    """A batch reader that leaves out what Spark's filters exclude; Spark still looks at every row that it gives.

    Apart, because Spark refuses readers with ``pushFilters`` unless it is told to use them, and asked for by an option:
    Spark keeps the tasks of a DataFrame's latest filters, and reads these for its other uses too.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep what the filters say of topics, partitions, offsets and times; all are Spark's to check as well."""
        self._bounds = bounds_of(filters)
        return filters
