"""The same sum over a topic, computed by every supported engine, compared with plain reading; JSON on stdout.

    python -m benchmarks.bench_compute [--records 5000000] [--runs 3] [--folder DIR] [--without-broker]
        [--kafka-source JARS] [--stored {zstd+encrypted,plain}]

JSON records of about 490 bytes in one partition, stored zstd and encrypted or plain, chunks of 4 MiB, in a folder. The
broker has the same log, uncompressed. The sum is the number of records and the total size of their values. Every job
runs once in each round; a figure is million records per second at the median of the counted rounds, from the call to
the sum. A ratio is the median of the rounds' ratios, because within a round the machine is equally busy for all jobs.
Ratios named ``_by_cpu`` compare the processor time of all processes, including the broker's and Spark's.

- read_topic: plain reading of the columns partition and value, two splits at once; nothing is computed.
- DuckDB: count(*), sum(octet_length(value)) GROUP BY partition, through ``tieredstore.duckdb.attach``.
- Polars: the same by ``tieredstore.polars.scan``.
- processes: two processes without Spark read the tasks that the Spark source plans, and add up.
- map_records, mapInArrow: Spark runs the same function, by map_records inside the task that decodes, or by mapInArrow
  after the source. The driver collects one row per task and adds up. The session (local[2]) is warm: the JVM has
  compiled small jobs of each kind.
- Spark's own Kafka source: mapInArrow after this source, which fetches more at once than by default. One task reads the
  one partition. The source's jars come from JARS or from Maven; without either, this job is left out.
- confluent-kafka: consume(10000) in a loop over the same records, plain, from a local broker; value lengths added up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from benchmarks.bench_spark import spark_session
from benchmarks.kafka_source_jars import source_jars
from benchmarks.measuring import Job, Taken, home_in, interleaved, machine
from benchmarks.process_tree import ProcessTree
from benchmarks.spark.kafka_topic import KafkaTopic, topic_on_broker
from benchmarks.spark.spark_tasks import PlannedTasks
from benchmarks.spark.spark_topic import STORED, SparkTopic, topic_in, topic_parser
from tieredstore.config import load_settings
from tieredstore.duckdb import attach
from tieredstore.polars import scan
from tieredstore.query.topic_table import TableOptions, TopicTable
from tieredstore.remote import RemoteStorageManager
from tieredstore.spark import map_records
from tieredstore.spark.source.options import SourceOptions
from tieredstore.spark.source.tasks import read_task
from tieredstore.values import Binary

CORES: Final = 2
SCHEMA: Final = "records long, bytes long"
CLIENT: Final = "confluent-kafka"
KAFKA_SOURCE: Final = "Spark's own Kafka source"
WARMING: Final = 12
"""The number of small jobs of each kind that warm up the JVM before the rounds."""

# The type stubs of Polars are incomplete.
polars: Final[Any] = pl


def add_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row: the number of records, and the total size of their values."""
    records = size = 0
    for batch in batches:
        untyped: Any = batch
        records += batch.num_rows
        size += pc.sum(pc.binary_length(untyped.column("value"))).as_py() or 0
    yield pa.RecordBatch.from_pydict({"records": [records], "bytes": [size]})


class Computing:
    """Jobs without Spark."""

    def __init__(self, topic: SparkTopic, manager: RemoteStorageManager) -> None:
        self._topic = topic
        self._manager = manager

    def read_topic(self) -> int:
        """Read the columns, and compute nothing."""
        columns = ("partition", "value")
        with TopicTable(self._manager, self._topic.name, TableOptions(parallelism=CORES)).scan(columns) as read:
            return sum(batch.num_rows for batch in read)

    def duckdb(self) -> int:
        """Query by SQL."""
        connection: Any = duckdb.connect()
        with attach(connection, self._manager, key=Binary(), value=Binary(), parallelism=CORES):
            sql = f'SELECT count(*), sum(octet_length(value)) FROM "{self._topic.name}" GROUP BY partition'
            rows = connection.execute(sql).fetchall()
        connection.close()
        return int(rows[0][0])

    def polars(self) -> int:
        """Add up with a lazy frame."""
        frame: Any = scan(self._manager, self._topic.name, parallelism=CORES)
        sums = [polars.len().alias("records"), polars.col("value").bin.size().sum()]
        return int(frame.group_by("partition").agg(sums).collect(engine="streaming")["records"].sum())


class AddingProcesses:
    """Two persistent processes, each of which takes the next task as soon as it has added up the previous one."""

    def __init__(self, planned: PlannedTasks) -> None:
        self._planned = planned
        self._pool = ProcessPoolExecutor(CORES, mp_context=multiprocessing.get_context("spawn"))

    def add(self) -> int:
        """Add up all tasks."""
        return sum(self._pool.map(partial(_added, options=self._planned.options), self._planned.tasks))

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def _added(task: InputPartition, options: SourceOptions) -> int:
    (row,) = next(add_up(read_task(task, options))).to_pylist()
    return int(row["records"])


class Sparking:
    """Jobs in Spark."""

    def __init__(self, spark: SparkSession, topic: SparkTopic) -> None:
        self._spark = spark
        self._name = topic.name
        self._options = {**topic.options, "columns": "value"}

    def map_records(self, **window: str) -> int:
        """Add up with map_records, within the task that decodes."""
        return _summed(map_records(self._spark, add_up, SCHEMA, **self._options, **window))

    def map_in_arrow(self, **window: str) -> int:
        """Add up with mapInArrow after our source."""
        source = self._spark.read.format("tieredstore").options(**self._options, **window).load()
        return _summed(source.mapInArrow(add_up, SCHEMA))

    def kafka_source(self, kafka: KafkaTopic, **window: str) -> int:
        """Add up with mapInArrow after Spark's own source."""
        options = {
            "kafka.bootstrap.servers": kafka.server.bootstrap_servers, "subscribe": kafka.name,
            "startingOffsets": "earliest", "kafka.max.poll.records": "5000",
            "kafka.max.partition.fetch.bytes": str(8 << 20),
        }  # fmt: skip
        source = self._spark.read.format("kafka").options(**options, **window).load().select("value")
        return _summed(source.mapInArrow(add_up, SCHEMA))

    def warm_up(self, kafka: KafkaTopic | None) -> None:
        """Let the JVM compile the jobs' code, on the first 20,000 records."""
        window = {"endingOffsets": json.dumps({self._name: {"0": 20_000}})}
        for _ in range(WARMING):
            self.map_records(**window, maxSplitBytes="1m")
            self.map_in_arrow(**window, maxSplitBytes="1m")
            if kafka is not None:
                self.kafka_source(kafka, **window, minPartitions="8")


def _summed(rows: DataFrame) -> int:
    return sum(row["records"] for row in rows.collect())


def ratios(taken: Mapping[str, Sequence[Taken]]) -> dict[str, dict[str, float]]:
    """Return the speed ratios, with their targets."""
    asked = {
        ("DuckDB", "read_topic"): 0.8,
        ("DuckDB", CLIENT): 5.0,
        ("map_records", "processes"): 0.85,
        ("map_records", "mapInArrow"): 2.0,
        ("map_records", KAFKA_SOURCE): 4.0,
    }
    figures: dict[str, dict[str, float]] = {}
    for (ours, other), target in asked.items():
        if other in taken:
            by_wall = _median_ratio(taken[other], taken[ours], lambda run: run.seconds)
            by_cpu = _median_ratio(taken[other], taken[ours], lambda run: run.cpu_seconds)
            figures[f"{ours} / {other}"] = {"ratio": by_wall, "ratio_by_cpu": by_cpu, "target": target}
    return figures


def _median_ratio(others: Sequence[Taken], ours: Sequence[Taken], of: Callable[[Taken], float]) -> float:
    return round(statistics.median(of(other) / of(one) for other, one in zip(others, ours, strict=True)), 3)


def run(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Return all figures."""
    topic = topic_in(folder, arguments.records, arguments.stored)
    planned = PlannedTasks({**topic.options, "columns": "value"})
    jars = None if arguments.without_broker else source_jars((arguments.kafka_source or folder / "jars").absolute())
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        kafka = None if arguments.without_broker else stack.enter_context(topic_on_broker(topic))
        sparking = Sparking(stack.enter_context(spark_session(work, jars)), topic)
        processes = stack.enter_context(contextlib.closing(AddingProcesses(planned)))
        manager = stack.enter_context(RemoteStorageManager(load_settings(topic.folder / "store.properties")))
        computing = Computing(topic, manager)
        jobs: dict[str, Job] = {
            "read_topic": computing.read_topic,
            "DuckDB": computing.duckdb,
            "Polars": computing.polars,
            "processes": processes.add,
            "map_records": sparking.map_records,
            "mapInArrow": sparking.map_in_arrow,
        }
        for name, job in jobs.items():
            if (records := job()) != topic.records:
                raise RuntimeError(f"{name} counts {records} records, and there are {topic.records}")
        if kafka is not None:
            jobs[CLIENT] = kafka.consume
            if jars is not None:
                jobs[KAFKA_SOURCE] = partial(sparking.kafka_source, kafka)
        sparking.warm_up(kafka if KAFKA_SOURCE in jobs else None)
        tree = ProcessTree(os.getpid())
        taken = interleaved(jobs, arguments.runs, processor_seconds=lambda: sum(tree.cpu_seconds()))
    rate = {
        name: topic.records / statistics.median(run.seconds for run in rounds) / 1e6 for name, rounds in taken.items()
    }
    cpu = {name: statistics.median(run.cpu_seconds for run in rounds) for name, rounds in taken.items()}
    return {
        "machine": machine(),
        "topic": {
            "records": topic.records,
            "stored": arguments.stored,
            "log_bytes": topic.log_bytes,
            "stored_bytes": topic.stored_bytes,
        },
        "runs": arguments.runs,
        "left_out": [name for name in (CLIENT, KAFKA_SOURCE) if name not in taken],
        "million_records_per_second": {name: round(value, 3) for name, value in rate.items()},
        "cpu_seconds": {name: round(seconds, 2) for name, seconds in cpu.items()},
        "ratios": ratios(taken),
    }


def main() -> None:
    parser = topic_parser(__doc__, records=5_000_000, runs=3)
    parser.add_argument("--stored", choices=STORED, default=STORED[0], help="how the segments are stored")
    arguments = parser.parse_args()
    with home_in(arguments.folder) as home:
        print(json.dumps(run(home, arguments), indent=2))


if __name__ == "__main__":
    main()
