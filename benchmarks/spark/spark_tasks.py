"""Tasks of the Spark source, run without Spark: this module plans them, and reads them here or in separate
processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tieredstore.records.settings import ReadSettings
from tieredstore.records.splits import RecordSplit, read_split
from tieredstore.spark.source.batch import BatchReader
from tieredstore.spark.source.options import SourceOptions, parse_options
from tieredstore.spark.source.rows import RowShape
from tieredstore.spark.source.store_source import manager_of
from tieredstore.spark.source.tasks import read_task

PROCESSES: Final = 2


class PlannedTasks:
    """The tasks that Spark would run for these options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = parse_options(options, streaming=False)
        self.tasks = list(BatchReader(self.options).partitions())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of all tasks, read in this process."""
        for task in self.tasks:
            yield from read_task(task, self.options)

    def usual_batch(self) -> pa.RecordBatch:
        """Return a batch of median size."""
        batches = sorted(read_task(self.tasks[0], self.options), key=lambda batch: batch.num_rows)
        return batches[len(batches) // 2]

    def bytes_fetched(self) -> int:
        """Read all tasks in sequence; return the number of stored bytes that this fetches."""
        manager = manager_of(self.options.store)
        before = manager.fetch_stats.bytes_fetched
        for _ in self.batches():
            pass
        return manager.fetch_stats.bytes_fetched - before


class ReadingProcesses:
    """Persistent processes, like Spark's workers. Each takes the next task as soon as it has read its previous task."""

    def __init__(self, planned: PlannedTasks) -> None:
        self._planned = planned
        self._pool = ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"))

    def read(self) -> int:
        """Read all tasks; return their number of rows."""
        job = partial(_count_rows, options=self._planned.options)
        return sum(self._pool.map(job, self._planned.tasks))

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def _count_rows(task: InputPartition, options: SourceOptions) -> int:
    return sum(batch.num_rows for batch in read_task(task, options))


class _Nowhere:
    """A file that discards everything."""

    closed = False

    def write(self, data: memoryview) -> int:
        return len(data)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def stage_seconds(planned: PlannedTasks) -> dict[str, float]:
    """Return the CPU seconds of all threads that each stage adds to the stages before it, in the better of two runs."""
    stages: dict[str, Callable[[PlannedTasks], None]] = {
        "fetch, decrypt, decompress": _fetch,
        "decode": _decode,
        "convert to rows": _convert,
        "write as an Arrow stream": _write,
    }
    taken = {name: min(_cpu_seconds(partial(stage, planned)) for _ in range(2)) for name, stage in stages.items()}
    totals = list(taken.values())
    return {
        name: round(total - before, 2) for name, total, before in zip(taken, totals, [0.0, *totals[:-1]], strict=True)
    }


def _cpu_seconds(job: Callable[[], None]) -> float:
    before = os.times()
    job()
    after = os.times()
    return after.user + after.system - before.user - before.system


def _fetch(planned: PlannedTasks) -> None:
    manager = manager_of(planned.options.store)
    for part in (part for split in _stored(planned.tasks) for part in split.sections):
        with manager.fetch_log_segment(part.segment, part.byte_range.start, part.byte_range.stop - 1) as stream:
            for _ in stream.chunks():
                pass


def _decode(planned: PlannedTasks) -> None:
    manager = manager_of(planned.options.store)
    settings = ReadSettings(columns=RowShape(planned.options.columns).decoder_columns)
    for split in _stored(planned.tasks):
        for _ in read_split(manager, split, settings):
            pass


def _convert(planned: PlannedTasks) -> None:
    for _ in planned.batches():
        pass


def _write(planned: PlannedTasks) -> None:
    schema = RowShape(planned.options.columns).arrow_schema
    with pa.ipc.new_stream(pa.PythonFile(_Nowhere(), "w"), schema) as writer:
        for batch in planned.batches():
            writer.write_batch(batch)


def _stored(tasks: Sequence[InputPartition]) -> list[RecordSplit]:
    return [task.value for task in tasks if isinstance(task.value, RecordSplit)]
