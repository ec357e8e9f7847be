"""The types of parsed Avro schemas, and checks of limits before fastavro decodes data of a schema.

fastavro's C decoder recurses for each level of the data, and makes an object for each value without limiting their
number. So data of a recursive schema, or of types that take no bytes, can crash the process.
https://avro.apache.org/docs/1.12.0/specification/#data-serialization-and-deserialization
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NotRequired, TypeAlias, TypedDict, cast

from tieredstore.errors import ConfigError, quote


class AvroField(TypedDict):
    """A field of a record."""

    name: str
    type: AvroType
    default: NotRequired[object]


class AvroObject(TypedDict):
    """A type that is not just a name. Which keys it has depends on ``type``: for example, only a record has
    ``fields``."""

    type: str
    name: NotRequired[str]
    fields: Sequence[AvroField]
    items: AvroType
    values: AvroType
    symbols: Sequence[str]
    size: int
    precision: int
    scale: NotRequired[int]
    logicalType: NotRequired[str]


AvroType: TypeAlias = "str | list[AvroType] | AvroObject"
"""A type as parsed by fastavro: its name, a union, or an object."""

Named: TypeAlias = Mapping[str, AvroObject]
"""Records, enums and fixed types by their full names, as parsed by fastavro."""

MOST_TYPES: Final = 10_000
"""The largest number of types in a schema. If the schema becomes columns, a type counts each time it is used."""

_MAX_DEPTH: Final = 64
"""The deepest nesting of records, arrays and maps."""

_MAX_JSON_DEPTH: Final = 256
_FREE_VALUES: Final = 1_000
_VALUES_OF_BYTE: Final = 8
_MOST_BITS: Final = 64
_BUILT_IN: Final[Mapping[str, int]] = {"boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "null": 0}
"""The smallest number of bytes that a value of each type takes."""

_TEXTS: Final = frozenset({"string", "bytes"})
_RESERVED: Final = frozenset(
    {*_BUILT_IN, *_TEXTS, "fixed", "enum", "record", "error", "array", "map", "union", "request", "error_union"}
)


def named_types(schema: AvroType) -> Named:
    """Return the named types that fastavro has attached to a schema, or to the branches of a union."""
    if isinstance(schema, list):
        return {name: one for branch in schema for name, one in named_types(branch).items()}
    return cast("Named", schema.get("__named_schemas", {})) if isinstance(schema, dict) else {}


def check_nesting(schema: object) -> None:
    """Raise ConfigError for JSON that is nested too deeply for fastavro's recursive parser."""
    level = [schema]
    for _ in range(_MAX_JSON_DEPTH):
        level = [inner for one in level for inner in _json_values(one)]
        if not level:
            return
    raise ConfigError(f"the Avro schema is nested more than {_MAX_JSON_DEPTH} levels deep")


def check_schema(schema: AvroType, named: Named) -> None:
    """Raise ConfigError for a schema that fastavro has accepted, but that is invalid or allows unbounded data."""
    for name in named:
        if name in _RESERVED:
            raise ConfigError(f"the Avro schema defines a type {quote(name)}, which is a built-in type of Avro")
    for number, one in enumerate(_types(schema, named)):
        if number >= MOST_TYPES:
            raise ConfigError(f"the Avro schema has more than {MOST_TYPES} types")
        if isinstance(one, list) and any(isinstance(branch, list) for branch in one):
            raise ConfigError("the Avro schema has a union within a union, which Avro does not allow")
        if not isinstance(one, dict):
            continue
        if one["type"] == "fixed" and not (type(one["size"]) is int and one["size"] >= 0):
            raise ConfigError(f"the Avro schema has a fixed type of the size {quote(one['size'])}")
        if one["type"] == "array" and _takes_no_bytes(one["items"], named):
            # A message of ten bytes could declare 10^15 such items.
            raise ConfigError("the Avro schema has an array of items that take no bytes, so their number has no limit")


def is_bounded(schema: AvroType, named: Named) -> bool:
    """Return True if data of the schema can neither nest too deeply nor have many more values than bytes.

    If the result is False, call :func:`check_data` on each message.
    """
    try:
        _, excess = _Shapes(named).of(schema, 0)
    except _UnboundedError:
        return False
    return excess <= _FREE_VALUES


def check_data(schema: AvroType, named: Named, data: bytes, at: int) -> None:
    """Check the data from byte ``at`` on. Raise ValueError if they are nested too deeply, have too many values, or do
    not match the schema.
    """
    _Walk(named, data, at).value(schema, 0)


def _json_values(content: object) -> Iterable[object]:
    if isinstance(content, dict):
        return cast("dict[str, object]", content).values()
    return cast("list[object]", content) if isinstance(content, list) else ()


def _kind(schema: AvroType) -> str | None:
    """Return the name of a type, built-in or defined; None for a union."""
    return schema if isinstance(schema, str) else None if isinstance(schema, list) else schema["type"]


def _definition(schema: AvroType, named: Named) -> AvroType:
    """If the schema is the name of a type in ``named``, return this type. Return any other schema unchanged."""
    return named.get(schema, schema) if isinstance(schema, str) else schema


def _inner(schema: AvroType) -> Iterator[AvroType]:
    """Yield the types directly inside a type."""
    if isinstance(schema, list):
        yield from schema
    if not isinstance(schema, dict):
        return
    match schema["type"]:
        case "record" | "error":
            yield from (field["type"] for field in schema["fields"])
        case "array":
            yield schema["items"]
        case "map":
            yield schema["values"]
        case _:
            return


def _types(schema: AvroType, named: Named) -> Iterator[AvroType]:
    """Yield all types in a schema and in the named types."""
    waiting: list[AvroType] = [schema, *named.values()]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen or isinstance(one, str):
            seen.add(id(one))
            yield one
            waiting += _inner(one)


def _takes_no_bytes(schema: AvroType, named: Named) -> bool:
    waiting: list[AvroType] = [schema]
    seen: set[int] = set()
    while waiting:
        one = _definition(waiting.pop(), named)
        if id(one) in seen:
            continue
        seen.add(id(one))
        kind = _kind(one)
        if kind in {"record", "error"}:
            waiting += _inner(one)
        elif kind != "null" and not (isinstance(one, dict) and kind == "fixed" and one["size"] == 0):
            return False
    return True


class _UnboundedError(Exception):
    """Raised for a type whose data may nest too deeply, or may have too many values."""


class _Shapes:
    """Computes how deep the data of types can nest, and how many more values than bytes the data can have."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self._known: dict[int, tuple[int, int] | None] = {}
        """Results by the type's ``id()``, because several types may have one name. None stands for a type whose result
        is still being computed."""

    def of(self, schema: AvroType, above: int) -> tuple[int, int]:
        schema = _definition(schema, self._named)
        if not isinstance(schema, dict):
            return self._of_type(schema, above)
        key = id(schema)
        if key not in self._known:
            self._known[key] = None
            self._known[key] = self._of_type(schema, above)
        shape = self._known[key]
        # None: the type's result is still being computed, so the type contains itself and has no bound.
        if shape is None or above + shape[0] > _MAX_DEPTH:
            raise _UnboundedError
        return shape

    def _of_type(self, schema: AvroType, above: int) -> tuple[int, int]:
        if above > _MAX_DEPTH:
            raise _UnboundedError
        if isinstance(schema, str):
            return 0, 1 - _VALUES_OF_BYTE * _BUILT_IN.get(schema, 1)
        if isinstance(schema, list):
            shapes = [self.of(branch, above) for branch in schema]
            return max((depth for depth, _ in shapes), default=0), 1 - _VALUES_OF_BYTE + max(
                (excess for _, excess in shapes), default=0
            )
        match kind := schema["type"]:
            case "record" | "error":
                shapes = [self.of(inner, above + 1) for inner in _inner(schema)]
                return 1 + max((depth for depth, _ in shapes), default=0), 1 + sum(excess for _, excess in shapes)
            case "array" | "map":
                (inner,) = _inner(schema)
                depth, excess = self.of(inner, above + 1)
                if excess + (kind == "map") * (1 - _VALUES_OF_BYTE) > 0:
                    raise _UnboundedError
                return 1 + depth, 1 - _VALUES_OF_BYTE
            case "fixed":
                return 0, 1 - _VALUES_OF_BYTE * schema["size"]
            case _:
                return 0, 1 - _VALUES_OF_BYTE * _BUILT_IN.get(kind, 1)


class _Walk:
    """A check of Avro data that visits values in the decoder's order, without making objects."""

    def __init__(self, named: Named, data: bytes, at: int) -> None:
        self._named, self._data, self._at = named, data, at
        self._values = _FREE_VALUES + _VALUES_OF_BYTE * len(data)

    def value(self, schema: AvroType, depth: int) -> None:
        """Check one value that is nested in ``depth`` records, arrays and maps."""
        schema = _definition(schema, self._named)
        self._values -= 1
        if self._values < 0:
            raise ValueError("it has far more values than bytes")
        if isinstance(schema, str):
            self._skip_built_in(schema)
            return
        if isinstance(schema, list):
            self.value(schema[self._index(len(schema))], depth)
            return
        kind = schema["type"]
        if kind in {"record", "error", "array", "map"} and depth >= _MAX_DEPTH:
            raise ValueError(f"its values are nested more than {_MAX_DEPTH} levels deep")
        match kind:
            case "record" | "error":
                for inner in _inner(schema):
                    self.value(inner, depth + 1)
            case "array" | "map":
                self._items(schema, depth + 1)
            case "enum":
                self._index(len(schema["symbols"]))
            case "fixed":
                self._skip(schema["size"])
            case _:
                self._skip_built_in(kind)

    def _skip_built_in(self, kind: str) -> None:
        match kind:
            case "int" | "long":
                self._number()
            case "string" | "bytes":
                self._skip(self._number())
            case _:
                self._skip(_BUILT_IN[kind])

    def _items(self, schema: AvroObject, depth: int) -> None:
        (inner,) = _inner(schema)
        while count := self._number():
            end = None if count > 0 else self._number() + self._at
            for _ in range(abs(count)):
                if schema["type"] == "map":
                    self.value("string", depth)
                self.value(inner, depth)
            # Check the declared size of a block, because a decoder may use this size to skip the block. If the size
            # is wrong, the decoder continues at another byte than this check.
            if end is not None and self._at != end:
                raise ValueError("a block of items has another size than it declares")

    def _index(self, count: int) -> int:
        index = self._number()
        if not 0 <= index < count:
            raise ValueError("it has a branch or a symbol that the schema lacks")
        return index

    def _skip(self, count: int) -> None:
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError("it ends in the middle of a value")
        self._at += count

    def _number(self) -> int:
        number = shift = 0
        while shift < _MOST_BITS + 6:
            self._skip(1)
            byte = self._data[self._at - 1]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if number >> _MOST_BITS or shift >= _MOST_BITS + 6:
            raise ValueError("a number has too many bits")
        return (number >> 1) ^ -(number & 1)
