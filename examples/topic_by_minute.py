"""Counts the records of a topic by minute, straight from the bucket, prints them and saves a plot.

python examples/topic_by_minute.py SETTINGS TOPIC OUTPUT.png

SETTINGS is a file with the settings of the store. Needs tieredstore[spark], Java 17 and matplotlib; no broker is asked.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib.dates
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from examples.local_spark import local_spark

# What its type stubs say is partial.
dates: Any = matplotlib.dates

MINUTE = timedelta(minutes=1)
LEAST_WIDTH = 10 * MINUTE
COLOR = "#2a6f97"

Count = tuple[datetime, int]
"""The beginning of a minute, and how many records have a timestamp in it."""


def main() -> None:
    """Count, print and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path, metavar="SETTINGS")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("output", type=Path, metavar="OUTPUT.png")
    arguments = parser.parse_args()
    try:
        with local_spark("records by minute") as spark:
            counts = count_by_minute(spark, arguments.settings, arguments.topic)
    except PySparkException as error:
        sys.exit(str(error))
    if not counts:
        sys.exit(f"topic {arguments.topic} has no records")
    print("minute (UTC)         records")
    for minute, records in counts:
        print(f"{minute:%Y-%m-%d %H:%M} {records:>11,}")
    plot(counts, arguments.topic, arguments.output)
    print(f"\n{sum(records for _, records in counts):,} records, plotted to {arguments.output}")


def count_by_minute(spark: SparkSession, settings: Path, topic: str) -> list[Count]:
    """The minutes that have records, in order."""
    records = (
        spark.read.format("tieredstore")
        .option("settings", str(settings.resolve()))
        .option("subscribe", topic)
        .option("columns", "timestamp")  # keys and values are not even decoded
        .load()
    )
    minute = functions.unix_seconds(functions.date_trunc("minute", "timestamp"))
    minutes = records.groupBy(minute.alias("minute")).count().orderBy("minute").collect()
    return [(datetime.fromtimestamp(row["minute"], UTC), row["count"]) for row in minutes]


def plot(counts: Sequence[Count], topic: str, output: Path) -> None:
    """Save the counts as steps of a minute; minutes without records are at zero."""
    figure: Any = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.add_subplot()
    edges, values = steps(counts)
    axes.stairs(values, [dates.date2num(edge) for edge in edges], fill=True, color=COLOR)
    axes.xaxis_date(UTC)
    axes.set_xlim(*shown_times(edges))
    locator = dates.AutoDateLocator(UTC, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, UTC))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("time (UTC)")
    axes.set_ylabel("records per minute")
    axes.set_title(f"{topic}: {sum(records for _, records in counts):,} records", loc="left", fontweight="bold")
    figure.savefig(output, format="png", dpi=150)


def shown_times(edges: Sequence[datetime]) -> tuple[datetime, datetime]:
    """From before the first edge to behind the last, so wide that a minute looks like one."""
    margin = max((edges[-1] - edges[0]) / 100, (LEAST_WIDTH - (edges[-1] - edges[0])) / 2)
    return edges[0] - margin, edges[-1] + margin


def steps(counts: Sequence[Count]) -> tuple[list[datetime], list[int]]:
    """The edges of the steps and the value between each two, with one step of 0 for all minutes of a gap.

    At least one count must be given.
    """
    edges, values = [counts[0][0], counts[0][0] + MINUTE], [counts[0][1]]
    for minute, records in itertools.islice(counts, 1, None):
        if minute > edges[-1]:
            edges.append(minute)
            values.append(0)
        edges.append(minute + MINUTE)
        values.append(records)
    return edges, values


if __name__ == "__main__":
    main()
