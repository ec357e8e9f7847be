"""``tieredstore lifecycle``: the bucket's own rules, and the one that a bucket of segments wants."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tieredstore.backends.base import LifecycleRule
from tieredstore.cli.app.arguments import DryRun, Json, SettingsPath, StoreUrl, Wide
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.steps import Yes, is_dry, way_to_apply
from tieredstore.cli.terminal.output import JsonValue, complain, print_json, print_lines, print_table
from tieredstore.cli.terminal.tables import number, text, word
from tieredstore.errors import StoreError
from tieredstore.ops.garbage.lifecycle import DEFAULT_DAYS, LifecycleOutcome, aborting_rule, add_abort_rule

app: Final = typer.Typer(no_args_is_help=True, help="The bucket's own rules: shown, and one added.")

_COLUMNS: Final = (text("RULE"), word("ENABLED", rank=1), text("UNDER"), number("ABORTS AFTER", rank=2), text("DOES"))


@app.command()
def show(settings: SettingsPath = None, store: StoreUrl = None, as_json: Json = False, wide: Wide = False) -> None:
    """Show the bucket's lifecycle rules, whether one aborts unfinished uploads, and which would take segments away.

    Example: tieredstore lifecycle show -c store.properties
    """
    with open_chosen_bucket(settings, store) as bucket:
        lifecycle = bucket.store.lifecycle()
        if isinstance(lifecycle, str):
            rules: list[LifecycleRule] = []
            aborting, before, note = None, "", lifecycle
        else:
            state = lifecycle.read()
            rules, before, note = list(state.rules), state.text, lifecycle.note
            aborting = aborting_rule(state, bucket.prefix)
        eating = [] if isinstance(lifecycle, str) else list(bucket.store.rules_on(bucket.prefix) or [])
        identity = bucket.store.identity
    if as_json:
        shown: list[JsonValue] = [_row(rule) for rule in rules]
        print_json(
            {
                "rules": shown,
                "aborts_after_days": None if aborting is None else aborting.aborts_after_days,
                "dangers": eating,
                "note": note or None,
                "before": before,
            }
        )
        return
    if rules:
        print_table(_COLUMNS, [_cells(rule) for rule in rules], wide=wide)
    elif not isinstance(lifecycle, str):
        print_lines([f"{identity} has no lifecycle rules"])
    for rule in eating:
        complain(f"{rule}: segments are lost by it")
    if aborting is not None:
        print_lines([f"unfinished uploads are aborted after {aborting.aborts_after_days} days, by {aborting.name}"])
    elif not isinstance(lifecycle, str):
        print_lines(["no rule aborts unfinished uploads: lifecycle apply adds one"])
    if note:
        print_lines([note])


@app.command()
def apply(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=3650, help="Abort what was begun so many days ago.")
    ] = DEFAULT_DAYS,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Add a rule to the bucket that aborts unfinished multipart uploads under the prefix, and nothing else.

    Without --yes, only show the rule. Rules that are there stay as they are; where one does it already, nothing is
    written. What was written is read back and compared.

    Example: tieredstore lifecycle apply -c store.properties --yes
    """
    is_dry_run = is_dry(yes=yes, dry_run=dry_run)
    with open_chosen_bucket(settings, store) as bucket:
        report = add_abort_rule(
            bucket.store,
            bucket.prefix,
            days=days,
            upload_max_age_ms=bucket.settings.upload_max_age_ms,
            dry_run=is_dry_run,
        )
    if as_json:
        print_json(
            {
                "outcome": report.outcome.value,
                "name": report.name,
                "aborts_after_days": report.days,
                "detail": report.sentence,
                "before": report.before,
                "dry_run": is_dry_run,
            }
        )
    else:
        would = {LifecycleOutcome.ADDED: "would be added: " if is_dry_run else "added: "}
        print_lines([f"{would.get(report.outcome, '')}{report.sentence}"])
        if is_dry_run and report.outcome is LifecycleOutcome.ADDED:
            print_lines([way_to_apply("written")])
    if report.outcome is LifecycleOutcome.NO_RULES:
        raise typer.Exit(StoreError.exit_code)


def _row(rule: LifecycleRule) -> dict[str, JsonValue]:
    return {
        "name": rule.name,
        "enabled": rule.is_enabled,
        "prefixes": list(rule.prefixes),
        "limited": rule.is_limited,
        "action": rule.action,
        "aborts_after_days": rule.aborts_after_days,
    }


def _cells(rule: LifecycleRule) -> list[str]:
    under = ", ".join(rule.prefixes) or "everything"
    days = "-" if rule.aborts_after_days is None else f"{rule.aborts_after_days} days"
    limited = "; of some objects only" if rule.is_limited else ""
    return [rule.name, "yes" if rule.is_enabled else "no", under, days, rule.action + limited]
