"""Decodes keys and values in Avro into structs, by a given schema or by the schemas of a registry, and returns the Avro
schema of Arrow columns.

fastavro (https://fastavro.readthedocs.io) decodes the messages one by one. In Confluent's framing, a zero byte and the
schema's id precede the datum. The id has four bytes, big-endian.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final, TypeAlias, cast

import pyarrow as pa

from tieredstore.errors import ConfigError, SchemaNotFoundError, TieredStoreError, excerpt, quote
from tieredstore.installation import Extra
from tieredstore.values.avro_bounds import (
    MOST_TYPES,
    AvroObject,
    AvroType,
    Named,
    check_data,
    check_nesting,
    check_schema,
    is_bounded,
    named_types,
)
from tieredstore.values.base import WAY_OUT, Column, InvalidValues, OnInvalid, Place, Rejection, by_parts, check_choice


@dataclass(frozen=True, slots=True)
class ReferringSchema:
    """A schema (JSON text) that refers to named types of other schemas, together with those schemas.

    In ``references``, each schema comes after the schemas that it refers to.
    """

    text: str
    references: tuple[str, ...]


AvroSchema: TypeAlias = "Mapping[str, object] | Sequence[object] | str | ReferringSchema"
"""A schema, as JSON text or as the parsed object: https://avro.apache.org/docs/1.12.0/specification/."""

SchemaLookup: TypeAlias = Callable[[int], AvroSchema]
"""Function that returns the schema with a given id, as a registry does.

If the function raises SchemaNotFoundError or LookupError, the message is invalid. Other errors of tieredstore end the
read.
"""

_FRAME: Final = 5
_KEPT: Final = 1_000
_NESTED: Final = frozenset({"type", "fields", "items", "values"})
_MAX_DEPTH: Final = 64

PRIMITIVE: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A schema as fastavro parsed it. The flag is True if its data need no check before they are decoded."""

    schema: AvroType
    named: Named
    is_bounded: bool


@dataclass(frozen=True, slots=True)
class AvroData:
    """Decodes Avro messages one by one to Python objects, including types that Arrow columns do not have. Picklable.

    Without ``lookup``, ``schema`` decodes the messages. With ``lookup``, a message begins with a schema id, and the
    schema that ``lookup`` returns for this id decodes the message. If both are given, the result is converted to
    ``schema``.
    """

    schema: AvroSchema | None
    lookup: SchemaLookup | None = None
    _own: _Parsed | None = field(init=False, repr=False, compare=False, default=None)
    _of_id: dict[int, _Parsed] = field(init=False, repr=False, compare=False, default_factory=dict[int, _Parsed])

    def __post_init__(self) -> None:
        if self.schema is not None:
            object.__setattr__(self, "_own", _parse(self.schema))
        elif self.lookup is None:
            raise ConfigError("Avro data need a schema, or a registry with their schemas")

    @property
    def parsed(self) -> AvroType | None:
        """The schema as parsed by fastavro; None if only a registry is given."""
        return None if self._own is None else self._own.schema

    def datum(self, message: bytes) -> object:
        """Decode a message. Raise ValueError if it is not Avro, or its schema is absent or unreadable. Raise other
        errors of the registry unchanged.
        """
        if self.lookup is None:
            assert self._own is not None
            writer, start = self._own, 0
        elif is_framed(message):
            writer, start = self._writer_of(message), _FRAME
        else:
            raise ValueError("it does not begin with the id of a schema")
        if not writer.is_bounded:
            check_data(writer.schema, writer.named, message, start)
        stream = io.BytesIO(message)
        stream.seek(start)
        try:
            datum = _fastavro().schemaless_reader(stream, writer.schema, None if self.lookup is None else self.parsed)
        except Exception:  # noqa: BLE001  for invalid bytes fastavro can raise any error
            raise ValueError("the bytes do not match the schema") from None
        if stream.read(1):
            raise ValueError("bytes follow the datum")
        return datum

    def _writer_of(self, message: bytes) -> _Parsed:
        try:
            return self.writer(schema_id(message))
        except (SchemaNotFoundError, LookupError):
            raise ValueError("there is no such schema") from None
        except ConfigError as error:
            raise ValueError(f"its schema cannot be read: {error}") from None

    def writer(self, number: int) -> _Parsed:
        """Return the schema with this id. Raise SchemaNotFoundError or LookupError if it does not exist, ConfigError if
        it is invalid.
        """
        known = self._of_id.get(number)
        if known is None:
            assert self.lookup is not None
            known = _parse(self.lookup(number))
            if len(self._of_id) >= _KEPT:
                self._of_id.clear()
            self._of_id[number] = known
        return known


@dataclass(frozen=True, slots=True)
class Avro:
    """Avro messages, read as the Arrow type of ``schema``: a record becomes a struct.

    Without ``lookup``, a message is just a datum, written with ``schema``. With ``lookup``, a message has Confluent's
    framing, which contains the id of the schema that decodes the message. Avro's schema resolution then converts the
    result to ``schema``. ``way_out`` is the advice in an error about an invalid message. ``nulls`` counts the messages
    that became null. Needs ``tieredstore[avro]``.
    """

    schema: AvroSchema
    lookup: SchemaLookup | None = None
    on_invalid: OnInvalid = "fail"
    way_out: str = field(default=WAY_OUT, kw_only=True, repr=False, compare=False)
    nulls: InvalidValues | None = field(default=None, kw_only=True, repr=False, compare=False)
    _data: AvroData = field(init=False, repr=False, compare=False)
    _type: pa.DataType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice(self.on_invalid)
        data = AvroData(self.schema, self.lookup)
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_type", arrow_type_of(data.parsed))

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the schema by :func:`arrow_type_of`."""
        return self._type

    def convert(self, column: Column, place: Place) -> Column:
        """Decode the column; raise InvalidValueError for a value that does not match the schema."""
        invalid = Rejection(
            lambda row: f"is not Avro of the schema{self._reason(row)}", self.on_invalid, self.way_out, self.nulls
        )
        return by_parts(column, self._read, self._type, place, invalid)

    def _read(self, column: Column) -> Column | None:
        try:
            data = [None if message is None else self._data.datum(message) for message in column.to_pylist()]
            return pa.array(data, self._type)
        except TieredStoreError:
            raise
        except Exception:  # noqa: BLE001  the decoded values may not fit the column's type
            return None

    def _reason(self, column: Column) -> str:
        """Return the end of an error's text: the schema id of the column's first message, and why the message is
        invalid."""
        message: bytes = column[0].as_py()
        if self.lookup is None:
            return ""
        if not is_framed(message):
            return " (it does not begin with the id of a schema)"
        number = schema_id(message)
        try:
            self._data.writer(number)
        except (SchemaNotFoundError, LookupError):
            return f" (the registry has no schema {number})"
        except ConfigError as error:
            return f" (its schema is {number}: {error})"
        return f" (its schema is {number})"


def is_framed(message: bytes) -> bool:
    """Return True if a message begins as Confluent's serializers begin it."""
    return message[:1] == b"\0" and len(message) >= _FRAME


def schema_id(message: bytes) -> int:
    """Return the schema id of a message in Confluent's framing."""
    return int.from_bytes(message[1:_FRAME], "big")


def parse_schema(schema: AvroSchema) -> AvroType:
    """Parse a schema with fastavro. The schema is an object or JSON text. Raise ConfigError if it is invalid."""
    return _parse(schema).schema


def check_bounded(schema: AvroSchema) -> None:
    """Raise ConfigError if data of the schema may nest too deeply, or may have many more values than bytes. Such data
    must be checked before they are decoded."""
    if not _parse(schema).is_bounded:
        raise ConfigError("the Avro schema has a type within itself, or too many types that take no bytes")


def _parse(schema: AvroSchema) -> _Parsed:
    named: dict[str, AvroObject] = {}
    texts = (*schema.references, schema.text) if isinstance(schema, ReferringSchema) else (schema,)
    try:
        parsed: AvroType = [_fastavro().parse_schema(_plain(_json_of(text)), named) for text in texts][-1]
        check_schema(parsed, named)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  for invalid schemas fastavro can raise any error
        raise ConfigError(f"this is not an Avro schema: {excerpt(error)}") from None
    return _Parsed(parsed, named, is_bounded(parsed, named))


def _json_of(schema: AvroSchema) -> object:
    if isinstance(schema, str) and schema not in PRIMITIVE:
        try:
            schema = json.loads(schema, object_hook=_without_marks)
        except RecursionError:
            raise ConfigError("the Avro schema is nested too deeply") from None
    check_nesting(schema)
    return schema


def _without_marks(schema: dict[str, object]) -> dict[str, object]:
    """Return an object without fastavro's own fields, because a schema with these marks would be taken as already
    checked."""
    return {name: value for name, value in schema.items() if not name.startswith("__")}


def _plain(schema: object) -> object:
    """Replace logical types that have no column type, such as uuid, by their base types."""
    match schema:
        case list():
            return [_plain(branch) for branch in cast("Sequence[object]", schema)]
        case dict():
            return _plain_object(cast("dict[str, object]", schema))
        case _:
            return schema


def _plain_object(schema: dict[str, object]) -> dict[str, object]:
    kind, logical = schema.get("type"), schema.get("logicalType")
    is_known = logical == "decimal" or (isinstance(kind, str) and (kind, logical) in LOGICAL)
    return {
        name: _plain(value) if name in _NESTED else value
        for name, value in schema.items()
        if name != "logicalType" or is_known
    }


def arrow_type_of(schema: object) -> pa.DataType:
    """Return the Arrow type of a schema. Records become structs, enums become text, and a union of null and one type
    becomes that type.

    Raise ConfigError for a union of several types and for a recursive type, because Arrow has no columns for them. Also
    raise ConfigError for a schema of too many types, where a type counts each time it is used.
    """
    known = cast("AvroType", schema)
    try:
        return _TypeOf(dict(named_types(known))).of(known, 0)
    except ConfigError:
        raise
    except (LookupError, ValueError, TypeError, ArithmeticError) as error:
        # Arrow has no type for some schemas, for example a decimal of 1,000 digits or a fixed type of 2^40 bytes.
        raise ConfigError(f"the Avro schema has a type that Arrow columns do not support: {excerpt(error)}") from None


class _TypeOf:
    def __init__(self, named: dict[str, AvroObject]) -> None:
        self._named = named
        self._types = 0

    def of(self, schema: AvroType, depth: int) -> pa.DataType:
        self._types += 1
        if self._types > MOST_TYPES:
            raise ConfigError(f"the Avro schema has more than {MOST_TYPES} types (a type counts each time it is used)")
        if depth > _MAX_DEPTH:
            raise ConfigError("the Avro schema has a type within itself, which Arrow columns do not support")
        if isinstance(schema, list):
            return self._of_union(schema, depth)
        if isinstance(schema, str):
            return PRIMITIVE[schema] if schema in PRIMITIVE else self.of(self._named[schema], depth + 1)
        if "name" in schema:
            self._named[schema["name"]] = schema
        return self._of_object(schema["type"], schema, depth)

    def _of_object(self, kind: str, schema: AvroObject, depth: int) -> pa.DataType:
        match kind:
            case "record" | "error":
                fields = [pa.field(one["name"], self.of(one["type"], depth + 1)) for one in schema["fields"]]
                return pa.struct(fields)
            case "array":
                return pa.list_(self.of(schema["items"], depth + 1))
            case "map":
                return pa.map_(pa.string(), self.of(schema["values"], depth + 1))
            case "enum":
                return pa.string()
            case "fixed" | "bytes" if schema.get("logicalType") == "decimal":
                return pa.decimal128(schema["precision"], schema.get("scale", 0))
            case "fixed":
                return pa.binary(schema["size"])
            case _:
                return LOGICAL.get((kind, schema.get("logicalType", ""))) or self.of(kind, depth + 1)

    def _of_union(self, branches: Sequence[AvroType], depth: int) -> pa.DataType:
        others = [branch for branch in branches if branch != "null"]
        if len(others) > 1:
            raise ConfigError("the Avro schema has a union of several types, which Arrow columns do not support")
        return self.of(others[0], depth + 1) if others else pa.null()


def _fastavro() -> ModuleType:
    with Extra("reading Avro", "avro"):
        return importlib.import_module("fastavro")


_Type: TypeAlias = "str | dict[str, object]"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[Mapping[str, _Type]] = {
    "int8": "int",
    "int16": "int",
    **{str(kind): name for name, kind in PRIMITIVE.items()},
    **{str(kind): {"type": base, "logicalType": logical} for (base, logical), kind in LOGICAL.items()},
}


def avro_schema_of(schema: pa.Schema) -> _Type:
    """Return an Avro record schema with a nullable field for each column. Raise ConfigError for a name or type that
    Avro does not have."""
    return {"type": "record", "name": "Row", "namespace": "tieredstore", "fields": _fields(schema, "Row")}


def _fields(fields: Iterable[pa.Field], within: str) -> list[_Type]:
    described: list[_Type] = []
    for one in fields:
        if not _NAME.fullmatch(one.name):
            raise ConfigError(
                f"the column {quote(one.name)} cannot be written as Avro, which allows "
                "only letters, digits and _ in names"
            )
        kind = _type(one.type, f"{within}_{one.name}")
        described.append({"name": one.name, "type": ["null", kind] if kind != "null" else "null", "default": None})
    return described


def _type(kind: pa.DataType, name: str) -> _Type:
    if str(kind) in _PLAIN:
        return _PLAIN[str(kind)]
    if pa.types.is_struct(kind):
        return {"type": "record", "name": name, "fields": _fields(kind, name)}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _type(kind.item_type, name)]}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, name)]}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": name, "size": kind.byte_width}
    raise ConfigError(f"a column of {kind} cannot be written as Avro")
