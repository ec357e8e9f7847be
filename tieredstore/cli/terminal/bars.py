"""Bars and counters on a terminal, and the lines above them.

While a bar is shown, all output to this terminal, through stdout or stderr, appears above the bar.

This module is separate from ``progress``, because importing rich takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import Final

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

from tieredstore.cli.terminal.output import human_rate, quantity
from tieredstore.model import human_bytes
from tieredstore.process.interruption import at_sudden_end

_SHOW_CURSOR: Final = "\x1b[?25h\n"


_ONE_LINE: Final = Column(no_wrap=True)
"""A column without line breaks: on a narrow terminal, the bar gets shorter instead."""


class _Count(ProgressColumn):
    """The number of items done."""

    def __init__(self, noun: str) -> None:
        super().__init__(_ONE_LINE)
        self._noun = noun

    def render(self, task: Task) -> Text:
        """Return the number with its unit, such as ``1,234 segments``."""
        return Text(quantity(int(task.completed), self._noun))


class _Done(ProgressColumn):
    """The processed bytes and the total, formatted as in tables and sums."""

    def render(self, task: Task) -> Text:
        """Return both sizes, such as ``1.5 MiB of 6.0 MiB``."""
        return Text(f"{human_bytes(int(task.completed))} of {human_bytes(int(task.total or 0))}")


class _Speed(ProgressColumn):
    """The speed in bytes per second."""

    def render(self, task: Task) -> Text:
        """Return the speed, such as ``12.0 MiB/s``. Return an empty text until some work is done."""
        return Text("" if task.speed is None else human_rate(int(task.speed), 1))


@contextlib.contextmanager
def counter(what: str, noun: str) -> Generator[Callable[[], None]]:
    """Yield a function to call for each item done. The total is unknown."""
    with _progress(SpinnerColumn(), _Count(noun), TimeElapsedColumn()) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda: drawn.advance(task)


@contextlib.contextmanager
def bar(what: str, total_bytes: int) -> Generator[Callable[[int], None]]:
    """Draw a bar that counts to ``total_bytes``. Yield the function that advances it."""
    columns = (BarColumn(), _Done(_ONE_LINE), _Speed(_ONE_LINE), TimeRemainingColumn(table_column=_ONE_LINE))
    with _progress(*columns) as drawn:
        task = drawn.add_task(what, total=total_bytes)
        yield lambda count: drawn.advance(task, count)


@contextlib.contextmanager
def _progress(*columns: ProgressColumn) -> Generator[Progress]:
    # The terminal wraps the lines above the bar, so that users can copy and search whole lines.
    console = Console(file=sys.stderr, markup=False, highlight=False, soft_wrap=True)
    is_shared = sys.stdout.isatty() and os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    description = TextColumn("{task.description}")
    with (
        Progress(description, *columns, console=console, transient=True, redirect_stdout=is_shared) as drawn,
        at_sudden_end(lambda: _show_cursor(console)),
    ):
        yield drawn


def _show_cursor(console: Console) -> None:
    """Show the cursor again, even if a signal ends the process. A bar hides the cursor while it is shown."""
    console.file.write(_SHOW_CURSOR)
    console.file.flush()
