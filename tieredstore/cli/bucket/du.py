"""``tieredstore du``: stored bytes by topic, partition or day, and their cost per month."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

import typer

from tieredstore.api.rows import Usage
from tieredstore.api.usage import total_usage
from tieredstore.backends.base import admin_of
from tieredstore.cli.app.options import FromTo, Output, Prices, Store, Topics, Work
from tieredstore.cli.terminal.output import JsonValue, complain, human_amount, quantity
from tieredstore.cli.terminal.plots import COLORS, Picture, PlotFile, add_legend, label, mark_amounts, unit_of
from tieredstore.cli.terminal.progress import counting
from tieredstore.cli.terminal.rows import Row, column, field, rounded_bytes, rounded_count
from tieredstore.cli.terminal.tables import WIDE, number, text, word
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.ops.cost.prices import PriceFile, read_prices
from tieredstore.ops.cost.usage import MonthlyCost, UsageBy, assumptions_of


class Sort(enum.StrEnum):
    """Sort order of rows: amounts descending, names and days ascending."""

    STORED = "stored"
    SIZE = "size"
    SEGMENTS = "segments"
    OBJECTS = "objects"
    COST = "cost"
    NAME = "name"


def du(
    topics: Topics,
    store: Store,
    by: Annotated[
        UsageBy, typer.Option("--by", help="Sum by topic, partition, or day of the segments' newest records.")
    ] = UsageBy.TOPIC,
    prices: Prices = None,
    sort: Annotated[
        Sort | None, typer.Option("--sort", help="Sort key; default: stored bytes, or the cost with --prices.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--listing", help="Read no manifests: faster, but without sizes before compression.")
    ] = False,
    *,
    window: FromTo,
    work: Work,
    output: Output,
    plot: PlotFile = None,
) -> None:
    """Show bytes, segments, objects and compression, and with --prices the cost.

    du reads the manifest of every segment unless --listing is given, and needs no key. With --prices it also shows the
    cost of the same log on brokers' disks and between zones. --plot draws the rows; it needs matplotlib.

    Example: tieredstore du -c store.properties --by partition
    """
    window.check_order()
    needing = {"--by day": by is UsageBy.DAY, "--prices": prices, "--from": window.start, "--to": window.stop}
    for option in (option for option, given in needing.items() if listing and given):
        raise ConfigError(f"{option} needs the manifests: leave --listing out")
    if prices and by is UsageBy.DAY:
        raise ConfigError("--prices works by topic or partition: leave out --by day")
    if sort is Sort.COST and prices is None:
        raise ConfigError("--sort cost needs prices: give --prices FILE")
    known = None if prices is None else read_prices(prices)
    picture = None if plot is None else Picture(plot)
    with store.open(is_all=not topics.names) as bucket, counting("reading", "segment") as advance:
        rows = bucket.usage(
            *topics.names, by=by.value, start=window.first, stop=window.end, prices=known, listing=listing,
            on_segment=lambda _: advance(), **topics.which(work),
        )  # fmt: skip
        stays = [] if known is None else list(admin_of(bucket.opened().store).kept_after_delete())
    rows.sort(key=lambda row: (_rank(row, sort or (Sort.COST if known else Sort.STORED)), _order(row)))
    total = total_usage(rows)
    name, sums = _name_row(by, rows), _sums_row(is_priced=known is not None)
    about: dict[str, JsonValue] = {}
    notes: list[str] = []
    if known is not None:
        assumed = assumptions_of(known, total.undated)
        about = {"currency": known.currency, "prices": known.name, "as_of": known.as_of}
        about |= {"assumptions": assumed, "stays": stays}
        notes = [f"per month by {known.title}", *(f"assumed: {one}" for one in assumed)]
    Row(name, sums).show(
        rows,
        as_json=output.as_json,
        summary={**sums.json(total), **window.json(), **about},
        total=["total", *[""] * (len(name.columns) - 1), *sums.cells(total)],
        empty="no segments found",
        wide=output.wide,
    )
    if rows and not output.as_json:
        for sentence in notes:
            complain(sentence)
    for sentence in stays:
        complain(f"deleted objects may still cost money, and are not counted: {sentence}")
    if total.damaged:
        complain(
            f"{quantity(total.damaged, 'segment')} with a damaged or archived manifest: only stored bytes are counted "
            "(run verify)"
        )
    if picture is not None:
        _draw(picture, _by_label(rows), total, known)


def _name_row(by: UsageBy, rows: Sequence[Usage]) -> Row[Usage]:
    """Declare the fields that name a row. The topic's id is shown if two rows would otherwise have the same name."""
    is_id_needed = len({(row.topic, row.partition) for row in rows}) < len(rows)
    is_day = by is UsageBy.DAY
    return Row(
        field("topic", lambda row: row.topic, None if is_day else text("TOPIC")),
        field(
            "topic_id", lambda row: row.topic_id, None if is_day else word("TOPIC ID", rank=0 if is_id_needed else WIDE)
        ),
        field("partition", lambda row: row.partition, number("PART") if by is UsageBy.PARTITION else None),
        field("day", lambda row: row.day),
        column(word("DAY") if is_day else None, lambda row: str(row.day or "(not known)")),
    )


def _sums_row(*, is_priced: bool) -> Row[Usage]:
    """Declare the sums. Most of the counts are only shown with ``--wide``. The amounts of bytes are always shown."""
    more = WIDE if is_priced else 0
    sums: Row[Usage] = Row(
        field("stored_size", lambda row: row.stored_size, number("STORED", rank=int(is_priced)), human_bytes),
        field("size", lambda row: row.size),
        column(number("SIZE", rank=more or 2), lambda row: human_bytes(row.size) if row.sized_stored else "-"),
        field("ratio", lambda row: row.ratio, number("RATIO", rank=more or 3), "{:.2f}".format),
        field("segments", lambda row: row.segments, number("SEGMENTS", rank=more or 1)),
        field("objects", lambda row: row.objects, number("OBJECTS", rank=more or 4)),
        field("no_manifest", lambda row: row.no_manifest, number("NO MANIFEST", rank=more or 2)),
        field("damaged", lambda row: row.damaged),
    )
    if not is_priced:
        return sums
    return Row(sums, field("undated", lambda row: row.undated), _AMOUNTS.of(_cost_of))


_AMOUNTS: Final[Row[MonthlyCost]] = Row(
    field("growth_stored_size", lambda of: of.growth_stored_size, number("GROWTH", rank=3), rounded_bytes, digits=0),
    field("growth_size", lambda of: of.growth_size, digits=0),
    field("growth_segments", lambda of: of.growth_segments, digits=2),
    field("writes", lambda of: of.writes, number("WRITES", rank=WIDE), rounded_count, digits=2),
    field("reads", lambda of: of.reads, number("READS", rank=WIDE), rounded_count, digits=2),
    field("lists", lambda of: of.lists, number("LISTS", rank=WIDE), rounded_count, digits=2),
    field("storage_cost", lambda of: of.storage, number("STORAGE", rank=4), human_amount, digits=6),
    field("request_cost", lambda of: of.requests, number("REQUESTS", rank=4), human_amount, digits=6),
    field("transfer_cost", lambda of: of.transfer, number("TRANSFER", rank=4), human_amount, digits=6),
    field("bucket_cost", lambda of: of.bucket, number("BUCKET"), human_amount, digits=6),
    field("disk_cost", lambda of: of.disks, number("DISKS", rank=5), human_amount, digits=6),
    field("cross_zone_cost", lambda of: of.cross_zone, number("CROSS-ZONE", rank=5), human_amount, digits=6),
    field("broker_cost", lambda of: of.brokers, number("BROKERS"), human_amount, digits=6),
    field("saved", lambda of: of.saved, number("SAVED", rank=2), human_amount, digits=6),
)


def _cost_of(row: Usage) -> MonthlyCost:
    assert row.cost is not None  # prices were given
    return row.cost


def _rank(row: Usage, sort: Sort) -> float:
    ranks: Mapping[Sort, float] = {
        Sort.STORED: row.stored_size,
        Sort.SIZE: row.size,
        Sort.SEGMENTS: row.segments,
        Sort.OBJECTS: row.objects,
        Sort.COST: 0 if row.cost is None else row.cost.bucket,
    }
    return -ranks.get(sort, 0)


def _order(row: Usage) -> tuple[str, str, int, str]:
    """Return the sort key for rows, by name and day."""
    return (row.topic or "", str(row.topic_id or ""), row.partition or 0, str(row.day or ""))


_MOST_ROWS: Final = 8
_BAR: Final = 0.38

_Part = tuple[str, Callable[[Usage], float | None], str]
"""A part of a bar: its name, the function that returns its length, and its colour."""

_COST: Final[Sequence[_Part]] = (
    ("storage", lambda row: _cost_of(row).storage, COLORS[0]),
    ("requests", lambda row: _cost_of(row).requests, COLORS[3]),
    ("transfer", lambda row: _cost_of(row).transfer, COLORS[7]),
)
_OF_BROKERS: Final[Sequence[_Part]] = (
    ("brokers' disks", lambda row: _cost_of(row).disks, COLORS[1]),
    ("traffic between zones", lambda row: _cost_of(row).cross_zone, COLORS[5]),
)
_STORED: Final[Sequence[_Part]] = (("stored", lambda row: row.stored_size, COLORS[0]),)
_LOG: Final[Sequence[_Part]] = (("log before compression", lambda row: row.size, COLORS[1]),)


def _by_label(rows: Sequence[Usage]) -> dict[str, Usage]:
    """Return the rows by their labels in the picture. Ids distinguish the incarnations of a re-created topic."""
    times = Counter((row.topic, row.partition, row.day) for row in rows)
    return {_label(row, with_id=times[row.topic, row.partition, row.day] > 1): row for row in rows}


def _label(row: Usage, *, with_id: bool) -> str:
    words = [row.topic, row.partition, row.day, row.topic_id if with_id else None]
    return " ".join(str(one) for one in words if one is not None)


def _draw(picture: Picture, usage: Mapping[str, Usage], total: Usage, prices: PriceFile | None) -> None:
    """Draw two bars per row: bytes in the bucket, and bytes of the log. The largest rows come first. One row sums up
    all other rows.

    With prices, draw the cost in the bucket and what the same data would cost on brokers. Report if there is nothing to
    draw.
    """
    if not usage:
        complain(f"{picture.path} was not drawn: there are no segments")
        return
    first, second = (_STORED, _LOG) if prices is None else (_COST, _OF_BROKERS)
    if not any(amount_of(total) for _, amount_of, _ in second):
        second = ()
    rows = _longest(usage, [*first, *second])
    unit, scale = ("", 1) if prices else unit_of(total.stored_size)
    axes = picture.axes(height=1.6 + 0.6 * len(rows))
    for parts, shift in ((first, -_BAR / 2 if second else 0.0), (second, _BAR / 2)):
        lefts = [0.0] * len(rows)
        for name, amount_of, color in parts:
            widths = [(amount_of(row) or 0.0) / scale for row in rows.values()]
            axes.barh([at + shift for at in range(len(rows))], widths, _BAR, left=lefts, color=color, label=name)
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [label(name) for name in rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(left=0)
    mark_amounts(axes.xaxis)
    if prices is None:
        axes.set_xlabel(unit)
        axes.set_title(f"{human_bytes(total.stored_size)} stored", loc="left", fontweight="bold")
    else:
        axes.set_xlabel(f"{label(prices.currency).strip()} a month, by {label(prices.name).strip()}")
        beside = f", {human_amount(_cost_of(total).brokers)} on brokers" if second else ""
        title = f"{human_amount(_cost_of(total).bucket)} a month in the bucket{beside}"
        axes.set_title(title, loc="left", fontweight="bold")
    add_legend(axes)
    picture.save(axes)


def _longest(usage: Mapping[str, Usage], parts: Sequence[_Part]) -> dict[str, Usage]:
    """Return the rows with the longest bars, and one row that sums up the others."""
    by_length = sorted(usage.items(), key=lambda row: -sum(amount_of(row[1]) or 0.0 for _, amount_of, _ in parts))
    if len(by_length) <= _MOST_ROWS:
        return dict(by_length)
    others = by_length[_MOST_ROWS - 1 :]
    return {**dict(by_length[: _MOST_ROWS - 1]), f"{len(others)} others": total_usage([row for _, row in others])}
