"""What a message's key or value may be read as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import pyarrow as pa

from tieredstore.errors import ConfigError, InvalidValueError

Column: TypeAlias = Any
"""An array of Arrow, of which its type stubs say too little."""

OnInvalid: TypeAlias = Literal["fail", "null"]
"""What becomes of bytes that are not what they are read as: an error that names the record, or null."""

WAY_OUT: Final = "read it as binary, or have such ones be null (on_invalid)"
"""What to do about such bytes, in the words of Python; other front ends have theirs."""

Place: TypeAlias = Callable[[int], str]
"""Which record the row of this number is, as a sentence names it: ``the value at offset 7 of orders-0``."""


@runtime_checkable
class ValueType(Protocol):
    """Turns a column of bytes into one of another type. Frozen, picklable, safe from several threads."""

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column."""
        ...

    def convert(self, column: Column, place: Place) -> Column:
        """The same rows of ``arrow_type``; null stays null. InvalidValueError, which names the record by ``place``."""
        ...


class Binary:
    """The bytes as they are."""

    @property
    def arrow_type(self) -> pa.DataType:
        """Binary."""
        kind: pa.DataType = pa.binary()
        return kind

    def convert(self, column: Column, place: Place) -> Column:  # noqa: ARG002  nothing is wrong with bytes
        """The column itself."""
        return column

    def __repr__(self) -> str:
        return "Binary()"


def check_choice(on_invalid: str) -> None:
    """ConfigError for a policy that there is not."""
    if on_invalid not in get_args(OnInvalid):
        raise ConfigError(f"on_invalid is {on_invalid!r}; it must be {' or '.join(get_args(OnInvalid))}")


def by_parts(
    column: Column,
    convert: Callable[[Column], Column | None],
    arrow_type: pa.DataType,
    place: Place,
    *,
    what: str,
    on_invalid: OnInvalid,
    reason: Callable[[Column], str] = lambda _: "",
    way_out: str = WAY_OUT,
) -> Column:
    """``column`` converted whole, or where that fails half by half, down to the rows that cannot be.

    ``convert`` gives None for what it cannot convert. The first such row is an InvalidValueError, ``is not <what>``,
    with the ``reason`` for it and the ``way_out``; or all are null by the policy. Only a column with wrong rows costs
    more than one conversion. What is said of a wrong row are keywords, apart from how a column is converted.
    """

    def converted(start: int, count: int) -> list[Any]:
        part = column.slice(start, count)
        whole = convert(part)
        if whole is not None:
            return [whole]
        if count == 1:
            if on_invalid == "fail":
                raise InvalidValueError(f"{place(start)} is not {what}{reason(part)}: {way_out}")
            return [pa.nulls(1, arrow_type)]
        return converted(start, count // 2) + converted(start + count // 2, count - count // 2)

    parts = converted(0, len(column)) if len(column) else [pa.nulls(0, arrow_type)]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
