"""MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md), for keys of Secor's SequenceFiles and for
values that Secor's ``MessagePackParser`` reads. A value is decoded in memory as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | dict[object, Value] | None"

_MAX_DEPTH: Final = 64
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    code: struct.Struct(f">{layout}") for code, layout in enumerate("fdBHIQbhiq", 0xCA)
}
"""Layouts of numbers by their first byte."""
_SIZED: Final[Mapping[int, tuple[str, struct.Struct]]] = {
    code: (kind, struct.Struct(f">{layout}"))
    for kind, first, layouts in (
        ("bytes", 0xC4, "BHI"), ("extension", 0xC7, "BHI"), ("text", 0xD9, "BHI"), ("list", 0xDC, "HI"),
        ("map", 0xDE, "HI"),
    )
    for code, layout in enumerate(layouts, first)
}  # fmt: skip
"""By the first byte: the kind of a value with a size, and the layout of the size."""
_CONSTANTS: Final[Mapping[int, bool | None]] = {0xC0: None, 0xC2: False, 0xC3: True}


def pack_number(number: int) -> bytes:
    """Encode a number from 0 to 2⁶⁴ - 1 in as few bytes as possible."""
    for most, code, layout in ((0x7F, None, "B"), (0xFF, 0xCC, "B"), (0xFFFF, 0xCD, "H"), (0xFFFFFFFF, 0xCE, "I")):
        if number <= most:
            return (b"" if code is None else bytes([code])) + struct.pack(f">{layout}", number)
    return b"\xcf" + struct.pack(">Q", number)


def pack_bytes(data: bytes) -> bytes:
    """Encode bytes, preceded by their length."""
    for most, code, layout in ((0xFF, 0xC4, "B"), (0xFFFF, 0xC5, "H")):
        if len(data) <= most:
            return bytes([code]) + struct.pack(f">{layout}", len(data)) + data
    return b"\xc6" + struct.pack(">I", len(data)) + data


def unpack(data: bytes) -> Value:
    """Decode exactly one value; raise ValueError for anything else."""
    reading = _Reading(data)
    value = reading.value(0)
    if reading.at != len(data):
        raise ValueError("bytes follow the value")
    return value


class _Reading:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        piece = self._data[self.at : self.at + count]
        if len(piece) < count:
            raise ValueError("it ends in the middle of a value")
        self.at += count
        return piece

    def value(self, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise ValueError("its values are nested too deeply")
        code = self.take(1)[0]
        if code <= 0x7F:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            layout = _NUMBERS[code]
            number: int | float = layout.unpack(self.take(layout.size))[0]
            return number
        return self._read_sized(*self._kind(code), depth)

    def _kind(self, code: int) -> tuple[str, int]:
        if code <= 0x8F:
            return "map", code & 0x0F
        if code <= 0x9F:
            return "list", code & 0x0F
        if code <= 0xBF:
            return "text", code & 0x1F
        if 0xD4 <= code <= 0xD8:
            return "extension", 1 << (code - 0xD4)
        if code not in _SIZED:
            raise ValueError("it has a byte that begins no value")
        kind, layout = _SIZED[code]
        return kind, layout.unpack(self.take(layout.size))[0]

    def _read_sized(self, kind: str, size: int, depth: int) -> Value:
        # Before reading the values, reject a count above the number of remaining bytes. Each value takes at least one
        # byte.
        if size > len(self._data) - self.at:
            raise ValueError("it ends in the middle of a value")
        readers: Mapping[str, Callable[[], Value]] = {
            "text": lambda: self.take(size).decode(),
            "bytes": lambda: self.take(size),
            "extension": lambda: self.take(size + 1)[1:],
            "list": lambda: [self.value(depth + 1) for _ in range(size)],
            "map": lambda: {_hashable(self.value(depth + 1)): self.value(depth + 1) for _ in range(size)},
        }
        return readers[kind]()


def _hashable(key: Value) -> object:
    if isinstance(key, list | dict):
        raise ValueError("it has a key that is a list or a map")  # noqa: TRY004  ValueError for all damaged data
    return key
