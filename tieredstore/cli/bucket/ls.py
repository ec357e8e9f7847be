"""``tieredstore ls``: which segments a store holds."""

from __future__ import annotations

import bisect
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from tieredstore.catalog import SegmentObjects, StoredSegment, list_segments
from tieredstore.catalog.absence import absence
from tieredstore.cli.app.arguments import (
    Json,
    PartitionToo,
    SettingsPath,
    StoreUrl,
    TopicId,
    Wide,
    one_partition,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.completion import complete_partition, complete_topic
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    human_count,
    human_ratio,
    human_time,
    iso_utc,
    json_array,
    print_table,
    ratio_of,
)
from tieredstore.cli.terminal.plots import COLORS, GREY, Picture, PlotFile, label, module
from tieredstore.cli.terminal.rows import PARTITION, Row, column, field
from tieredstore.cli.terminal.tables import WIDE, moment, number, text, word
from tieredstore.errors import ConfigError, CorruptDataError, excerpt
from tieredstore.model import TopicIdPartition, Uuid, human_bytes
from tieredstore.ops.bucket import Bucket
from tieredstore.ops.listing import HeldOffsets, ListedSegment, SegmentTotals, load_listing

_HOLE: Final = "(hole)"
_MOST_SPANS: Final = 3

ValueT = TypeVar("ValueT")


def ls(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only this topic.", autocompletion=complete_topic)
    ] = None,
    partition: Annotated[
        int | None,
        typer.Argument(
            metavar="PARTITION",
            min=0,
            help="Only this partition, segment by segment.",
            autocompletion=complete_partition,
        ),
    ] = None,
    partition_too: PartitionToo = None,
    topic_id: TopicId = None,
    as_json: Json = False,
    wide: Wide = False,
    plot: PlotFile = None,
) -> None:
    """List topics, partitions and segments: offsets, sizes, ratio, time span.

    Reads the manifest of every segment listed, and needs no key. FIRST and LAST are the times (UTC) that the first and
    the last segment end with: manifests tell no other. Where a terminal is too narrow, columns are left out. With
    PARTITION each segment has a line, and so has each hole: offsets between two segments that neither holds. Segments
    that lack an object (of an unfinished copy or delete, or lost) are named on stderr; in JSON they have
    "complete": false.

    --plot draws the stored bytes too, by topic and by the time of their records; it needs matplotlib.

    Example: tieredstore ls -c store.properties orders 0
    """
    picture = None if plot is None else StoredPlot(plot)
    incarnation = None if topic_id is None else Uuid.parse(topic_id)
    partition = one_partition(partition, partition_too)
    if topic is None and partition is not None:
        raise ConfigError("--partition narrows a topic: give TOPIC too")
    with open_chosen_bucket(settings, store) as bucket:
        objects = list_segments(bucket.store, bucket.prefix, topic=topic, topic_id=incarnation, partition=partition)
        if topic is not None:
            # Of nothing in particular an empty store has none; a name that is not there was mistyped.
            objects = at_least_one(objects, bucket, {topic: [] if partition is None else [partition]}, incarnation)
        damage: list[CorruptDataError] = []
        listed = _note_damage(damage, load_listing(bucket.store, objects, bucket.manifest_rules))
        if picture is not None:
            listed = picture.watching(listed)
        if as_json:
            sys.stdout.writelines(json_array(map(_segment_row().json, listed)))
        elif partition is None:
            _print_partitions(listed, wide=wide)
        else:
            _print_segments(listed, wide=wide)
    if picture is not None:
        picture.save()
    if damage:
        raise typer.Exit(CorruptDataError.exit_code)


def at_least_one(
    listed: Iterator[SegmentObjects], bucket: Bucket, wanted: Mapping[str, Sequence[int]], topic_id: Uuid | None
) -> Iterator[SegmentObjects]:
    """``listed``, if there is anything; ResourceNotFoundError says what of the ``wanted`` topics is not there."""
    first = next(listed, None)
    if first is None:
        raise absence(bucket.store, bucket.prefix, wanted, topic_id=topic_id)
    return itertools.chain([first], listed)


def leader_epoch_rows(epochs: Iterable[tuple[int, int]]) -> list[JsonValue]:
    """Leader epochs for scripts."""
    return [{"epoch": epoch, "start_offset": start} for epoch, start in epochs]


def _of_manifest(value: Callable[[StoredSegment], ValueT]) -> Callable[[ListedSegment], ValueT | None]:
    """What a manifest tells; None where there is none that can be read."""
    return lambda one: None if one.stored is None else value(one.stored)


def _segment_row(id_rank: int = WIDE, segment_id_rank: int = WIDE) -> Row[ListedSegment]:
    """The row of a segment; of tables, which show whole ones alone, with the ranks of two columns."""
    return Row(
        PARTITION.of(lambda one: one.partition),
        field("base_offset", lambda one: one.objects.start_offset, number("OFFSET")),
        field("last_offset", _of_manifest(lambda it: it.last_offset), number("LAST OFFSET")),
        field("segment_id", lambda one: one.objects.segment_id.id),
        field("size", _of_manifest(lambda it: it.metadata.segment_size_in_bytes), number("SIZE", rank=2), human_bytes),
        field("stored_size", lambda one: one.objects.stored_size, number("STORED", rank=1), human_bytes),
        field(
            "ratio",
            _of_manifest(lambda it: ratio_of(it.metadata.segment_size_in_bytes, it.objects.stored_size)),
            number("RATIO", rank=4),
            "{:.2f}".format,
        ),
        field("compressed", _of_manifest(lambda it: it.manifest.compression)),
        field("encrypted", _of_manifest(lambda it: it.manifest.encryption is not None)),
        field("key_id", _of_manifest(lambda it: it.manifest.encryption and it.manifest.encryption.key_id)),
        column(text("FORM", rank=3), lambda one: "-" if one.stored is None else _form(one.stored)),
        field("max_timestamp_ms", lambda one: one.max_timestamp_ms, moment("LAST RECORD"), human_time),
        field("max_timestamp", lambda one: iso_utc(one.max_timestamp_ms)),
        field(
            "leader_epochs",
            _of_manifest(
                lambda it: it.manifest.metadata and leader_epoch_rows(it.manifest.metadata.segment_leader_epochs)
            ),
        ),
        field("complete", lambda one: one.whole is not None),
        field("missing", lambda one: [suffix.value for suffix in one.objects.missing]),
        field("damage", lambda one: str(one.loaded) if isinstance(one.loaded, CorruptDataError) else None),
        column(word("TOPIC ID", rank=id_rank), lambda one: str(one.partition.topic_id)),
        column(word("SEGMENT ID", rank=segment_id_rank), lambda one: str(one.objects.segment_id.id)),
    )


_SUMS: Final[Row[SegmentTotals]] = Row(
    column(number("SEGMENTS", rank=4), lambda sums: human_count(sums.segments)),
    column(number("SIZE", rank=3), lambda sums: human_bytes(sums.size)),
    column(number("STORED"), lambda sums: human_bytes(sums.stored_size)),
    column(number("RATIO", rank=5), lambda sums: human_ratio(sums.size, sums.stored_size)),
    column(moment("FIRST", rank=2), lambda sums: human_time(sums.oldest_ms)),
    column(moment("LAST", rank=1), lambda sums: human_time(sums.newest_ms)),
)


def _note_damage(damage: list[CorruptDataError], listed: Iterable[ListedSegment]) -> Iterator[ListedSegment]:
    """``listed``, with the damaged manifests gathered on the way."""
    for segment in listed:
        if isinstance(segment.loaded, CorruptDataError):
            damage.append(segment.loaded)
        yield segment


def _print_partitions(listed: Iterable[ListedSegment], *, wide: bool) -> None:
    rows: list[list[str]] = []
    total = SegmentTotals()
    ids: dict[str, set[Uuid]] = {}
    for partition, group in itertools.groupby(listed, key=lambda segment: segment.partition):
        totals, offsets = SegmentTotals(), HeldOffsets()
        for segment in group:
            if segment.whole is None:
                _report(segment)
            else:
                totals.add(segment.whole)
                offsets.add(segment.whole)
                total.add(segment.whole)
        ids.setdefault(partition.topic, set()).add(partition.topic_id)
        place = [partition.topic, str(partition.topic_id), str(partition.partition)]
        rows.append([*place, _show_spans(offsets), *_SUMS.cells(totals)])
    if not rows:
        complain("no segments found")
        return
    rows.append(["total", "", "", "", *_SUMS.cells(total)])
    columns = [
        text("TOPIC"),
        word("TOPIC ID", rank=_shown_if(any(len(same_name) > 1 for same_name in ids.values()))),
        number("PART"),
        word("OFFSETS", short=_around_holes),
        *_SUMS.columns,
    ]
    print_table(columns, rows, total=True, wide=wide)


def _print_segments(listed: Iterable[ListedSegment], *, wide: bool) -> None:
    row, rows = _segment_row(), list[list[str]]()
    total = SegmentTotals()
    offsets: dict[TopicIdPartition, HeldOffsets] = {}
    starts: list[tuple[TopicIdPartition, int]] = []
    for segment in listed:
        if segment.whole is None:
            _report(segment)
            continue
        total.add(segment.whole)
        hole = offsets.setdefault(segment.partition, HeldOffsets()).add(segment.whole)
        if hole is not None:
            rows.append([*map(str, hole), "", "", "", "", _HOLE, str(segment.partition.topic_id), ""])
        rows.append(row.cells(segment))
        starts.append((segment.partition, segment.objects.start_offset))
    if not rows:
        complain("no segments found")
        return
    rows.append(["total", "", *_SUMS.cells(total)[1:4], "", "", "", ""])
    row = _segment_row(_shown_if(len(offsets) > 1), _shown_if(len(set(starts)) < len(starts)))
    print_table(row.columns, rows, total=True, wide=wide)


def _shown_if(needed: bool) -> int:
    """The rank of ids: they are shown where nothing else tells rows apart, else by --wide alone."""
    return 0 if needed else WIDE


def _form(whole: StoredSegment) -> str:
    """How the segment is stored: ``zstd key1``, ``plain``."""
    wrapped = whole.manifest.encryption
    forms = ["zstd"] if whole.manifest.compression else []
    return " ".join([*forms, *([] if wrapped is None else [excerpt(wrapped.key_id)])]) or "plain"


def _report(segment: ListedSegment) -> None:
    objects = segment.objects
    if isinstance(segment.loaded, CorruptDataError):
        fault = str(segment.loaded)
    else:
        fault = "no " + ", no ".join(f".{suffix.value}" for suffix in objects.missing)
    name = f"segment {objects.segment_id.id} of {segment.partition} at offset {objects.start_offset}"
    complain(f"{name} cannot be read: {fault}")


def _show_spans(offsets: HeldOffsets) -> str:
    """``0 … 99, 150 … 199`` around a hole; of many holes their number."""
    spans = offsets.spans
    if len(spans) > _MOST_SPANS:
        return f"{spans[0][0]} … {spans[-1][1]}, {len(spans) - 1} holes"
    return ", ".join(f"{first} … {last}" for first, last in spans)


def _around_holes(held: str) -> str:
    """The same, as from ``0 … 199, 1 hole``."""
    first, *others = held.split(", ")
    if not others or "…" not in others[-1]:
        return held
    return f"{first.partition(' ')[0]} … {others[-1].rpartition(' ')[2]}, {len(others)} hole{'s' * (len(others) > 1)}"


_STEPS: Final = 500
"""How many times a picture tells apart; more would be less than a dot each."""
_UNITS: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
_NARROWEST_MS: Final = 1000

Stored = Sequence[tuple[int, int]]
"""Times in milliseconds, ascending, and how many bytes are stored of records up to then since the time before."""


class StoredPlot:
    """Takes segments as they are listed; then draws the bytes that were stored up to each time."""

    def __init__(self, path: Path) -> None:
        self._picture = Picture(path)
        self._stored: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._timeless = 0

    def watching(self, listed: Iterable[ListedSegment]) -> Iterator[ListedSegment]:
        """``listed``, each whole segment of it taken on the way."""
        for segment in listed:
            if segment.whole is not None:
                self._take(segment)
            yield segment

    def save(self) -> None:
        """Draw; what no manifest tells the time of is told of on stderr, and so is that there is nothing to draw."""
        if self._timeless:
            complain(f"{self._timeless} segments are not in the picture: their manifests tell no time")
        if not self._stored:
            complain(f"{self._picture.path} was not drawn: no segment has a time")
            return
        bands = _bands({topic: sorted(stored) for topic, stored in self._stored.items()})
        self._picture.save(self._draw(bands))

    def _take(self, segment: ListedSegment) -> None:
        # A time that is none, as of producers that count in other units, would leave everything else in one spot.
        if segment.max_timestamp_ms is None or iso_utc(segment.max_timestamp_ms) is None:
            self._timeless += 1
            return
        self._stored[segment.partition.topic].append((segment.max_timestamp_ms, segment.objects.stored_size))

    def _draw(self, bands: Mapping[str, Stored]) -> Any:
        dates = module("matplotlib.dates")
        ticker = module("matplotlib.ticker")
        axes = self._picture.axes()
        total = sum(_sum(stored) for stored in bands.values())
        unit, scale = next(pair for pair in _UNITS if total >= pair[1])
        times = _times(bands.values())
        colors = [*itertools.islice(itertools.cycle(COLORS), len(bands))]
        if len(self._stored) > len(bands):
            colors[-1] = GREY
        heights = [[height / scale for height in _heights(stored, times)] for stored in bands.values()]
        shown = [datetime.fromtimestamp(time / 1000, UTC) for time in times]
        areas = axes.stackplot(shown, *heights, colors=colors, step="post")
        axes.set_xlim(shown[0], shown[-1])
        axes.set_ylim(bottom=0)
        locator = dates.AutoDateLocator(UTC, maxticks=9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, UTC))
        axes.yaxis.set_major_locator(ticker.MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
        axes.set_xlabel("time of the records (UTC)")
        axes.set_ylabel(f"stored ({unit})")
        topics = label(next(iter(bands))).strip() if len(self._stored) == 1 else f"{len(self._stored)} topics"
        axes.set_title(f"{topics}: {human_bytes(total)} stored", loc="left", fontweight="bold")
        if len(bands) > 1:
            names = [f"{label(topic)}: {human_bytes(_sum(stored))}" for topic, stored in bands.items()]
            # In the order of the bands, from above.
            axes.legend(areas[::-1], names[::-1], loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        return axes


def _bands(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The topics that have most, those first; what has no colour of its own is the last one together."""
    by_size = sorted(stored, key=lambda topic: (-_sum(stored[topic]), topic))
    if len(by_size) <= len(COLORS):
        return {topic: stored[topic] for topic in by_size}
    own, others = by_size[: len(COLORS) - 1], by_size[len(COLORS) - 1 :]
    together = sorted(itertools.chain.from_iterable(stored[topic] for topic in others))
    return {**{topic: stored[topic] for topic in own}, f"{len(others)} others": together}


def _sum(stored: Stored) -> int:
    return sum(size for _, size in stored)


def _times(bands: Iterable[Stored]) -> list[int]:
    """Times at equal distances, from before the first record to behind the last."""
    ends = [time for stored in bands for time in (stored[0][0], stored[-1][0])]
    first, last = min(ends), max(ends)
    margin = max((last - first) // 20, _NARROWEST_MS)
    return [first - margin + step * (last - first + 2 * margin) // _STEPS for step in range(_STEPS + 1)]


def _heights(stored: Stored, times: Iterable[int]) -> list[int]:
    """How much is stored up to each of ``times``."""
    sums = [0, *itertools.accumulate(size for _, size in stored)]
    instants = [time for time, _ in stored]
    return [sums[bisect.bisect_right(instants, time)] for time in times]
