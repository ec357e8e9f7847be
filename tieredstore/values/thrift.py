"""Reads one field of a Thrift message, such as its time, by its path of field ids. This needs no IDL file.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md and thrift-binary-protocol.md.
Thrift's own libraries only read whole structs by a schema, so this module has its own reader. It limits depth and
sizes, because a message may come from an attacker.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

Protocol: TypeAlias = Literal["binary", "compact"]
Content: TypeAlias = "bool | int | float | bytes"

_BOOL: Final = 2
_BYTE: Final = 3
_DOUBLE: Final = 4
_I16: Final = 6
_I32: Final = 8
_I64: Final = 10
_STRING: Final = 11
_STRUCT: Final = 12
_MAP: Final = 13
_SET: Final = 14
_LIST: Final = 15
_UUID: Final = 16
_OF_COMPACT: Final[Mapping[int, int]] = {
    1: _BOOL, 2: _BOOL, 3: _BYTE, 4: _I16, 5: _I32, 6: _I64, 7: _DOUBLE, 8: _STRING,
    9: _LIST, 10: _SET, 11: _MAP, 12: _STRUCT, 13: _UUID,
}  # fmt: skip
_INTEGERS: Final[Mapping[int, int]] = {_BYTE: 1, _I16: 2, _I32: 4, _I64: 8}
_FIXED: Final[Mapping[int, int]] = {_BOOL: 1, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
_MAX_DEPTH: Final = 64
_LONGEST_VARINT: Final = 10
_LONG_LIST: Final = 15


def thrift_field(message: bytes, path: Sequence[int], protocol: Protocol) -> Content | None:
    """Return the content of the field at ``path``, a sequence of field ids that begins in the outermost struct; None if
    the message has no such field.

    Raise ValueError if the bytes up to the field are not a struct in the protocol, or if the field is not a number, a
    boolean, a text or bytes.
    """
    reading = _Binary(message) if protocol == "binary" else _Compact(message)
    return reading.field(path, 0)


class _Reading(ABC):
    """A Thrift message, and the position of the next byte to parse."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def field(self, path: Sequence[int], depth: int) -> Content | None:
        """Read the field at ``path`` in the struct that begins at the current position; return None if it is absent."""
        last = 0
        while (head := self.head(last)) is not None:
            kind, last = head
            if last != path[0]:
                self.skip(kind, depth)
            elif len(path) == 1:
                return self.content(kind)
            elif kind == _STRUCT:
                return self.field(path[1:], depth + 1)
            else:
                raise ValueError("a field of the path is not a struct")
        return None

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if count < 0 or len(piece) < count:
            raise ValueError("it ends in the middle of a value")
        self._at += count
        return piece

    def skip(self, kind: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise ValueError("its values are nested too deep")
        match kind:
            case 13:
                self._skip_map(depth)
            case 14 | 15:
                self._skip_items(depth)
            case 12:
                last = 0
                while (head := self.head(last)) is not None:
                    self.skip(head[0], depth + 1)
                    last = head[1]
            case _:
                self.content(kind)

    def _skip_map(self, depth: int) -> None:
        key, value, count = self.map_head()
        for _ in range(self._check_count(count)):
            self._skip_item(key, depth)
            self._skip_item(value, depth)

    def _skip_items(self, depth: int) -> None:
        kind, count = self.list_head()
        for _ in range(self._check_count(count)):
            self._skip_item(kind, depth)

    def _skip_item(self, kind: int, depth: int) -> None:
        if kind == _BOOL:
            self.take(1)  # in the compact protocol, only a boolean field has its value in the field's header
        else:
            self.skip(kind, depth + 1)

    def _check_count(self, count: int) -> int:
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError("it declares more items than it has bytes")
        return count

    @abstractmethod
    def head(self, last: int) -> tuple[int, int] | None:
        """Return type and id of the field that follows the id ``last``; None at the struct's end."""

    @abstractmethod
    def content(self, kind: int) -> Content:
        """Read a value of a simple type, which contains no other values."""

    @abstractmethod
    def map_head(self) -> tuple[int, int, int]:
        """Read the head of a map: the types of its keys and values, and the number of its entries."""

    @abstractmethod
    def list_head(self) -> tuple[int, int]:
        """Read the head of a list or set: the type and the number of its items."""


class _Binary(_Reading):
    def head(self, last: int) -> tuple[int, int] | None:  # noqa: ARG002  this protocol stores full ids
        kind = self.take(1)[0]
        return None if kind == 0 else (kind, self._integer(2))

    def content(self, kind: int) -> Content:
        if kind in _INTEGERS:
            return self._integer(_INTEGERS[kind])
        if kind == _STRING:
            return self.take(self._integer(4))
        if kind not in _FIXED:
            raise ValueError("it has an unknown type")
        data = self.take(_FIXED[kind])
        return float(struct.unpack(">d", data)[0]) if kind == _DOUBLE else data != b"\0" if kind == _BOOL else data

    def map_head(self) -> tuple[int, int, int]:
        key, value = self.take(2)
        return key, value, self._integer(4)

    def list_head(self) -> tuple[int, int]:
        return self.take(1)[0], self._integer(4)

    def _integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)


class _Compact(_Reading):
    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._truth = False

    def head(self, last: int) -> tuple[int, int] | None:
        first = self.take(1)[0]
        if first & 0x0F == 0:
            return None
        self._truth = first & 0x0F == 1
        step = first >> 4
        return _compact_kind(first), last + step if step else _decode_zigzag(self._varint())

    def content(self, kind: int) -> Content:
        match kind:
            case 2:
                return self._truth
            case 3:
                return int.from_bytes(self.take(1), "big", signed=True)
            case 6 | 8 | 10:
                return _decode_zigzag(self._varint())
            case 4:
                return float(struct.unpack("<d", self.take(8))[0])
            case 16:
                return self.take(16)
            case _:
                return self.take(self._varint())

    def map_head(self) -> tuple[int, int, int]:
        count = self._varint()
        if not count:
            return _BYTE, _BYTE, 0
        kinds = self.take(1)[0]
        return _compact_kind(kinds >> 4), _compact_kind(kinds), count

    def list_head(self) -> tuple[int, int]:
        first = self.take(1)[0]
        count = first >> 4
        kind = _compact_kind(first)
        return kind, self._varint() if count == _LONG_LIST else count

    def _varint(self) -> int:
        number = 0
        for place in range(_LONGEST_VARINT):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return number
        raise ValueError("a number has too many bytes")


def _compact_kind(code: int) -> int:
    kind = _OF_COMPACT.get(code & 0x0F)
    if kind is None:
        raise ValueError("it has an unknown type")
    return kind


def _decode_zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)
