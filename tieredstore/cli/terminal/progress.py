"""The progress of a command: a bar on a terminal, or else sentences. If a signal ends the command, a sentence says how
far the command came.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from time import monotonic
from typing import Final

from tieredstore.cli.terminal.output import complain, quantity
from tieredstore.process.interruption import at_sudden_end, is_interruption

_LINE_EVERY_S: Final = 10.0


@contextlib.contextmanager
def counting(what: str, noun: str) -> Generator[Callable[[], None], None, None]:
    """Yield a function to call for each item done. The total is unknown.

    On a terminal, the progress is a counter. Elsewhere, it is a line every ten seconds.
    """
    if sys.stderr.isatty():
        from tieredstore.cli.terminal import bars

        with bars.counter(what, noun) as advance_on_terminal:
            yield advance_on_terminal
        return
    done, told_at = 0, monotonic()

    def advance() -> None:
        nonlocal done, told_at
        done += 1
        if (now := monotonic()) - told_at >= _LINE_EVERY_S:
            told_at = now
            complain(f"{what}: {quantity(done, noun)} so far")

    yield advance


@contextlib.contextmanager
def progress(what: str, total_bytes: int) -> Generator[Callable[[int], None], None, None]:
    """Show a bar that counts to ``total_bytes`` if stderr is a terminal. Yield a function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from tieredstore.cli.terminal import bars

    with bars.bar(what, total_bytes) as advance:
        yield advance


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
        except BaseException as error:
            if is_interruption(error):
                say()
            raise
