"""The error for a pyarrow filter expression that Arrow refuses."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from tieredstore.errors import ConfigError, excerpt

_NO_COLUMN: Final = re.compile(r"No match for FieldRef\.(?:Name\((.*?)\) in|Nested)")


def refused_filter(expression: object, schema: pa.Schema, error: Exception) -> ConfigError:
    """Return a ConfigError in place of ``error``, which Arrow raised for an expression over the columns of
    ``schema``."""
    # Show only the column's name, because the rest of Arrow's message is about its own functions and classes.
    missing = _NO_COLUMN.match(str(error))
    if missing is not None:
        named = "such column" if missing[1] is None else f"column {excerpt(missing[1])}"
        reason = f"there is no {named}, but {', '.join(schema.names)}"
    else:
        types = ", ".join(f"{column.name} {_type_text(column.type)}" for column in schema)
        reason = f"it must be true or false of a record, and compare a column with values of its type: {types}"
    return ConfigError(f"the filter {excerpt(expression)} cannot be applied: {reason}")


def _type_text(kind: pa.DataType) -> str:
    return excerpt(kind.value_type if pa.types.is_dictionary(kind) else kind, 60)
