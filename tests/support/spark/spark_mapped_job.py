"""A job of map_records on two executors of this machine, in a process of its own: ``python -m … JOB``.

In its midst one task kills the executor that it runs on, the JVM and all; one kills the Python worker that it runs in;
one raises. Each of them is tried again. JOB is a file of JSON: the options of the source, the folder for marks, and the
file for what is told of the rows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tieredstore.spark import map_records

EXECUTOR, WORKER, RAISING = TROUBLED = (2, 5, 7)
"""Tasks, by their partitions: what each ends, after its first batch, when it is tried first."""

CONF = {"spark.master": "local-cluster[2,2,512]", "spark.executor.memory": "512m"}


def troubled(marks: Path) -> Any:
    """A function that gives the rows that it is given, and makes trouble in the first attempts of two tasks."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and task in TROUBLED and is_first(marks / f"begun-{task}"):
                end(task)
        (marks / f"done-{task}").touch()

    return function


def is_first(mark: Path) -> bool:
    """Whether nobody has made this mark before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def end(task: int) -> None:
    if task == EXECUTOR:
        # The parent of this worker is PySpark's daemon, and that one's is the executor.
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    elif task == WORKER:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise OSError("of the function")
    time.sleep(60)  # it ends with the executor


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    builder: Any = SparkSession.builder
    for name, value in {**job["conf"], **CONF}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    options = job["options"]
    source = spark.read.format("tieredstore").options(**options).load()
    rows = map_records(spark, troubled(Path(job["marks"])), source.schema, **options)
    place = ("topic", "partition", "offset")
    mapped, plain = (frame.sort(*place).toArrow() for frame in (rows, source))
    Path(job["rows"]).write_text(
        json.dumps({"equal": mapped.equals(plain), "rows": mapped.num_rows, "tasks": rows.rdd.getNumPartitions()})
    )
    spark.stop()


if __name__ == "__main__":
    main()
