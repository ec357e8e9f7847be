"""Spark jobs that write offset windows, with one task per window. This module is separate from ``runs``, because it
knows nothing of streams.

The setting ``frame`` names a user's function. The function takes a DataFrame of records and returns the DataFrame to
write. The function may only use narrow transformations, because the task that reads a window must get all rows of the
window back in order. A violation raises an error before anything is committed.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, functions

from tieredstore.errors import ConfigError, InvalidValueError, TieredStoreError
from tieredstore.pipelines.files.columns import as_records, frame_function, of_rows
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.recipes import fingerprint_of
from tieredstore.pipelines.run.window_writing import (
    UNREADABLE,
    Batch,
    Failed,
    discard_files,
    keep_readable,
    mark_windows,
    write_window,
)
from tieredstore.pipelines.writers import ENVELOPE, envelope
from tieredstore.spark.pipelines.window_tasks import (
    REPORT,
    SCHEMA,
    Job,
    Report,
    RunSettings,
    error_within,
    open_kept,
    report_of,
)
from tieredstore.spark.source.rows import KAFKA_ROWS, RowShape
from tieredstore.spark.source.workers import pack, spare_modules, unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tieredstore.backends.base import ObjectStore
    from tieredstore.model import TopicPartition
    from tieredstore.pipelines.config.settings import PipelineSettings
    from tieredstore.pipelines.run.planner import WindowTask
    from tieredstore.pipelines.run.window_writing import Written


@contextmanager
def _own_errors() -> Generator[None]:
    """Raise this package's error if a task of a Spark job raised it."""
    try:
        yield
    except PySparkException as error:
        if (ours := error_within(error)) is None:
            raise
        raise ours from error


class WindowJobs:
    """Writes the files of offset windows in Spark tasks. If the settings name a ``frame`` function, the records pass
    through it."""

    def __init__(self, spark: SparkSession, file: str, own: PipelineSettings, store: ObjectStore) -> None:
        """``file`` is the settings file, which tasks read too."""
        self._spark, self._store = spark, store
        self._settings = RunSettings(file, fingerprint_of(own), uuid.uuid4().hex)
        self._frame: Callable[[DataFrame], DataFrame] | None = frame_function(own.frame) if own.frame else None

    def write(self, tasks: Sequence[WindowTask]) -> Batch:
        """Write the offset windows of these tasks. In each partition, stop at the first unreadable offset.

        A job with a ``frame`` function writes either all of its windows or none. So if a record is unreadable, run a
        job for each window.
        """
        if (frame := self._frame) is not None:
            try:
                return Batch(self._write_framed(tasks, frame))
            except UNREADABLE:
                return self._write_one_by_one(tasks, frame)
        outcomes = self._run(tasks)

        def attempt(window: BatchWindow) -> Written | Failed:
            (task,) = (one for one in tasks if (one.window.where, one.window.start) == (window.where, window.start))
            (again,) = self._run([task.between(window.start, window.stop)])
            return again

        try:
            return keep_readable(outcomes, attempt, self._store)
        except BaseException:
            self._discard(outcomes)
            raise

    @_own_errors()
    def _write_framed(self, tasks: Sequence[WindowTask], frame: Callable[[DataFrame], DataFrame]) -> list[Written]:
        rows, read = FrameJob(self._settings, tuple(tasks)).rows(self._numbers(tasks), frame)
        written = [one for one in self._outcomes(rows) if not isinstance(one, Failed)]
        return join_results([task.window for task in tasks], written, read(bool(written)), self._store)

    def _write_one_by_one(self, tasks: Sequence[WindowTask], frame: Callable[[DataFrame], DataFrame]) -> Batch:
        written: list[Written] = []
        failures: dict[TopicPartition, TieredStoreError] = {}
        try:
            for task in tasks:
                try:
                    if task.window.where not in failures:
                        written += self._write_framed([task], frame)
                except UNREADABLE as error:
                    failures[task.window.where] = error
        except BaseException:
            self._discard(written)
            raise
        return Batch(written, next(iter(failures.values()), None))

    def _numbers(self, tasks: Sequence[WindowTask]) -> DataFrame:
        """Return a DataFrame of task numbers. Each row is in a separate Spark task."""
        return self._spark.range(0, len(tasks), 1, len(tasks))

    @_own_errors()
    def _run(self, tasks: Sequence[WindowTask]) -> list[Written | Failed]:
        job = Job(self._settings, tuple(tasks))
        return self._outcomes(self._numbers(tasks).mapInArrow(job.run, SCHEMA))

    def _outcomes(self, job: DataFrame) -> list[Written | Failed]:
        """Run a job. Return the results of its tasks. If several fail, raise a permanent error rather than a retryable
        one.
        """
        reports: list[Report] = [unpack(row[REPORT]) for row in job.collect()]
        outcomes = [report for report in reports if not isinstance(report, TieredStoreError)]
        if errors := [report for report in reports if isinstance(report, TieredStoreError)]:
            self._discard(outcomes)
            # Prefer an error that no retry can cure, because it tells the user more than a transient error.
            raise min(errors, key=lambda error: error.retryable)
        return outcomes

    def _discard(self, outcomes: Sequence[Written | Failed]) -> None:
        prepared = (one[0].files for one in outcomes if not isinstance(one, Failed))
        discard_files(self._store, [file for files in prepared for file in files])


_Batches: TypeAlias = Iterable[pa.RecordBatch]

_MICROSECONDS: Final = pa.schema(
    [field.with_type(pa.timestamp("us", "UTC")) if field.name == "timestamp" else field for field in ENVELOPE]
)


@dataclass(frozen=True, slots=True)
class FrameJob:
    """The part of a Spark job that passes the records of offset windows through the user's ``frame`` function.
    Picklable."""

    settings: RunSettings
    tasks: tuple[WindowTask, ...]

    def rows(
        self, numbers: DataFrame, frame: Callable[[DataFrame], object]
    ) -> tuple[DataFrame, Callable[[bool], list[int]]]:
        """Return a DataFrame with a report for each offset window, computed from ``numbers``, a DataFrame of task
        numbers.

        The second result is a function to call after the job, with True if the job has returned rows. This function
        returns the number of records that each window passed to the ``frame`` function.
        """
        observed = Observation()
        counts_of = [_count_of(task) for task in self.tasks]
        records = numbers.mapInArrow(self.read, RowShape(KAFKA_ROWS.columns).schema)
        framed = frame(records.observe(observed, *counts_of))
        if not isinstance(framed, DataFrame):
            raise ConfigError(f"the frame function returned {type(framed).__name__}, not a DataFrame")

        def read(has_rows: bool) -> list[int]:
            # If Spark sees that the function drops all records, it does not read them, and the observation has no
            # result. So count them here.
            counts = observed.get if has_rows else records.agg(*counts_of).collect()[0].asDict()
            return [int(counts[_name_of(task)]) for task in self.tasks]

        return framed.mapInArrow(self.write, SCHEMA), read

    def read(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Yield the records of the offset windows whose numbers are in ``batches``, one window after the other."""
        spare_modules()
        for batch in batches:
            numbers: list[int] = batch.column(0).to_pylist()
            for number in numbers:
                window = self.tasks[number].window
                for records in open_kept(self.settings).records(self.tasks[number]):
                    rows = envelope(records, window.topic, window.partition)
                    yield rows.cast(_MICROSECONDS)

    def write(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Write offset windows. Yield a report for each group of adjacent rows of one window."""
        spare_modules()
        for number, pieces in groupby(self._pieces(batches), key=lambda one: one[0]):
            report = report_of(partial(self._write, self.tasks[number].window, (rows for _, rows in pieces)))
            yield pa.RecordBatch.from_pydict({REPORT: [pack(report)]})

    def _write(self, window: BatchWindow, pieces: Iterator[pa.RecordBatch]) -> Written:
        first = next(pieces)
        pipeline = open_kept(self.settings)
        recipe = replace(pipeline.recipe, format=of_rows(pipeline.recipe.format, first.schema))
        return write_window(window, _check_ascending(window, chain([first], pieces)), recipe, pipeline.parts.store)

    def _pieces(self, batches: _Batches) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows together with the number of their offset window, in the order of the input."""
        starts = sorted((*task.window.where, task.window.start, number) for number, task in enumerate(self.tasks))

        def number_of(topic: str | None, partition: int | None, offset: int | None) -> int:
            if topic is not None and partition is not None and offset is not None:
                at = bisect_right(starts, (topic, partition, offset, len(starts))) - 1
                window = self.tasks[starts[at][3]].window
                if at >= 0 and window.where == (topic, partition) and offset < window.stop:
                    return starts[at][3]
            raise InvalidValueError(
                f"the frame function returned offset {offset} of {topic}-{partition}, which is not in its input: leave "
                "topic, partition and offset unchanged"
            )

        for batch in batches:
            if not batch.num_rows:
                continue
            rows = as_records(batch)
            columns = [rows.column(name).to_pylist() for name in ("topic", "partition", "offset")]
            start = 0
            for number, run in groupby(map(number_of, *columns)):
                count = sum(1 for _ in run)
                yield number, rows.slice(start, count)
                start += count


def _name_of(task: WindowTask) -> str:
    window = task.window
    return f"{window.topic} {window.partition} {window.start}"


def _count_of(task: WindowTask) -> Column:
    window, column = task.window, functions.col
    is_inside = (column("topic") == window.topic) & (column("partition") == window.partition)
    is_inside &= (column("offset") >= window.start) & (column("offset") < window.stop)
    return functions.count(functions.when(is_inside, 1)).alias(_name_of(task))


def _check_ascending(window: BatchWindow, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    last = -1
    for rows in pieces:
        for offset in rows.column("offset").to_pylist():
            if offset <= last:
                raise InvalidValueError(
                    f"the frame function returned offset {offset} of {window.topic}-{window.partition} after offset "
                    f"{last}: return at most one row per record, in the order of the input"
                )
            last = offset
        yield rows


def join_results(
    windows: Sequence[BatchWindow], written: Sequence[Written], read: Sequence[int], store: ObjectStore
) -> list[Written]:
    """Return the results of all offset windows. Records that the user's ``frame`` function dropped count as filtered.

    ``read`` has the number of records of each window before the ``frame`` function. The rows of a window must come from
    one task, and not be mixed with rows of other windows. Otherwise, raise InvalidValueError and discard the prepared
    files (uploaded, not yet visible).
    """
    by_start: defaultdict[tuple[str, int, int], list[Written]] = defaultdict(list)
    for one in written:
        by_start[(*one[0].where, one[0].start)].append(one)
    whole: list[Written] = []
    for window, count in zip(windows, read, strict=True):
        parts = by_start[window.topic, window.partition, window.start] or mark_windows([window])
        if len(parts) > 1:
            discard_files(store, [file for one, _ in written for file in one.files])
            raise InvalidValueError(
                f"the frame function returned {window} in pieces or from several tasks: it must not join, sort, "
                "repartition or aggregate"
            )
        ((filed, reasons),) = parts
        whole.append((replace(filed, filtered=max(0, count - filed.records - filed.quarantined)), reasons))
    return whole
