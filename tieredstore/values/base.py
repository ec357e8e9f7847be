"""The interface of the types of keys and values, and its simplest types: bytes and text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import pyarrow as pa

from tieredstore.errors import ConfigError, InvalidValueError

Column: TypeAlias = pa.Array

OnInvalid: TypeAlias = Literal["fail", "null"]
"""The policy for bytes that do not match their type: raise an error that names the record, or read the bytes as
null."""

WAY_OUT: Final = "read it as binary, or read invalid values as null (on_invalid)"
"""Advice in errors about bytes that do not match their type, in the words of the Python API. The command line uses
other words.
"""

Place: TypeAlias = Callable[[int], str]
"""A function from a row's number to words for its key or value: ``the value at offset 7 of orders-0``."""


@runtime_checkable
class ValueType(Protocol):
    """Converts a column of bytes to another type. Frozen, picklable, safe from several threads."""

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column."""
        ...

    def convert(self, column: Column, place: Place) -> Column:
        """Convert each row to ``arrow_type``; null stays null. Raise InvalidValueError for an invalid row, named by
        ``place``.
        """
        ...


class Binary:
    """The bytes, unchanged."""

    @property
    def arrow_type(self) -> pa.DataType:
        """Binary."""
        return pa.binary()

    def convert(self, column: Column, place: Place) -> Column:  # noqa: ARG002  all bytes are valid
        """Return the column itself."""
        return column

    def __repr__(self) -> str:
        return "Binary()"


@dataclass(slots=True)
class InvalidValues:
    """A counter of keys, values and fields that were read as null because they do not match their type. Thread-safe."""

    count: int = 0
    first: str = ""
    """The sentence about the first invalid key, value or field, with its record and the reason."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def note(self, sentence: Callable[[], str]) -> None:
        """Count one invalid key, value or field. For the first, keep the text that ``sentence`` returns."""
        with self._lock:
            self.count += 1
            if self.count == 1:
                self.first = sentence()


def check_choice(on_invalid: str) -> None:
    """Raise ConfigError for an unknown policy."""
    if on_invalid not in get_args(OnInvalid):
        raise ConfigError(f"on_invalid is {on_invalid!r}; it must be {' or '.join(get_args(OnInvalid))}")


@dataclass(frozen=True, slots=True)
class Rejection:
    """The policy for invalid rows, and what is wrong with them (``fault``, such as "is not UTF-8").

    If ``on_invalid`` is "fail", an invalid row raises InvalidValueError, with the ``way_out``. Otherwise it becomes
    null, and ``nulls`` counts it.
    """

    fault: Callable[[Column], str]
    on_invalid: OnInvalid
    way_out: str = WAY_OUT
    nulls: InvalidValues | None = None

    def reject(self, row: Column, place: Callable[[], str]) -> None:
        """Apply the policy to an invalid row. ``place`` is called only for an error, and for the first null."""
        if self.on_invalid == "fail":
            raise InvalidValueError(f"{place()} {self.fault(row)}: {self.way_out}")
        if self.nulls is not None:
            self.nulls.note(lambda: f"{place()} {self.fault(row)}")


def by_parts(
    column: Column,
    convert: Callable[[Column], Column | None],
    arrow_type: pa.DataType,
    place: Place,
    invalid: Rejection,
) -> Column:
    """Convert the whole ``column`` at once. If that fails, convert each half in the same way, until the single rows
    that cannot be converted are found and rejected.

    ``convert`` returns None if it cannot convert its rows. A column without invalid rows is converted by one call.
    """

    def convert_part(start: int, count: int) -> list[Column]:
        part = column.slice(start, count)
        whole = convert(part)
        if whole is not None:
            return [whole]
        if count == 1:
            invalid.reject(part, partial(place, start))
            return [pa.nulls(1, arrow_type)]
        return convert_part(start, count // 2) + convert_part(start + count // 2, count - count // 2)

    parts = convert_part(0, len(column)) if len(column) else [pa.nulls(0, arrow_type)]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


@dataclass(frozen=True, slots=True)
class Text:
    """Text in UTF-8. The conversion does not copy the bytes.

    ``way_out`` is the advice in an error about bytes that are not UTF-8; ``nulls`` counts the values that became null.
    """

    on_invalid: OnInvalid = "fail"
    way_out: str = field(default=WAY_OUT, kw_only=True, repr=False, compare=False)
    nulls: InvalidValues | None = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice(self.on_invalid)

    @property
    def arrow_type(self) -> pa.DataType:
        """String."""
        return pa.string()

    def convert(self, column: Column, place: Place) -> Column:
        """Return the same bytes as text; raise InvalidValueError if they are not UTF-8."""
        invalid = Rejection(lambda _: "is not UTF-8", self.on_invalid, self.way_out, self.nulls)
        return by_parts(column, _as_text, self.arrow_type, place, invalid)


def _as_text(column: Column) -> Column | None:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return None
