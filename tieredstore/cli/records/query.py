"""``tieredstore query``: SQL over topics."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tieredstore.cli.app.options import Cluster, Records, Rows, Store, Values, Work
from tieredstore.cli.records.cat import read_options
from tieredstore.cli.records.row_output import GivenRows, Target, check_names, print_rows
from tieredstore.cli.records.value_types import TopicTypes, sample_of
from tieredstore.cli.terminal.plots import COLORS, Picture, PlotFile, label
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.query.writers import BatchRows


def query(
    sql: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="The query, or - to read it from standard input; topics are tables."),
    ] = None,
    *,
    store: Store,
    cluster: Cluster,
    records: Records,
    values: Values,
    output: Rows,
    plot: PlotFile = None,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="SQL can only read topics: no files, no installation of extensions.")
    ] = False,
    topic_ids: Annotated[
        list[str] | None,
        typer.Option(
            "--topic-ids",
            metavar="TOPIC=ID",
            rich_help_panel="Topics",
            help="Topic id, if the topic was deleted and re-created: orders=ID; may be repeated.",
        ),
    ] = None,
    work: Work,
) -> None:
    """Query topics in DuckDB's SQL: each topic is a table. Without SQL, open a shell on a terminal, or list topics.

    Columns are topic, partition, "offset", timestamp, timestamp_type, key, value, headers and leader_epoch. Conditions
    on partition, "offset" and timestamp limit what is fetched. "TOPIC$segments" and "TOPIC$partitions" are tables of
    metadata. Topics of batches (`pubsub topics`) are tables too, with the columns message, record and messageId; use
    "TOPIC$batches" if a topic of segments has the same name.

    SQL may read and write local files, and install extensions. With --sandbox, it can only read topics. --plot draws
    the second column over the first instead of writing rows: a line over numbers and times, bars over names. Drawing
    needs matplotlib.

    Example: tieredstore query -c store.properties "SELECT count(*) FROM orders"

    Example: tieredstore query -c store.properties "SELECT * FROM orders WHERE timestamp > now() - INTERVAL 1 DAY"
    """
    if plot is not None and (output.output is not None or output.as_json or output.row_format is not None):
        raise ConfigError("--plot draws the rows in place of writing them: leave out -o, --format and --json")
    sql = _read_sql(sql)
    target = Target.parse(output)
    is_shown = plot is None and target.path is None and target.ending is None
    picture = None if plot is None else Picture(plot)
    how, types = read_options(records, by_id="--topic-ids"), TopicTypes(values, "text")
    ids = _parse_ids(topic_ids or ())
    if output.count is not None:
        how["limit"] = output.count
    if work.parallel is not None:
        how["parallel"] = work.parallel
    with store.open(cluster) as bucket:
        how["types"] = partial(types, sample=sample_of(bucket, read_options(records), ids))
        if sql is None and is_shown and sys.stdin.isatty() and sys.stdout.isatty():
            from tieredstore.api.reading import open_tables
            from tieredstore.cli.records.shell import run_shell

            with open_tables(bucket, how, sandbox=sandbox, topic_ids=ids) as tables:
                run_shell(tables, output.count)
            types.tell_nulls()
            return
        with closing(
            bucket.query("SHOW TABLES" if sql is None else sql, sandbox=sandbox, topic_ids=ids, **how)
        ) as read:
            rows = GivenRows(read.schema, read.batches())
            if picture is not None:
                _draw(picture, rows)
            elif target.ending is None:
                print_rows(rows)
            else:
                target.write(rows)
    types.tell_nulls()


def _read_sql(sql: str | None) -> str | None:
    """Return the SQL text. If ``sql`` is ``-``, read the text from standard input."""
    if sql == "-":
        try:
            return sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"the SQL on standard input is not UTF-8: {error}") from None
    if sql is None:
        with contextlib.suppress(OSError):  # no standard input
            state = os.fstat(0)
            if stat.S_ISREG(state.st_mode) and state.st_size:
                raise ConfigError("to read the SQL from standard input, give -: tieredstore query - < FILE")
    return sql


def _parse_ids(texts: Sequence[str]) -> dict[str, str]:
    ids = {topic: topic_id for topic, _, topic_id in (text.partition("=") for text in texts)}
    if not all(ids.values()):
        raise ConfigError("--topic-ids is not TOPIC=ID, such as orders=AAAAAAAAQACAAAAAAAAAAA")
    if len(ids) < len(texts):
        raise ConfigError(
            "--topic-ids is given twice for one topic: give one id, and query the other id in a separate call"
        )
    return ids


_MEASURED: Final = "integer", "floating", "decimal", "timestamp", "date", "null"
"""The kinds of Arrow types that are drawn on an axis of numbers or times. Values of all other types become names on the
axis.
"""

_MOST_POINTS: Final = 100_000
_MOST_NAMES: Final = 40


def _draw(picture: Picture, reader: BatchRows) -> None:
    """Draw the second column over the first. Raise ConfigError if there is only one column, or if there are too many
    rows."""
    from pyarrow import types

    from tieredstore.query import writers

    check_names(reader)
    if len(reader.schema) < 2:
        raise ConfigError(
            "--plot draws the second column over the first, but the query has only one column: SELECT two"
        )
    (x_name, x), (y_name, y) = ((each.name, _kind(types, each.type)) for each in list(reader.schema)[:2])
    if y == "name":
        raise ConfigError(f"--plot: the column {y_name} does not hold numbers")
    pairs: list[tuple[Any, Any]] = []
    for place, height, *_ in writers.cells_of(reader):
        if place is not None and height is not None:
            pairs.append((label(writers.cell_text(place, null="null")) if x == "name" else place, height))
        if len(pairs) > _MOST_POINTS:
            raise ConfigError(f"--plot draws {_MOST_POINTS} rows at most: group them (GROUP BY)")
    axes = picture.axes()
    if x == "name":
        if len(pairs) > _MOST_NAMES:
            raise ConfigError(f"--plot shows {_MOST_NAMES} names at most, but there are {len(pairs)}: use LIMIT")
        axes.bar([x for x, _ in pairs], [y for _, y in pairs], color=COLORS[0])
        axes.tick_params(axis="x", labelrotation=30)
    else:
        ordered = sorted(pairs, key=lambda pair: pair[0])
        axes.plot([x for x, _ in ordered], [y for _, y in ordered], color=COLORS[0], marker="o", markersize=3)
    axes.set_xlabel(label(x_name))
    axes.set_ylabel(label(y_name))
    picture.save(axes)


def _kind(types: Any, of: Any) -> str:
    return "number" if any(getattr(types, f"is_{kind}")(of) for kind in _MEASURED) else "name"
