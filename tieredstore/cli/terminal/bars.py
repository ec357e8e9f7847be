"""Bars and counters on a terminal. Imported only for one: importing rich takes a tenth of a second."""

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
"""Functions that advance a bar by bytes, and print a sentence above it."""

_SHOW_CURSOR: Final = "\x1b[?25h\n"


_ONE_LINE: Final = Column(no_wrap=True)
"""A narrow terminal shortens the bar, not the words."""


class _Count(ProgressColumn):
    """Number done."""

    def __init__(self, unit: str) -> None:
        super().__init__(_ONE_LINE)
        self._unit = unit

    def render(self, task: Task) -> Text:
        """``1,234 segments``."""
        return Text(f"{human_count(int(task.completed))} {self._unit}")


class _Done(ProgressColumn):
    """Bytes done of the total, formatted as in tables and sums."""

    def render(self, task: Task) -> Text:
        """``1.5 MiB of 6.0 MiB``."""
        return Text(f"{human_bytes(int(task.completed))} of {human_bytes(int(task.total or 0))}")


class _Speed(ProgressColumn):
    """Speed."""

    def render(self, task: Task) -> Text:
        """``12.0 MiB/s``; nothing before anything is done."""
        return Text("" if task.speed is None else human_rate(int(task.speed), 1))


@contextlib.contextmanager
def counter(what: str, unit: str) -> Generator[Callable[[], None]]:
    """Yield a function to call for each item done, for an unknown total."""
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
    # stdout is left alone: it may be the data.
    with (
        Progress(description, *columns, console=console, transient=True, redirect_stdout=False) as drawn,
        at_sudden_end(_show_cursor),
    ):
        yield drawn


def _show_cursor() -> None:
    """A bar hides the cursor, and would show it only at its end."""
    sys.stderr.write(_SHOW_CURSOR)
    sys.stderr.flush()
