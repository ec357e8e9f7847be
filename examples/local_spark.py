"""Local Spark for the examples."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from tieredstore.spark import register

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def local_spark(name: str) -> Generator[SparkSession]:
    """Run a session on all cores of this machine that knows the format tieredstore; stop it at the end of the block."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[*]").appName(name)
    for setting, value in SETTINGS.items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    register(session)
    try:
        yield session
    finally:
        session.stop()
