"""``tieredstore holds``: protect segments from deletion."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.catalog.names import topic_ids
from tieredstore.cli.app.options import Apply, DryRun, FromTo, Json, Store, Topics
from tieredstore.cli.app.outcomes import Words, carry_out
from tieredstore.cli.terminal.output import complain, print_lines
from tieredstore.cli.terminal.rows import Row, attributes, column, field
from tieredstore.cli.terminal.tables import text
from tieredstore.errors import ConfigError
from tieredstore.ops.garbage.holds import LegalHold

app: Final = typer.Typer(add_completion=False)

_Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Name of the hold.")]


@app.command()
def place(
    name: _Name,
    topics: Topics,
    window: FromTo,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason for the hold; rm and gc show it.")
    ] = "",
    *,
    store: Store,
    dry_run: DryRun = False,
) -> None:
    """Place a hold on a topic, a partition or some of its offsets; without TOPIC, on all topics.

    The hold is stored in the bucket. Every rm and gc, on any machine, obeys it within ten seconds.

    Example: tieredstore holds place case-17 -c store.properties orders --reason "case 17"
    """
    if topics.topic_id is not None:
        raise ConfigError("a hold applies to a topic's name, whatever its id: leave out --topic-id")
    window.check_order()
    with store.open() as bucket:
        new = bucket.place_hold(
            name, *topics.names, partitions=topics.which().get("partitions"), start=window.first, stop=window.end,
            reason=reason, dry_run=dry_run,
        )  # fmt: skip
        opened = bucket.opened()
        is_stored = new.topic is None or bool(topic_ids(opened.store, opened.prefix, new.topic))
    print_lines([f"{'would be held' if dry_run else 'held'} by {name}: {_scope(new)}"])
    if not is_stored:
        # Warn, because a hold on a misspelled topic protects nothing. Raise no error, because a hold may be placed
        # before its segments exist.
        complain(f"no segment of topic {new.topic!r} is stored: check the spelling")


@app.command("list")
def list_all(store: Store, output: Json) -> None:
    """List the holds.

    Example: tieredstore holds list -c store.properties
    """
    with store.open() as bucket:
        found = bucket.holds()
    _HOLD.show(found, as_json=output.as_json, empty="no holds found", summary={"holds": len(found)})


@app.command()
def release(name: _Name, store: Store, apply: Apply, output: Json) -> None:
    """Release a hold: rm and gc may delete its segments again. Without --yes, only show what it covers.

    Example: tieredstore holds release case-17 -c store.properties --yes
    """
    with store.open() as bucket:
        carry_out(bucket.release_hold(name), _WORDS, yes=apply.yes, as_json=output.as_json)


def _line(outcome: Outcome, verb: str) -> str:
    what = _range_of(outcome.topic, outcome.partition, outcome.base_offset, outcome.last_offset)
    return f"{verb}  {outcome.name}: {outcome.reason or what}"


def _scope(one: LegalHold) -> str:
    return _range_of(one.topic, one.partition, one.first_offset, one.last_offset)


def _range_of(topic: str | None, partition: int | None, first: int | None, last: int | None) -> str:
    if topic is None:
        return "everything"
    where = topic if partition is None else f"{topic}-{partition}"
    if first is None and last is None:
        return where
    return f"{where} offsets {first or 0} to {'the end' if last is None else last}"


_HOLD: Final[Row[LegalHold]] = Row(
    field("name", lambda one: one.name, text("HOLD")),
    column(text("OF"), _scope),
    attributes("topic", "partition", "first_offset", "last_offset"),
    field("reason", lambda one: one.reason, text("REASON")),
)
_WORDS: Final = Words(noun="hold", done="released", doing="releasing", show=_line, left={}, has_sizes=False)
