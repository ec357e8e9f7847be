"""``tieredstore rm``: the segments of topics, all or the oldest, or one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.api.scopes import is_glob
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
        bool, typer.Option("--force", help="With --bootstrap-server: also what the brokers list, or may list yet.")
    ] = False,
    *,
    store: Store,
    cluster: Cluster,
    work: Work,
    apply: Apply,
    output: Json,
) -> None:
    """Delete the segments of topics, with --to only the oldest of them, with --segment one; whole segments only.

    Without --yes it only says what would go. A segment's manifest goes first, so that no half of one is ever visible.
    Brokers do not notice: one that still lists a segment fails its readers. With --bootstrap-server they are asked, and
    what they list stays, and what no record of theirs names until it is twice as old as a copy may take
    (upload.max.age.ms); so does what is under a legal hold. With --to it ends, in each partition, at the first segment
    that is not older, is listed, or does not tell. An id takes also what an unfinished copy or delete left of a segment
    (be sure that no copy of it is still running).

    Example: tieredstore rm -c store.properties orders -p 0 --to 2026-01-31
    """
    which, end, partitions = topics.which(work), window.end, parse_partitions(topics.partitions)
    one = None if segment is None else parse_segment(segment, "--segment")
    _check_topics(topics.names)
    is_one_topic = len(topics.names) == 1 and not is_glob(topics.names[0])
    if isinstance(end, int) and not (is_one_topic and partitions):
        raise ConfigError("--to takes an offset only with one TOPIC and -p: each partition has offsets of its own")
    if one is not None and end is not None:
        raise ConfigError("--segment and --to exclude each other: name one segment, or where to end")
    if one is not None and not (is_one_topic and len(partitions or ()) == 1):
        raise ConfigError("--segment is one of a partition: name its TOPIC, and -p with one number")
    if force and cluster.client() is None:
        raise ConfigError("--force is for what brokers list: name them by --bootstrap-server HOST:PORT")
    with store.open(cluster) as bucket:
        plan = bucket.remove(*topics.names, stop=end, segment=one, force=force, **which)
        words = WORDS
        if one is not None and partitions is not None:
            line = f"rm {topics.names[0]} -p {partitions[0]} --segment={plan.bounds['segment']} --yes"
            words = replace(words, again=f"what is left of the segment goes by: tieredstore {line}")
        carry_out(plan, words, yes=apply.yes, as_json=output.as_json, store=bucket.opened().store)


def _check_topics(names: Sequence[str]) -> None:
    """Raise ConfigError without a topic, and for a number after a topic, which may be meant as a partition."""
    if not names:
        raise ConfigError("rm needs TOPIC: tieredstore rm TOPIC...")
    number = next((name for name in names[1:] if name.isdecimal()), None)
    if number is not None:
        raise ConfigError(f"is {number} a partition? then it is -p {number}; a topic of that name goes by itself")


def _line(outcome: Outcome, verb: str) -> str:
    reason = "" if outcome.reason is None else f": {outcome.reason}"
    return f"{verb}  {outcome.name}  ({human_bytes(outcome.stored_size or 0)}){reason}"


WORDS: Final = Words(
    noun="segment",
    done="deleted",
    doing="removing",
    show=_line,
    left={
        "leftover": "without a manifest: gc takes them when they are old",
        "unknown": "of which nobody knows where they end",
        "held": "under a legal hold",
        "listed": "that the brokers still list",
        "young": "too young to be sure that the brokers do not list them",
        "newer": "written since the plan was made",
        "refused": "that the store refuses to delete",
    },
    stopping=frozenset({"held", "listed", "young"}),
)
