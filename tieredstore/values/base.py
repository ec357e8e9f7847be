"""The interface of the types of keys and values, and its simplest types: bytes and text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
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


def by_parts(
    column: Column,
    convert: Callable[[Column], Column | None],
    arrow_type: pa.DataType,
    place: Place,
    *,
    fault: Callable[[Column], str],
    on_invalid: OnInvalid,
    way_out: str = WAY_OUT,
    nulls: InvalidValues | None = None,
) -> Column:
    """Convert the whole ``column`` at once. If that fails, convert each half in the same way, until the single rows
    that cannot be converted are found.

    ``convert`` returns None if it cannot convert its rows. If ``on_invalid`` is "fail", the first invalid row raises
    InvalidValueError, with its ``fault`` (such as "is not UTF-8") and the ``way_out``. Otherwise all invalid rows
    become null, and ``nulls`` counts them. A column without invalid rows is converted by one call.
    """

    def converted(start: int, count: int) -> list[Column]:
        part = column.slice(start, count)
        whole = convert(part)
        if whole is not None:
            return [whole]
        if count == 1:
            if on_invalid == "fail":
                raise InvalidValueError(f"{place(start)} {fault(part)}: {way_out}")
            if nulls is not None:
                nulls.note(lambda: f"{place(start)} {fault(part)}")
            return [pa.nulls(1, arrow_type)]
        return converted(start, count // 2) + converted(start + count // 2, count - count // 2)

    parts = converted(0, len(column)) if len(column) else [pa.nulls(0, arrow_type)]
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
        return by_parts(
            column, _as_text, self.arrow_type, place,
            fault=lambda _: "is not UTF-8", on_invalid=self.on_invalid, way_out=self.way_out, nulls=self.nulls,
        )  # fmt: skip


def _as_text(column: Column) -> Column | None:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return None
