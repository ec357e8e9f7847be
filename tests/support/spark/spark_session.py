"""A real Spark session, started once per test process, when a test first needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.paths import REPOSITORY
from tests.support.spark.early_connection import worker_python
from tests.support.waiting import END_S

CONF: Mapping[str, str] = {
    "spark.master": "local[2]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
"""Spark settings for small local sessions, of the tests or of their child processes."""

JVM: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}
"""Spark settings for a JVM that lives for minutes at most, and so uses only the fast compiler."""


def environment(folder: Path | None = None) -> dict[str, str]:
    """Return the environment of a driver: this interpreter for the workers, and the loopback interface.

    With a ``folder``, workers start by a program written there, and connect to Spark in time even on a busy machine.
    """
    python = sys.executable if folder is None else str(worker_python(folder))
    return {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(REPOSITORY)}


def jvm_of_seconds(folder: Path) -> dict[str, str]:
    """Return environment variables that make a process's Spark use ``JVM``, by a settings file in ``folder``."""
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in JVM.items()))
    return {"SPARK_CONF_DIR": str(folder)}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a session in which no source is registered, because Spark must find the source by itself."""
    os.environ.update(environment(tmp_path_factory.mktemp("spark")))
    builder: Any = SparkSession.builder
    for name, value in {**CONF, **JVM}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.config(
        "spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("tables"))
    ).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    context: Any = session.sparkContext
    gateway = context._gateway  # there is no public way to end the JVM
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(END_S)


def read(spark: SparkSession, options: Mapping[str, Any]) -> DataFrame:
    """Return ``spark.read.format("tieredstore")`` with these options, loaded."""
    return spark.read.format("tieredstore").options(**options).load()


@contextmanager
def configured(spark: SparkSession, name: str, value: str) -> Generator[None]:
    """Set one of the session's settings for the block."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
