"""The Avro schema of Arrow columns: the inverse of :func:`tieredstore.values.arrow_type_of`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import pyarrow as pa

from tieredstore.errors import ConfigError, quoted
from tieredstore.values.avro import LOGICAL, PRIMITIVE

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
                f"the column {quoted(one.name)} cannot be written as Avro, which allows "
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
