"""Progress of a command: a bar on a terminal, sentences elsewhere, and a sentence if a signal ends the command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from time import monotonic
from types import ModuleType
from typing import Final

from tieredstore.cli.terminal.output import complain, human_count
from tieredstore.process.interruption import Interrupted, at_sudden_end


@dataclass(frozen=True, slots=True)
class Bar:
    """A display of progress. ``advance`` takes bytes; ``say`` prints a sentence to stderr."""

    advance: Callable[[int], None]
    say: Callable[[str], None]


_LINE_EVERY_S: Final = 10.0


@contextlib.contextmanager
def counting(what: str, unit: str) -> Generator[Callable[[], None], None, None]:
    """Yield a function to call for each item done. The total is unknown.

    On a terminal this shows a counter, elsewhere a line every ten seconds.
    """
    if sys.stderr.isatty():
        with _bars().counter(what, unit) as advance_on_terminal:
            yield advance_on_terminal
        return
    done, told_at = 0, monotonic()

    def advance() -> None:
        nonlocal done, told_at
        done += 1
        if (now := monotonic()) - told_at >= _LINE_EVERY_S:
            told_at = now
            complain(f"{what}: {human_count(done)} {unit} so far")

    yield advance


@contextlib.contextmanager
def progress(what: str, total_bytes: int) -> Generator[Bar, None, None]:
    """Show a bar that counts to ``total_bytes`` if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield Bar(lambda _: None, complain)
        return
    with _bars().bar(what, total_bytes) as (advance, say):
        yield Bar(advance, say)


def _bars() -> ModuleType:
    """Import the terminal's bars on first use."""
    from tieredstore.cli.terminal import bars

    return bars


@contextlib.contextmanager
def tell_if_stopped(sentence: Callable[[], str]) -> Generator[None]:
    """Print the sentence once if a signal ends the command within the block, gracefully or not."""
    is_said = False

    def say() -> None:
        nonlocal is_said
        if not is_said:
            is_said = True
            complain(sentence())

    with at_sudden_end(say):
        try:
            yield
        except (Interrupted, KeyboardInterrupt):
            say()
            raise
