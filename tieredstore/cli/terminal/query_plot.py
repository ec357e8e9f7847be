"""The picture of a query: one column over another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tieredstore.cli.records.query_output import check_names, extra_module
from tieredstore.cli.terminal.plots import COLORS, Picture, label
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    from tieredstore.query.writers import BatchRows

_MEASURED: Final = "integer", "floating", "decimal", "timestamp", "date", "null"
"""Kinds of types, by Arrow's words, that lie on an axis as they are; all others are names on it."""

_MOST_POINTS: Final = 100_000
_MOST_NAMES: Final = 40


class QueryPlot:
    """Column ``y`` over column ``x``: a line over numbers and times, bars over names."""

    def __init__(self, path: Path, x: str, y: str) -> None:
        self._picture = Picture(path)
        self._x, self._y = x, y

    def save(self, reader: BatchRows) -> None:
        """Draw the rows; ConfigError for columns that there are not, and for more rows than a picture shows."""
        untyped: Any = reader
        missing = [name for name in (self._x, self._y) if name not in untyped.schema.names]
        if missing:
            raise ConfigError(
                f"--plot: the query gives no column {missing[0]}; it gives {', '.join(untyped.schema.names)}"
            )
        check_names(reader)
        writers, types = extra_module("tieredstore.query.writers", "query"), extra_module("pyarrow.types", "query")
        x, y = (_kind(types, untyped.schema.field(name).type) for name in (self._x, self._y))
        if y == "name":
            raise ConfigError(f"--plot: the column {self._y} is not of numbers")
        at = [untyped.schema.get_field_index(name) for name in (self._x, self._y)]
        places: list[Any] = []
        heights: list[Any] = []
        for cells in writers.cells_of(reader):
            place, height = (cells[index] for index in at)
            places.append(writers.cell_text(place, null="null") if x == "name" and place is not None else place)
            heights.append(height)
            if len(places) > _MOST_POINTS:
                raise ConfigError(f"--plot draws {_MOST_POINTS} rows at most: GROUP BY what they have in common")
        self._draw(places, heights)

    def _draw(self, places: list[Any], heights: list[Any]) -> None:
        pairs = [(x, y) for x, y in zip(places, heights, strict=True) if x is not None and y is not None]
        axes = self._picture.axes()
        if any(isinstance(x, str) for x, _ in pairs):
            if len(pairs) > _MOST_NAMES:
                raise ConfigError(f"--plot shows {_MOST_NAMES} names at most, and there are {len(pairs)}: use LIMIT")
            axes.bar([label(str(x)) for x, _ in pairs], [y for _, y in pairs], color=COLORS[0])
            axes.tick_params(axis="x", labelrotation=30)
        else:
            ordered = sorted(pairs, key=lambda pair: pair[0])
            axes.plot([x for x, _ in ordered], [y for _, y in ordered], color=COLORS[0], marker="o", markersize=3)
        axes.set_xlabel(label(self._x))
        axes.set_ylabel(label(self._y))
        self._picture.save(axes)


def _kind(types: Any, of: Any) -> str:
    return "number" if any(getattr(types, f"is_{kind}")(of) for kind in _MEASURED) else "name"
