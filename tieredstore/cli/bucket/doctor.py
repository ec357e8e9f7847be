"""``tieredstore doctor``: what a person runs first when something is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

import typer

from tieredstore.cli.app.arguments import Json, SettingsPath, StoreUrl
from tieredstore.cli.app.chosen_bucket import choose_settings
from tieredstore.cli.app.steps import telling
from tieredstore.cli.terminal.progress import tell_if_stopped
from tieredstore.cli.terminal.rows import Row, field
from tieredstore.ops.doctor.checkup import Check, Verdict, checked


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
    counts: Counter[Verdict] = Counter()
    exit_code = 0
    with tell_if_stopped(lambda: f"{counts.total()} checks were made"), telling(as_json=as_json, report=None) as teller:
        for check in checked(choose_settings(settings, store), write=write):
            counts[check.outcome] += 1
            exit_code = exit_code or check.exit_code
            line = f"{check.outcome.value:<7} {check.subject:<11} {check.sentence}"
            teller.tell(_CHECK.json(check), line)
        teller.tell({"summary": {outcome.name.lower(): counts[outcome] for outcome in Verdict}})
    if exit_code:
        raise typer.Exit(exit_code)


_CHECK: Final[Row[Check]] = Row(
    field("check", lambda check: check.subject),
    field("outcome", lambda check: check.outcome.name.lower()),
    field("detail", lambda check: check.sentence),
    field("figures", lambda check: {name: round(value, 1) for name, value in check.figures.items()}),
)
