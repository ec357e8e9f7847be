"""How records become tables, as several commands are told it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tieredstore.cli.cat import DataLossPolicy, IsolationLevel
from tieredstore.cli.logs import ACCEPT_LOSS
from tieredstore.cli.query_output import extra_module
from tieredstore.errors import ConfigError


class MessageType(enum.Enum):
    """What keys or values are read as."""

    TEXT = "text"
    BINARY = "binary"


SchemaJson: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--schema-json", metavar="[TOPIC=]FILE", help="Values are JSON of the schema in this file."),
]
KeyType: TypeAlias = Annotated[MessageType, typer.Option("--key-type", help="What keys are read as.")]
ValueType: TypeAlias = Annotated[MessageType, typer.Option("--value-type", help="What values are read as.")]
InvalidAsNull: TypeAlias = Annotated[
    bool, typer.Option("--invalid-as-null", help="Keys and values that are not of their type are null.")
]
Isolation: TypeAlias = Annotated[
    IsolationLevel, typer.Option("--isolation", help="read_uncommitted has aborted and open transactions too.")
]


def table_options(
    key_type: MessageType,
    value_type: MessageType,
    schema_json: Sequence[str] | None,
    isolation: IsolationLevel,
    data_loss: DataLossPolicy,
    client: Mapping[str, str] | None,
    *,
    is_null: bool,
    needs: str,
) -> tuple[Any, dict[str, Any]]:
    """How topics are read, and those topics that are read otherwise; ConfigError names the extra ``needs``."""
    table, values, columns = (
        extra_module(f"tieredstore.{name}", needs) for name in ("query.topic_table", "values", "query.topic_columns")
    )
    words = extra_module("tieredstore.partitions.log_query", needs).QueryWords(accept_loss=ACCEPT_LOSS)
    policy = "null" if is_null else "fail"
    key, value = (
        values.Binary() if chosen is MessageType.BINARY else values.Text(policy) for chosen in (key_type, value_type)
    )
    types: dict[str, Any] = {}
    for text in schema_json or ():
        topic, equals, file = text.rpartition("=")
        json_value = values.Json(_schema(Path(file), needs), policy)
        if equals:
            types[topic] = columns.ColumnTypes(key, json_value)
        else:
            value = json_value
    chosen_types = columns.ColumnTypes(key, value)
    return table.TableOptions(chosen_types, isolation.value, data_loss.value, client, words=words), types


def _schema(path: Path, needs: str) -> Any:
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None
    return extra_module("tieredstore.values.json_schema", needs).parse_json_schema(text)
