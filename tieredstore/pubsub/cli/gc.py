"""What ``tieredstore pubsub gc`` does: says, topic by topic, what goes or would go, and why the rest stays."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tieredstore.cli.app.steps import Tally, telling
from tieredstore.cli.terminal.output import complain, counted
from tieredstore.cli.terminal.rows import Row, field
from tieredstore.model import human_bytes
from tieredstore.ops.steps import Outcome, Step
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.garbage import Found, GarbageCollection

_WORDS: Final = {
    Outcome.FREED: "freed by retention, whose objects go later",
    Outcome.WAITING: "freed before, whose objects readers may still fetch",
    Outcome.ADOPTED: "orphans of which readers are told now",
    Outcome.YOUNG: "without a notification, too young",
    Outcome.FORGOTTEN: "without a notification, older than what the queue remembers",
    Outcome.DAMAGED: "orphans that are no batches",
}


_NAMED: Final = (
    Outcome.FREED, Outcome.DELETED, Outcome.ADOPTED, Outcome.WAITING, Outcome.YOUNG, Outcome.FORGOTTEN, Outcome.DAMAGED,
)  # fmt: skip
_ROW: Final[Row[Step[Found]]] = Row(
    field("outcome", lambda step: step.outcome),
    field("object", lambda step: step.item.key),
    field("size", lambda step: step.item.size),
    field("partition", lambda step: step.item.partition),
    field("offset", lambda step: step.item.offset),
)


def collect_garbage(
    topics: Topics,
    name: str | None,
    *,
    min_age_ms: int,
    adopt: bool,
    dry_run: bool,
    report: Path | None,
    as_json: bool,
) -> None:
    """The command, for one topic or all of them."""
    chosen = [topics.get(name)] if name is not None else list(topics.list())
    tally = Tally(Outcome.DELETED, _WORDS, "object", named=_NAMED, dry_run=dry_run)
    with telling(as_json=as_json, report=report) as teller:
        for topic in chosen:
            run = GarbageCollection(topics, topic, min_age_ms=min_age_ms, adopt=adopt, dry_run=dry_run)
            for step in run.run():
                tally.add(step.outcome, step.item.size)
                size = "" if step.item.size is None else f" ({human_bytes(step.item.size)})"
                line = f"{tally.verb_of(step.outcome)}: {step.item.key}{size}"
                teller.tell({"topic": topic.name, **_ROW.json(step)}, line)
            for warning in run.warnings:
                complain(warning)
        # Of what was freed before nobody knows the size.
        sentence = f"{counted(tally.counts[Outcome.DELETED], 'object')} {'would be deleted' if dry_run else 'deleted'}"
        tally.tell_deleted(teller, topics.store, sentence if tally.counts else "there is nothing to collect")
        if adopt and tally.counts[Outcome.ADOPTED]:
            complain("what is adopted may double what its producers sent again after DeliveryFailed")
