"""Spark reads topics directly from the bucket: their splits into tasks, and SQL queries.

python examples/spark_demo.py SETTINGS

SETTINGS is a settings file of the store filled by examples/demo.py, which runs this program as its last part.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from examples.local_spark import local_spark
from tieredstore.spark import TieredStoreDataSource

TOPICS = "none,smallbatch,txn"
WINDOW = {"startingTimestamp": "1767225610000", "endingTimestamp": "1767225612000"}  # ms: 00:00:10 up to 00:00:12
COUNTS = """\
SELECT topic, partition, count(*) AS records, min(offset) AS first, max(offset) AS last, sum(length(value)) AS bytes
FROM records GROUP BY topic, partition ORDER BY topic, partition"""
SECONDS = """\
SELECT date_trunc('second', timestamp) AS second, count(*) AS records, count(DISTINCT partition) AS partitions
FROM recent GROUP BY second ORDER BY second"""


def main() -> None:
    """Show the splits and the queries."""
    settings = str(Path(sys.argv[1]).resolve())
    everything = {"settings": settings, "subscribe": TOPICS, "maxSplitBytes": "512k"}
    recent = {"settings": settings, "subscribe": "none", **WINDOW}
    with local_spark("tieredstore demo") as spark:
        show_load(everything)
        show_splits(splits_of(everything), load(spark, everything, "records"))
        show_query(spark, COUNTS)
        show_load(recent)
        show_splits(splits_of(recent), load(spark, recent, "recent"))
        show_query(spark, SECONDS)


def show_load(options: dict[str, str]) -> None:
    """Show the code that loads the records."""
    shown = ", ".join(f'{name}="{Path(text).name if name == "settings" else text}"' for name, text in options.items())
    print(f'>>> spark.read.format("tieredstore").options({shown}).load()')


def load(spark: SparkSession, options: dict[str, str], view: str) -> DataFrame:
    """Register the records as a view for SQL."""
    records = spark.read.format("tieredstore").options(**options).load()
    records.createOrReplaceTempView(view)
    return records


def splits_of(options: dict[str, str]) -> list[Any]:
    """Plan the read as Spark does, and return the splits of its tasks."""
    source = TieredStoreDataSource(CaseInsensitiveDict(options))
    tasks: Sequence[Any] = source.reader(source.schema()).partitions()
    return [task.value for task in tasks if task.value is not None]


def show_splits(splits: list[Any], records: DataFrame) -> None:
    """Print a line for each split, and Spark's own number of tasks."""
    print(f"{'topic':<12}{'partition':>9}{'first offset':>14}{'last offset':>13}{'bytes of log':>14}")
    for split in splits:
        where, bounds = split.partition, f"{split.start_offset:>14,}{split.stop_offset - 1:>13,}"
        print(f"{where.topic:<12}{where.partition:>9}{bounds}{split.size_in_bytes:>14,}")
    if any(a.partition == b.partition and a.stop_offset > b.start_offset for a, b in itertools.pairwise(splits)):
        # An offset index has only the last offset of each batch, so the first offset of a split is not exact.
        print("(where two splits meet within a segment, both bounds include the batch there; one split reads it)")
    size = sum(split.size_in_bytes for split in splits)
    print(f"{len(splits)} splits, {size:,} bytes; Spark runs {records.rdd.getNumPartitions()} tasks\n")


def show_query(spark: SparkSession, query: str) -> None:
    """Show an SQL query and its result."""
    print(f">>> {query}")
    spark.sql(query).show(truncate=False)


if __name__ == "__main__":
    main()
