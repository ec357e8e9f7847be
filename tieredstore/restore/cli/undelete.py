"""``restore undelete``: bring back a topic that was deleted by mistake, from older versions in its bucket.

This module is separate from the other commands of ``restore``, because they need a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.app.options import Apply, Json, Store, Topics, parse_time
from tieredstore.cli.app.outcomes import Words, carry_out
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.api.outcomes import Outcome


def undelete(
    topics: Topics,
    deleted_since: Annotated[
        str | None,
        typer.Option("--deleted-since", metavar="TIME", help="Only segments that were deleted at this time or later."),
    ] = None,
    deleted_until: Annotated[
        str | None,
        typer.Option("--deleted-until", metavar="TIME", help="Only segments that were deleted before this time."),
    ] = None,
    *,
    store: Store,
    apply: Apply,
    output: Json,
) -> None:
    """Bring back deleted segments of topics, from a bucket that keeps versions (S3, and servers like it).

    Without --yes, only show the plan, with the time of each deletion. Limit the times of deletion, because segments
    that retention, rm or gc deleted on purpose come back too. Delete markers are removed, and nothing is copied or
    overwritten. A manifest comes back after the segment's other objects, so that no incomplete segment is ever visible.
    A segment without an older version of each object stays deleted.

    Before any change, the command places a legal hold on each topic. The hold keeps gc and rm away: release it when you
    have what you need.

    The command needs the rights s3:ListBucketVersions and s3:DeleteObjectVersion. Offsets of consumer groups are not
    restored.

    Example: tieredstore restore undelete orders -c store.properties --deleted-since 2026-01-31T08:00Z
    """
    from tieredstore.api.scopes import Scopes
    from tieredstore.restore.undelete import DeletionTimes, plan_undelete

    if not topics.names:
        raise ConfigError("restore undelete needs TOPIC: tieredstore restore undelete TOPIC...")
    which = topics.which()
    scopes = Scopes(topics.names, which.get("partitions"), which.get("topic_id"))
    since, until = parse_time("--deleted-since", deleted_since), parse_time("--deleted-until", deleted_until)
    times = DeletionTimes(*(None if time is None else time.timestamp_ms for time in (since, until)))
    with store.open() as bucket:
        opened = bucket.opened()
        plan = plan_undelete(opened.store, opened.prefix, scopes, times)
        carry_out(plan, _WORDS, yes=apply.yes, as_json=output.as_json)


def _line(outcome: Outcome, verb: str) -> str:
    if outcome.code == "held":
        return f"{verb}  {outcome.topic} by the hold {outcome.name}: {outcome.reason}"
    if outcome.code == "exists":
        return f"{verb}  {outcome.topic}-{outcome.topic_id}: {outcome.reason}"
    trouble = f"; {outcome.error}" if outcome.error else ""
    return f"{verb}  {outcome.name}  ({human_bytes(outcome.stored_size or 0)}): {outcome.reason}{trouble}"


_WORDS: Final = Words(
    noun="segment",
    done="undeleted",
    doing="undeleting",
    show=_line,
    left={
        "gone": "without an older version of each object",
        "superseded": "superseded by a later log",
        "exists": "topics of the same name",
        "changed": "that changed meanwhile",
        "refused": "that the store refuses to bring back",
    },
    also={"held": "held as whole topics"},
    stopping=frozenset({"gone", "superseded"}),
    none="no deleted segments",
)
