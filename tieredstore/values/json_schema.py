"""A schema of JSON messages, written in JSON: ``{"customer": "string", "amount": "double", "tags": ["string"]}``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.errors import ConfigError, quoted

if TYPE_CHECKING:
    from pydantic import JsonValue

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "int32": pa.int32(),
    "long": pa.int64(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_MAX_DEPTH: Final = 32


def parse_json_schema(text: str) -> pa.Schema:
    """Parse a schema, which is an object of names and types.

    A type is a name (``string``, ``bool``, ``int32``, ``int64``, ``float32``, ``float64``, ``date``, ``timestamp``,
    ``decimal(precision, scale)``), a list of one type, or an object of names and types. Raise ConfigError for anything
    else.
    """
    try:
        schema: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ConfigError('the schema is not an object of names and types, as {"customer": "string"}')
    return pa.schema(_fields(schema, 0))


def format_json_schema(schema: pa.Schema) -> str:
    """Return an inferred schema as text for :func:`parse_json_schema`."""
    return json.dumps(_names_of(schema))


def _names_of(fields: Iterable[pa.Field]) -> dict[str, object]:
    return {each.name: _name_of(each.type) for each in fields}


def _name_of(kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        return _names_of(kind)
    return [_name_of(kind.value_type)] if pa.types.is_list(kind) else str(kind)


def _fields(schema: Mapping[str, JsonValue], depth: int) -> list[pa.Field]:
    return [pa.field(name, _type(kind, name, depth)) for name, kind in schema.items()]


def _type(kind: JsonValue, name: str, depth: int) -> pa.DataType:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"the schema is nested more than {_MAX_DEPTH} levels deep")
    match kind:
        case str() if kind in _TYPES:
            return _TYPES[kind]
        case str() if (decimal := _DECIMAL.fullmatch(kind)) and 0 < int(decimal[1]) <= 38 and int(decimal[2]) <= 38:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        case [element]:
            return pa.list_(_type(element, name, depth + 1))
        case dict() if kind:
            return pa.struct(_fields(kind, depth + 1))
        case _:
            raise ConfigError(
                f"the schema's field {quoted(name)} is of the type {quoted(kind)}; it must be one of "
                f"{', '.join(_TYPES)}, decimal(precision, scale), a list of one type, or an object"
            )
