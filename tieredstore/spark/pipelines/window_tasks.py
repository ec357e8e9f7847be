"""A task of a pipeline: it reads its windows, sorts their records into files and prepares uploads.

No record passes the JVM. The driver gets a report for each window: the result, or an error of ours, which the driver
judges; Spark retries any other error.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.serializers import CPickleSerializer

from tieredstore import errors
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.pipelines.config.settings import Pipeline, load_pipeline
from tieredstore.pipelines.log.entries import Window
from tieredstore.pipelines.run.recipes import fingerprint_of, recipe_of
from tieredstore.pipelines.run.selection import query_of
from tieredstore.pipelines.run.stores import COLUMNS, Parts, open_parts
from tieredstore.pipelines.run.window_writing import UNREADABLE, Failed, ReadUpTo, Recipe, Written, write_window
from tieredstore.process.per_process import PerProcess
from tieredstore.reading.reader import TopicReader
from tieredstore.records.columns import int64_values
from tieredstore.records.settings import ReadSettings
from tieredstore.spark.source.workers import spare_modules

if TYPE_CHECKING:
    from tieredstore.reading.plan import WindowSplit

_pickle: Final[Any] = CPickleSerializer()  # the library has no types

REPORT: Final = "report"
SCHEMA: Final = f"{REPORT} binary"
SHOWN_REASONS: Final = 10
"""The most reasons shown of a window's bad messages: all are counted, and in its quarantine."""

_OURS: Final = re.compile(r"tieredstore\.errors\.(\w+): (.*)")

_Batches: TypeAlias = Iterable[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class WindowTask:
    """A window and its sources. Picklable."""

    window: Window
    splits: tuple[WindowSplit, ...]

    def between(self, start: int, stop: int) -> WindowTask:
        """Return a part of the window; other records of its splits are skipped."""
        return WindowTask(replace(self.window, start=start, stop=stop), self.splits)


@dataclass(frozen=True, slots=True)
class Job:
    """The windows of a batch, for the tasks of one job; a row gives each its number. Picklable.

    Each process reads the settings from a file, so that no secret travels; ``fingerprint`` is that of the driver's.
    """

    file: str
    fingerprint: str
    tasks: tuple[WindowTask, ...]

    def run(self, batches: _Batches) -> Iterator[pa.RecordBatch]:
        """Yield a report for each number."""
        spare_modules()
        for batch in batches:
            numbers: list[int] = batch.column(0).to_pylist()
            for number in numbers:
                report = pack(self._report(self.tasks[number]))
                yield pa.RecordBatch.from_pydict({REPORT: [report]})

    def _report(self, task: WindowTask) -> Report:
        reached = ReadUpTo(task.window.start)
        try:
            written, reasons = open_kept(self.file, self.fingerprint).write(task, reached)
        except TieredStoreError as error:
            return Report(error=(type(error).__name__, str(error)), window=task.window, reached=reached.offset)
        return Report((written, dict(sorted(reasons.items())[:SHOWN_REASONS])))


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a window: a result, or an error. Picklable."""

    written: Written | None = None
    error: tuple[str, str] | None = None
    window: Window | None = None
    """The window of an error, if known, and the record after which it occurred."""
    reached: int = -1

    def outcome(self) -> Written | Failed:
        """Return the committed outcome; raise any error except lost or damaged records."""
        if self.written is not None:
            return self.written
        error = error_named(*(self.error or ("TieredStoreError", "a task gave no report")))
        if self.window is None or not isinstance(error, UNREADABLE):
            raise error
        return Failed(self.window, self.reached, error)


def error_named(name: str, sentence: str) -> TieredStoreError:
    """Make an error of ours again that another process had."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, TieredStoreError):
        return kind(sentence)
    return TieredStoreError(f"{name}: {sentence}")


def error_within(error: BaseException) -> TieredStoreError | None:
    """Return a worker's error of ours that Spark's error quotes, or None."""
    ours = _OURS.search(str(error))
    return error_named(ours[1], ours[2]) if ours else None


def pack(value: object) -> bytes:
    """Pack a value for another process of the same application, as Spark itself does."""
    data: bytes = _pickle.dumps(value)
    return data


def unpack(data: bytes | bytearray) -> Any:
    """Invert :func:`pack`."""
    return _pickle.loads(bytes(data))


def locate(file: str) -> Path:
    """Find a file of settings: at the driver's path, or among the files that Spark ships."""
    path = Path(file)
    if path.exists():
        return path
    try:
        shipped = Path(SparkFiles.getRootDirectory()) / path.name
    except (AssertionError, RuntimeError):
        shipped = path
    if not shipped.exists():
        raise ConfigError(
            f"there is no {file} on this machine: put it where all machines see it, or add it with --files"
        )
    return shipped


@dataclass(slots=True)
class OpenPipeline:
    """A process's open resources, kept from one window to the next."""

    pipeline: Pipeline
    recipe: Recipe
    parts: Parts
    stack: ExitStack
    reader: TopicReader

    def write(self, task: WindowTask, reached: ReadUpTo) -> Written:
        """Prepare the files of its window."""
        records = self.records(task)
        try:
            return write_window(task.window, records, self.recipe, self.parts.store, reached)
        finally:
            records.close()

    def records(self, task: WindowTask) -> Generator[pa.RecordBatch]:
        """Yield the records of its window."""
        for split in task.splits:
            for batch in self.reader.read_split(split):
                if (rest := _cut_records(batch, task.window.start, task.window.stop)) is not None:
                    yield rest
                if int64_values(batch, "offset")[-1] >= task.window.stop - 1:
                    # Records after the window may be damaged.
                    return


def _cut_records(batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch | None:
    """Return the records of the offsets ``start`` up to ``stop``; None if there are none."""
    offsets = int64_values(batch, "offset")
    if offsets[0] >= start and offsets[-1] < stop:
        return batch
    first, behind = bisect_left(offsets, start), bisect_left(offsets, stop)
    return batch.slice(first, behind - first) if first < behind else None


def _close_all(opened: dict[tuple[str, str], OpenPipeline]) -> None:
    for one in opened.values():
        one.stack.close()
    opened.clear()


# Spark's daemon forks its workers: a child must neither use nor close its parent's resources.
_pipelines: Final = PerProcess[dict[tuple[str, str], OpenPipeline]](
    partial(dict[tuple[str, str], OpenPipeline]), _close_all
)


def open_kept(file: str, fingerprint: str) -> OpenPipeline:
    """Return the pipeline of a file, kept open in this process."""
    kept = _pipelines.get()
    one = kept.get((file, fingerprint))
    if one is None:
        pipeline = load_pipeline(locate(file))
        if fingerprint_of(pipeline.own) != fingerprint:
            raise ConfigError(f"{file} has changed since the pipeline was started: start it again")
        with ExitStack() as stack:
            parts = stack.enter_context(open_parts(pipeline))
            settings = ReadSettings(columns=COLUMNS)
            reader = stack.enter_context(TopicReader(lambda: parts.source, query_of(pipeline), settings))
            one = kept[file, fingerprint] = OpenPipeline(pipeline, recipe_of(pipeline), parts, stack.pop_all(), reader)
    return one
