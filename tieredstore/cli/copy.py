"""``tieredstore copy``: closed segments of a broker's disk into the store, each once."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tieredstore.catalog.committed import CommittedSegments
from tieredstore.cli.arguments import DryRun, Json, SettingsPath, StoreUrl
from tieredstore.cli.ls import partition_row
from tieredstore.cli.opened import opened
from tieredstore.cli.output import JsonValue, human_rate, human_ratio, print_json, print_lines, ratio_of
from tieredstore.cli.progress import Bar, progress
from tieredstore.kafka.logdir import Discovery, FoundSegment, discover
from tieredstore.model import Uuid, human_bytes
from tieredstore.ops.shipping import (
    SegmentOutcome,
    SegmentStatus,
    in_order,
    plan_segment,
    ship_segment,
    size_on_disk,
)


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
    total = sum(map(size_on_disk, discovery.segments))
    with opened(settings, store) as bucket, contextlib.ExitStack() as stack:
        manager = None if dry_run else stack.enter_context(bucket.manager())
        started = time.monotonic()
        bar = stack.enter_context(progress("copy", total))
        committed = CommittedSegments(bucket.store, bucket.prefix, rules=bucket.manifest_rules)

        def step(segment: FoundSegment) -> SegmentOutcome:
            if manager is None:
                return plan_segment(committed, segment, topic_id=incarnation)
            return ship_segment(
                manager, committed, segment, topic_id=incarnation, broker_id=broker_id, on_progress=bar.advance
            )

        # Where both streams are one terminal the bar is enough.
        tell = not (as_json or (sys.stderr.isatty() and sys.stdout.isatty()))
        outcomes = [_shown(outcome, bar, tell) for outcome in in_order(discovery.segments, step)]
        report = _Report(discovery, outcomes, time.monotonic() - started)
    if as_json:
        print_json(report.as_json())
    else:
        print_lines(report.lines())
    _exit_by(outcomes)


def _shown(outcome: SegmentOutcome, bar: Bar, tell: bool) -> SegmentOutcome:
    if outcome.status is SegmentStatus.SKIPPED:
        bar.advance(outcome.size or 0)
    if outcome.error is not None:
        bar.say(_line(outcome))
    elif tell:
        print_lines([_line(outcome)])
    return outcome


def _line(outcome: SegmentOutcome) -> str:
    """One line for a person."""
    return f"{outcome.status.value.replace('_', ' '):<10} {outcome.segment}{_detail(outcome)}"


def _detail(outcome: SegmentOutcome) -> str:
    if outcome.error is not None:
        return f": {outcome.error}"
    if outcome.size is None:
        return ""
    if outcome.stored_log_size is not None:
        stored = outcome.stored_log_size
        return f": {human_bytes(outcome.size)} as {human_bytes(stored)}, ratio {human_ratio(outcome.size, stored)}"
    skipped = outcome.status is SegmentStatus.SKIPPED
    return f": {human_bytes(outcome.size)}{f', committed already as segment {outcome.segment_id}' if skipped else ''}"


def _row(outcome: SegmentOutcome) -> JsonValue:
    """The segment for scripts; what is not known is null."""
    segment, partition = outcome.segment, outcome.partition
    unknown: dict[str, JsonValue] = {"topic": segment.topic, "topic_id": None, "partition": segment.partition}
    return {
        **(unknown if partition is None else partition_row(partition)),
        "base_offset": segment.base_offset,
        "end_offset": outcome.end_offset,
        "segment_id": None if outcome.segment_id is None else str(outcome.segment_id),
        "status": outcome.status.value,
        "size": outcome.size,
        "stored_log_size": outcome.stored_log_size,
        "custom_metadata": None if outcome.custom_metadata is None else outcome.custom_metadata.hex(),
        "error": None if outcome.error is None else str(outcome.error),
    }


@dataclass(frozen=True, slots=True)
class _Report:
    """The end of a run."""

    discovery: Discovery
    outcomes: Sequence[SegmentOutcome]
    seconds: float

    def as_json(self) -> JsonValue:
        """All outcomes and their sums."""
        size, stored = self._sizes()
        summary: dict[str, JsonValue] = {status.value: self._count(status) for status in SegmentStatus}
        summary |= {"size": size, "stored_log_size": stored, "ratio": ratio_of(size, stored)}
        summary |= {"seconds": round(self.seconds, 3), "mb_per_second": round(size / self.seconds / 1e6, 1)}
        return {
            "segments": [_row(outcome) for outcome in self.outcomes],
            "left_alone": [{"path": str(left.path), "reason": left.reason} for left in self.discovery.left_alone],
            "summary": summary,
        }

    def lines(self) -> list[str]:
        """What was left alone, and one line of sums."""
        lines = [f"left alone {left.path}: {left.reason}" for left in self.discovery.left_alone]
        counts = [
            f"{count} {status.value.replace('_', ' ')}" for status in SegmentStatus if (count := self._count(status))
        ]
        size, stored = self._sizes()
        done = f" ({human_bytes(size)} as {human_bytes(stored)}, ratio {human_ratio(size, stored)}, " if stored else ""
        rate = f"{human_rate(size, self.seconds)})" if stored else ""
        lines.append((", ".join(counts) or "no segments found") + done + rate)
        return lines

    def _count(self, status: SegmentStatus) -> int:
        return sum(outcome.status is status for outcome in self.outcomes)

    def _sizes(self) -> tuple[int, int]:
        copied = [outcome for outcome in self.outcomes if outcome.status is SegmentStatus.COPIED]
        return sum(outcome.size or 0 for outcome in copied), sum(outcome.stored_log_size or 0 for outcome in copied)


def _exit_by(outcomes: Iterable[SegmentOutcome]) -> None:
    """Exit as the first error says, if there was one."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise typer.Exit(outcome.error.exit_code)
