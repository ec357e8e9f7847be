"""Keys and values that are text."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from tieredstore.values.base import WAY_OUT, Column, InvalidValues, OnInvalid, Place, by_parts, check_choice


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
