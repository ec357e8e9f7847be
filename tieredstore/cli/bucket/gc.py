"""``tieredstore gc``: delete leftovers of copies and deletions."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.cli.app.options import Apply, Cluster, Json, MinAge, Store, Topics, Work
from tieredstore.cli.app.outcomes import Words, carry_out
from tieredstore.errors import ConfigError
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
        typer.Option("--unknown-too", help="With --bootstrap-server: also segments that its records never named."),
    ] = False,
    *,
    work: Work,
    apply: Apply,
    output: Json,
) -> None:
    """Delete what broken copies and deletes left: objects without a manifest, and writes that never ended.

    With --bootstrap-server also segments that brokers have forgotten: deleted ones, and copies that the brokers do not
    consider finished. Without --yes it only shows the plan. Each deletion first checks again that there is no manifest.
    Segments under a legal hold and unrelated objects are kept. If it is stopped or killed, run it again.

    Example: tieredstore gc -c store.properties --min-age 48h
    """
    if unknown_too and cluster.client() is None:
        raise ConfigError("--unknown-too is for what brokers do not name: name them by --bootstrap-server HOST:PORT")
    least = duration_of("--min-age", min_age)
    with store.open(cluster, is_all=not topics.names) as bucket:
        plan = bucket.gc(*topics.names, min_age=least, unknown_too=unknown_too, **topics.which(work))
        carry_out(plan, _WORDS, yes=apply.yes, as_json=output.as_json, store=bucket.opened().store)


def _line(outcome: Outcome, verb: str) -> str | None:
    """Return a line for changes and warnings; objects that are merely too young are only counted."""
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
        "young": "too young, or of a copy under way",
        "referenced": "that now have a manifest",
        "unknown": "with a manifest that the brokers' records do not name",
        "held": "under a legal hold",
        "left": "that only the store takes away, in its own time",
        "gone": "already deleted, or written again",
        "refused": "that the store refuses to delete",
    },
    none="there are no leftovers",
)
