"""``tieredstore hold``: segments that no tool deletes."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from tieredstore.cli.app.arguments import Json, OnlyPartition, OnlyTopic, SettingsPath, StoreUrl
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.steps import Yes, is_dry_run, way_to_apply
from tieredstore.cli.terminal.output import complain, print_lines
from tieredstore.cli.terminal.rows import Row, column, field
from tieredstore.cli.terminal.tables import text
from tieredstore.errors import ObjectNotFoundError
from tieredstore.ops.garbage.holds import LegalHold, find_hold, list_holds, place_hold, release_hold
from tieredstore.ops.garbage.removal import topic_ids

app: Final = typer.Typer(no_args_is_help=True, help="Legal holds: what rm, gc and delete leave alone.")

_Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="What the hold is called.")]


@app.callback()
def hold() -> None:
    """Legal holds: what rm, gc and delete leave alone."""


@app.command()
def place(
    name: _Name,
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    first_offset: Annotated[
        int | None, typer.Option("--first-offset", metavar="OFFSET", min=0, help="From this offset on.")
    ] = None,
    last_offset: Annotated[
        int | None, typer.Option("--last-offset", metavar="OFFSET", min=0, help="Up to this offset, with it.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for who meets the hold.")] = "",
) -> None:
    """Place a hold on a topic, a partition or some of its offsets; without --topic on everything.

    It lies in the bucket, and holds for every rm, gc and delete, wherever it runs, ten seconds later at the latest.

    Example: tieredstore hold place case-17 -c store.properties --topic orders --reason "case 17"
    """
    new = LegalHold(name, topic, partition, first_offset, last_offset, reason)
    with open_chosen_bucket(settings, store) as bucket:
        place_hold(bucket.store, bucket.prefix, new)
        is_stored = topic is None or bool(topic_ids(bucket.store, bucket.prefix, topic))
    print_lines([f"held by {name}: {_scope(new)}"])
    if not is_stored:
        # A hold may well come before its segments, but a misspelt one keeps nothing.
        complain(f"no segment of a topic {topic!r} is stored: is it spelled as it should be?")


@app.command("list")
def list_all(settings: SettingsPath = None, store: StoreUrl = None, as_json: Json = False) -> None:
    """List the holds.

    Example: tieredstore hold list -c store.properties
    """
    with open_chosen_bucket(settings, store) as bucket:
        holds = list(list_holds(bucket.store, bucket.prefix))
    _HOLD.show(holds, as_json=as_json, empty="no holds found")


@app.command()
def release(name: _Name, settings: SettingsPath = None, store: StoreUrl = None, yes: Yes = False) -> None:
    """Release a hold: rm, gc and delete may take its segments. Without --yes, only show what it holds.

    Example: tieredstore hold release case-17 -c store.properties --yes
    """
    with open_chosen_bucket(settings, store) as bucket:
        try:
            held = find_hold(bucket.store, bucket.prefix, name)
            if not is_dry_run(yes=yes):
                release_hold(bucket.store, bucket.prefix, name)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(f"there is no hold {name!r}; see tieredstore hold list") from error
    scope = "a hold that cannot be read, and so holds everything" if held is None else _scope(held)
    if yes:
        print_lines([f"released {name}: {scope}"])
    else:
        print_lines([f"would release {name}: {scope}", way_to_apply("released")])


def _scope(one: LegalHold) -> str:
    if one.topic is None:
        return "everything"
    partition = "" if one.partition is None else f"-{one.partition}"
    if one.first_offset is None and one.last_offset is None:
        return f"{one.topic}{partition}"
    end = "the end" if one.last_offset is None else one.last_offset
    return f"{one.topic}{partition} offsets {one.first_offset or 0} to {end}"


_HOLD: Final[Row[LegalHold]] = Row(
    field("name", lambda one: one.name, text("HOLD")),
    column(text("OF"), _scope),
    field("topic", lambda one: one.topic),
    field("partition", lambda one: one.partition),
    field("first_offset", lambda one: one.first_offset),
    field("last_offset", lambda one: one.last_offset),
    field("reason", lambda one: one.reason, text("REASON")),
)
