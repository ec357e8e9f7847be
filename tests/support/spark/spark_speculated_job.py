"""map_records job with a task that is slow at its first attempt, in a separate process: ``python -m … JOB``.

Spark runs a speculative attempt only on another host, and takes two loopback addresses for two hosts. So a master and
two workers run as processes at such addresses. JOB is a JSON file: the options of the source, the folder for marks, and
the file for the reported rows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.support.spark.spark_cluster import spark_cluster
from tieredstore.spark import map_records

SLOW: Final = 3
"""The slow task's partition."""

HOSTS: Final = "127.0.0.1", "127.0.0.2"
_DEADLINE_S: Final = 300
SPECULATION: Final[Mapping[str, str]] = {
    "spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
}  # fmt: skip
"""Spark settings for speculation as soon as a task takes longer than the others of its job."""


def slow(marks: Path) -> Any:
    """Return a function that returns its rows; one task's first attempt waits until another attempt has finished."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        (marks / f"{task}-begun-{attempt}").touch()
        for number, batch in enumerate(batches):
            yield batch
            end = time.monotonic() + _DEADLINE_S
            while task == SLOW and attempt == 0 and number == 0 and not (marks / f"{task}-done-1").exists():
                if time.monotonic() > end:
                    raise TimeoutError("no second attempt")
                time.sleep(0.05)
        (marks / f"{task}-done-{attempt}").touch()

    return function


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    marks = Path(job["marks"])
    with spark_cluster(marks.parent) as cluster:
        for host in HOSTS:
            cluster.add_worker(host)
        builder: Any = SparkSession.builder
        for name, value in {**job["conf"], **SPECULATION, "spark.master": cluster.url}.items():
            builder = builder.config(name, value)
        spark: SparkSession = builder.getOrCreate()
        options = job["options"]
        source = spark.read.format("tieredstore").options(**options).load()
        rows = map_records(spark, slow(marks), source.schema, **options)
        place = ("topic", "partition", "offset")
        mapped, plain = (frame.sort(*place).toArrow() for frame in (rows, source))
        outcome = {"equal": mapped.equals(plain), "rows": mapped.num_rows, "tasks": rows.rdd.getNumPartitions()}
        Path(job["rows"]).write_text(json.dumps(outcome))
        spark.stop()


if __name__ == "__main__":
    main()
