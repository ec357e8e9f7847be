"""The pictures of ``ls``: stored bytes by time, and offsets. Separate from ``ls``, because few calls of ``ls`` draw."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tieredstore.api.rows import Partition
from tieredstore.cli.terminal.output import MAX_TIME_MS, complain, iso_utc
from tieredstore.cli.terminal.plots import COLORS, GREY, RED, Picture, add_legend, label, mark_amounts, module, unit_of
from tieredstore.model import OffsetSpan, Uuid, human_bytes

_STEPS: Final = 500
"""The number of points in time for which a picture has a value. With more points, several points would share one
pixel."""
_NARROWEST_MS: Final = 1000

Stored = Sequence[tuple[int, int]]
"""Pairs of a time in milliseconds and the bytes stored since the previous pair's time. The times ascend."""


def draw_stored(picture: Picture, segments: Iterable[tuple[str, int | None, int]]) -> None:
    """Draw the bytes stored up to each time. A segment is given as topic, time and size.

    Report on stderr how many segments have no time in their manifests, and whether there is nothing to draw.
    """
    stored: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    timeless = 0
    for topic, time_ms, size in segments:
        # Leave out invalid times, which come from producers that count in other units. In a picture with such times,
        # all valid times would shrink to one spot.
        if time_ms is None or iso_utc(time_ms) is None:
            timeless += 1
        else:
            stored[topic].append((time_ms, size))
    if timeless:
        complain(f"{timeless} segments are not in the picture: their manifests have no time")
    if not stored:
        complain(f"{picture.path} was not drawn: no segment has a time")
        return
    bands = _bands({topic: sorted(of_topic) for topic, of_topic in stored.items()})
    dates, axes, times = module("matplotlib.dates"), picture.axes(), _times(bands.values())
    sums = {topic: sum(size for _, size in of_topic) for topic, of_topic in bands.items()}
    unit, scale = unit_of(sum(sums.values()))
    colors = [*itertools.islice(itertools.cycle(COLORS), len(bands))]
    if len(stored) > len(bands):
        colors[-1] = GREY
    heights = [[height / scale for height in _heights(of_topic, times)] for of_topic in bands.values()]
    shown = [datetime.fromtimestamp(time / 1000, UTC) for time in times]
    areas = axes.stackplot(shown, *heights, colors=colors, step="post")
    axes.set_xlim(shown[0], shown[-1])
    axes.set_ylim(bottom=0)
    locator = dates.AutoDateLocator(UTC, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, UTC))
    mark_amounts(axes.yaxis)
    axes.set_xlabel("time of the records (UTC)")
    axes.set_ylabel(f"stored ({unit})")
    topics = label(next(iter(bands))).strip() if len(stored) == 1 else f"{len(stored)} topics"
    axes.set_title(f"{topics}: {human_bytes(sum(sums.values()))} stored", loc="left", fontweight="bold")
    if len(bands) > 1:
        names = [f"{label(topic)}: {human_bytes(size)}" for topic, size in sums.items()]
        # Name the areas from top to bottom, as they are drawn.
        add_legend(axes, areas[::-1], names[::-1])
    picture.save(axes)


def _bands(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return the bands of the picture, the largest topics first. The last band sums up the topics for which no colour
    is left.
    """
    by_size = sorted(stored, key=lambda topic: (-sum(size for _, size in stored[topic]), topic))
    if len(by_size) <= len(COLORS):
        return {topic: stored[topic] for topic in by_size}
    own, others = by_size[: len(COLORS) - 1], by_size[len(COLORS) - 1 :]
    together = sorted(itertools.chain.from_iterable(stored[topic] for topic in others))
    return {**{topic: stored[topic] for topic in own}, f"{len(others)} others": together}


def _times(bands: Iterable[Stored]) -> list[int]:
    """Return equidistant times, from before the first record to after the last, but not after the year 9999."""
    ends = [time for stored in bands for time in (stored[0][0], stored[-1][0])]
    first, last = min(ends), max(ends)
    margin = max((last - first) // 20, _NARROWEST_MS)
    first, last = first - margin, min(last + margin, MAX_TIME_MS)
    return [first + step * (last - first) // _STEPS for step in range(_STEPS + 1)]


def _heights(stored: Stored, times: Iterable[int]) -> list[int]:
    """Return the sum of the stored sizes up to each of ``times``."""
    sums = [0, *itertools.accumulate(size for _, size in stored)]
    instants = [time for time, _ in stored]
    return [sums[bisect.bisect_right(instants, time)] for time in times]


_BUCKET, _BROKER = COLORS[:2]
_THICK: Final = 0.38
_TALLEST: Final = 30.0
"""The greatest height of a picture in inches, for any number of partitions."""


def draw_offsets(picture: Picture, partitions: Mapping[tuple[str, Uuid, int], Partition], *, broker: bool) -> None:
    """Draw a bar for each partition's offsets in the bucket. If ``broker`` is True, draw another bar for its offsets on
    the broker."""
    if not partitions:
        complain(f"{picture.path} was not drawn: there are no segments")
        return
    axes = picture.axes(height=min(1.9 + 0.45 * len(partitions), _TALLEST))
    # Draw the bucket's bar above the broker's bar. Without a broker, the bucket's bar takes the whole height.
    thick = _THICK if broker else 2 * _THICK
    for row, known in enumerate(partitions.values()):
        _draw(axes, known.stored, (row - _THICK, thick), _BUCKET)
        if known.broker is not None:
            _draw(axes, [known.broker.span], (row, _THICK), _BROKER)
        # Draw lost offsets with an edge, which makes a hole of one offset visible among millions.
        _draw(axes, known.lost, (row - _THICK, 2 * _THICK), RED, edgecolor=RED, linewidth=1)
    _label(axes, partitions, broker=broker)
    picture.save(axes)


def _draw(axes: Any, spans: Sequence[OffsetSpan], place: tuple[float, float], color: str, **style: object) -> None:
    axes.broken_barh([(start, stop - start) for start, stop in spans], place, facecolors=color, **style)


def _label(axes: Any, partitions: Mapping[tuple[str, Uuid, int], Partition], *, broker: bool) -> None:
    ticker, patches = module("matplotlib.ticker"), module("matplotlib.patches")
    axes.set_ylim(len(partitions) - 0.5, -0.5)
    locator = ticker.MaxNLocator(nbins=max(2, min(len(partitions), 40)), integer=True)
    rows = [int(row) for row in locator.tick_values(0, max(1, len(partitions) - 1)) if 0 <= row < len(partitions)]
    topics = {topic for topic, *_ in partitions}
    names = [str(number) if len(topics) == 1 else f"{label(topic)}-{number}" for topic, _, number in partitions]
    axes.set_yticks(rows, [names[row] for row in rows])
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=8, integer=True))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("offset")
    axes.set_ylabel("partition")
    subject = label(min(topics)).strip() if len(topics) == 1 else f"{len(topics)} topics"
    axes.set_title(f"{subject}: {_message(partitions.values())}", loc="left", fontweight="bold")
    shown = [("bucket", _BUCKET)]
    shown += [("broker", _BROKER)] if broker else []
    shown += [("lost", RED)] if any(known.lost for known in partitions.values()) else []
    handles = [patches.Patch(color=color, label=name) for name, color in shown]
    add_legend(axes, handles=handles)


def _message(partitions: Iterable[Partition]) -> str:
    lost = [span for known in partitions for span in known.lost]
    if not lost:
        return "no offset is lost"
    count = sum(stop - start for start, stop in lost)
    return f"{count:,} offsets are lost" if count > 1 else "one offset is lost"
