"""``tieredstore cost --plot``: a month in the bucket beside a month on brokers, by topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tieredstore.cli.terminal.output import complain, human_amount
from tieredstore.cli.terminal.plots import COLORS, Picture, label, module
from tieredstore.ops.cost.monthly import MonthlyCost, total_of
from tieredstore.ops.cost.prices import PriceFile

_MOST_ROWS: Final = 8
_PARTS: Final[Sequence[tuple[str, Callable[[MonthlyCost], float | None], str]]] = (
    ("storage", lambda cost: cost.storage, COLORS[0]),
    ("requests", lambda cost: cost.requests, COLORS[3]),
    ("transfer", lambda cost: cost.transfer, COLORS[7]),
    ("brokers' disks", lambda cost: cost.disks, COLORS[1]),
    ("traffic between zones", lambda cost: cost.cross_zone, COLORS[5]),
)
_OF_BUCKET: Final = 3
_BAR: Final = 0.38


class CostPlot:
    """Two bars a topic: what it costs in the bucket, and what it would on brokers."""

    def __init__(self, path: Path, prices: PriceFile) -> None:
        self._picture = Picture(path)
        self._prices = prices

    def save(self, costs: Mapping[str, MonthlyCost], total: MonthlyCost) -> None:
        """Draw the dearest topics, those first, and the others together; that there is nothing to draw is said."""
        if not costs:
            complain(f"{self._picture.path} was not drawn: there are no segments")
            return
        self._picture.save(self._drawn(_rows(costs), total))

    def _drawn(self, rows: Mapping[str, MonthlyCost], total: MonthlyCost) -> Any:
        ticker = module("matplotlib.ticker")
        axes = self._picture.axes(height=1.6 + 0.6 * len(rows))
        has_brokers = total.brokers is not None
        for number, (name, amount_of, color) in enumerate(_PARTS):
            is_bucket = number < _OF_BUCKET
            if not is_bucket and not has_brokers:
                break
            first = 0 if is_bucket else _OF_BUCKET
            lefts = [sum(before(cost) or 0.0 for _, before, _ in _PARTS[first:number]) for cost in rows.values()]
            shift = _BAR / 2 if has_brokers else 0.0
            places = [place - shift if is_bucket else place + shift for place in range(len(rows))]
            widths = [amount_of(cost) or 0.0 for cost in rows.values()]
            axes.barh(places, widths, _BAR, left=lefts, color=color, label=name)
        axes.set_yticks(range(len(rows)), [label(name) for name in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        axes.set_xlabel(f"{label(self._prices.currency).strip()} a month, by {label(self._prices.name).strip()}")
        beside = f", {human_amount(total.brokers)} on brokers" if has_brokers else ""
        axes.set_title(f"{human_amount(total.bucket)} a month in the bucket{beside}", loc="left", fontweight="bold")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        return axes


def _rows(costs: Mapping[str, MonthlyCost]) -> dict[str, MonthlyCost]:
    """The dearest, of the bucket and brokers together; the rest as one."""
    by_cost = sorted(costs.items(), key=lambda row: -(row[1].bucket + (row[1].brokers or 0.0)))
    if len(by_cost) <= _MOST_ROWS:
        return dict(by_cost)
    others = by_cost[_MOST_ROWS - 1 :]
    return {**dict(by_cost[: _MOST_ROWS - 1]), f"{len(others)} others": total_of([cost for _, cost in others])}
