"""``tieredstore copy``: closed segments of a broker's disk into the store, each once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from tieredstore.catalog.committed import CommittedSegments
from tieredstore.cli.app.arguments import DryRun, Json, SettingsPath, StoreUrl
from tieredstore.cli.app.chosen_bucket import opened
from tieredstore.cli.bucket.copy_report import CopyReport, leftover_named, telling
from tieredstore.cli.terminal.output import print_json, print_lines
from tieredstore.errors import ConfigError
from tieredstore.kafka.logdir import Discovery, FoundSegment, discover
from tieredstore.model import Uuid
from tieredstore.ops.copies.shipping import SegmentOutcome, in_order, plan_segment, ship_segment, size_on_disk
from tieredstore.places.record import refuse_other_layout

_MOST_NAMED: Final = 5


def copy(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A log directory, a topic-partition directory, or one .log file.")
    ],
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic_id: Annotated[
        str | None, typer.Option("--topic-id", metavar="ID", help="Instead of the one in partition.metadata.")
    ] = None,
    broker_id: Annotated[
        int | None, typer.Option("--broker-id", min=0, metavar="N", help="Instead of the one in meta.properties.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Copy closed segments into the store; those that are there already are skipped.

    It can be stopped at any instant and run again: a segment counts as copied once its manifest stands, and the next
    run copies the others. The active segment of a partition is left alone. After a segment that cannot be copied it
    goes on with the next one; a store that fails stops it.

    Example: tieredstore copy -c store.properties /var/lib/kafka/data --dry-run
    """
    incarnation = None if topic_id is None else Uuid.parse(topic_id)
    discovery = discover(path)
    if incarnation is not None:
        _check_one_topic(path, discovery)
    total = sum(map(size_on_disk, discovery.segments))
    with opened(settings, store) as bucket, contextlib.ExitStack() as stack:
        refuse_other_layout(bucket.store, bucket.prefix)
        manager = None if dry_run else stack.enter_context(bucket.manager())
        started = time.monotonic()
        teller = stack.enter_context(telling(total, len(discovery.segments), as_json=as_json))
        committed = CommittedSegments(bucket.store, bucket.prefix, rules=bucket.manifest_rules)

        def step(segment: FoundSegment) -> SegmentOutcome:
            if manager is None:
                return plan_segment(committed, segment, topic_id=incarnation)
            return ship_segment(
                manager,
                committed,
                segment,
                topic_id=incarnation,
                broker_id=broker_id,
                on_progress=teller.bar.advance,
                around_upload=leftover_named,
            )

        for outcome in in_order(discovery.segments, step):
            teller.tell(outcome)
        report = CopyReport(discovery, teller.outcomes, time.monotonic() - started)
    if as_json:
        print_json(report.as_json())
    else:
        print_lines(report.lines())
    _exit_by(report.outcomes)


def _check_one_topic(path: Path, discovery: Discovery) -> None:
    topics = sorted({segment.topic for segment in discovery.segments})
    if len(topics) > 1:
        named = ", ".join([*topics[:_MOST_NAMED], *(["…"] if len(topics) > _MOST_NAMED else [])])
        raise ConfigError(
            f"--topic-id is that of one topic, and {path} holds {len(topics)} ({named}): copy the folders of each by "
            "themselves"
        )


def _exit_by(outcomes: Iterable[SegmentOutcome]) -> None:
    """Exit as the first error says, if there was one."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise typer.Exit(outcome.error.exit_code)
