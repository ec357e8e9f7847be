"""Pipelines on Spark over the Spark benchmark's topic, and their limits."""

from __future__ import annotations

import atexit
import functools
import io
import multiprocessing
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.measuring import Job
from benchmarks.spark.kafka_topic import KafkaTopic
from benchmarks.spark.spark_topic import SparkTopic
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.log.commit_log import Progress
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.planner import Planner, log_of
from tieredstore.pipelines.run.source import COLUMNS, open_parts
from tieredstore.pipelines.writers import GROUP_ROWS, envelope
from tieredstore.reading.log_snapshot import LogSnapshot
from tieredstore.reading.reader import TopicReader
from tieredstore.records.settings import ReadSettings
from tieredstore.spark import start_pipelines

PROCESSES: Final = 2
WINDOWS: Final = 24
"""The approximate number of the topic's windows. It is even, so that both cores get equally many, and less than a
batch's maximum."""
CODEC: Final = "zstd"
PER_DIRECTORY: Final = 10_000_000
_NEVER_REPEATED: Final = ("offset", "timestamp")


@dataclass
class Contest:
    """The jobs to compare, which run once in each round. Each run writes into an empty folder."""

    spark: SparkSession
    topic: SparkTopic
    folder: Path
    kafka: KafkaTopic | None = None
    has_kafka_source: bool = False
    _runs: int = field(default=0)

    def jobs(self, limits: Limits) -> dict[str, Job]:
        """Return all jobs for which the machine has the servers."""
        stored = store_of(self.topic)
        jobs: dict[str, Job] = {
            "R": limits.read,
            "W": limits.write,
            "bucket": partial(self.pipeline, stored, "offset"),
            "bucket, JSON time": partial(self.pipeline, stored, "json"),
        }
        if self.kafka is not None:
            servers = self.kafka.server.bootstrap_servers
            jobs["broker"] = partial(self.pipeline, {"kafka.bootstrap.servers": servers}, "offset")
            if self.has_kafka_source:
                jobs["Spark's"] = partial(self.sparks, servers)
        return jobs

    def pipeline(self, source: Mapping[str, str], parser: str) -> None:
        """Write everything with a pipeline that then ends."""
        output = self._output()
        settings = self.folder / f"run-{self._runs}.properties"
        write_properties(settings, self.topic, source, output, {"secor.message.parser.class": parser})
        (query,) = start_pipelines(self.spark, settings, once=True)
        query.awaitTermination()
        self._check(output)

    def sparks(self, servers: str) -> None:
        """Write the same records with Spark's own source and sink."""
        options = {
            "kafka.bootstrap.servers": servers, "subscribe": self.topic.name, "startingOffsets": "earliest",
            "minPartitions": str(WINDOWS), "includeHeaders": "true",
            "kafka.max.poll.records": "5000", "kafka.max.partition.fetch.bytes": str(8 << 20),
        }  # fmt: skip
        output = self._output()
        rows = self.spark.read.format("kafka").options(**options).load()
        rows = rows.selectExpr("*", f"offset div {PER_DIRECTORY} * {PER_DIRECTORY} AS first")
        rows.write.partitionBy("first").option("compression", CODEC).mode("append").parquet(str(output))
        self._check(output)

    def _output(self) -> Path:
        for old in self.folder.glob("output-*"):
            shutil.rmtree(old)
        self._runs += 1
        output = self.folder / f"output-{self._runs}"
        output.mkdir()
        return output

    def _check(self, output: Path) -> None:
        files = [file for file in output.rglob("*.parquet") if "_tieredstore" not in file.parts]
        rows = sum(pq.read_metadata(file).num_rows for file in files)
        if rows != self.topic.records:
            raise RuntimeError(f"{rows} records were written, and there are {self.topic.records}")


def store_of(topic: SparkTopic) -> dict[str, str]:
    """Return the bucket's settings."""
    lines = Path(topic.options["settings"]).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def write_properties(
    path: Path, topic: SparkTopic, source: Mapping[str, str], output: Path, changes: Mapping[str, str]
) -> None:
    """Write the settings of a pipeline from the topic into a folder."""
    properties = {
        "pipeline.name": "bench",
        "kafka.new.consumer.topic.list": topic.name,
        **source,
        "output.storage.backend.class": "filesystem",
        "output.storage.root": str(output),
        "secor.offsets.per.partition": str(PER_DIRECTORY),
        "secor.max.file.size.bytes": str(topic.log_bytes // WINDOWS + 1),
        **changes,
    }
    path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))


class Limits:
    """The limits: two processes that read the pipeline's windows, and two that write their rows.

    The processes persist, like Spark's workers, until :meth:`close`.
    """

    def __init__(self, topic: SparkTopic, folder: Path) -> None:
        self._file = folder / "limits.properties"
        self._folder = folder
        (folder / "output").mkdir()
        write_properties(self._file, topic, store_of(topic), folder / "output", {})
        self._windows = planned(self._file)
        self._pool = ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"))
        list(self._pool.map(partial(_keep, self._file, folder), self._windows))

    def read(self) -> None:
        """Read all windows (R)."""
        list(self._pool.map(partial(_read, self._file), self._windows))

    def write(self) -> None:
        """Write all windows (W)."""
        list(self._pool.map(partial(_write, self._folder), self._windows))

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def planned(file: Path) -> list[BatchWindow]:
    """Return the windows of all records."""
    pipeline = load_pipeline(file)
    with open_parts(pipeline) as parts, closing(Planner(pipeline, parts.source)) as planner:
        snapshot = planner.snapshot()
        begins = {mark.where: Progress(mark.topic_id, mark.start) for mark in planner.mark_firsts(snapshot, {})}
        return planner.find_due(snapshot, begins, is_last=True)


@functools.cache
def _opened(file: Path) -> tuple[LogSnapshot, TopicReader]:
    """Open a snapshot and a reader for the process's lifetime."""
    stack = ExitStack()
    pipeline = load_pipeline(file)
    parts = stack.enter_context(open_parts(pipeline))
    planner = Planner(pipeline, parts.source)
    atexit.register(stack.close)
    stack.callback(planner.close)
    reader = stack.enter_context(TopicReader(lambda: parts.source, planner.query, ReadSettings(columns=COLUMNS)))
    return planner.snapshot(), reader


def batches_of(file: Path, window: BatchWindow) -> Iterator[Any]:
    """Yield the records of a window, read as in a task."""
    snapshot, reader = _opened(file)
    yield from reader.read(log_of(snapshot, window), window.start, window.stop)


def _read(file: Path, window: BatchWindow) -> int:
    return sum(batch.num_rows for batch in batches_of(file, window))


def _keep(file: Path, folder: Path, window: BatchWindow) -> None:
    """Store the rows of a window's output file in a file for memory mapping, in the same row groups."""
    rows = [envelope(batch, window.topic, window.partition) for batch in batches_of(file, window)]
    table = pa.Table.from_batches(rows).combine_chunks()
    with pa.ipc.new_file(_kept(folder, window), table.schema) as kept:
        kept.write_table(table, max_chunksize=GROUP_ROWS)


def _write(folder: Path, window: BatchWindow) -> None:
    target = folder / f"{window.start}.parquet"
    with (
        pa.memory_map(_kept(folder, window)) as kept,
        pa.ipc.open_file(kept) as reader,
        pq.ParquetWriter(target, reader.schema, compression=CODEC, use_dictionary=_encoded(reader.schema)) as writer,
    ):
        for number in range(reader.num_record_batches):
            writer.write_batch(reader.get_batch(number), row_group_size=GROUP_ROWS)


def _encoded(schema: Any) -> list[str]:
    """Return the columns that a pipeline's files encode with dictionaries, so that the limit can encode the same
    columns."""
    file = io.BytesIO()
    pq.write_table(schema.empty_table(), file)
    columns = pq.read_metadata(file).schema
    paths = [columns.column(number).path for number in range(len(columns))]
    return [path for path in paths if path not in _NEVER_REPEATED]


def _kept(folder: Path, window: BatchWindow) -> str:
    return str(folder / f"{window.start}.arrow")
