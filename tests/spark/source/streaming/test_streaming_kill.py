"""Repeated kills (-9) of a streaming job at random moments: the sink has each offset exactly once.

This test runs in `make soak` only; in `make test`, test_live_kill kills a job that reads bucket and broker.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.records.topic_buckets import Bucket, values
from tests.support.spark.spark_stream_runs import run_killed, started
from tests.support.waiting import wait_until

KILLS = 4
WRITTEN = 20


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_job_that_is_killed_again_and_again_reads_each_offset_once(spark: SparkSession, tmp_path: Path) -> None:
    bucket, seed = Bucket(tmp_path), random.randrange(10**6)
    moments, job = random.Random(seed), job_file(tmp_path, bucket)
    _grow(bucket)
    begin_checkpoint(job)
    killed = 0
    for _ in range(KILLS):
        killed += run_killed(job, after=moments.uniform(0.5, 6))
        _grow(bucket)
    assert killed, "no run was long enough to be killed"
    with started(job) as process:
        assert process.wait(400) == 0
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    written = sorted((row.partition, row.offset, bytes(row.value)) for row in rows)
    expected = [
        (partition, offset, value)
        for partition in (0, 1)
        for offset, value in enumerate(values(range(WRITTEN * (KILLS + 1)), partition=partition))
    ]
    assert written == expected, f"seed {seed}"
    batches = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    assert batches > KILLS
    bucket.close()


def begin_checkpoint(job: Path) -> None:
    """Run the job until its first batch is committed. Spark rejects a checkpoint whose first batch was recorded only
    in part.
    """
    with started(job) as process:
        wait_until((job.parent / "checkpoint" / "commits" / "0").exists, 120)
        os.killpg(process.pid, signal.SIGKILL)


def job_file(folder: Path, bucket: Bucket) -> Path:
    """Write the file of a job with many small batches, whose ends do not depend on where a run starts."""
    options = bucket.options | {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "7"}
    job = {"options": options, "checkpoint": str(folder / "checkpoint"), "sink": str(folder / "sink")}
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def _grow(bucket: Bucket) -> None:
    for partition in (0, 1):
        bucket.write(WRITTEN, partition=partition)
