"""Count the records of topics over time, directly from the bucket. Print the counts and save a plot.

python examples/topic_by_minute.py SETTINGS TOPIC... OUTPUT.png

SETTINGS is a file with the settings of the store. The interval, from a second to a week, depends on the topics' time
span. Needs tieredstore[spark,plot] and Java 17, but no broker.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib.dates
from matplotlib import color_sequences
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from examples.local_spark import local_spark

# The type stubs are incomplete.
dates: Any = matplotlib.dates
palettes: Any = color_sequences

BUCKETS = {
    "second": timedelta(seconds=1),
    "10 seconds": timedelta(seconds=10),
    "minute": timedelta(minutes=1),
    "10 minutes": timedelta(minutes=10),
    "hour": timedelta(hours=1),
    "6 hours": timedelta(hours=6),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
"""Interval lengths by name."""
A_MONDAY = 4 * 24 * 60 * 60  # 1970-01-05, so that weeks start on Mondays; for shorter intervals any midnight would do
MOST_BUCKETS = 200
LEAST_BUCKETS_SHOWN = 10

Counts = Mapping[datetime, int]
"""Numbers of records by interval. Each key is the start of an interval."""


def main() -> None:
    """Count, print and plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path, metavar="SETTINGS")
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("output", type=Path, metavar="OUTPUT.png")
    arguments = parser.parse_args()
    topics = list(dict.fromkeys(arguments.topics))
    try:
        with local_spark("records over time") as spark:
            bucket, counts = count_over_time(spark, arguments.settings, topics)
    except PySparkException as error:
        sys.exit(str(error))
    if not any(counts.values()):
        sys.exit(f"no records in {' and '.join(topics)}")
    print_counts(bucket, counts)
    plot(bucket, counts, arguments.output)
    total = sum(sum(of_topic.values()) for of_topic in counts.values())
    print(f"\n{total:,} records, plotted to {arguments.output}")


def count_over_time(spark: SparkSession, settings: Path, topics: Sequence[str]) -> tuple[str, dict[str, Counts]]:
    """Return the entry of ``BUCKETS`` that fits the records' time span, and the number of records by topic and
    bucket."""
    records = (
        spark.read.format("tieredstore")
        .option("settings", str(settings.resolve()))
        .option("subscribe", ",".join(topics))
        .option("columns", "topic,timestamp")  # keys and values are not even decoded
        .load()
    )
    second = functions.unix_seconds("timestamp")
    # The bucket is read only once, because later queries use the cached rows, one per second.
    by_second = records.groupBy("topic", second.alias("second")).count().cache()
    extent: Any = by_second.agg(functions.min("second"), functions.max("second")).collect()[0]
    counts: dict[str, dict[datetime, int]] = {topic: {} for topic in topics}
    if extent[0] is None:
        return "second", dict(counts)
    bucket = fitting_bucket(timedelta(seconds=extent[1] - extent[0]))
    length = int(BUCKETS[bucket].total_seconds())
    past = functions.pmod(functions.col("second") - A_MONDAY, functions.lit(length))
    begin = functions.col("second") - past
    for row in by_second.groupBy("topic", begin.alias("begin")).agg(functions.sum("count").alias("records")).collect():
        counts[row["topic"]][datetime.fromtimestamp(row["begin"], UTC)] = row["records"]
    by_second.unpersist()
    return bucket, {topic: dict(sorted(of_topic.items())) for topic, of_topic in counts.items()}


def fitting_bucket(span: timedelta) -> str:
    """Return the shortest of ``BUCKETS`` that divides the span into few enough intervals; at most a week."""
    return next((name for name, length in BUCKETS.items() if span / length <= MOST_BUCKETS), list(BUCKETS)[-1])


def print_counts(bucket: str, counts: Mapping[str, Counts]) -> None:
    """Print a line for each bucket with records, and a column for each topic."""
    times = sorted({time for of_topic in counts.values() for time in of_topic})
    layout = "%Y-%m-%d %H:%M:%S" if BUCKETS[bucket] < timedelta(minutes=1) else "%Y-%m-%d %H:%M"
    first = f"{bucket} (UTC)".ljust(19)
    print(first, *(f"{topic:>11}" for topic in counts))
    for time in times:
        print(f"{time:{layout}}".ljust(19), *(f"{of_topic.get(time, 0):>11,}" for of_topic in counts.values()))


def plot(bucket: str, counts: Mapping[str, Counts], output: Path) -> None:
    """Save the counts as steps; intervals without records are at zero."""
    figure: Any = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.add_subplot()
    colors = itertools.cycle(palettes["tab10"])
    length = BUCKETS[bucket]
    shown: list[datetime] = []
    for (topic, of_topic), color in zip(counts.items(), colors, strict=False):
        if not of_topic:
            continue
        edges, values = steps(of_topic, length)
        shown += edges[0], edges[-1]
        label = f" {topic}: {sum(of_topic.values()):,}"  # a legend omits labels that begin with an underscore
        axes.stairs(values, dates.date2num(edges), fill=len(counts) == 1, color=color, label=label, linewidth=1.5)
    axes.xaxis_date(UTC)
    axes.set_xlim(*shown_times(min(shown), max(shown), length))
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
    axes.set_ylabel(f"records per {bucket}")
    total = sum(sum(of_topic.values()) for of_topic in counts.values())
    (topic, *more) = counts
    title = f"{len(counts)} topics" if more else topic
    axes.set_title(f"{title}: {total:,} records", loc="left", fontweight="bold")
    if more:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figure.savefig(output, format="png", dpi=150)


def shown_times(first: datetime, last: datetime, length: timedelta) -> tuple[datetime, datetime]:
    """Return a range from before the first edge to after the last, wide enough for a single bucket."""
    margin = max((last - first) / 100, (LEAST_BUCKETS_SHOWN * length - (last - first)) / 2)
    return first - margin, last + margin


def steps(counts: Counts, length: timedelta) -> tuple[list[datetime], list[int]]:
    """Return the edges of the steps and the values between them, with one step of 0 for each gap.

    There must be at least one count, and they must be in order.
    """
    (first, records), *later = counts.items()
    edges, values = [first, first + length], [records]
    for time, records in later:
        if time > edges[-1]:
            edges.append(time)
            values.append(0)
        edges.append(time + length)
        values.append(records)
    return edges, values


if __name__ == "__main__":
    main()
