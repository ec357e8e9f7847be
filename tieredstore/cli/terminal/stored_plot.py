"""``tieredstore ls --plot``: how many bytes a store holds, by topic and by the time of their records."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tieredstore.cli.terminal.output import complain, iso_utc
from tieredstore.cli.terminal.plots import COLORS, GREY, Picture, label, module
from tieredstore.model import human_bytes
from tieredstore.ops.listing import ListedSegment

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
        self._picture.save(self._drawn(bands))

    def _take(self, segment: ListedSegment) -> None:
        # A time that is none, as of producers that count in other units, would leave everything else in one spot.
        if segment.max_timestamp_ms is None or iso_utc(segment.max_timestamp_ms) is None:
            self._timeless += 1
            return
        self._stored[segment.partition.topic].append((segment.max_timestamp_ms, segment.objects.stored_size))

    def _drawn(self, bands: Mapping[str, Stored]) -> Any:
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
