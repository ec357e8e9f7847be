"""``tieredstore offsets --plot``: what bucket and broker hold of each partition, side by side, and what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tieredstore.cli.terminal.plots import COLORS, RED, Picture, label, module
from tieredstore.ops.offsets import Extent, PartitionOffsets

_BUCKET, _BROKER = COLORS[:2]
_THICK: Final = 0.38
_TALLEST: Final = 30.0
"""Inches: more than this many partitions share it."""


class OffsetsPlot:
    """A bar for each partition and holder."""

    def __init__(self, path: Path) -> None:
        self._picture = Picture(path)

    def save(self, topic: str, partitions: Sequence[PartitionOffsets], *, broker: bool) -> None:
        """Draw ``partitions``; ``broker`` tells whether one was asked."""
        axes = self._picture.axes(height=min(1.9 + 0.45 * len(partitions), _TALLEST))
        # Bucket above broker; the one alone has all of the height.
        thick = _THICK if broker else 2 * _THICK
        for row, known in enumerate(partitions):
            _draw(axes, known.stored, (row - _THICK, thick), _BUCKET)
            if known.broker is not None:
                _draw(axes, [known.broker], (row, _THICK), _BROKER)
            # With an edge, so that a hole of one offset among millions is seen.
            _draw(axes, known.lost, (row - _THICK, 2 * _THICK), RED, edgecolor=RED, linewidth=1)
        _label(axes, topic, partitions, broker=broker)
        self._picture.save(axes)


def _draw(axes: Any, extents: Sequence[Extent], place: tuple[float, float], color: str, **style: object) -> None:
    axes.broken_barh([(start, stop - start) for start, stop in extents], place, facecolors=color, **style)


def _label(axes: Any, topic: str, partitions: Sequence[PartitionOffsets], *, broker: bool) -> None:
    ticker, patches = module("matplotlib.ticker"), module("matplotlib.patches")
    axes.set_ylim(len(partitions) - 0.5, -0.5)
    locator = ticker.MaxNLocator(nbins=max(2, min(len(partitions), 40)), integer=True)
    rows = [int(row) for row in locator.tick_values(0, max(1, len(partitions) - 1)) if 0 <= row < len(partitions)]
    axes.set_yticks(rows, [str(partitions[row].partition) for row in rows])
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(nbins=8, integer=True))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("offset")
    axes.set_ylabel("partition")
    axes.set_title(f"{label(topic).strip()}: {_message(partitions)}", loc="left", fontweight="bold")
    shown = [("bucket", _BUCKET)]
    shown += [("broker", _BROKER)] if broker else []
    shown += [("lost", RED)] if any(known.lost for known in partitions) else []
    handles = [patches.Patch(color=color, label=name) for name, color in shown]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _message(partitions: Sequence[PartitionOffsets]) -> str:
    lost = [extent for known in partitions for extent in known.lost]
    if not lost:
        return "no offset is lost"
    count = sum(stop - start for start, stop in lost)
    return f"{count:,} offsets are lost" if count > 1 else "one offset is lost"
