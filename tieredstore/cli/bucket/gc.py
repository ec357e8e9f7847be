"""``tieredstore gc``: delete the remains of broken copies and deletions."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.cli.app.options import Apply, Cluster, Json, MinAge, Store, Topics, Work
from tieredstore.cli.app.outcomes import Words, carry_out
from tieredstore.model import human_bytes
from tieredstore.query.positions import duration_of

_KINDS: Final = {
    "forgotten": "forgotten by brokers",
    "unfinished_write": "unfinished write",
    "no_manifest": "without manifest",
}


def gc(
    topics: Topics,
    store: Store,
    cluster: Cluster,
    min_age: MinAge = "24h",
    unknown_too: Annotated[
        bool,
        typer.Option(
            "--unknown-too", help="With --bootstrap-server: also delete segments that the brokers' records never named."
        ),
    ] = False,
    *,
    work: Work,
    apply: Apply,
    output: Json,
) -> None:
    """Delete the remains of broken copies and deletions: objects without a manifest, and unfinished writes.

    With --bootstrap-server, gc also deletes segments that the brokers have deleted or never finished copying. Without
    --yes it only shows the plan. Before each deletion it checks again that there is no manifest. Segments under a legal
    hold and unrelated objects are kept. If gc is stopped or killed, run it again.

    Example: tieredstore gc -c store.properties --min-age 48h
    """
    if unknown_too:
        cluster.require("--unknown-too needs the brokers' records")
    least = duration_of("--min-age", min_age)
    with store.open(cluster, is_all=not topics.names) as bucket:
        plan = bucket.gc(*topics.names, min_age=least, unknown_too=unknown_too, **topics.which(work))
        carry_out(plan, _WORDS, yes=apply.yes, as_json=output.as_json, store=bucket.opened().store)


def _line(outcome: Outcome, verb: str) -> str | None:
    """Return a line for a change or a warning. Objects that are only too young get no line, but are counted."""
    if outcome.code == "young" and outcome.reason is None:
        return None
    size = "size not known" if outcome.stored_size is None else human_bytes(outcome.stored_size)
    reason = "" if outcome.reason is None else f": {outcome.reason}"
    return f"{verb}  {_KINDS[outcome.kind or '']}  {outcome.name}  ({size}){reason}"


_WORDS: Final = Words(
    noun="leftover",
    done="deleted",
    doing="collecting",
    show=_line,
    left={
        "young": "too young, or part of a copy in progress",
        "referenced": "that now have a manifest",
        "unknown": "with a manifest that the brokers' records do not name",
        "held": "under a legal hold",
        "left": "that only the store itself will remove",
        "gone": "already deleted, or written again",
        "refused": "that the store refuses to delete",
    },
    none="there are no leftovers",
)
