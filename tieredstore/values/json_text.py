"""Reads keys and values in JSON as structs of a given schema, or as JSON text.

A schema is written in JSON too: ``{"customer": "string", "amount": "double", "tags": ["string"]}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pydantic_core import from_json

from tieredstore.errors import ConfigError, excerpt, quote
from tieredstore.values.base import WAY_OUT, Column, InvalidValues, OnInvalid, Place, Rejection, by_parts, check_choice

if TYPE_CHECKING:
    from pydantic import JsonValue

_CHANGED: Final = re.compile(r"Column\(/v/?([^)]*)\) changed from (\S+) to (\S+)")
_MOST_FIELDS: Final = 500
"""The maximum number of fields of an inferred schema. Objects with more fields are usually maps, for which a column per
key is of no use.
"""

_JSON: Final = pa.json_()
_NO_FIELDS: Final = pa.array([b"{}"], pa.binary())


@dataclass(frozen=True, slots=True)
class Json:
    """Messages of one JSON value each. With ``schema``, the value must be an object and becomes a struct with these
    fields. Without a schema, any JSON stays text.

    A field that an object lacks is null. A field that the schema lacks is ignored. JSON's ``null`` is null. Without a
    schema, the column has Arrow's JSON type: no schema is inferred, because a stream's columns must be known before its
    records. ``way_out`` is the advice in an error about an invalid message. ``nulls`` counts the fields and values that
    became null.

    With ``on_invalid="null"``, a field whose type differs from the schema becomes null or, with ``null_whole`` too, the
    whole value becomes null. With ``is_closed`` and ``on_invalid="fail"``, a field that the schema lacks is an error
    too.
    """

    schema: pa.Schema | None = None
    on_invalid: OnInvalid = "fail"
    null_whole: bool = field(default=False, kw_only=True)
    is_closed: bool = field(default=False, kw_only=True)
    way_out: str = field(default=WAY_OUT, kw_only=True, repr=False, compare=False)
    nulls: InvalidValues | None = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice(self.on_invalid)
        if self.schema is None:
            return
        if not len(self.schema):
            raise ConfigError("the schema of JSON has no field: name the fields to read")
        try:
            # Parse an empty column of each type now, so that a type that pyarrow cannot read is reported before any
            # message is read.
            _parse(_NO_FIELDS, self.schema)
        except (pa.ArrowException, NotImplementedError):
            raise _without_type(self.schema) from None
        except TypeError:
            raise ConfigError(
                f"the schema of JSON is a {type(self.schema).__name__}; "
                'give a pyarrow schema: pa.schema({"field": pa.int64()})'
            ) from None

    @property
    def arrow_type(self) -> pa.DataType:
        """A struct with the schema's fields; Arrow's JSON type without a schema."""
        return _JSON if self.schema is None else pa.struct(list(self.schema))

    def convert(self, column: Column, place: Place) -> Column:
        """Parse the objects or check the texts; raise InvalidValueError for invalid JSON or a field of another type."""
        if self.schema is None or self.on_invalid == "fail" or self.null_whole:
            return self._by_parts(column, self._parse_column, self.arrow_type, place)
        whole = self._parse_column(column)
        return self._struct(column, list(self.schema), (), place) if whole is None else whole

    def _struct(self, column: Column, fields: Sequence[pa.Field], path: tuple[str, ...], place: Place) -> Column:
        """Return the objects at ``path`` in the messages, as structs. A value that is not an object becomes null, and
        so does a field whose type differs from the schema.
        """
        shells = self._field(column, path, pa.struct([]), place)
        column = pc.if_else(shells.is_valid(), column, pa.scalar(None, pa.binary()))
        arrays = [
            self._struct(column, list(each.type), (*path, each.name), place)
            if pa.types.is_struct(each.type)
            else self._field(column, (*path, each.name), each.type, place)
            for each in fields
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(fields), mask=shells.is_null())

    def _field(self, column: Column, path: tuple[str, ...], kind: pa.DataType, place: Place) -> Column:
        """Return one field of the messages as a column, without checking the other fields."""
        leaf = kind
        for name in reversed(path):
            kind = pa.struct([pa.field(name, kind)])

        def parse_part(part: Column) -> Column | None:
            assert pa.types.is_struct(kind)
            try:
                return pc.struct_field(_parse(part, pa.schema(list(kind))), [0] * len(path))
            except pa.ArrowException:
                return None

        return self._by_parts(column, parse_part, leaf, place)

    def _by_parts(
        self, column: Column, convert: Callable[[Column], Column | None], kind: pa.DataType, place: Place
    ) -> Column:
        invalid = Rejection(self._fault, self.on_invalid, self.way_out, self.nulls)
        return by_parts(column, convert, kind, place, invalid)

    def _parse_column(self, column: Column) -> Column | None:
        try:
            if self.schema is None:
                return _check(column)
            return _parse(column, self.schema, "error" if self._refuses_more else "ignore")
        except (pa.ArrowException, ValueError):
            return None

    @property
    def _refuses_more(self) -> bool:
        return self.is_closed and self.on_invalid == "fail"

    def _fault(self, column: Column) -> str:
        """Describe what is wrong with a message: "does not match the schema: amount: '2.5' is not int64"."""
        if self.schema is None:
            return "is not JSON"
        try:
            value = from_json(column[0].as_py(), allow_inf_nan=False)
            misfit = _find_misfit(value, pa.struct(list(self.schema)), refuses_more=self._refuses_more)
        except (ValueError, RecursionError):
            misfit = None
        return "is not JSON of the schema" if misfit is None else f"does not match the schema: {misfit}"


def infer_schema(messages: Sequence[bytes]) -> pa.Schema:
    """Return the schema of these JSON objects, as pyarrow infers it, but with times and dates as text.

    Raise ConfigError, with the reason, if the messages are not JSON objects, or if a field has two types.
    """
    try:
        objects = _parse(pa.array(messages, pa.binary()), None)
    except pa.ArrowInvalid as error:
        changed = _CHANGED.search(str(error))
        if changed is None:
            raise ConfigError("not all of them are JSON") from None
        path = changed[1].replace("/", ".").removeprefix(".")
        raise ConfigError(
            f"{quote(path) if path else 'a value'} is {changed[2]} in some, {changed[3]} in others"
        ) from None
    if not pa.types.is_struct(objects.type) or not objects.type.num_fields:
        raise ConfigError("they are not objects with fields")
    count = 1

    def plain(kind: pa.DataType) -> pa.DataType:
        nonlocal count
        count += 1
        if count > _MOST_FIELDS:
            raise ConfigError(f"they have more than {_MOST_FIELDS} fields")
        if pa.types.is_list(kind):
            return pa.list_(plain(kind.value_type))
        if pa.types.is_struct(kind):
            if not kind.num_fields:
                raise ConfigError("they have an object without fields")
            return pa.struct([pa.field(each.name, plain(each.type)) for each in kind])
        return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_null(kind) else kind

    return pa.schema([pa.field(each.name, plain(each.type)) for each in objects.type])


def _find_misfit(value: object, kind: pa.DataType, path: str = "", *, refuses_more: bool) -> str | None:
    """Describe the first part of a JSON value that does not match the type. Return None if all parts match.

    ``path`` names the value within its message, as ``customer.name`` or ``tags[2]``.
    """
    parts: Iterable[tuple[str, object, pa.DataType]]
    if value is None:
        return None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        known = cast("dict[str, object]", value)
        start = f"{path}." if path else ""
        parts = ((start + each.name, known.get(each.name), each.type) for each in kind)
        more = next(iter(known.keys() - {each.name for each in kind}), None) if refuses_more else None
        if more is not None:
            return f"it has no field {quote(start + more)}"
    elif pa.types.is_list(kind) and isinstance(value, list):
        items = cast("list[object]", value)
        parts = ((f"{path}[{number}]", item, kind.value_type) for number, item in enumerate(items))
    elif _fits(value, kind):
        return None
    else:
        wanted = "an object" if pa.types.is_struct(kind) else "a list" if pa.types.is_list(kind) else str(kind)
        return f"{path + ': ' if path else ''}{_show(value)} is not {wanted}"
    found = (_find_misfit(part, each, name, refuses_more=refuses_more) for name, part, each in parts)
    return next((misfit for misfit in found if misfit is not None), None)


def _fits(value: object, kind: pa.DataType) -> bool:
    """Return True if pyarrow can read this value as the type."""
    try:
        message = json.dumps({"v": value}).encode()
        _parse(pa.array([message], pa.binary()), pa.schema([("v", kind)]))
    except (pa.ArrowException, ValueError, RecursionError):
        return False
    return True


def _show(value: object) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return quote(value, 40)
        case _:
            return excerpt(json.dumps(value), 40)


def json_values(column: Column) -> list[object]:
    """Parse a column of JSON into Python dictionaries, lists, texts and numbers."""
    return [None if text is None else from_json(text) for text in column.to_pylist()]


def is_json(kind: pa.DataType) -> bool:
    """Return True if ``kind`` is Arrow's JSON type."""
    return kind.equals(_JSON)


def _check(column: Column) -> Column:
    """Return the messages as JSON text; raise ValueError if one of them is invalid."""
    for message in column.to_pylist():
        if message is not None:
            from_json(message, allow_inf_nan=False)
    return pa.ExtensionArray.from_storage(_JSON, column.cast(pa.string()))


def _without_type(schema: pa.Schema) -> ConfigError:
    for column in schema:
        try:
            _parse(_NO_FIELDS, pa.schema([column]))
        except (pa.ArrowException, NotImplementedError):
            return ConfigError(
                f"the schema of JSON has {excerpt(column.name)} as {excerpt(column.type)}, which pyarrow does not read "
                "from JSON: use a string for it"
            )
    return ConfigError("pyarrow cannot read the schema of JSON as a whole: use strings for some of its fields")


_Unknown: TypeAlias = Literal["ignore", "error"]


def _parse(column: pa.Array, schema: pa.Schema | None, unknown: _Unknown = "ignore") -> pa.Array:
    """Parse the rows as structs. Raise ArrowInvalid if a row is neither null nor a JSON object that matches the schema.

    Without a schema, pyarrow infers one. ``unknown`` tells whether a field that the schema lacks is ignored or an
    error. Dates are texts such as ``2026-01-31``, or numbers of days since the epoch.
    """
    try:
        return _parse_as(column, schema, unknown)
    except pa.ArrowInvalid:
        fields = [] if schema is None else [each.with_type(_with_times_for_dates(each.type)) for each in schema]
        if schema is None or fields == list(schema):
            raise
        times = _parse_as(column, pa.schema(fields), unknown)
        dates = times.cast(pa.struct(list(schema)))
        if not dates.cast(times.type).equals(times):
            raise  # a time of day is no date
        return dates


def _with_times_for_dates(kind: pa.DataType) -> pa.DataType:
    """Replace each date in a type by a time, because pyarrow reads times from texts, but dates only from numbers."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_with_times_for_dates(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_times_for_dates(kind.value_type))
    return pa.timestamp("s") if pa.types.is_date(kind) else kind


def _parse_as(column: pa.Array, schema: pa.Schema | None, unknown: _Unknown) -> pa.Array:
    # Wrap each message into an object ``{"v":…}``. An invalid message such as ``{}}{"v":{}`` then makes two objects.
    # The comparison of the number of objects with the number of rows below finds such a message, because every row
    # makes at least one object.
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
            explicit_schema=None if schema is None else pa.schema([("v", pa.struct(list(schema)))]),
            newlines_in_values=True,
            unexpected_field_behavior="infer" if schema is None else unknown,
        ),
    )
    if table.num_rows != len(column):
        raise pa.ArrowInvalid("a message has more than one object")
    return table.column("v").combine_chunks() if table.column("v").num_chunks != 1 else table.column("v").chunk(0)


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
                f"the schema's field {quote(name)} is of the type {quote(kind)}; it must be one of "
                f"{', '.join(_TYPES)}, decimal(precision, scale), a list of one type, or an object"
            )
