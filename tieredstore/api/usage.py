"""Sums over segments, and their cost per month. This module is separate from ``bucket``, because no other method needs
prices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tieredstore.api.rows import Table, Usage
from tieredstore.errors import ConfigError
from tieredstore.ops.cost.prices import PriceFile, read_prices
from tieredstore.ops.cost.usage import (
    MonthlyCost,
    RequestSizes,
    UsageBy,
    UsageKey,
    cost_sums,
    monthly_cost,
    total_of,
    usage_of,
)
from tieredstore.ops.cost.usage import Usage as Sums
from tieredstore.query.arguments import path_of

if TYPE_CHECKING:
    from pathlib import Path

    from tieredstore.config import Settings
    from tieredstore.ops.listing import ListedSegment


def prices_of(by: UsageBy, prices: str | Path | PriceFile | None) -> PriceFile | None:
    """Read the price file; raise ConfigError if costs cannot be computed for the grouping ``by``."""
    if prices is None:
        return None
    if by is UsageBy.DAY:
        raise ConfigError(
            "costs are computed per topic or per partition, not per day: choose by='topic' or 'partition', or leave "
            "prices out"
        )
    return prices if isinstance(prices, PriceFile) else read_prices(path_of("prices", prices))


def add_up(listed: Iterable[ListedSegment], by: UsageBy, prices: PriceFile | None, settings: Settings) -> Table[Usage]:
    """Sum up a listing. Sort the rows by cost in descending order, or by size if there are no prices."""
    if prices is None:
        rows = [_row(key, sums) for key, sums in usage_of(listed, by).items()]
        return Table(sorted(rows, key=lambda row: -row.stored_size))
    now_ms = time.time_ns() // 1_000_000
    costs = cost_sums(listed, RequestSizes.of(settings), now_ms, by=by)
    rows = [_row(key, sums.all, monthly_cost(sums, prices, now_ms), sums.undated) for key, sums in costs.items()]
    return Table(sorted(rows, key=lambda row: 0.0 if row.cost is None else -row.cost.bucket))


def total_usage(rows: Sequence[Usage]) -> Usage:
    """Return the sum of all rows."""
    sums = Sums(
        segments=sum(row.segments for row in rows),
        leftovers=sum(row.no_manifest for row in rows),
        damaged=sum(row.damaged for row in rows),
        objects=sum(row.objects for row in rows),
        stored_size=sum(row.stored_size for row in rows),
        size=sum(row.size for row in rows),
        sized_stored=sum(row.sized_stored for row in rows),
    )
    costs = [row.cost for row in rows if row.cost is not None]
    return _row(UsageKey(), sums, total_of(costs), sum(row.undated for row in rows))


def _row(key: UsageKey, sums: Sums, cost: MonthlyCost | None = None, undated: int = 0) -> Usage:
    return Usage(
        key.topic, key.topic_id, key.partition, key.day, sums.segments, sums.objects, sums.leftovers, sums.damaged,
        sums.size, sums.stored_size, round(sums.size / sums.sized_stored, 4) if sums.sized_stored else None, cost,
        sums.sized_stored, undated,
    )  # fmt: skip
