"""Pictures of command output. All pictures have uniform axes. A picture's file is written whole or not at all."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, TypeAlias

import typer

from tieredstore.cli.terminal.output_file import output_to
from tieredstore.cli.terminal.tables import plain
from tieredstore.errors import ConfigError
from tieredstore.installation import Extra

PlotFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", rich_help_panel="Output", help="Draw a picture: FILE.png, FILE.svg or FILE.pdf."
    ),
]

COLORS: Final = ("#3f90da", "#ffa90e", "#94a4a2", "#832db6", "#a96b59", "#b9ac70", "#717581", "#92dadd")
"""Colours that people with colour blindness can distinguish: Petroff's ten without the reds."""
GREY: Final = "#cccccc"
RED: Final = "#bd1f01"

_KINDS: Final = ".png", ".svg", ".pdf"
_DPI: Final = 120
_LONGEST_NAME: Final = 30


class Picture:
    """A picture to draw. The constructor raises ConfigError if drawing is not possible, before the command reads
    anything.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix.lower() not in _KINDS:
            raise ConfigError(
                f"the name of a picture must end in {', '.join(_KINDS[:-1])} or {_KINDS[-1]}, but {str(path)!r} "
                "does not"
            )
        module("matplotlib.figure")

    def axes(self, *, height: float = 4.5) -> Any:
        """Return empty axes with grid lines. ``height`` is in inches."""
        axes = module("matplotlib.figure").Figure(figsize=(10, height), layout="constrained").add_subplot()
        axes.grid(axis="both", color="#e3e3e3", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        return axes

    def save(self, axes: Any) -> None:
        """Write the figure of ``axes``. Equal axes give equal bytes."""
        kind = self.path.suffix[1:].lower()
        drawn = io.BytesIO()
        undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
        axes.figure.savefig(drawn, format=kind, dpi=_DPI, metadata=undated[kind])
        with output_to(self.path) as file:
            file.write(drawn.getbuffer())


def unit_of(total: int) -> tuple[str, int]:
    """Return the unit for a sum of bytes, and its size in bytes."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    return next((unit for unit in units if total >= unit[1]), ("bytes", 1))


def mark_amounts(axis: Any) -> None:
    """Mark an axis of sizes or amounts at round numbers."""
    ticker = module("matplotlib.ticker")
    axis.set_major_locator(ticker.MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))


def add_legend(axes: Any, *which: Any, **more: Any) -> None:
    """Add a legend of colours beside the axes."""
    axes.legend(*which, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, **more)


def module(name: str) -> ModuleType:
    """Return a module of matplotlib, imported on first use. If matplotlib is not installed, raise a ConfigError that
    names the extra."""
    with Extra("--plot", "plot"):
        return importlib.import_module(name)


def label(name: str) -> str:
    """Return a name, such as a topic's, as a label. A long name is shortened in the middle.

    matplotlib treats ``$`` as mathematics, and omits names with a leading underscore from a legend.
    """
    shown = plain(name)
    if len(shown) > _LONGEST_NAME:
        shown = f"{shown[: _LONGEST_NAME // 2]}…{shown[-(_LONGEST_NAME // 2) + 1 :]}"
    return " " + shown.replace("$", r"\$")
