"""``tieredstore doctor``: the first command to run when something is wrong."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.cli.app.options import Apply, Json, MinAge, Store
from tieredstore.cli.app.outcomes import Words, carry_out
from tieredstore.cli.terminal.output import print_json_line, print_lines
from tieredstore.cli.terminal.progress import tell_if_stopped
from tieredstore.cli.terminal.rows import Row, attributes, field
from tieredstore.errors import ConfigError
from tieredstore.ops.doctor.checkup import Check, Verdict
from tieredstore.query.positions import duration_of

_MIN_AGE: Final = "7d"


def doctor(
    store: Store,
    write: Annotated[
        bool, typer.Option("--write", help="Write a few small objects below !tieredstore/doctor/, and remove them.")
    ] = False,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Plan a lifecycle rule that aborts unfinished uploads; make no checks."),
    ] = False,
    min_age: MinAge = "",
    release: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="RELEASE",
            help="List only the objects that this earlier release, such as 0.1, could not read.",
        ),
    ] = None,
    *,
    apply: Apply,
    output: Json,
) -> None:
    """Check settings, keys, store, clock, lifecycle rules and caches, one line each.

    With an uploader's settings, doctor also checks the broker, the log directories and the hold directories.

    The exit code is that of the first failed check.

    --fix --yes adds a lifecycle rule to the bucket. The rule aborts multipart uploads under the prefix that are
    unfinished after --min-age, in whole days (default: 7d). Existing rules stay unchanged. If an existing rule already
    does this, nothing is written. The new rule is read back and compared.

    --for lists tieredstore's objects under the prefix that an earlier release could not read. Use it before you run two
    releases together, or go back to the earlier release. doctor reads the first bytes of each object. For a pipeline's
    output, name its root, such as --store s3://b/root/.

    Example: tieredstore doctor -c store.properties --write
    """
    if not fix and (apply.yes or min_age):
        raise ConfigError(f"{'--yes' if apply.yes else '--min-age'} is for --fix: give --fix too")
    if fix + write + (release is not None) > 1:
        raise ConfigError("--fix, --write and --for exclude each other: give one of them")
    if fix:
        with store.open() as bucket:
            plan = bucket.abort_rule(min_age=duration_of("--min-age", min_age or _MIN_AGE))
            carry_out(plan, _WORDS, yes=apply.yes, as_json=output.as_json)
        return
    counts: Counter[str] = Counter()

    def tell(check: Check) -> None:
        counts[check.outcome] += 1
        if output.as_json:
            print_json_line(_CHECK.json(check))
        else:
            print_lines([f"{check.outcome:<7} {check.check:<11} {check.detail}"])

    with store.open() as bucket, tell_if_stopped(lambda: f"{counts.total()} checks were made"):
        checks = bucket.doctor(write=write, release=release, on_check=tell)
    if output.as_json:
        print_json_line({"summary": {outcome: counts[outcome] for outcome in Verdict}})
    if exit_code := next((check.exit_code for check in checks if check.exit_code), 0):
        raise typer.Exit(exit_code)


def _line(outcome: Outcome, verb: str) -> str | None:
    return f"{verb}: {outcome.reason}" if outcome.status in ("planned", "done") else outcome.reason


_WORDS: Final = Words(
    noun="rule", done="added", doing="adding", show=_line, left={}, stopping=frozenset({"no_rules"}), has_sizes=False
)
_CHECK: Final[Row[Check]] = Row(
    attributes("check", "outcome", "detail"),
    field("figures", lambda check: {name: round(value, 1) for name, value in check.figures.items()}),
)
