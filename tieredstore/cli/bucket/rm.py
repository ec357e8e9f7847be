"""``tieredstore rm``: delete all segments of topics, the oldest ones, or one segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.cli.app.options import Apply, Cluster, End, Json, Store, Topics, Work, parse_partitions, parse_segment
from tieredstore.cli.app.outcomes import Words, carry_out
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes


def rm(
    topics: Topics,
    window: End,
    segment: Annotated[
        str | None,
        typer.Option(
            "--segment",
            metavar="OFFSET|ID",
            help="Only the segment that begins at this offset, or has this id; with one TOPIC and -p.",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With --bootstrap-server: also delete segments that the brokers list or may still list."
        ),
    ] = False,
    *,
    store: Store,
    cluster: Cluster,
    work: Work,
    apply: Apply,
    output: Json,
) -> None:
    """Delete whole segments of topics: all of them, with --to only the oldest, or with --segment only one.

    Without --yes, rm only shows the plan. A segment's manifest is deleted first, so that readers never see an
    incomplete segment. Brokers do not notice a deletion: if a broker still lists a deleted segment, its readers fail.

    With --bootstrap-server, rm asks the brokers, and keeps the segments that they list. If the brokers do not know a
    segment, rm keeps it until it is older than 2 × upload.max.age.ms, because the brokers may not have recorded it yet.
    Segments under a legal hold are kept.

    With --to, rm stops in each partition at the first segment that is newer, is kept, or has an unknown end. --segment
    ID also deletes the remains of an unfinished copy or deletion. First make sure that no copy of that segment is still
    running.

    Example: tieredstore rm -c store.properties orders -p 0 --to 2026-01-31
    """
    which, end, partitions = topics.which(work), window.end, parse_partitions(topics.partitions)
    one = None if segment is None else parse_segment(segment, "--segment")
    _check_topics(topics.names)
    if force:
        cluster.require("--force needs the brokers' records")
    with store.open(cluster) as bucket:
        plan = bucket.remove(*topics.names, stop=end, segment=one, force=force, **which)
        words = WORDS
        if one is not None and partitions is not None:
            line = f"rm {topics.names[0]} -p {partitions[0]} --segment={plan.bounds['segment']} --yes"
            words = replace(words, again=f"to delete the rest of the segment: tieredstore {line}")
        carry_out(plan, words, yes=apply.yes, as_json=output.as_json, store=bucket.opened().store, more=window.json())


def _check_topics(names: Sequence[str]) -> None:
    """Raise ConfigError if no topic is given. Also raise ConfigError for a number after a topic, because the number
    may be meant as a partition.
    """
    if not names:
        raise ConfigError("rm needs TOPIC: tieredstore rm TOPIC...")
    number = next((name for name in names[1:] if name.isdecimal()), None)
    if number is not None:
        raise ConfigError(
            f"{number} may be meant as a partition: give -p {number}, or remove a topic of that name in a separate call"
        )


def _line(outcome: Outcome, verb: str) -> str:
    reason = "" if outcome.reason is None else f": {outcome.reason}"
    return f"{verb}  {outcome.name}  ({human_bytes(outcome.stored_size or 0)}){reason}"


WORDS: Final = Words(
    noun="segment",
    done="deleted",
    doing="deleting",
    show=_line,
    left={
        "leftover": "without a manifest: gc deletes them when they are old",
        "unknown": "with an unknown end offset",
        "held": "under a legal hold",
        "listed": "that the brokers still list",
        "young": "too young to be sure that the brokers do not list them",
        "newer": "written since the plan was made",
        "refused": "that the store refuses to delete",
    },
    stopping=frozenset({"held", "listed", "unknown", "young"}),
)
