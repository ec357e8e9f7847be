"""``tieredstore query``: SQL over topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tieredstore.cli.app.arguments import SettingsPath, StoreUrl
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.records.cat import DataLossError, DataLossPolicy, IsolationLevel
from tieredstore.cli.records.message_types import (
    InvalidAsNull,
    Isolation,
    KeyType,
    MessageOptions,
    MessageType,
    Registry,
    RegistryConfig,
    SchemaAvro,
    SchemaJson,
    ValueType,
    table_options,
)
from tieredstore.cli.records.query_output import ENDINGS, check_name, check_names, write_rows, write_table
from tieredstore.cli.terminal.plots import COLORS, Picture, label
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.query.writers import BatchRows


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The query; topics are its tables.")],
    settings: SettingsPath = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a line of names.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write FILE.parquet, .arrow, .csv or .jsonl, whole or not at all."
        ),
    ] = None,
    plot: Annotated[
        tuple[Path, str, str] | None,
        typer.Option("--plot", metavar="FILE X Y", help="Draw column Y over column X: FILE.png, FILE.svg or FILE.pdf."),
    ] = None,
    schema_json: SchemaJson = None,
    schema_avro: SchemaAvro = None,
    schema_registry: Registry = None,
    schema_registry_config: RegistryConfig = None,
    key_type: KeyType = MessageType.TEXT,
    value_type: ValueType = MessageType.TEXT,
    invalid: InvalidAsNull = False,
    isolation: Isolation = IsolationLevel.READ_COMMITTED,
    data_loss: DataLossError = DataLossPolicy.FAIL,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="The SQL may read no files and install nothing: topics alone.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    kafka_config: KafkaConfig = None,
    kafka_properties: KafkaProperties = None,
) -> None:
    """Ask topics in SQL (DuckDB's): each is a table.

    Columns are topic, partition, "offset", timestamp, timestampType, key, value, headers and leaderEpoch. Conditions on
    partition, "offset" and timestamp keep what they exclude from being fetched. "TOPIC$segments" and
    "TOPIC$partitions" are tables of what there is. Topics of batches (`pubsub topics`) are tables too, with the columns
    message, record and messageId; "TOPIC$batches" is one of a name that a topic of segments has as well.

    SQL may read and write local files, and install extensions. With --sandbox it reads the topics that it names, and
    nothing else.

    Example: tieredstore query -c store.properties "SELECT count(*) FROM orders"

    Example: tieredstore query -c store.properties "SELECT * FROM orders WHERE timestamp > now() - INTERVAL 1 DAY"
    """
    if plot is not None and (output is not None or as_json or as_csv):
        raise ConfigError("--plot draws the rows in place of writing them: leave out -o, --json and --csv")
    write = _writer(output, as_json=as_json, as_csv=as_csv)
    picture = None if plot is None else QueryPlot(*plot)
    client = client_properties(bootstrap_server, kafka_config, kafka_properties)
    from tieredstore.duckdb.query_tables import QueryTables
    from tieredstore.query.batch_tables import batches_beside

    messages = MessageOptions(
        key_type, value_type, schema_json or (), schema_avro or (), schema_registry, schema_registry_config, invalid
    )
    options, types_of = table_options(messages, isolation, data_loss, client)
    with (
        open_chosen_bucket(settings, store) as place,
        place.manager() as manager,
        QueryTables(
            manager, options, types_of, batches=batches_beside(place.store, place.settings), is_sandboxed=sandbox
        ) as asked,
    ):
        rows: BatchRows = asked.run(sql)
        if picture is None:
            write(rows)
        else:
            picture.save(rows)


def _writer(output: Path | None, *, as_json: bool, as_csv: bool) -> Callable[[BatchRows], None]:
    if as_json and as_csv:
        raise ConfigError("--json and --csv exclude each other: give one of them")
    if output is None and not (as_json or as_csv):
        return write_table
    ending = "jsonl" if as_json else "csv" if as_csv else _ending(output)
    if output is not None:
        check_name(output, ending)
    return lambda rows: write_rows(rows, ending, output)


def _ending(output: Path | None) -> str:
    suffix = "" if output is None else output.suffix.lower()
    if suffix not in ENDINGS:
        raise ConfigError(
            f"{str(output)!r} says no format: name it .parquet, .arrow, .csv or .jsonl, or give --json or --csv"
        )
    return ENDINGS[suffix]


_MEASURED: Final = "integer", "floating", "decimal", "timestamp", "date", "null"
"""Kinds of types, by Arrow's words, that lie on an axis as they are; all others are names on it."""

_MOST_POINTS: Final = 100_000
_MOST_NAMES: Final = 40


class QueryPlot:
    """Column ``y`` over column ``x``: a line over numbers and times, bars over names."""

    def __init__(self, path: Path, x: str, y: str) -> None:
        self._picture = Picture(path)
        self._x, self._y = x, y

    def save(self, reader: BatchRows) -> None:
        """Draw the rows; ConfigError for columns that there are not, and for more rows than a picture shows."""
        untyped: Any = reader
        missing = [name for name in (self._x, self._y) if name not in untyped.schema.names]
        if missing:
            raise ConfigError(
                f"--plot: the query gives no column {missing[0]}; it gives {', '.join(untyped.schema.names)}"
            )
        check_names(reader)
        from pyarrow import types

        from tieredstore.query import writers

        x, y = (_kind(types, untyped.schema.field(name).type) for name in (self._x, self._y))
        if y == "name":
            raise ConfigError(f"--plot: the column {self._y} is not of numbers")
        at = [untyped.schema.get_field_index(name) for name in (self._x, self._y)]
        places: list[Any] = []
        heights: list[Any] = []
        for cells in writers.cells_of(reader):
            place, height = (cells[index] for index in at)
            places.append(writers.cell_text(place, null="null") if x == "name" and place is not None else place)
            heights.append(height)
            if len(places) > _MOST_POINTS:
                raise ConfigError(f"--plot draws {_MOST_POINTS} rows at most: GROUP BY what they have in common")
        self._draw(places, heights)

    def _draw(self, places: list[Any], heights: list[Any]) -> None:
        pairs = [(x, y) for x, y in zip(places, heights, strict=True) if x is not None and y is not None]
        axes = self._picture.axes()
        if any(isinstance(x, str) for x, _ in pairs):
            if len(pairs) > _MOST_NAMES:
                raise ConfigError(f"--plot shows {_MOST_NAMES} names at most, and there are {len(pairs)}: use LIMIT")
            axes.bar([label(str(x)) for x, _ in pairs], [y for _, y in pairs], color=COLORS[0])
            axes.tick_params(axis="x", labelrotation=30)
        else:
            ordered = sorted(pairs, key=lambda pair: pair[0])
            axes.plot([x for x, _ in ordered], [y for _, y in ordered], color=COLORS[0], marker="o", markersize=3)
        axes.set_xlabel(label(self._x))
        axes.set_ylabel(label(self._y))
        self._picture.save(axes)


def _kind(types: Any, of: Any) -> str:
    return "number" if any(getattr(types, f"is_{kind}")(of) for kind in _MEASURED) else "name"
