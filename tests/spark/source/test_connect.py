"""The source and map_records through a Spark Connect session, with a server in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.records.topic_buckets import Bucket, fill
from tests.support.spark.spark_session import environment, jvm_of_seconds

pytestmark = [pytest.mark.slow, pytest.mark.soak]

JOB = """
import json, sys
from pyspark.sql import SparkSession
from tieredstore.spark import map_records, register

def raising(batches):
    next(batches)
    raise ValueError("of my own")
    yield

options = json.loads(sys.argv[1])
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
source = spark.read.format("tieredstore").options(**options).load()
mapped = map_records(spark, iter, source.schema, **options)
rows = [sorted(map(str, frame.collect())) for frame in (source, mapped)]
try:
    map_records(spark, raising, "n long", **options).collect()
except Exception as error:
    sentence = str(error)
print(json.dumps([type(mapped).__module__, len(rows[0]), rows[0] == rows[1], sentence]), flush=True)
spark.stop()
"""


@pytest.mark.timeout(600)
def test_functions_over_records_are_usable_wherever_the_source_is(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "bucket")
    fill(bucket)
    options = {**bucket.options, "subscribe": "orders"}
    (tmp_path / "conf").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", JOB, json.dumps(options)],
        env=os.environ | environment(tmp_path) | jvm_of_seconds(tmp_path / "conf"),
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    bucket.close()
    assert done.returncode == 0, done.stderr
    module, records, are_equal, sentence = json.loads(done.stdout.splitlines()[-1])
    assert (module, records, are_equal) == ("pyspark.sql.connect.dataframe", 150, True)
    assert (sentence.count("Traceback"), sentence.count("ValueError: of my own")) == (1, 1)
    assert "tieredstore" not in sentence
