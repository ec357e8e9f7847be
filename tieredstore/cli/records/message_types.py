"""How records become tables, as several commands are told it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from tieredstore.cli.records.cat import DataLossPolicy, IsolationLevel
from tieredstore.cli.records.logs import ACCEPT_LOSS
from tieredstore.cli.records.query_output import extra_module
from tieredstore.config.properties import read_properties
from tieredstore.errors import ConfigError

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
    *,
    needs: str,
) -> tuple[Any, Callable[[str], Any]]:
    """How topics are read, and what the keys and values of each are; ConfigError names the extra ``needs``."""
    table = extra_module("tieredstore.query.topic_table", needs)
    words = extra_module("tieredstore.reading.query", needs).QueryWords(accept_loss=ACCEPT_LOSS)
    types = _TypesOfTopics(messages, needs)
    options = table.TableOptions(
        isolation=isolation.value, on_data_loss=data_loss.value, client=client, words=words
    )  # fmt: skip
    return options, types.of


class _TypesOfTopics:
    """The types of each topic, by the schemas of files and of a registry. Files are read at once."""

    def __init__(self, messages: MessageOptions, needs: str) -> None:
        self._messages = messages
        self._needs = needs
        self._values = extra_module("tieredstore.values", needs)
        self._policy = "null" if messages.is_null else "fail"
        self._registry = _registry(messages)
        self._of_topic: dict[str, Any] = {}
        for text in messages.schema_json:
            self._add(text, self._json)
        for text in messages.schema_avro:
            self._add(text, self._avro)

    def of(self, topic: str) -> Any:
        """The ColumnTypes of a topic; the registry is asked where it has to tell the schema."""
        value = self._of_topic.get(topic, self._of_topic.get(""))
        return extra_module("tieredstore.query.topic_columns", self._needs).ColumnTypes(
            self._chosen(self._messages.key_type, f"{topic}-key"),
            self._chosen(self._messages.value_type, f"{topic}-value") if value is None else value,
        )

    def _add(self, text: str, make: Callable[[str], Any]) -> None:
        topic, _, file = text.rpartition("=")
        if topic in self._of_topic:
            raise ConfigError(f"the values of {topic or 'all topics'} are given two schemas: give one of them")
        self._of_topic[topic] = make(_text_of(Path(file)))

    def _chosen(self, chosen: MessageType, subject: str) -> Any:
        match chosen:
            case MessageType.BINARY:
                return self._values.Binary()
            case MessageType.TEXT:
                return self._values.Text(self._policy, way_out=_WAY_OUT)
            case MessageType.AVRO if self._registry is not None:
                return self._avro(self._registry.latest(subject))
            case MessageType.AVRO:
                raise ConfigError(
                    f"which schema of Avro {subject} has is not said: give --schema-registry URL, or for values "
                    "--schema-avro FILE"
                )

    def _json(self, text: str) -> Any:
        schema = extra_module("tieredstore.values.json_schema", self._needs).parse_json_schema(text)
        return self._values.Json(schema, self._policy, way_out=_WAY_OUT)

    def _avro(self, schema: Any) -> Any:
        return self._values.Avro(schema, self._registry, self._policy, way_out=_WAY_OUT)


def _registry(messages: MessageOptions) -> Any:
    if messages.registry is None and messages.registry_config is None:
        return None
    properties = {} if messages.registry_config is None else read_properties(messages.registry_config)
    return extra_module("tieredstore.schema_registry", "avro").SchemaRegistry(messages.registry, properties)


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None
