"""Pipelines on Spark compared with Spark's own Kafka source and file sink, and with the underlying limits; JSON on
stdout.

    python -m benchmarks.bench_pipelines [--records 4000000] [--runs 5] [--seconds 60] [--folder DIR] [--without-broker]
        [--kafka-source JARS] [--what ratios …]

JSON records of about 470 bytes in one partition, stored zstd and encrypted in a folder; local[2], a warm session;
Parquet files with zstd, in directories of 10,000,000 offsets. Every job runs once in each round, into an empty folder:

- bucket, broker: a pipeline that ends when everything is written. "With JSON time": records are filed by a field of
  their value.
- Spark's: a batch from Spark's own Kafka source into Spark's own Parquet files, in as many tasks. It needs
  --kafka-source, the folder of the source's jars; benchmarks/bench_spark.py says how to get them.
- R: the same windows read by two persistent processes. W: the same rows written with pyarrow by two persistent
  processes.

A ratio is the median of the rounds' ratios, by wall-clock time and by processor time of all processes, including the
broker. Other figures follow; --what selects among them: ``age``, from append to listing at 5,000 records per second and
an age of 5 s; ``memory``, the peak of a process that writes windows of 200 MB and of 2 GB (give at least 4,200,000
records); ``requests`` to a MinIO for a small file and a batch; ``limits``, a batch planned over 10,000 partitions, and
100,999 commits opened. --folder keeps the topic for the next time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from benchmarks.bench_spark import spark_session
from benchmarks.measuring import Taken, home_in, interleaved, machine
from benchmarks.pipelines.pipeline_contest import Contest, Limits
from benchmarks.pipelines.pipeline_figures import measure_age, measure_limits, measure_memory, measure_requests
from benchmarks.process_tree import ProcessTree
from benchmarks.spark.kafka_topic import topic_on_broker
from benchmarks.spark.spark_topic import SparkTopic, topic_in

_SPARKS: Final = "Spark's"

TARGETS: Final[Mapping[str, tuple[str, str, float]]] = {
    "bucket / Spark's": ("bucket", _SPARKS, 2.5),
    "broker / Spark's": ("broker", _SPARKS, 1.3),
    "bucket / (1/(1/R + 1/W))": ("bucket", "limit", 0.8),
    "JSON time / offset": ("bucket, JSON time", "bucket", 0.8),
}
"""For each ratio, the two jobs whose rates it compares, and its minimum. The minimum 0.8 allows a quarter more time."""


def ratios(taken: Mapping[str, Sequence[Taken]], seconds_of: Callable[[Taken], float]) -> dict[str, dict[str, float]]:
    """Return the medians of the rounds' ratios, because within a round the machine is equally busy for all jobs."""
    seconds = {name: [seconds_of(run) for run in runs] for name, runs in taken.items()}
    seconds["limit"] = [sum(pair) for pair in zip(seconds["R"], seconds["W"], strict=True)]
    return {
        name: {
            "ratio": round(statistics.median(b / a for a, b in zip(seconds[ours], seconds[other], strict=True)), 3),
            "target": target,
        }
        for name, (ours, other, target) in TARGETS.items()
        if {ours, other} <= seconds.keys()
    }


def measure_ratios(topic: SparkTopic, home: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Run the jobs, round by round."""
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=home)))
        kafka = None if arguments.without_broker else stack.enter_context(topic_on_broker(topic))
        spark: SparkSession = stack.enter_context(spark_session(work, arguments.kafka_source))
        limits = stack.enter_context(contextlib.closing(Limits(topic, work)))
        contest = Contest(spark, topic, work, kafka, arguments.kafka_source is not None)
        tree = ProcessTree(os.getpid())
        jobs = contest.jobs(limits)
        taken = interleaved(jobs, arguments.runs, processor_seconds=lambda: sum(tree.cpu_seconds()))
    return {
        "million_records_per_second": _rates(taken, topic.records, lambda run: run.seconds),
        "million_records_per_processor_second": _rates(taken, topic.records, lambda run: run.cpu_seconds),
        "ratios": ratios(taken, lambda run: run.seconds),
        "ratios_by_cpu": ratios(taken, lambda run: run.cpu_seconds),
    }


def _rates(
    taken: Mapping[str, Sequence[Taken]], records: int, seconds_of: Callable[[Taken], float]
) -> dict[str, float]:
    return {name: round(records / statistics.median(map(seconds_of, runs)) / 1e6, 3) for name, runs in taken.items()}


def arguments_of_main() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000, help="how many records the topic has, about")
    parser.add_argument("--runs", type=int, default=5, help="counted rounds")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long records are appended")
    parser.add_argument("--folder", type=Path, help="where the topic is made and kept (default: a temporary folder)")
    parser.add_argument("--without-broker", action="store_true", help="leave out what needs Kafka")
    parser.add_argument("--kafka-source", type=Path, help="the folder with the jars of Spark's own Kafka source")
    what = ["ratios", "age", "memory", "requests", "limits"]
    parser.add_argument("--what", nargs="+", choices=what, default=what, help="what is measured")
    return parser.parse_args()


def run(home: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all requested figures."""
    figures: dict[str, Any] = {"machine": machine()}
    if {"ratios", "memory"} & set(arguments.what):
        topic = topic_in(home, arguments.records)
        figures["topic"] = {"records": topic.records, "log_bytes": topic.log_bytes, "runs": arguments.runs}
        if "ratios" in arguments.what:
            figures |= measure_ratios(topic, home, arguments)
        if "memory" in arguments.what:
            figures["memory"] = measure_memory(topic, home)
    if "age" in arguments.what and not arguments.without_broker:
        figures["age"] = measure_age(home, arguments.seconds)
    if "requests" in arguments.what:
        figures["requests"] = measure_requests(home)
    if "limits" in arguments.what:
        figures["limits"] = measure_limits(home)
    return figures


def main() -> None:
    arguments = arguments_of_main()
    with home_in(arguments.folder) as home:
        print(json.dumps(run(home, arguments), indent=2))


if __name__ == "__main__":
    main()
