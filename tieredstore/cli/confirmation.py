"""What a person is asked before something goes for good."""

from __future__ import annotations

import sys
from typing import Annotated, Final, TypeAlias

import typer

from tieredstore.cli.output import complain

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, on a terminal either.")]

NOT_CONFIRMED: Final = 1
"""The exit code of a command that was told not to go on."""


def require_confirmation(question: str, *, yes: bool) -> None:
    """Ask ``question`` on stderr where stdin is a terminal, and end the command unless the answer is y or yes.

    Where nobody can answer, as in a script, nothing is asked. ``yes`` asks nowhere.
    """
    if yes or not sys.stdin.isatty():
        return
    sys.stdout.flush()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        complain("nothing was deleted")
        raise typer.Exit(NOT_CONFIRMED)
