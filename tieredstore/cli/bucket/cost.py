"""``tieredstore cost``: what the bucket costs a month, beside brokers' disks."""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tieredstore.backends.base import admin_of
from tieredstore.catalog.listing import list_in_scope
from tieredstore.cli.app.arguments import (
    Json,
    OnlyPartition,
    OnlyTopic,
    Parallel,
    SettingsPath,
    StoreUrl,
    TopicId,
    Wide,
    choose_scope,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.bucket.du import key_row, order_of
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    counted,
    human_amount,
    human_count,
    print_json_line,
    print_table,
)
from tieredstore.cli.terminal.plots import COLORS, Picture, PlotFile, label, module
from tieredstore.cli.terminal.progress import counting, each_counted
from tieredstore.cli.terminal.rows import Row, column, field, rounded_bytes, rounded_count
from tieredstore.cli.terminal.tables import WIDE, number
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.ops.cost.monthly import (
    CostSums,
    GrowthBy,
    MonthlyCost,
    RequestSizes,
    assumptions_of,
    cost_sums,
    monthly_cost,
    total_of,
)
from tieredstore.ops.cost.prices import PriceFile, read_prices
from tieredstore.ops.cost.usage import UsageBy, UsageKey
from tieredstore.ops.listing import load_stream
from tieredstore.process.parallel import READERS


class CostBy(enum.StrEnum):
    """What a row is of."""

    TOPIC = "topic"
    PARTITION = "partition"


_FACTS: Final[Row[CostSums]] = Row(
    field("stored_size", lambda sums: sums.all.stored_size, number("STORED", rank=1), human_bytes),
    field("size", lambda sums: sums.all.size),
    field("segments", lambda sums: sums.all.segments),
    field("objects", lambda sums: sums.all.objects),
    field("no_manifest", lambda sums: sums.all.leftovers),
    field("damaged", lambda sums: sums.unread),
    field("undated", lambda sums: sums.undated),
)
_AMOUNTS: Final[Row[MonthlyCost]] = Row(
    field("growth_stored_size", lambda of: of.growth_stored_size, number("GROWTH", rank=3), rounded_bytes, digits=0),
    field("growth_size", lambda of: of.growth_size, digits=0),
    field("growth_segments", lambda of: of.growth_segments, digits=2),
    field("writes", lambda of: of.writes, digits=2),
    field("reads", lambda of: of.reads, digits=2),
    field("lists", lambda of: of.lists, digits=2),
    field("storage_cost", lambda of: of.storage, number("STORAGE", rank=4), human_amount, digits=6),
    field("request_cost", lambda of: of.requests, number("REQUESTS", rank=4), human_amount, digits=6),
    field("transfer_cost", lambda of: of.transfer, number("TRANSFER", rank=4), human_amount, digits=6),
    field("bucket_cost", lambda of: of.bucket, number("BUCKET"), human_amount, digits=6),
    field("disk_cost", lambda of: of.disks, number("DISKS", rank=5), human_amount, digits=6),
    field("cross_zone_cost", lambda of: of.cross_zone, number("CROSS-ZONE", rank=5), human_amount, digits=6),
    field("broker_cost", lambda of: of.brokers, number("BROKERS"), human_amount, digits=6),
    field("saved", lambda of: of.saved, number("SAVED", rank=2), human_amount, digits=6),
)
_COST: Final[Row[tuple[CostSums, MonthlyCost]]] = Row(
    _FACTS.of(lambda both: both[0]),
    _AMOUNTS.of(lambda both: both[1]),
    column(number("SEGMENTS", rank=WIDE), lambda both: human_count(both[0].all.segments)),
    column(number("WRITES", rank=WIDE), lambda both: rounded_count(both[1].writes)),
    column(number("READS", rank=WIDE), lambda both: rounded_count(both[1].reads)),
    column(number("LISTS", rank=WIDE), lambda both: rounded_count(both[1].lists)),
)


def cost(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    prices_path: Annotated[
        Path | None,
        typer.Option(
            "--prices", metavar="FILE", help="The price file, TOML or JSON: see docs/cost.md and examples/prices.toml."
        ),
    ] = None,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    topic_id: TopicId = None,
    by: Annotated[CostBy, typer.Option("--by", help="What a row is of.")] = CostBy.TOPIC,
    growth_by: Annotated[
        GrowthBy,
        typer.Option("--growth-by", help="What was added in 30 days: by the time of its records, or of its storing."),
    ] = GrowthBy.RECORDS,
    plot: PlotFile = None,
    parallel: Parallel = READERS,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Say what the bucket costs a month, beside what the same log would cost on brokers' disks and between zones.

    Bytes, segments and growth are those of the bucket; prices, and how often things are read, are those of the price
    file. Reads the manifest of every segment, and needs no key.

    Example: tieredstore cost -c store.properties --prices examples/prices.toml
    """
    if prices_path is None:
        raise ConfigError("no prices are given: write a price file (docs/cost.md), and name it by --prices FILE")
    prices = read_prices(prices_path)
    picture = None if plot is None else CostPlot(plot, prices)
    scope = choose_scope(topic, topic_id, partition)
    now_ms = time.time_ns() // 1_000_000
    with open_chosen_bucket(settings, store) as bucket, counting("reading", "segments") as advance:
        listed = list_in_scope(bucket.store, bucket.prefix, scope)
        loaded = load_stream(bucket.store, listed, rules=bucket.manifest_rules, parallel=parallel)
        sizes = RequestSizes.of(bucket.settings)
        sums = cost_sums(each_counted(loaded, advance), sizes, now_ms, by=UsageBy(by.value), growth_by=growth_by)
        stays = list(admin_of(bucket.store).kept_after_delete())
    costs = {key: monthly_cost(of_key, prices, now_ms) for key, of_key in sums.items()}
    rows = sorted(costs.items(), key=lambda row: (-row[1].bucket, order_of(row[0])))
    total = total_of([amounts for _, amounts in rows])
    facts = CostSums()
    for of_key in sums.values():
        facts.merge(of_key)
    assumed = assumptions_of(prices, growth_by, facts.undated)
    name = key_row(UsageBy(by.value), costs)
    if as_json:
        for key, amounts in rows:
            print_json_line(name.json(key) | _COST.json((sums[key], amounts)))
        about: dict[str, JsonValue] = {"currency": prices.currency, "prices": prices.name, "as_of": prices.as_of}
        print_json_line({"summary": {**_COST.json((facts, total)), **about, "assumptions": assumed, "stays": stays}})
    elif not rows:
        complain("no segments found")
    else:
        cells = [[*name.cells(key), *_COST.cells((sums[key], amounts))] for key, amounts in rows]
        cells.append(["total", "", *_COST.cells((facts, total))])
        print_table([*name.columns, *_COST.columns], cells, total=True, wide=wide)
        for sentence in (f"a month by {prices.title}", *(f"assumed: {one}" for one in assumed)):
            complain(sentence)
    for sentence in _not_counted(facts, stays):
        complain(sentence)
    if picture is not None:
        picture.save(_by_label(rows), total)


def _not_counted(facts: CostSums, stays: Sequence[str]) -> list[str]:
    sentences = [f"what is deleted may cost too, and is not counted: {sentence}" for sentence in stays]
    if facts.unread:
        sentences.append(
            f"{counted(facts.unread, 'segment')} with a damaged manifest, which count as stored alone (see verify)"
        )
    return sentences


def _by_label(rows: Sequence[tuple[UsageKey, MonthlyCost]]) -> dict[str, MonthlyCost]:
    """What the picture calls each row; of a topic that was created again the ids tell them apart."""
    times = Counter((key.topic, key.partition) for key, _ in rows)
    return {_label(key, with_id=times[key.topic, key.partition] > 1): cost for key, cost in rows}


def _label(key: UsageKey, *, with_id: bool) -> str:
    words = [key.topic or "", "" if key.partition is None else str(key.partition), str(key.topic_id) if with_id else ""]
    return " ".join(filter(None, words))


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
        self._picture.save(self._draw(_rows(costs), total))

    def _draw(self, rows: Mapping[str, MonthlyCost], total: MonthlyCost) -> Any:
        ticker = module("matplotlib.ticker")
        axes = self._picture.axes(height=1.6 + 0.6 * len(rows))
        has_brokers = total.brokers is not None
        for at, (name, amount_of, color) in enumerate(_PARTS):
            is_bucket = at < _OF_BUCKET
            if not is_bucket and not has_brokers:
                break
            first = 0 if is_bucket else _OF_BUCKET
            lefts = [sum(before(cost) or 0.0 for _, before, _ in _PARTS[first:at]) for cost in rows.values()]
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
