"""The one rule of commands that delete or rewrite: they show their plan, and only ``--yes`` applies it.

Nobody is asked, on a terminal either: the same line does the same in a shell, in a script and in cron.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from tieredstore.errors import ConfigError

Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without it, only show what would be done.")]


def is_dry(*, yes: bool, dry_run: bool = False) -> bool:
    """Return whether the command only shows its plan; raise ConfigError for both options at once."""
    if yes and dry_run:
        raise ConfigError("--yes and --dry-run exclude each other")
    return not yes


def way_to_apply(done: str) -> str:
    """Return the last line of a plan, which names what was not ``done`` and the way to do it."""
    return f"nothing was {done}: --yes does it"
