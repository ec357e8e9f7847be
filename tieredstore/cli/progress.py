"""Progress on stderr: a bar on a terminal, nothing but what is said elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tieredstore.cli.output import complain, plain


@dataclass(frozen=True, slots=True)
class Bar:
    """What a command tells while it works. ``advance`` takes bytes; ``say`` puts a sentence on stderr."""

    advance: Callable[[int], None]
    say: Callable[[str], None]


@contextlib.contextmanager
def progress(what: str, total_bytes: int) -> Generator[Bar, None, None]:
    """A bar that counts to ``total_bytes`` where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield Bar(lambda _: None, complain)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True, markup=False, highlight=False)
    # stdout is left as it is: it may be the data.
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield Bar(lambda count: bar.advance(task, count), lambda line: console.print(plain(line), soft_wrap=True))
