"""Keys and values in JSON, into structs of a given schema, or as their text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pydantic_core import from_json

from tieredstore.errors import ConfigError, excerpt
from tieredstore.values.base import WAY_OUT, Column, OnInvalid, Place, by_parts, check_choice

_FIELD: Final = re.compile(r"Column\(/v/([^)]*)\)")
# pyarrow's type stubs know neither the JSON type nor arrays of it.
_arrow: Final[Any] = pa
_JSON: Final[Any] = _arrow.json_()
_NO_FIELDS: Final[Any] = pa.array([b"{}"], pa.binary())


@dataclass(frozen=True, slots=True)
class Json:
    """One JSON value per message: an object as a struct with the fields of ``schema``; without a schema, any JSON as
    text.

    A field that an object lacks is null, a field that the schema lacks is ignored, and JSON's ``null`` is null.
    Without a schema the column always has Arrow's JSON type, because a stream's columns are known before its
    records. ``way_out`` is the advice that an error gives about an invalid message.
    """

    schema: pa.Schema | None = None
    on_invalid: OnInvalid = "fail"
    way_out: str = field(default=WAY_OUT, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice(self.on_invalid)
        if self.schema is None:
            return
        if not len(self.schema):
            raise ConfigError("the schema of JSON has no field: give those that are wanted")
        try:
            # Try one column of each type now, to report a type that pyarrow cannot read.
            _parse(_NO_FIELDS, self.schema)
        except (pa.ArrowException, NotImplementedError):
            raise _without_type(self.schema) from None

    @property
    def arrow_type(self) -> pa.DataType:
        """A struct, or JSON."""
        kind: pa.DataType = _JSON if self.schema is None else pa.struct(list(self.schema))
        return kind

    def convert(self, column: Column, place: Place) -> Column:
        """Parse the objects or check the texts; raise InvalidValueError for invalid JSON or a field of another type."""
        return by_parts(
            column, self._parsed, self.arrow_type, place,
            what="JSON" if self.schema is None else "JSON of the schema", on_invalid=self.on_invalid,
            reason=self._reason, way_out=self.way_out,
        )  # fmt: skip

    def _parsed(self, column: Any) -> Any:
        try:
            return _checked(column) if self.schema is None else _parse(column, self.schema)
        except (pa.ArrowException, ValueError):
            return None

    def _reason(self, column: Any) -> str:
        """Name the invalid field if the schema has it. Show nothing else of the record."""
        if self.schema is None:
            return ""
        try:
            _parse(column, self.schema)
        except pa.ArrowInvalid as error:
            named = _FIELD.search(str(error))
            if named is not None and named[1].partition("/")[0] in self.schema.names:
                return f" (the field {named[1]} is of another type)"
        return ""


def json_values(column: Any) -> list[Any]:
    """Parse a column of JSON into Python dictionaries, lists, texts and numbers."""
    return [None if text is None else from_json(text) for text in column.to_pylist()]


def is_json(kind: pa.DataType) -> bool:
    """Return whether this is Arrow's JSON type."""
    return kind.equals(_JSON)


def _checked(column: Any) -> Any:
    """Return the messages as JSON text; raise ValueError if one of them is invalid."""
    for message in column.to_pylist():
        if message is not None:
            from_json(message, allow_inf_nan=False)
    return _arrow.ExtensionArray.from_storage(_JSON, column.cast(pa.string()))


def _without_type(schema: Any) -> ConfigError:
    for column in schema:
        try:
            _parse(_NO_FIELDS, pa.schema([column]))
        except (pa.ArrowException, NotImplementedError):
            return ConfigError(
                f"the schema of JSON has {excerpt(column.name)} as {excerpt(column.type)}, which pyarrow does not read "
                "from JSON: take a string for it"
            )
    return ConfigError("pyarrow does not read the schema of JSON as a whole: take strings for some of its fields")


def _parse(column: pa.Array, schema: pa.Schema) -> pa.Array:
    """Parse the rows as structs; raise ArrowInvalid unless all are JSON objects of the schema, or null."""
    # Put each message into an object of its own. A message cannot end that object early, because each row must close
    # what it opens. So each row has at least one object, and if there are as many objects as rows, no row has two.
    prefix, suffix = (pa.scalar(text, pa.binary()) for text in (b'{"v":', b"}\n"))
    wrapped = pc.binary_join_element_wise(
        prefix, column, suffix, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b"null"
    )
    data = wrapped.buffers()[2]
    assert data is not None
    table = pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(1, data.size)),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([("v", pa.struct(list(schema)))]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(column):
        raise pa.ArrowInvalid("a message has more than one object")
    return table.column("v").combine_chunks() if table.column("v").num_chunks != 1 else table.column("v").chunk(0)
