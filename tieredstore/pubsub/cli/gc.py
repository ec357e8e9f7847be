"""What ``tieredstore pubsub gc`` does: says, topic by topic, what goes or would go, and why the rest stays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from tieredstore.cli.app.steps import Teller, tell_sum, telling
from tieredstore.cli.terminal.output import JsonValue, complain, counted
from tieredstore.model import human_bytes
from tieredstore.pubsub.queue.topics import Topic, Topics
from tieredstore.pubsub.upkeep.garbage import GarbageCollection, GarbageOutcome, GarbageStep

_WORDS: Final = {
    GarbageOutcome.FREED: "freed by retention, whose objects go later",
    GarbageOutcome.WAITING: "freed before, whose objects readers may still fetch",
    GarbageOutcome.ADOPTED: "orphans of which readers are told now",
    GarbageOutcome.YOUNG: "without a notification, too young",
    GarbageOutcome.FORGOTTEN: "without a notification, older than what the queue remembers",
    GarbageOutcome.DAMAGED: "orphans that are no batches",
}


def collect_garbage(
    topics: Topics,
    name: str | None,
    *,
    min_age_ms: int,
    adopt: bool,
    is_dry_run: bool,
    report: Path | None,
    as_json: bool,
) -> None:
    """The command, for one topic or all of them."""
    chosen = [topics.get(name)] if name is not None else list(topics.list())
    outcomes: Counter[GarbageOutcome] = Counter()
    freed = 0
    with telling(as_json=as_json, report=report) as teller:
        for topic in chosen:
            run = GarbageCollection(topics, topic, min_age_ms=min_age_ms, adopt=adopt, apply=not is_dry_run)
            for step in run.run():
                outcomes[step.outcome] += 1
                freed += (step.size or 0) if step.outcome is GarbageOutcome.DELETED else 0
                _tell(teller, topic, step, is_dry_run=is_dry_run)
            for warning in run.warnings:
                complain(warning)
        done = "would be deleted" if is_dry_run else "deleted"
        count = outcomes[GarbageOutcome.DELETED]
        sentence = f"{counted(count, 'object')} {done}" if outcomes else "there is nothing to collect"
        tell_sum(
            teller, topics.store, outcomes, done=GarbageOutcome.DELETED, freed=freed, sentence=sentence, words=_WORDS,
            dry_run=is_dry_run,
        )  # fmt: skip
        if adopt and outcomes[GarbageOutcome.ADOPTED]:
            complain("what is adopted may double what its producers sent again after DeliveryFailed")


def _tell(teller: Teller, topic: Topic, step: GarbageStep, *, is_dry_run: bool) -> None:
    row: dict[str, JsonValue] = {
        "topic": topic.name,
        "outcome": step.outcome.value,
        "object": step.key,
        "size": step.size,
        "partition": step.partition,
        "offset": step.offset,
    }
    size = "" if step.size is None else f" ({human_bytes(step.size)})"
    would = "would be " if is_dry_run and step.outcome in _CHANGES else ""
    teller.tell(row, f"{would}{step.outcome}: {step.key}{size}")


_CHANGES: Final = (GarbageOutcome.FREED, GarbageOutcome.DELETED, GarbageOutcome.ADOPTED)
