"""A bucket opened in the driver and read in Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tieredstore as ts
import tieredstore.spark as in_spark
from tests.support.paths import GOLDEN


def test_a_bucket_is_a_source_and_its_segments_are_decoded_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(GOLDEN / "07-txn", folder)
    with ts.open(folder / "rsm.properties") as bucket:
        assert in_spark.read(spark, bucket, "txn").count() == 2357

        frame = bucket.segments("txn").to_pandas()[["topic", "topic_id", "partition", "base_offset", "segment_id"]]
        assert in_spark.decode_segments(spark.createDataFrame(frame), bucket).count() == 2357


def test_settings_that_were_read_do_not_travel(spark: SparkSession, tmp_path: Path) -> None:
    with (
        ts.open(tmp_path) as opened,
        ts.open(opened.settings) as bucket,
        pytest.raises(ts.errors.ConfigError, match="loaded settings cannot be sent to tasks"),
    ):
        in_spark.read(spark, bucket, "txn")
