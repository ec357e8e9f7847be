"""Types of keys and values from ``--key`` and ``--value``, for all topics or for single ones.

Separate from the options, because those do not need pyarrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tieredstore.errors import ConfigError, excerpt

if TYPE_CHECKING:
    from tieredstore.cli.app.options import Values
    from tieredstore.query.topic_columns import ColumnTypes
    from tieredstore.schema_registry import SchemaRegistry
    from tieredstore.values import ValueType

_OF_TOPIC: Final = re.compile(r"([A-Za-z0-9._-]+)=(.*)", re.DOTALL)
_ALL: Final = ""

_Kind: TypeAlias = "Callable[[str], ValueType]"
"""A function that returns the type of a registry's subject."""


def parse_types(
    values: Values, default: Literal["bytes", "text"], *, alone: str | None = None
) -> Callable[[str], ColumnTypes]:
    """Return a function from topics to types. Schema files are read at once, a registry only when a topic is requested.

    ``alone`` is the only topic that will be read. Raise ConfigError for unknown types, and for types of another topic.
    """
    from tieredstore.query.topic_columns import ColumnTypes

    registry = open_registry(values.registry, values.registry_config)
    keys, of_values = (
        _parse_side(option, texts or (), alone, partial(_parse_kind, option, values.invalid, registry), default)
        for option, texts in (("--key", values.key), ("--value", values.value))
    )

    def types_of(topic: str) -> ColumnTypes:
        key, value = (side.get(topic, side[_ALL]) for side in (keys, of_values))
        return ColumnTypes(key(f"{topic}-key"), value(f"{topic}-value"))

    return types_of


def _parse_side(
    option: str, texts: Sequence[str], alone: str | None, parse: Callable[[str], _Kind], default: str
) -> Mapping[str, _Kind]:
    """Return the types of keys or of values, by topic."""
    kinds: dict[str, str] = {}
    for text in texts:
        named = _OF_TOPIC.fullmatch(text)
        topic, kind = (named[1], named[2]) if named else (_ALL, text)
        if topic in kinds:
            raise ConfigError(f"{option} is given twice for {topic or 'all topics'}: give one of them")
        if alone is not None and topic not in (_ALL, alone):
            raise ConfigError(f"{option} is given for {topic}, and {alone} is read: name that, or none")
        kinds[topic] = kind
    return {topic: parse(kind) for topic, kind in ({_ALL: default} | kinds).items()}


def _parse_kind(option: str, invalid: Literal["fail", "null"], registry: SchemaRegistry | None, text: str) -> _Kind:
    from tieredstore.api.reading import kind_of
    from tieredstore.values import Avro, Json

    way_out = f"read it as bytes ({option} bytes), or as null (--invalid null)"
    name, _, file = text.partition(":")
    if file and name == "json":
        from tieredstore.values.json_schema import parse_json_schema

        of_file: Any = Json(parse_json_schema(_read_text(Path(file))), invalid, way_out=way_out)
        return lambda _: of_file
    if file and name == "avro":
        of_schema: Any = Avro(_read_text(Path(file)), registry, invalid, way_out=way_out)
        return lambda _: of_schema
    if text == "avro" and registry is None:
        raise ConfigError(f"no Avro schema is given for {option} avro: write avro:FILE, or give --registry URL")
    kind = kind_of(text, registry, invalid, way_out)
    if kind is None:
        raise ConfigError(
            f"{option} is {excerpt(text)!r}; it must be bytes, text, json, json:FILE, avro:FILE or avro, or of one "
            "topic as orders=text"
        )
    return kind


def open_registry(url: str | None, config: Path | None) -> SchemaRegistry | None:
    """Return the registry of a URL, of a file of properties, or of both; None without either."""
    if url is None and config is None:
        return None
    from tieredstore.config.properties import read_properties
    from tieredstore.schema_registry import SchemaRegistry

    return SchemaRegistry(url, {} if config is None else read_properties(config))


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None
