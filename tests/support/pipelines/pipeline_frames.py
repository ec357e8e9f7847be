"""What users may name by ``frame``: functions of the records of windows, as a DataFrame."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, functions

from tests.support.connections import parent_of
from tieredstore.pipelines.writers import ENVELOPE

DEED: Final = "TIEREDSTORE_TEST_DEED"
"""In the environment of the driver: a file that is not there yet, whose name says who is killed."""


def evens(records: DataFrame) -> DataFrame:
    """Every second record, with a column more."""
    return records.filter("offset % 2 = 0").withColumn("size", functions.length("value"))


def in_capitals(records: DataFrame) -> DataFrame:
    """By SQL; of partition 1 nothing is left."""
    kept = ", ".join("CAST(upper(CAST(value AS STRING)) AS BINARY) AS value" if name == "value" else f"`{name}`"
                     for name in ENVELOPE.names)  # fmt: skip
    return records.sparkSession.sql(f"SELECT {kept} FROM {{records}} WHERE partition = 0", records=records)


def scattered(records: DataFrame) -> DataFrame:
    """Rows of a window in two tasks."""
    return records.repartition(2)


def doubled(records: DataFrame) -> DataFrame:
    """A record twice."""
    return records.withColumn("copy", functions.explode(functions.array(functions.lit(1), functions.lit(2))))


def without_offsets(records: DataFrame) -> DataFrame:
    """One column too few."""
    return records.drop("offset")


def moved(records: DataFrame) -> DataFrame:
    """Offsets of another window."""
    return records.withColumn("offset", functions.col("offset") + 1000)


def counted(records: DataFrame) -> int:
    """No DataFrame."""
    return len(records.columns)


def troubled(records: DataFrame) -> DataFrame:
    """Every second record; in the midst of one window a process is killed, the first time."""
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
    # The parent of this worker is PySpark's daemon, and that one's is the executor.
    process = os.getpid() if deed.name == "worker" else parent_of(os.getppid())
    os.kill(process, signal.SIGKILL)
    time.sleep(60)  # it ends with the executor
