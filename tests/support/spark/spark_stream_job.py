"""Job that runs a streaming query into files until nothing is new. Tests run it as a process and kill it.

Run it as python -m tests.support.spark.spark_stream_job JOB_FILE. The file's JSON has the source's options, the
checkpoint, the sink and optionally ``conf`` of the session. The job prints a line just before the query starts. With
``rows``, it writes the rows of the sink, in the order of partition and offset, into this Parquet file at its end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.support.spark.spark_session import CONF, JVM


def run(job: dict[str, Any]) -> None:
    builder: Any = SparkSession.builder
    spark: SparkSession = builder.config(map={**CONF, **JVM, **job.get("conf", {})}).getOrCreate()
    frame = spark.readStream.format("tieredstore").options(**job["options"]).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", job["checkpoint"])
    sys.stdout.write("starting\n")
    sys.stdout.flush()
    query = writer.trigger(availableNow=True).start(job["sink"])
    query.awaitTermination()
    if "rows" in job:
        rows: Any = spark.read.parquet(job["sink"]).orderBy("partition", "offset")
        pq.write_table(rows.toArrow(), job["rows"])
    spark.stop()


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
