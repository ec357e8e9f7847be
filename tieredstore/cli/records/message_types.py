"""How records become tables, as several commands are told it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from tieredstore.cli.records.cat import ACCEPT_LOSS, DataLossPolicy, IsolationLevel
from tieredstore.config.properties import read_properties
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.query.topic_columns import ColumnTypes
    from tieredstore.query.topic_table import TableOptions

_WAY_OUT: Final = "read it as binary (--key-type, --value-type), or have such ones be null (--invalid-as-null)"


class MessageType(enum.Enum):
    """What keys or values are read as."""

    TEXT = "text"
    BINARY = "binary"
    AVRO = "avro"


SchemaJson: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--schema-json", metavar="[TOPIC=]FILE", help="Values are JSON of the schema in this file."),
]
SchemaAvro: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--schema-avro", metavar="[TOPIC=]FILE", help="Values are Avro of the schema in this file."),
]
Registry: TypeAlias = Annotated[
    str | None,
    typer.Option("--schema-registry", metavar="URL", help="Where the schemas of Avro's messages are, by their ids."),
]
RegistryConfig: TypeAlias = Annotated[
    Path | None,
    typer.Option("--schema-registry-config", metavar="FILE", help="Properties of the registry: logins, TLS."),
]
KeyType: TypeAlias = Annotated[MessageType, typer.Option("--key-type", help="What keys are read as.")]
ValueType: TypeAlias = Annotated[MessageType, typer.Option("--value-type", help="What values are read as.")]
InvalidAsNull: TypeAlias = Annotated[
    bool, typer.Option("--invalid-as-null", help="Keys and values that are not of their type are null.")
]
Isolation: TypeAlias = Annotated[
    IsolationLevel, typer.Option("--isolation", help="read_uncommitted has aborted and open transactions too.")
]


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """What was said of keys and values, for all topics and for some."""

    key_type: MessageType
    value_type: MessageType
    schema_json: Sequence[str]
    schema_avro: Sequence[str]
    registry: str | None
    registry_config: Path | None
    is_null: bool

    def check_alone(self, topic: str) -> None:
        """ConfigError for a schema of another topic than the one that is read, whose values would stay bytes."""
        for text in (*self.schema_json, *self.schema_avro):
            named = text.rpartition("=")[0]
            if named not in ("", topic):
                raise ConfigError(f"a schema is given for values of {named}, and {topic} is read: name that, or none")


def table_options(
    messages: MessageOptions,
    isolation: IsolationLevel,
    data_loss: DataLossPolicy,
    client: Mapping[str, str] | None,
) -> tuple[TableOptions, Callable[[str], ColumnTypes]]:
    """Say how topics are read, and what the keys and values of each are."""
    from tieredstore.query.topic_table import TableOptions
    from tieredstore.reading.query import QueryWords

    words = QueryWords(accept_loss=ACCEPT_LOSS)
    options = TableOptions(isolation=isolation.value, on_data_loss=data_loss.value, client=client, words=words)
    return options, _TypesOfTopics(messages).of


class _TypesOfTopics:
    """The types of each topic, by the schemas of files and of a registry. Files are read at once."""

    def __init__(self, messages: MessageOptions) -> None:
        self._messages = messages
        self._policy: Literal["fail", "null"] = "null" if messages.is_null else "fail"
        self._registry = _registry(messages)
        self._of_topic: dict[str, Any] = {}
        for text in messages.schema_json:
            self._add(text, self._json)
        for text in messages.schema_avro:
            self._add(text, self._avro)

    def of(self, topic: str) -> ColumnTypes:
        """The ColumnTypes of a topic; the registry is asked where it has to tell the schema."""
        from tieredstore.query.topic_columns import ColumnTypes

        value = self._of_topic.get(topic, self._of_topic.get(""))
        return ColumnTypes(
            self._choose(self._messages.key_type, f"{topic}-key"),
            self._choose(self._messages.value_type, f"{topic}-value") if value is None else value,
        )

    def _add(self, text: str, make: Callable[[str], Any]) -> None:
        topic, _, file = text.rpartition("=")
        if topic in self._of_topic:
            raise ConfigError(f"the values of {topic or 'all topics'} are given two schemas: give one of them")
        self._of_topic[topic] = make(_text_of(Path(file)))

    def _choose(self, chosen: MessageType, subject: str) -> Any:
        from tieredstore import values

        match chosen:
            case MessageType.BINARY:
                return values.Binary()
            case MessageType.TEXT:
                return values.Text(self._policy, way_out=_WAY_OUT)
            case MessageType.AVRO if self._registry is not None:
                return self._avro(self._registry.latest(subject))
            case MessageType.AVRO:
                raise ConfigError(
                    f"which schema of Avro {subject} has is not said: give --schema-registry URL, or for values "
                    "--schema-avro FILE"
                )

    def _json(self, text: str) -> Any:
        from tieredstore.values import Json
        from tieredstore.values.json_schema import parse_json_schema

        return Json(parse_json_schema(text), self._policy, way_out=_WAY_OUT)

    def _avro(self, schema: Any) -> Any:
        from tieredstore.values import Avro

        return Avro(schema, self._registry, self._policy, way_out=_WAY_OUT)


def _registry(messages: MessageOptions) -> Any:
    if messages.registry is None and messages.registry_config is None:
        return None
    properties = {} if messages.registry_config is None else read_properties(messages.registry_config)
    from tieredstore.schema_registry import SchemaRegistry

    return SchemaRegistry(messages.registry, properties)


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None
