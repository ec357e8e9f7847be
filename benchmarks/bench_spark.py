"""A full scan of a topic through Spark, compared with the underlying limits and with a Kafka client; JSON on stdout.

    python -m benchmarks.bench_spark [--records 10000000] [--runs 5] [--folder DIR] [--without-broker]
        [--kafka-source JARS]

JSON records of about 470 bytes in one partition, stored zstd and encrypted, chunks of 4 MiB, in a folder; all columns
of Spark's Kafka source; local[2], a warm session. Every job runs once in each round. A figure is million rows per
second at the median of the counted rounds, timed from spark.read to the result, including the source's look-up and
planning. Compared with ours in the same rounds:

- A: a source with the same number of tasks that returns one batch of our rows repeatedly. It shows Spark's maximum rate
  of rows from Python.
- B: our planned tasks read and converted by two processes without Spark.
- confluent-kafka: consume(10000) in a loop over the same records, plain, from a local broker; value lengths added up.

Spark's own Kafka source runs too with --kafka-source, the folder of its jars:

    mvn -f benchmarks/kafka_source_jars/pom.xml dependency:copy-dependencies -DoutputDirectory=JARS

Further figures: the stored bytes that a window of 1 % of the time reads, compared with the full scan's; the CPU seconds
of the JVM and of the Python workers, in one scan by our source and in one by A; and the CPU seconds of each stage of
our source without Spark, one task after the other. --folder keeps the topic for the next time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.measuring import Job, home_in, interleaved_seconds, machine
from benchmarks.process_tree import ProcessTree
from benchmarks.spark.kafka_topic import KafkaTopic, topic_on_broker
from benchmarks.spark.spark_synthetic import read_synthetic, write_batch
from benchmarks.spark.spark_tasks import PlannedTasks, ReadingProcesses, stage_seconds
from benchmarks.spark.spark_topic import SparkTopic, topic_in, topic_parser
from tests.support.spark.spark_session import CONF, environment

CORES: Final = 2
WINDOW: Final = 0.01
CLIENT: Final = "confluent-kafka"
KAFKA_SOURCE: Final = "Spark's own Kafka source"

QUERIES: Final[Mapping[str, Callable[[DataFrame], object]]] = {
    "count": lambda df: df.count(),
    "sum of lengths": lambda df: df.selectExpr("sum(length(value))").collect(),
}


@contextlib.contextmanager
def spark_session(folder: Path, jars: Path | None) -> Generator[SparkSession]:
    """Run a session on two cores of this machine."""
    os.environ.update(environment())
    builder: Any = SparkSession.builder
    for name, value in CONF.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(folder)).config("spark.driver.memory", "2g")
    if jars is not None:
        builder = builder.config("spark.jars", ",".join(map(str, sorted(jars.glob("*.jar")))))
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


class Contest:
    """The jobs to compare, which run once in each round."""

    def __init__(self, spark: SparkSession, topic: SparkTopic, planned: PlannedTasks, batch_file: Path) -> None:
        self._spark = spark
        self._topic = topic
        self._synthetic = str(batch_file), topic.records, len(planned.tasks)
        write_batch(planned.usual_batch(), str(batch_file))

    def ours(self) -> DataFrame:
        """Return the topic as a DataFrame of our source."""
        return self._spark.read.format("tieredstore").options(**self._topic.options).load()

    def synthetic(self) -> DataFrame:
        """Return a DataFrame with the same number of synthetic rows."""
        return read_synthetic(self._spark, *self._synthetic)

    def jobs(self, processes: ReadingProcesses) -> dict[str, Job]:
        """Return our jobs, and the limits."""
        jobs: dict[str, Job] = {"B": processes.read}
        for what, query in QUERIES.items():
            jobs[f"ours, {what}"] = self._query(query, self.ours)
            jobs[f"A, {what}"] = self._query(query, self.synthetic)
        return jobs

    def kafka_jobs(self, kafka: KafkaTopic) -> dict[str, Job]:
        """Return the jobs of Spark's own source."""
        servers = kafka.server.bootstrap_servers
        options = {"kafka.bootstrap.servers": servers, "subscribe": kafka.name, "startingOffsets": "earliest"}
        options |= {"kafka.max.poll.records": "5000", "kafka.max.partition.fetch.bytes": str(8 << 20)}
        return {
            f"{KAFKA_SOURCE}, {what}": self._query(
                query, lambda: self._spark.read.format("kafka").options(**options).load()
            )
            for what, query in QUERIES.items()
        }

    def _query(self, query: Callable[[DataFrame], object], opened: Callable[[], DataFrame]) -> Job:
        return lambda: query(opened())

    def check(self) -> None:
        """Assert that both sources have the expected rows."""
        for df in (self.ours(), self.synthetic()):
            if (count := df.count()) != self._topic.records:
                raise RuntimeError(f"{count} rows were read, and there are {self._topic.records}")


def ratios(rate: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return each measured rate divided by its limit, with its target."""
    figures: dict[str, tuple[float, float]] = {}
    for what in QUERIES:
        ours, composed = rate[f"ours, {what}"], 1 / (1 / rate[f"A, {what}"] + 1 / rate["B"])
        figures[f"{what} / (1/(1/A + 1/B))"] = ours / composed, 0.8
        if CLIENT in rate:
            figures[f"{what} / {CLIENT}"] = ours / rate[CLIENT], 1.3
        if (other := f"{KAFKA_SOURCE}, {what}") in rate:
            figures[f"{what} / {KAFKA_SOURCE}"] = ours / rate[other], 1.0
    return {name: {"ratio": round(ratio, 3), "target": target} for name, (ratio, target) in figures.items()}


def window_bytes(topic: SparkTopic, planned: PlannedTasks) -> dict[str, float]:
    """Return the stored bytes of a query over 1 % of the time, compared with the full scan's."""
    window = PlannedTasks(topic.window_options(WINDOW))
    rows = sum(batch.num_rows for batch in window.batches())
    read, whole = window.bytes_fetched(), planned.bytes_fetched()
    return {"rows": rows, "bytes": read, "full_scan_bytes": whole, "share": round(read / whole, 4), "target": 0.05}


def profile(spark: SparkSession, contest: Contest, planned: PlannedTasks) -> dict[str, object]:
    """Return the CPU seconds of one count by kind of process (JVM or Python worker), and those of our stages without
    Spark."""
    context: Any = spark.sparkContext
    tree = ProcessTree(context._gateway.proc.pid)
    figures: dict[str, object] = {}
    for name, opened in {"ours, count": contest.ours, "A, count": contest.synthetic}.items():
        jvm, python = tree.cpu_seconds_of(partial(_count, opened))
        figures[name] = {"JVM": round(jvm, 2), "Python workers": round(python, 2)}
    return figures | {"our stages, one core": stage_seconds(planned)}


def _count(opened: Callable[[], DataFrame]) -> int:
    return opened().count()


def run(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Return all figures."""
    topic = topic_in(folder, arguments.records)
    planned = PlannedTasks(topic.options)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        kafka = None if arguments.without_broker else stack.enter_context(topic_on_broker(topic))
        spark = stack.enter_context(spark_session(work, arguments.kafka_source))
        processes = stack.enter_context(contextlib.closing(ReadingProcesses(planned)))
        contest = Contest(spark, topic, planned, work / "batch.arrow")
        contest.check()
        jobs = contest.jobs(processes)
        if kafka is not None:
            jobs[CLIENT] = kafka.consume
            jobs |= {} if arguments.kafka_source is None else contest.kafka_jobs(kafka)
        taken = interleaved_seconds(jobs, arguments.runs)
        rate = {name: topic.records / statistics.median(seconds) / 1e6 for name, seconds in taken.items()}
        return {
            "machine": machine(),
            "topic": {"records": topic.records, "log_bytes": topic.log_bytes, "stored_bytes": topic.stored_bytes},
            "tasks": len(planned.tasks),
            "runs": arguments.runs,
            "million_rows_per_second": {name: round(value, 3) for name, value in rate.items()},
            "million_rows_per_second_and_core": {
                name: round(value / CORES, 3) for name, value in rate.items() if name.startswith("ours")
            },
            "ratios": ratios(rate),
            "window_of_1_percent": window_bytes(topic, planned),
            "cpu_seconds": profile(spark, contest, planned),
        }


def main() -> None:
    arguments = topic_parser(__doc__, records=10_000_000, runs=5).parse_args()
    with home_in(arguments.folder) as home:
        print(json.dumps(run(home, arguments), indent=2))


if __name__ == "__main__":
    main()
