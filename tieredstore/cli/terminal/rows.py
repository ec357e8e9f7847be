"""Rows that a command lists. Each field is declared once: its JSON name, its column in a table, and its cell.

A row declares which fields of an object are shown::

    HOLD: Final[Row[LegalHold]] = Row(
        field("name", lambda hold: hold.name, text("HOLD")),
        field("size", lambda hold: hold.size, number("SIZE", rank=2), human_bytes),
        field("partition", lambda hold: hold.partition),
        column(text("OF"), scope_of),
    )

A ``field`` without a column appears only in JSON, a ``column`` only in the table. An unknown value is null in JSON and
``-`` in the table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    human_count,
    human_time,
    iso_utc,
    print_json_line,
    print_table,
)
from tieredstore.cli.terminal.tables import Column
from tieredstore.model import AtTime, Uuid, human_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
PartT = TypeVar("PartT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One field of a row. ``name`` is None if JSON omits the field. ``column`` is None if tables omit it."""

    name: str | None
    value: Callable[[T], JsonValue]
    column: Column | None
    cell: Callable[[T], str]


def field(
    name: str,
    value: Callable[[T], ValueT | None],
    shown: Column | None = None,
    show: Callable[[ValueT], str] | None = None,
    *,
    digits: int | None = None,
) -> Field[T]:
    """Declare a field. ``show`` formats a value for its cell. ``digits`` is the number of decimal places in JSON."""

    def cell(item: T) -> str:
        known = value(item)
        if known is None:
            return "-"
        return str(_json_value(known, digits)) if show is None else show(known)

    return Field(name, lambda item: _json_value(value(item), digits), shown, cell)


def column(shown: Column | None, cell: Callable[[T], str]) -> Field[T]:
    """Declare a column that only the table has. If ``shown`` is None, declare nothing."""
    return Field(None, lambda _: None, shown, cell)


def time_fields(name: str, value: Callable[[T], datetime | int | None], shown: Column | None = None) -> Row[T]:
    """Declare a time: the fields ``<name>_ms`` in milliseconds, and ``<name>`` in ISO 8601."""

    def ms(item: T) -> int | None:
        time = value(item)
        return AtTime.of(time).timestamp_ms if isinstance(time, datetime) else time

    return Row(field(f"{name}_ms", ms, shown, human_time), field(name, lambda item: iso_utc(ms(item))))


def attributes(*names: str) -> Row[Any]:
    """Declare fields that only JSON has, by the names of the value's attributes."""
    return Row(*(field(name, attrgetter(name)) for name in names))


def attributes_of(kind: type[DataclassInstance], *but: str) -> Row[Any]:
    """Declare all fields of a dataclass except ``but``. Only JSON has these fields."""
    return attributes(*(each.name for each in fields(kind) if each.name not in but))


def rounded_bytes(size: float) -> str:
    """Show a computed size, which may be a fraction."""
    return human_bytes(round(size))


def rounded_count(count: float) -> str:
    """Show a computed number, which may be a fraction."""
    return human_count(round(count))


class Row(Generic[T]):
    """The fields of a value, in the order of JSON and table."""

    def __init__(self, *parts: Field[T] | Row[T]) -> None:
        self._fields: list[Field[T]] = []
        for part in parts:
            self._fields += part._fields if isinstance(part, Row) else [part]

    @property
    def names(self) -> list[str]:
        """The names of the JSON fields."""
        return [each.name for each in self._fields if each.name is not None]

    @property
    def columns(self) -> list[Column]:
        """The columns of the table."""
        return [each.column for each in self._fields if each.column is not None]

    def json(self, item: T) -> dict[str, JsonValue]:
        """Return one value as a JSON object."""
        return {each.name: each.value(item) for each in self._fields if each.name is not None}

    def cells(self, item: T) -> list[str]:
        """Return one value as the cells of a table."""
        return [each.cell(item) for each in self._fields if each.column is not None]

    def of(self, part: Callable[[PartT], T]) -> Row[PartT]:
        """Return a row for objects that contain a ``T``. The fields are read from the ``T`` that ``part`` returns."""
        return Row(*(_of_part(each, part) for each in self._fields))

    def in_json(self, *shown: str) -> Row[T]:
        """Return the same fields. In a table, only the columns of the ``shown`` fields remain."""
        return Row(*(each if each.name in shown else replace(each, column=None) for each in self._fields))

    def show(
        self,
        items: Iterable[T],
        *,
        as_json: bool,
        summary: Mapping[str, JsonValue] | None = None,
        total: Sequence[str] = (),
        empty: str | None = None,
        wide: bool = False,
    ) -> None:
        """With ``as_json``, print the items as lines of JSON, then the summary. Otherwise, print a table with the
        total.

        If there are no items, print no table header, but print ``empty`` on stderr, if given.
        """
        if as_json:
            for item in items:
                print_json_line(self.json(item))
            if summary is not None:
                print_json_line({"summary": summary})
        elif (rows := [self.cells(item) for item in items]) or empty is None:
            print_table(self.columns, [*rows, *([total] if total else [])], total=bool(total), wide=wide)
        else:
            complain(empty)


def _of_part(each: Field[T], part: Callable[[PartT], T]) -> Field[PartT]:
    return Field(each.name, lambda item: each.value(part(item)), each.column, lambda item: each.cell(part(item)))


def _json_value(value: object, digits: int | None) -> JsonValue:
    if isinstance(value, float) and digits is not None:
        return round(value, digits) if digits else round(value)
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Uuid | Exception) else cast("JsonValue", value)
