"""Functions for the setting ``frame``, which map the DataFrame of a window's records to another one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, functions

from tests.support.network.connections import parent_of
from tieredstore.pipelines.writers import ENVELOPE

DEED: Final = "TIEREDSTORE_TEST_DEED"
"""Environment variable with the path of a file. :func:`troubled` creates the file when it kills a process. The file's
name selects the process.
"""


def evens(records: DataFrame) -> DataFrame:
    """Return every second record, with an additional column."""
    return records.filter("offset % 2 = 0").withColumn("size", functions.length("value"))


def in_capitals(records: DataFrame) -> DataFrame:
    """Transform by SQL; drop all records of partition 1."""
    kept = ", ".join("CAST(upper(CAST(value AS STRING)) AS BINARY) AS value" if name == "value" else f"`{name}`"
                     for name in ENVELOPE.names)  # fmt: skip
    return records.sparkSession.sql(f"SELECT {kept} FROM {{records}} WHERE partition = 0", records=records)


def emptied(records: DataFrame) -> DataFrame:
    """Drop all records, so that Spark does not even read them."""
    return records.filter(functions.lit(False))


def scattered(records: DataFrame) -> DataFrame:
    """Spread the rows of a window over two tasks."""
    return records.repartition(2)


def doubled(records: DataFrame) -> DataFrame:
    """Return each record twice."""
    return records.withColumn("copy", functions.explode(functions.array(functions.lit(1), functions.lit(2))))


def without_offsets(records: DataFrame) -> DataFrame:
    """Drop the required column ``offset``."""
    return records.drop("offset")


def moved(records: DataFrame) -> DataFrame:
    """Return the records with offsets of another window."""
    return records.withColumn("offset", functions.col("offset") + 1000)


def counted(records: DataFrame) -> int:
    """Return an int instead of a DataFrame."""
    return len(records.columns)


def troubled(records: DataFrame) -> DataFrame:
    """Return every second record; in the very first batch, kill the worker or the executor."""
    deed = Path(os.environ[DEED])

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            _do(deed)

    return records.mapInArrow(passed, records.schema).filter("offset % 2 = 0")


def _do(deed: Path) -> None:
    try:
        deed.touch(exist_ok=False)
    except FileExistsError:
        return
    # This worker's parent is PySpark's daemon, whose parent is the executor.
    process = os.getpid() if deed.name == "worker" else parent_of(os.getppid())
    os.kill(process, signal.SIGKILL)
    time.sleep(60)  # killed together with the executor
