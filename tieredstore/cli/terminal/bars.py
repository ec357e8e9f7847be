"""Bars and counters on a terminal. Separate from ``progress``, because importing rich takes a tenth of a second."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Final, TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from tieredstore.cli.terminal.output import human_count, human_rate
from tieredstore.cli.terminal.tables import plain
from tieredstore.model import human_bytes
from tieredstore.process.interruption import at_sudden_end

BarParts: TypeAlias = tuple[Callable[[int], None], Callable[[str], None]]
"""Two functions: one advances a bar by bytes, the other prints a sentence above it."""

_SHOW_CURSOR: Final = "\x1b[?25h\n"


_ONE_LINE: Final = Column(no_wrap=True)
"""On a narrow terminal the bar gets shorter, and the words stay whole."""


class _Count(ProgressColumn):
    """The number of items done."""

    def __init__(self, unit: str) -> None:
        super().__init__(_ONE_LINE)
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return the number with its unit, such as ``1,234 segments``."""
        return Text(f"{human_count(int(task.completed))} {self._unit}")


class _Done(ProgressColumn):
    """Bytes done of the total, formatted as in tables and sums."""

    def render(self, task: Task) -> Text:
        """Return both sizes, such as ``1.5 MiB of 6.0 MiB``."""
        return Text(f"{human_bytes(int(task.completed))} of {human_bytes(int(task.total or 0))}")


class _Speed(ProgressColumn):
    """The speed in bytes per second."""

    def render(self, task: Task) -> Text:
        """Return the speed, such as ``12.0 MiB/s``; nothing before anything is done."""
        return Text("" if task.speed is None else human_rate(int(task.speed), 1))


@contextlib.contextmanager
def counter(what: str, unit: str) -> Generator[Callable[[], None]]:
    """Yield a function to call for each item done. The total is unknown."""
    columns = (SpinnerColumn(), _Count(unit), TimeElapsedColumn())
    with _progress(_console(), *columns) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda: drawn.advance(task)


@contextlib.contextmanager
def bar(what: str, total_bytes: int) -> Generator[BarParts]:
    """Draw a bar that counts to ``total_bytes``; yield the functions that advance it and print above it."""
    console = _console()
    columns = (BarColumn(), _Done(_ONE_LINE), _Speed(_ONE_LINE), TimeRemainingColumn(table_column=_ONE_LINE))
    with _progress(console, *columns) as drawn:
        task = drawn.add_task(what, total=total_bytes)
        yield lambda count: drawn.advance(task, count), lambda line: console.print(plain(line), soft_wrap=True)


def _console() -> Console:
    return Console(stderr=True, markup=False, highlight=False)


@contextlib.contextmanager
def _progress(console: Console, *columns: ProgressColumn) -> Generator[Progress]:
    description = TextColumn("{task.description}")
    # Leave stdout alone: it may carry the data.
    with (
        Progress(description, *columns, console=console, transient=True, redirect_stdout=False) as drawn,
        at_sudden_end(_show_cursor),
    ):
        yield drawn


def _show_cursor() -> None:
    """A bar hides the cursor, and shows it again only at its end."""
    sys.stderr.write(_SHOW_CURSOR)
    sys.stderr.flush()
