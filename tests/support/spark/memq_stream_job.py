"""Job that streams from one topic of batches to another until nothing is new. Tests run it as a process and kill it.

Run it as python -m tests.support.spark.memq_stream_job JOB_FILE. The file's JSON has the store's options, the topics
and the checkpoint. The job prints a line just before the query starts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.spark.spark_session import CONF, JVM


def run(job: dict[str, Any]) -> None:
    builder: Any = SparkSession.builder
    spark: SparkSession = builder.config(map={**CONF, **JVM, **job["conf"]}).getOrCreate()
    rows = spark.readStream.format("memq").options(**job["store"], **job["source"]).load()
    writer = rows.select("key", "value", "timestamp").writeStream.format("memq")
    writer = writer.options(**job["store"], topic=job["sink"], checkpointLocation=job["checkpoint"])
    sys.stdout.write("starting\n")
    sys.stdout.flush()
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
