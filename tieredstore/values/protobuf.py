"""Decodes Protocol Buffers messages by a descriptor set, as ``protoc --descriptor_set_out --include_imports`` writes
it.

Google's library (https://googleapis.dev/python/protobuf/latest/) parses the messages. Needs ``tieredstore[protobuf]``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tieredstore.errors import ConfigError, excerpt, quote
from tieredstore.installation import Extra
from tieredstore.values.base import Column, OnInvalid, Place, Rejection, by_parts

_MAX_DEPTH: Final = 32
_MOST_TYPES: Final = 10_000
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_MOST_SECONDS: Final = 253_402_300_800
"""The beginning of the year 10000, in seconds since 1970. Protocol Buffers define that a Timestamp is before this."""

_LEAST_SECONDS: Final = -62_135_596_800
_LABELS: Final[Mapping[int, pa.DataType]] = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.decimal128(20, 0),  # Spark and ORC have no unsigned numbers; every uint64 fits into this type
    5: pa.int32(),
    6: pa.decimal128(20, 0),
    7: pa.int64(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.int64(),
    14: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
"""Arrow types by the number of a field's type in ``descriptor.proto``."""

_ENUM: Final = 14
_UINT64: Final = (4, 6)


@dataclass(frozen=True, slots=True)
class Protobuf:
    """One message of Protocol Buffers, as a struct of its fields. Picklable.

    Repeated fields are lists and maps. An enum value becomes its name, or its number as text if it has no name. A
    ``google.protobuf.Timestamp`` becomes a timestamp in µs. A uint64 becomes a decimal. An unset field is null if its
    presence is tracked, otherwise its default. Raise ConfigError for a message type that is recursive or not in the
    descriptor set.
    """

    descriptor_set: bytes
    message: str
    on_invalid: OnInvalid = "fail"

    def __post_init__(self) -> None:
        message_class(self.descriptor_set, self.message)

    @property
    def arrow_type(self) -> pa.DataType:
        """A struct."""
        return _columns(self.descriptor_set, self.message)[0]

    def convert(self, column: Column, place: Place) -> Column:
        """Decode the messages; raise InvalidValueError for invalid ones."""
        invalid = Rejection(lambda _: f"is not a {self.message} of Protocol Buffers", self.on_invalid)
        return by_parts(column, self._read, self.arrow_type, place, invalid)

    def _read(self, column: Column) -> Column | None:
        kind, convert = _columns(self.descriptor_set, self.message)
        try:
            rows = [None if data is None else convert(self.parse(data)) for data in column.to_pylist()]
            return pa.array(rows, kind)
        except ConfigError:
            raise
        except (ValueError, pa.ArrowException):
            return None

    def parse(self, data: bytes) -> Any:
        """Parse a message with Google's library; raise ValueError for invalid bytes."""
        message = message_class(self.descriptor_set, self.message)()
        try:
            message.ParseFromString(data)
        except importlib.import_module("google.protobuf.message").DecodeError:
            raise ValueError("the bytes are not a message") from None
        return message

    def field_path(self, names: Sequence[str]) -> tuple[str, ...]:
        """Check and return the names that lead to a field; raise ConfigError if the field is unknown or repeated."""
        descriptor = message_class(self.descriptor_set, self.message).DESCRIPTOR
        for name in names:
            field = None if descriptor is None else descriptor.fields_by_name.get(name)
            if field is None:
                raise ConfigError(f"{self.message} has no field {quote('.'.join(names))}")
            if field.is_repeated:
                raise ConfigError(f"the field {quote('.'.join(names))} of {self.message} is repeated")
            descriptor = field.message_type
        return tuple(names)

    def first_number(self) -> tuple[str, ...]:
        """Return the names that lead to the first uint64 field; raise ConfigError if there is none."""
        for field in message_class(self.descriptor_set, self.message).DESCRIPTOR.fields:
            if field.type in _UINT64 and not field.is_repeated:
                return (field.name,)
        raise ConfigError(f"{self.message} has no uint64 field")


def timestamp_ms(message: Any) -> int | None:
    """Return the time of a ``google.protobuf.Timestamp`` in ms since the epoch; None for any other value."""
    descriptor = getattr(message, "DESCRIPTOR", None)
    if descriptor is None or descriptor.full_name != _TIMESTAMP:
        return None
    milliseconds: int = message.seconds * 1000 + message.nanos // 1_000_000
    return milliseconds


@functools.lru_cache(maxsize=64)
def message_class(descriptor_set: bytes, name: str) -> Any:
    """Return the Python class of a message; raise ConfigError if the descriptor set is invalid or lacks the message."""
    with Extra("reading messages of Protocol Buffers", "protobuf"):
        descriptors, pools, factory = (
            importlib.import_module(f"google.protobuf.{module}")
            for module in ("descriptor_pb2", "descriptor_pool", "message_factory")
        )
    try:
        files = descriptors.FileDescriptorSet.FromString(descriptor_set).file
        pool = pools.DescriptorPool()
        for file in files:
            pool.Add(file)
        return factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        raise ConfigError(f"the descriptor set lacks the message {quote(name)}, or a type that it uses") from None
    except Exception as error:  # noqa: BLE001  the library's C code can raise any error
        raise ConfigError(f"this is not a Protocol Buffers descriptor set: {excerpt(error)}") from None


_Convert = Callable[[Any], Any]


@functools.lru_cache(maxsize=64)
def _columns(descriptor_set: bytes, name: str) -> tuple[pa.DataType, _Convert]:
    return _Columns().of_message(message_class(descriptor_set, name).DESCRIPTOR, 0)


class _Columns:
    """Makes the Arrow types of messages, and limits their number: twenty message types that each use the next one twice
    would become a million types.
    """

    def __init__(self) -> None:
        self._types = 0

    def of_message(self, descriptor: Any, depth: int) -> tuple[pa.DataType, _Convert]:
        """Return the Arrow type of a message, and the function that converts a message to a row."""
        if depth > _MAX_DEPTH:
            raise ConfigError(f"{descriptor.full_name} contains itself, which Arrow columns do not support")
        if descriptor.full_name == _TIMESTAMP:
            return pa.timestamp("us", "UTC"), _microseconds
        if not descriptor.fields:
            raise ConfigError(f"{descriptor.full_name} has no fields, but a struct column needs at least one")
        self._types += len(descriptor.fields)
        if self._types > _MOST_TYPES:
            raise ConfigError(
                f"the message and the messages inside it have more than {_MOST_TYPES} fields (a message counts each "
                "time it is used)"
            )
        fields = [(field, *self._of_field(field, depth)) for field in descriptor.fields]

        def row(message: Any) -> dict[str, Any]:
            return {
                field.name: None
                if field.has_presence and not message.HasField(field.name)
                else convert(getattr(message, field.name))
                for field, _, convert in fields
            }

        return pa.struct([pa.field(field.name, kind) for field, kind, _ in fields]), row

    def _of_field(self, field: Any, depth: int) -> tuple[pa.DataType, _Convert]:
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            key, _ = self._of_single(message.fields_by_name["key"], depth + 1)
            value, of_value = self._of_single(message.fields_by_name["value"], depth + 1)
            return pa.map_(key, value), lambda pairs: [(name, of_value(pairs[name])) for name in sorted(pairs)]
        kind, convert = self._of_single(field, depth + 1)
        if field.is_repeated:
            return pa.list_(kind), lambda items: [convert(item) for item in items]
        return kind, convert

    def _of_single(self, field: Any, depth: int) -> tuple[pa.DataType, _Convert]:
        if field.message_type is not None:
            return self.of_message(field.message_type, depth)
        if field.type == _ENUM:
            names = {value.number: value.name for value in reversed(field.enum_type.values)}
            return pa.string(), lambda number: names.get(number, str(number))
        return _LABELS[field.type], lambda content: content


def _microseconds(message: Any) -> int:
    if not (_LEAST_SECONDS <= message.seconds < _MOST_SECONDS and 0 <= message.nanos < 10**9):
        raise ValueError("it has an invalid time")
    return int(message.seconds * 1_000_000 + message.nanos // 1000)
