"""The batch reader: offsets are resolved once, beside the driver, and cut into tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tieredstore.spark.source.brokers import live_cluster
from tieredstore.spark.source.filters import Bounds, bounds_of
from tieredstore.spark.source.log_snapshot import LogSnapshot
from tieredstore.spark.source.managers import manager_of
from tieredstore.spark.source.options import SourceOptions, TopicPartition
from tieredstore.spark.source.positions import offset_windows
from tieredstore.spark.source.sentences import each_in_one_sentence, one_sentence
from tieredstore.spark.source.task_planning import Window, plan_tasks
from tieredstore.spark.source.tasks import read_task
from tieredstore.spark.source.unreadable import check_readable

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads what the options select."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds: Bounds | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the offsets, and cut them into tasks."""
        with one_sentence():
            return self._planned()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))

    def _planned(self) -> list[InputPartition]:
        manager = manager_of(self._options.store)
        with live_cluster(self._options) or nullcontext() as cluster:
            snapshot = LogSnapshot.take(manager, self._options, cluster=cluster)
            for problem in snapshot.problems:
                _log.warning("%s", problem)
            check_readable(snapshot, self._options)
            snapshot.check_selected(self._options)
            windows = self._windows(snapshot)
        since = None if self._bounds is None else self._bounds.since_ms
        return plan_tasks(manager, snapshot, windows, self._options, since_ms=since)

    def _windows(self, snapshot: LogSnapshot) -> dict[TopicPartition, Window]:
        windows, bounds = offset_windows(snapshot, self._options), self._bounds
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
