"""A Spark task of a pipeline. It reads windows (ranges of a partition's offsets), writes their records into files and
prepares the uploads.

Records never pass through the JVM. The task reports the result of each window, or its :class:`TieredStoreError`, to the
driver, which decides what happens next. Spark itself retries a task that raises any other exception.

This module is separate from ``window_jobs``, which only the driver and tasks with a ``frame`` function import.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from tieredstore import errors
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.pipelines.config.settings import load_pipeline
from tieredstore.pipelines.run.recipes import fingerprint_of, recipe_of
from tieredstore.pipelines.run.source import COLUMNS, Parts, open_parts, query_of
from tieredstore.pipelines.run.window_writing import UNREADABLE, Failed, ReadUpTo, Recipe, Written, write_window
from tieredstore.process.forks import PerProcess
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings
from tieredstore.spark.source.store_source import find_shipped_folders
from tieredstore.spark.source.workers import pack, spare_modules

if TYPE_CHECKING:
    from tieredstore.pipelines.run.planner import WindowTask

REPORT: Final = "report"
SCHEMA: Final = f"{REPORT} binary"
SHOWN_REASONS: Final = 10
"""A report gives at most this many reasons why messages are bad. All bad messages are counted and quarantined."""

_OURS: Final = re.compile(r"tieredstore\.errors\.(\w+): (.*)")

_Batches: TypeAlias = Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings file of a pipeline's run. Picklable.

    Each process reads the file itself, so that no secret is sent. ``fingerprint`` is the hash of the driver's settings.
    Each run has a different ``run_id``, so that a process that worked for an earlier run reads the file again.
    """

    file: str
    fingerprint: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Job:
    """The offset windows of a batch for the Spark tasks of one job. Each input row of a task is the number of a window.
    Picklable.
    """

    settings: RunSettings
    tasks: tuple[WindowTask, ...]

    def run(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Write the offset windows whose numbers are in ``batches``. Yield a report for each window."""
        spare_modules()
        for batch in batches:
            numbers: list[int] = batch.column(0).to_pylist()
            for number in numbers:
                report = pack(self._report(self.tasks[number]))
                yield pa.RecordBatch.from_pydict({REPORT: [report]})

    def _report(self, task: WindowTask) -> Report:
        reached = ReadUpTo(task.window.start)
        report = report_of(lambda: open_kept(self.settings).write(task, reached))
        return Failed(task.window, reached.offset, report) if isinstance(report, UNREADABLE) else report


Report: TypeAlias = Written | Failed | TieredStoreError
"""A task's report about an offset window. It is a Failed if a record of the window is lost or corrupt."""


def report_of(write: Callable[[], Written]) -> Written | TieredStoreError:
    """Return the result of ``write``, or the error that it raised. The driver can unpickle both."""
    try:
        written, reasons = write()
    except TieredStoreError as error:
        return error_named(type(error).__name__, str(error))
    return written, dict(sorted(reasons.items())[:SHOWN_REASONS])


def error_named(name: str, sentence: str) -> TieredStoreError:
    """Return the error with the class name and text that another process reported."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, TieredStoreError):
        return kind(sentence)
    return TieredStoreError(f"{name}: {sentence}")


def error_within(error: BaseException) -> TieredStoreError | None:
    """If a TieredStoreError ended a Spark worker, return this error. The error is rebuilt from the class name and text
    in Spark's error. Return None for any other error."""
    ours = _OURS.search(str(error))
    return error_named(ours[1], ours[2]) if ours else None


def locate(file: str) -> Path:
    """Return the path of a settings file. Use the path on the driver if it exists here, otherwise the copy that Spark
    ships to its workers."""
    path = Path(file)
    for known in (path, *(folder / path.name for folder in find_shipped_folders())):
        if known.exists():
            return known
    raise ConfigError(f"{file} does not exist on this machine: put it where all machines see it, or add it by --files")


@dataclass(slots=True)
class OpenPipeline:
    """The open resources of a pipeline's run in one process, kept between offset windows."""

    run: RunSettings
    recipe: Recipe
    parts: Parts
    stack: ExitStack
    reader: TopicReader

    def write(self, task: WindowTask, reached: ReadUpTo) -> Written:
        """Prepare the files of a task's offset window."""
        with closing(self.records(task)) as records:
            return write_window(task.window, records, self.recipe, self.parts.store, reached)

    def records(self, task: WindowTask) -> Generator[pa.RecordBatch]:
        """Yield the records of a task's offset window."""
        for split in task.splits:
            for batch in self.reader.read_split(split):
                if (rest := _cut_records(batch, task.window.start, task.window.stop)) is not None:
                    yield rest
                if int64_values(batch, "offset")[-1] >= task.window.stop - 1:
                    # Stop reading at the end of the offset window, because later records may be corrupt.
                    return


def _cut_records(batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch | None:
    """Return the records with offsets from ``start`` to ``stop`` (exclusive). Return None if there are none."""
    offsets = int64_values(batch, "offset")
    if offsets[0] >= start and offsets[-1] < stop:
        return batch
    first, behind = bisect_left(offsets, start), bisect_left(offsets, stop)
    return batch.slice(first, behind - first) if first < behind else None


_Kept: TypeAlias = dict[str, OpenPipeline]
"""The open pipeline of each settings file."""


def _close_all(opened: _Kept) -> None:
    while opened:
        opened.popitem()[1].stack.close()


# Spark's daemon forks its workers, and a child must neither use nor close resources of its parent. So PerProcess gives
# each process its own resources.
_pipelines: Final = PerProcess[_Kept](dict, _close_all)


def open_kept(run: RunSettings) -> OpenPipeline:
    """Return the open pipeline of a run. It stays open in this process, until a later run has the same file."""
    kept = _pipelines.get()
    earlier = kept.get(run.file)
    if earlier is not None and earlier.run == run:
        return earlier
    pipeline = load_pipeline(locate(run.file))
    if fingerprint_of(pipeline.own) != run.fingerprint:
        raise ConfigError(f"{run.file} has changed since the pipeline was started: restart the pipeline")
    with ExitStack() as stack:
        parts = stack.enter_context(open_parts(pipeline))
        settings = ReadSettings(columns=COLUMNS)
        reader = stack.enter_context(TopicReader(lambda: parts.source, query_of(pipeline), settings))
        opened = kept[run.file] = OpenPipeline(run, recipe_of(pipeline), parts, stack.pop_all(), reader)
    if earlier is not None:
        earlier.stack.close()
    return opened
