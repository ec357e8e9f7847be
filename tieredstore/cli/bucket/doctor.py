"""``tieredstore doctor``: what a person runs first when something is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from tieredstore.cli.app.arguments import Json, SettingsPath, StoreUrl
from tieredstore.cli.app.chosen_bucket import choose_settings
from tieredstore.cli.terminal.output import print_json_line, print_lines
from tieredstore.cli.terminal.progress import tell_if_stopped
from tieredstore.ops.doctor.checkup import Check, Outcome, checked


def doctor(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write a few small objects below !tieredstore/doctor/, and remove them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Look at settings, keys, store, clock, rules and caches, one line each.

    Settings that cannot be read are told as by every command. Ends with the exit code of the first check that failed.

    Example: tieredstore doctor -c store.properties --write
    """
    counts: Counter[Outcome] = Counter()
    exit_code = 0
    with tell_if_stopped(lambda: f"{counts.total()} checks were made"):
        for check in checked(choose_settings(settings, store), write=write):
            counts[check.outcome] += 1
            exit_code = exit_code or check.exit_code
            _tell(check, as_json=as_json)
    if as_json:
        print_json_line({"summary": {outcome.name.lower(): counts[outcome] for outcome in Outcome}})
    if exit_code:
        raise typer.Exit(exit_code)


def _tell(check: Check, *, as_json: bool) -> None:
    if as_json:
        figures = {name: round(value, 1) for name, value in check.figures.items()}
        row = {"check": check.subject, "outcome": check.outcome.name.lower(), "detail": check.sentence}
        print_json_line({**row, "figures": figures})
    else:
        print_lines([f"{check.outcome.value:<7} {check.subject:<11} {check.sentence}"])
