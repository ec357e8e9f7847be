"""Rows that a method returns: a list that converts to pyarrow and pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tieredstore.installation import Extra
from tieredstore.model import Uuid

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

RowT = TypeVar("RowT")

_SHOWN: Final = 20
"""A notebook shows at most this many rows, and the number of the remaining rows."""


def tell_each(items: Iterable[RowT], tell: Callable[[RowT], object]) -> Iterator[RowT]:
    """Call ``tell`` with each item, then yield the item."""
    for one in items:
        tell(one)
        yield one


class Table(list[RowT]):
    """A list of rows of one kind. Each row is a frozen value."""

    def to_arrow(self) -> pa.Table:
        """Return the rows as a pyarrow table."""
        with Extra("to_arrow", "arrow"):
            import pyarrow as pa  # noqa: PLC0415

        return pa.Table.from_pylist([_plain_row(row) for row in self])

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas frame."""
        with Extra("to_pandas"):
            import pandas as pd  # noqa: PLC0415

        return pd.DataFrame([_plain_row(row) for row in self])

    def _repr_html_(self) -> str:
        """Return the first rows for a notebook."""
        if not self:
            return "<p>no rows</p>"
        rows = [_plain_row(row) for row in self[:_SHOWN]]
        lines = [_line("th", rows[0]), *(_line("td", row.values()) for row in rows)]
        more = f"<p>{len(self) - _SHOWN} rows more</p>" if len(self) > _SHOWN else ""
        return f"<table>{''.join(lines)}</table>{more}"


def _line(kind: str, cells: Iterable[object]) -> str:
    import html  # noqa: PLC0415  only notebooks need it

    texts = ("" if cell is None else html.escape(str(cell)) for cell in cells)
    return f"<tr>{''.join(f'<{kind}>{text}</{kind}>' for text in texts)}</tr>"


def _plain_row(row: object) -> dict[str, object]:
    if not is_dataclass(row):
        return {"value": _plain(row)}
    return {one.name: _plain(getattr(row, one.name)) for one in fields(row) if one.repr}


def _plain(value: object) -> object:
    """Convert ids and errors to text for a library's table; keep times and days."""
    if value is None or isinstance(value, str | int | float | bool | bytes | date):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("Sequence[object]", value)]
    return str(value) if isinstance(value, Uuid) or not is_dataclass(value) else _plain_row(value)
