"""What a command says where a signal ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from tieredstore.cli.terminal.output import complain
from tieredstore.process.interruption import Interrupted, at_sudden_end


@contextlib.contextmanager
def said_if_stopped(sentence: Callable[[], str]) -> Generator[None]:
    """Says the sentence, once, if a signal ends the command within the block, on its way out or suddenly."""
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
