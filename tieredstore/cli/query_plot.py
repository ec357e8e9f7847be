"""The picture of a query: one column over another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tieredstore.cli.plots import COLORS, Picture, label
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_POINTS: Final = 100_000
_MOST_NAMES: Final = 40


class QueryPlot:
    """Column ``y`` over column ``x``: a line over numbers and times, bars over names."""

    def __init__(self, path: Path, x: str, y: str) -> None:
        self._picture = Picture(path)
        self._x, self._y = x, y

    def save(self, reader: pa.RecordBatchReader) -> None:
        """Draw the rows; ConfigError for columns that there are not, and for more rows than a picture shows."""
        untyped: Any = reader
        missing = [name for name in (self._x, self._y) if name not in untyped.schema.names]
        if missing:
            raise ConfigError(
                f"--plot: the query gives no column {missing[0]}; it gives {', '.join(untyped.schema.names)}"
            )
        places: list[Any] = []
        heights: list[Any] = []
        for batch in untyped:
            places += batch.column(self._x).to_pylist()
            heights += batch.column(self._y).to_pylist()
            if len(places) > _MOST_POINTS:
                raise ConfigError(f"--plot draws {_MOST_POINTS} rows at most: GROUP BY what they have in common")
        self._draw(places, heights)

    def _draw(self, places: list[Any], heights: list[Any]) -> None:
        pairs = [(x, y) for x, y in zip(places, heights, strict=True) if x is not None and y is not None]
        if any(isinstance(y, str | bytes | dict | list) for _, y in pairs):
            raise ConfigError(f"--plot: the column {self._y} is not of numbers")
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
