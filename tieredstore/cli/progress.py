"""Progress on stderr: a bar on a terminal, nothing but what is said elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import monotonic
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from tieredstore.cli.output import complain, plain
from tieredstore.process.interruption import at_sudden_end

_SHOW_CURSOR: Final = "\x1b[?25h\n"


@dataclass(frozen=True, slots=True)
class Bar:
    """What a command tells while it works. ``advance`` takes bytes; ``say`` puts a sentence on stderr."""

    advance: Callable[[int], None]
    say: Callable[[str], None]


_LINE_EVERY_S: Final = 10.0


@contextlib.contextmanager
def counting(what: str, unit: str) -> Generator[Callable[[], None], None, None]:
    """What to call for each one done, where nobody knows how many there are: a counter on a terminal, else a line
    every ten seconds."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), SpinnerColumn(), TextColumn("{task.completed:,} " + unit))
        console = Console(stderr=True, markup=False, highlight=False)
        with (
            Progress(*columns, TimeElapsedColumn(), console=console, transient=True, redirect_stdout=False) as bar,
            at_sudden_end(_show_cursor),
        ):
            task = bar.add_task(what, total=None)
            yield lambda: bar.advance(task)
        return
    done, told_at = 0, monotonic()

    def advance() -> None:
        nonlocal done, told_at
        done += 1
        if (now := monotonic()) - told_at >= _LINE_EVERY_S:
            told_at = now
            complain(f"{what}: {done:,} {unit} so far")

    yield advance


@contextlib.contextmanager
def progress(what: str, total_bytes: int) -> Generator[Bar, None, None]:
    """A bar that counts to ``total_bytes`` where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield Bar(lambda _: None, complain)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True, markup=False, highlight=False)
    # stdout is left as it is: it may be the data.
    with (
        Progress(*columns, TimeRemainingColumn(), console=console, transient=True, redirect_stdout=False) as bar,
        at_sudden_end(_show_cursor),
    ):
        task = bar.add_task(what, total=total_bytes)
        yield Bar(lambda count: bar.advance(task, count), lambda line: console.print(plain(line), soft_wrap=True))


def _show_cursor() -> None:
    """A bar hides it, and would show it again at its end."""
    sys.stderr.write(_SHOW_CURSOR)
    sys.stderr.flush()
