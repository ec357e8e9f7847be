"""Custom metadata: bytes that the broker keeps with each segment in Kafka's metadata topic, and gives back to the
plugin.

The bytes are a list of Kafka's "tagged fields". A uvarint is an integer in unsigned LEB128::

    uvarint number of fields
    for each, in ascending order of tags:
        uvarint tag | uvarint size of the value | value

    tag 0  REMOTE_SIZE    int64, zig-zag         bytes of the three objects together
    tag 1  OBJECT_PREFIX  uvarint (length + 1) | UTF-8     the key prefix at the time of the copy
    tag 2  OBJECT_KEY     uvarint (length + 1) | UTF-8     the main path
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from tieredstore.errors import CorruptDataError
from tieredstore.limits import MAX_INT32

_UVARINT_BYTES: Final = 5
_VARLONG_BYTES: Final = 10
_MAX_UINT64: Final = 2**64 - 1


class CustomMetadataField(enum.Enum):
    """The fields, named as in ``custom.metadata.fields.include``. The value is the tag."""

    REMOTE_SIZE = 0
    OBJECT_PREFIX = 1
    OBJECT_KEY = 2


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """The recorded fields; None for a field that is not recorded. ``unknown`` holds ``(tag, value)`` of other tags,
    unchanged.
    """

    remote_size: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None
    unknown: tuple[tuple[int, bytes], ...] = ()

    @classmethod
    def from_bytes(cls, raw: bytes | bytearray | memoryview) -> CustomMetadata:
        """Read the fields, in any order; empty ``raw`` means no fields. Raise CorruptDataError for malformed bytes."""
        values = _read_tagged(FlexibleReader(bytes(raw))) if len(raw) else {}
        # A later version wrote the tags that remain in `values`. They are unknown here, so keep them unchanged.
        size, prefix, key = (values.pop(field.value, None) for field in CustomMetadataField)
        return cls(
            remote_size=None if size is None else _read_varlong(size),
            object_prefix=None if prefix is None else _read_string(prefix),
            object_key=None if key is None else _read_string(key),
            unknown=tuple(sorted(values.items())),
        )

    def to_bytes(self) -> bytes:
        """Return the bytes for the broker. If no field is set, the caller must give the broker no custom metadata
        instead."""
        values = dict(self.unknown)
        if self.remote_size is not None:
            zigzag = (self.remote_size << 1 ^ self.remote_size >> 63) & _MAX_UINT64
            values[CustomMetadataField.REMOTE_SIZE.value] = _uvarint(zigzag)
        if self.object_prefix is not None:
            values[CustomMetadataField.OBJECT_PREFIX.value] = _string(self.object_prefix)
        if self.object_key is not None:
            values[CustomMetadataField.OBJECT_KEY.value] = _string(self.object_key)
        fields = (_uvarint(tag) + _uvarint(len(value)) + value for tag, value in sorted(values.items()))
        return _uvarint(len(values)) + b"".join(fields)

    def only(self, fields: Collection[CustomMetadataField]) -> CustomMetadata:
        """Return these fields alone, without unknown ones."""
        return CustomMetadata(
            self.remote_size if CustomMetadataField.REMOTE_SIZE in fields else None,
            self.object_prefix if CustomMetadataField.OBJECT_PREFIX in fields else None,
            self.object_key if CustomMetadataField.OBJECT_KEY in fields else None,
        )


class FlexibleReader:
    """A reader of Kafka's flexible encoding, from the front. It raises CorruptDataError for malformed bytes; ``what``
    names the bytes in messages."""

    def __init__(self, raw: bytes, what: str = "custom metadata") -> None:
        self._raw = raw
        self._what = what
        self._position = 0

    @property
    def left(self) -> int:
        """Number of bytes that are left."""
        return len(self._raw) - self._position

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        if size > self.left:
            raise CorruptDataError(
                f"{self._what} ends too early: its next field has {size} bytes, but only {self.left} are left"
            )
        self._position += size
        return self._raw[self._position - size : self._position]

    def varint(self, max_bytes: int, maximum: int) -> int:
        """Return a number in unsigned LEB128."""
        value = 0
        for shift in range(0, 7 * max_bytes, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            raise CorruptDataError(f"{self._what} holds a number of more than {max_bytes} bytes")
        # The last byte of a number of full length may have bits beyond the number's type, so check the maximum.
        if value > maximum:
            raise CorruptDataError(f"{self._what} holds the number {value}, above {maximum}")
        return value

    def uvarint(self) -> int:
        """Return a number of at most 31 bits."""
        return self.varint(_UVARINT_BYTES, MAX_INT32)

    def tagged_fields(self) -> dict[int, bytes]:
        """Return the tagged fields."""
        # Refuse only a repeated tag. Kafka writes the tags in ascending order, but their order has no meaning.
        fields: dict[int, bytes] = {}
        for _ in range(self.uvarint()):  # if the count is too large, reading fails at the end of the bytes
            tag = self.uvarint()
            if tag in fields:
                raise CorruptDataError(f"{self._what} has two fields with the tag {tag}")
            fields[tag] = self.take(self.uvarint())
        return fields

    def finish(self) -> None:
        """Require that no bytes are left."""
        if self.left:
            raise CorruptDataError(f"{self._what} has {self.left} bytes after its last field")


def _read_tagged(reader: FlexibleReader) -> dict[int, bytes]:
    values = reader.tagged_fields()
    reader.finish()
    return values


def _read_varlong(value: bytes) -> int:
    reader = FlexibleReader(value)
    # Zig-zag folds the sign into the lowest bit: 0, -1, 1, -2 … become 0, 1, 2, 3 …
    zigzag = reader.varint(_VARLONG_BYTES, _MAX_UINT64)
    reader.finish()
    return zigzag >> 1 ^ -(zigzag & 1)


def _read_string(value: bytes) -> str:
    reader = FlexibleReader(value)
    # Kafka's compact string stores the length plus one, so that 0 means null.
    length = reader.uvarint() - 1
    if length < 0:
        raise CorruptDataError("custom metadata holds null where text is needed")
    text = reader.take(length)
    reader.finish()
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"custom metadata holds text that is not UTF-8: {error.reason}") from error


def _uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8")
    return _uvarint(len(encoded) + 1) + encoded
