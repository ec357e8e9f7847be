"""``tieredstore query``: SQL over topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tieredstore.cli.app.arguments import SettingsPath, StoreUrl
from tieredstore.cli.app.broker_options import BootstrapServer, KafkaConfig, KafkaProperties, client_properties
from tieredstore.cli.app.chosen_bucket import opened
from tieredstore.cli.records.cat import DataLoss, DataLossPolicy, IsolationLevel
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
from tieredstore.cli.records.query_output import ENDINGS, check_name, extra_module, write_rows, write_table
from tieredstore.cli.terminal.query_plot import QueryPlot
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket
    from tieredstore.pubsub.queue.topics import Topics
    from tieredstore.query.writers import BatchRows

_NEEDS: Final = "query"


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
    data_loss: DataLoss = DataLossPolicy.FAIL,
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
    tables: Any = extra_module("tieredstore.duckdb.query_tables", _NEEDS)
    messages = MessageOptions(
        key_type, value_type, schema_json or (), schema_avro or (), schema_registry, schema_registry_config, invalid
    )
    options, types_of = table_options(messages, isolation, data_loss, client, needs=_NEEDS)
    with (
        opened(settings, store) as place,
        place.manager() as manager,
        tables.QueryTables(manager, options, types_of, batches=_batches_in(place), is_sandboxed=sandbox) as asked,
    ):
        rows: BatchRows = asked.run(sql)
        if picture is None:
            write(rows)
        else:
            picture.save(rows)


def _batches_in(place: Bucket) -> Topics | None:
    """The bucket's topics of batches; None for a store in which there can be none."""
    from tieredstore.pubsub.queue.memq_topics import open_topics

    return open_topics(place.store, place.settings) if place.store.conditional_writes else None


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
