"""map_records job on two local executors, in a separate process: ``python -m … JOB``.

One task kills its executor's JVM, one its Python worker, and one raises an error; Spark retries each. JOB is a JSON
file: the options of the source, the folder for mark files, and the file for the reported rows.
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
"""Partitions whose task's first attempt fails after the first batch, each by another kind of fault."""

CONF = {"spark.master": "local-cluster[2,2,512]", "spark.executor.memory": "512m"}


def troubled(marks: Path) -> Any:
    """Return a function that returns its rows unchanged, and makes the first attempts of troubled tasks fail."""

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
    """Create the empty file ``mark``; return True if no earlier attempt has created it."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def end(task: int) -> None:
    if task == EXECUTOR:
        # This worker's parent is PySpark's daemon, whose parent is the executor.
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    elif task == WORKER:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise OSError("of the function")
    time.sleep(60)  # this worker is killed together with the executor


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
