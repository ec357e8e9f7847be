"""The stream reader: what there is at each trigger, how much of it is read, and what is done about data loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog import CatalogFile
from tieredstore.errors import DataLoss, ResourceNotFound
from tieredstore.spark.source.admission import TriggerDelay, TriggerLimits
from tieredstore.spark.source.brokers import live_cluster
from tieredstore.spark.source.log_snapshot import LogSnapshot
from tieredstore.spark.source.managers import manager_of
from tieredstore.spark.source.options import SourceOptions, TopicPartition
from tieredstore.spark.source.positions import starting_offsets
from tieredstore.spark.source.sentences import each_in_one_sentence, one_sentence
from tieredstore.spark.source.stream_offsets import StreamOffsets, Windows
from tieredstore.spark.source.task_planning import plan_tasks
from tieredstore.spark.source.tasks import read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.live import LiveCluster

_log: Final = logging.getLogger(__name__)

_FRESH_S: Final = 1.0
"""Without a trigger interval Spark asks a hundred times a second for what is new, and a listing costs money."""

Json = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the selected partitions from trigger to trigger.

    One process beside the driver plans; tasks get this object as well, and only read with it. The bucket is listed
    once a second at the most. ``clock`` gives seconds that only ever go up.
    """

    def __init__(self, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._limits = TriggerLimits.of_options(options)
        self._logs = StreamLogs(options, clock)
        self._delay = TriggerDelay(clock)
        self._on_loss = DataLossRule(fail=options.fail_on_data_loss)
        self._target: StreamOffsets | None = None

    def __reduce__(self) -> tuple[type[StreamReader], tuple[SourceOptions]]:
        return StreamReader, (self._options,)

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name, as the others are
        """Where a new stream begins, by ``startingOffsets`` and its kin."""
        with one_sentence():
            snapshot = self._logs.current()
            try:
                snapshot.check_selected(self._options)
            except ResourceNotFound as error:
                _log.warning("%s; a stream waits for them", error)
            begins = starting_offsets(snapshot, self._options)
            return StreamOffsets.at(begins, snapshot.logs).as_initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What stands for the limits of the options; the engine hands it back with each trigger that has limits."""
        return self._limits.as_read_limit()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        """Where the batch that begins at ``start`` ends; ``start`` itself if there is nothing (yet) to read."""
        with one_sentence():
            return self._latest(start, limit)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """The ends of all logs as they were last seen, for the query's progress; asks nobody."""
        last = self._logs.last
        return None if last is None else _ends(last).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the ends up to which this run reads."""
        with one_sentence():
            self._target = _ends(self._logs.current())

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a batch: of one that :meth:`latestOffset` has just found, or one to be read again."""
        with one_sentence():
            snapshot = self._logs.last or self._logs.current()
            first, last = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
            windows = first.windows_to(last, snapshot.logs, self._on_loss)
            return plan_tasks(manager_of(self._options.store), snapshot, windows, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))

    def commit(self, end: Json) -> None:
        """Nothing to do: what was read is in Spark's checkpoint and nowhere else."""

    def stop(self) -> None:
        """Close the connection to the broker, and forget what was seen."""
        self._logs.close()

    def _latest(self, start: Json, limit: ReadLimit) -> Json:
        read = StreamOffsets.from_json(start)
        snapshot = self._logs.current()
        windows = self._within_reach(snapshot, read.begins(snapshot.logs, self._on_loss))
        limits = self._limits.under(limit)
        waiting = sum(stop - first for first, stop in windows.values())
        # A run up to a target reads what there is, and nobody brings more.
        if self._target is None and self._delay.has_to_wait(limits, waiting):
            return start
        reached = read.with_ends(limits.admit(windows, snapshot.bytes_between), snapshot.logs)
        return start if reached.is_at(read) else reached.to_json()

    def _within_reach(self, snapshot: LogSnapshot, begins: Mapping[TopicPartition, int]) -> Windows:
        """From where to where there is something to read, of the partitions that this run reads."""
        target, windows = self._target, Windows()
        for where, begin in begins.items():
            log = snapshot.logs[where]
            end = log.end_from(begin)
            if target is None:
                windows[where] = begin, end
            elif where in target.offsets and target.topic_ids[log.topic] == log.topic_id:
                windows[where] = begin, max(begin, min(end, target.offsets[where]))
        return windows


class StreamLogs:
    """Snapshots of the logs, one after the other: each reads only what is new since the one before.

    What keeps them cheap is in memory, and the broker's connection stays open. Not thread-safe.
    """

    def __init__(self, options: SourceOptions, clock: Callable[[], float]) -> None:
        self.last: LogSnapshot | None = None
        """The latest that was taken."""
        self._options = options
        self._clock = clock
        self._taken = 0.0
        self._problems: frozenset[str] = frozenset()
        self._file = CatalogFile(MemoryObjectStore(), "catalog.arrows")
        self._cluster: LiveCluster | None = None

    def current(self) -> LogSnapshot:
        """The last one if it is less than a second old, or a new one."""
        if self.last is None or self._clock() - self._taken >= _FRESH_S:
            self.last = LogSnapshot.take(
                manager_of(self._options.store), self._options, catalog_file=self._file, cluster=self._live()
            )
            self._taken = self._clock()
            self._tell_of_problems(self.last)
        return self.last

    def close(self) -> None:
        """Close the connection to the broker; the next snapshot opens it again."""
        self.last = None
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _tell_of_problems(self, snapshot: LogSnapshot) -> None:
        """What is new of its problems: a copy that is under way would be told every second."""
        found = frozenset(snapshot.problems)
        for problem in snapshot.problems:
            if problem not in self._problems:
                _log.warning("%s", problem)
        self._problems = found

    def _live(self) -> LiveCluster | None:
        if self._cluster is None:
            self._cluster = live_cluster(self._options)
        return self._cluster


class DataLossRule:
    """``failOnDataLoss``: raises DataLoss, or logs a warning, each sentence once."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._told: set[str] = set()

    def __call__(self, sentence: str) -> None:
        """Data loss of which ``sentence`` tells."""
        if self._fail:
            raise DataLoss(f"{sentence}; set failOnDataLoss to false to go on with what there is")
        if sentence not in self._told:
            self._told.add(sentence)
            _log.warning("%s", sentence)


def _ends(snapshot: LogSnapshot) -> StreamOffsets:
    return StreamOffsets.at({where: log.end for where, log in snapshot.logs.items()}, snapshot.logs)
