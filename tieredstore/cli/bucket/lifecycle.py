"""``tieredstore lifecycle``: the bucket's own rules, and the one that a bucket of segments wants."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tieredstore.backends.base import LifecycleRule, admin_of
from tieredstore.cli.app.arguments import DryRun, Json, SettingsPath, StoreUrl, Wide
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.steps import Yes, is_dry_run, way_to_apply
from tieredstore.cli.terminal.output import complain, print_json, print_lines, print_table
from tieredstore.cli.terminal.rows import Row, column, field
from tieredstore.cli.terminal.tables import number, text, word
from tieredstore.errors import StoreError
from tieredstore.ops.garbage.lifecycle import DEFAULT_DAYS, LifecycleReport, aborting_rule, add_abort_rule
from tieredstore.ops.steps import Outcome

app: Final = typer.Typer(no_args_is_help=True, help="The bucket's own rules: shown, and one added.")

_RULE: Final[Row[LifecycleRule]] = Row(
    field("name", lambda rule: rule.name, text("RULE")),
    field("enabled", lambda rule: rule.is_enabled, word("ENABLED", rank=1), lambda enabled: "yes" if enabled else "no"),
    field("prefixes", lambda rule: list(rule.prefixes), text("UNDER"), lambda under: ", ".join(under) or "everything"),
    field("limited", lambda rule: rule.is_limited),
    field("action", lambda rule: rule.action),
    field("aborts_after_days", lambda rule: rule.aborts_after_days, number("ABORTS AFTER", rank=2), "{} days".format),
    column(text("DOES"), lambda rule: rule.action + ("; of some objects only" if rule.is_limited else "")),
)
_REPORT: Final[Row[LifecycleReport]] = Row(
    field("outcome", lambda report: report.outcome),
    field("name", lambda report: report.name),
    field("aborts_after_days", lambda report: report.days),
    field("detail", lambda report: report.sentence),
    field("before", lambda report: report.before),
)


@app.command()
def show(settings: SettingsPath = None, store: StoreUrl = None, as_json: Json = False, wide: Wide = False) -> None:
    """Show the bucket's lifecycle rules, whether one aborts unfinished uploads, and which would take segments away.

    Example: tieredstore lifecycle show -c store.properties
    """
    with open_chosen_bucket(settings, store) as bucket:
        lifecycle = admin_of(bucket.store).lifecycle()
        if isinstance(lifecycle, str):
            rules: list[LifecycleRule] = []
            aborting, before, note = None, "", lifecycle
        else:
            state = lifecycle.read()
            rules, before, note = list(state.rules), state.text, lifecycle.note
            aborting = aborting_rule(state, bucket.prefix)
        eating = [] if isinstance(lifecycle, str) else list(admin_of(bucket.store).rules_on(bucket.prefix) or [])
        identity = bucket.store.identity
    if as_json:
        print_json(
            {
                "rules": [_RULE.json(rule) for rule in rules],
                "aborts_after_days": None if aborting is None else aborting.aborts_after_days,
                "dangers": eating,
                "note": note or None,
                "before": before,
            }
        )
        return
    if rules:
        print_table(_RULE.columns, map(_RULE.cells, rules), wide=wide)
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
    dry_run = is_dry_run(yes=yes, dry_run=dry_run)
    with open_chosen_bucket(settings, store) as bucket:
        report = add_abort_rule(
            bucket.store,
            bucket.prefix,
            days=days,
            upload_max_age_ms=bucket.settings.upload_max_age_ms,
            dry_run=dry_run,
        )
    if as_json:
        print_json(_REPORT.json(report) | {"dry_run": dry_run})
    else:
        would = {Outcome.ADDED: "would be added: " if dry_run else "added: "}
        print_lines([f"{would.get(report.outcome, '')}{report.sentence}"])
        if dry_run and report.outcome is Outcome.ADDED:
            print_lines([way_to_apply("written")])
    if report.outcome is Outcome.NO_RULES:
        raise typer.Exit(StoreError.exit_code)
