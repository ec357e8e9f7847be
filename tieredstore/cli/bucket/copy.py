"""``tieredstore copy``: closed segments of a broker's disk into the store, each once."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from tieredstore.catalog.committed import CommittedSegments
from tieredstore.cli.app.arguments import DryRun, Json, SettingsPath, StoreUrl
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    human_rate,
    human_ratio,
    print_json,
    print_lines,
    ratio_of,
)
from tieredstore.cli.terminal.progress import Bar, progress, tell_if_stopped
from tieredstore.cli.terminal.rows import PARTITION
from tieredstore.errors import ConfigError
from tieredstore.kafka.logdir import PARTITION_METADATA, Discovery, FoundSegment, PartitionFileMissing, discover
from tieredstore.model import RemoteLogSegmentMetadata, Uuid, human_bytes
from tieredstore.ops.copies.shipping import (
    SegmentOutcome,
    SegmentStatus,
    in_order,
    plan_segment,
    ship_segment,
    size_on_disk,
)
from tieredstore.places.record import refuse_other_layout
from tieredstore.process.interruption import at_sudden_end

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
    with open_chosen_bucket(settings, store) as bucket, contextlib.ExitStack() as stack:
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


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The end of a run."""

    discovery: Discovery
    outcomes: Sequence[SegmentOutcome]
    seconds: float

    def as_json(self) -> JsonValue:
        """All outcomes and their sums."""
        size, stored = self._sizes()
        summary: dict[str, JsonValue] = {status.value: _count(self.outcomes, status) for status in SegmentStatus}
        summary |= {"size": size, "stored_size": stored, "ratio": ratio_of(size, stored)}
        summary |= {"seconds": round(self.seconds, 3), "bytes_per_second": round(size / max(self.seconds, 1e-9))}
        return {
            "segments": [_row(outcome) for outcome in self.outcomes],
            "left_alone": [{"path": str(left.path), "reason": left.reason} for left in self.discovery.left_alone],
            "summary": summary,
        }

    def lines(self) -> list[str]:
        """What was left alone, and one line of sums."""
        lines = [f"left alone {left.path}: {left.reason}" for left in self.discovery.left_alone]
        counts = [
            f"{count} {status.value.replace('_', ' ')}"
            for status in SegmentStatus
            if (count := _count(self.outcomes, status))
        ]
        size, stored = self._sizes()
        done = f" ({human_bytes(size)} as {human_bytes(stored)}, ratio {human_ratio(size, stored)}, " if stored else ""
        rate = f"{human_rate(size, self.seconds)})" if stored else ""
        lines.append((", ".join(counts) or "no segments found") + done + rate)
        return lines

    def _sizes(self) -> tuple[int, int]:
        copied = [outcome for outcome in self.outcomes if outcome.status is SegmentStatus.COPIED]
        return sum(outcome.size or 0 for outcome in copied), sum(outcome.stored_size or 0 for outcome in copied)


class CopyTeller:
    """Says what became of each segment: what failed on stderr, the rest on stdout unless the bar or JSON is enough.

    An error that one segment after the other of a partition meets is said once, and at the end of them how often.
    """

    def __init__(self, bar: Bar, outcomes: list[SegmentOutcome], *, as_json: bool) -> None:
        self.outcomes = outcomes
        self.bar = bar
        # Where both streams are one terminal the bar is enough.
        self._is_quiet = as_json or (sys.stderr.isatty() and sys.stdout.isatty())
        self._error: tuple[str, int, str] | None = None
        self._repeated: list[SegmentOutcome] = []

    def tell(self, outcome: SegmentOutcome) -> None:
        """Of one segment more."""
        self.outcomes.append(outcome)
        if outcome.status is SegmentStatus.SKIPPED:
            self.bar.advance(outcome.size or 0)
        if outcome.error is None:
            self.end_repetition()
            if not self._is_quiet:
                print_lines([_line(outcome)])
            return
        error = (outcome.segment.topic, outcome.segment.partition, str(outcome.error))
        if error == self._error:
            self._repeated.append(outcome)
            return
        self.end_repetition()
        self._error = error
        self.bar.say(_line(outcome))

    def end_repetition(self) -> None:
        """Say of how many segments more the last error was."""
        repeated, self._repeated, self._error = self._repeated, [], None
        if repeated:
            first, last = repeated[0].segment, repeated[-1].segment
            where = f"{first} to {last.base_offset}" if last is not first else str(first)
            self.bar.say(f"{'failed':<10} {where}: the same ({len(repeated)} more segments)")


@contextlib.contextmanager
def telling(total_bytes: int, segment_count: int, *, as_json: bool) -> Generator[CopyTeller]:
    """Who tells of ``segment_count`` segments; where a signal ends it before: what was done, and how to go on."""
    outcomes: list[SegmentOutcome] = []

    def stopped() -> str:
        skipped = _count(outcomes, SegmentStatus.SKIPPED)
        done = f"{_count(outcomes, SegmentStatus.COPIED)} of {segment_count} copied"
        return f"stopped; {done}{f', {skipped} skipped' if skipped else ''}; run again to go on"

    # Around the bar: whoever sees it may press Ctrl-C, and the sentence stands where the bar was.
    with tell_if_stopped(stopped), progress("copy", total_bytes) as bar:
        teller = CopyTeller(bar, outcomes, as_json=as_json)
        yield teller
        teller.end_repetition()


@contextlib.contextmanager
def leftover_named(metadata: RemoteLogSegmentMetadata) -> Generator[None]:
    """Says what may be left of an upload that there was no time to take back."""
    segment_id, where = metadata.remote_log_segment_id.id, metadata.topic_id_partition
    name = f"{where.topic} {where.partition} {metadata.start_offset} --segment-id={segment_id}"

    def tell() -> None:
        complain(
            f"the copy that was under way may have left objects, which no reader sees: tieredstore delete {name} "
            "removes them, and a lifecycle rule of the bucket the parts of an upload"
        )

    with at_sudden_end(tell, needs_time=True):
        yield


def _line(outcome: SegmentOutcome) -> str:
    """One line for a person."""
    return f"{outcome.status.value.replace('_', ' '):<10} {outcome.segment}{_detail(outcome)}"


def _detail(outcome: SegmentOutcome) -> str:
    if outcome.error is not None:
        return f": {outcome.error}{_way_out(outcome)}"
    if outcome.size is None:
        return ""
    size = f": {human_bytes(outcome.size)}"
    if outcome.status is SegmentStatus.SKIPPED:
        return f"{size}, committed already as segment {outcome.segment_id}"
    if outcome.stored_size is None:
        return size
    return f"{size} as {human_bytes(outcome.stored_size)}, ratio {human_ratio(outcome.size, outcome.stored_size)}"


def _way_out(outcome: SegmentOutcome) -> str:
    error = outcome.error
    if not isinstance(error, PartitionFileMissing) or error.path.name != PARTITION_METADATA:
        return ""
    return (
        f"; brokers before Kafka 2.8 wrote none: copy {error.path.parent} by itself with --topic-id ID "
        "(kafka-topics --describe shows it)"
    )


def _row(outcome: SegmentOutcome) -> JsonValue:
    """The segment for scripts; what is not known is null."""
    segment, partition = outcome.segment, outcome.partition
    unknown: dict[str, JsonValue] = {"topic": segment.topic, "topic_id": None, "partition": segment.partition}
    return {
        **(unknown if partition is None else PARTITION.json(partition)),
        "base_offset": segment.base_offset,
        "last_offset": outcome.end_offset,
        "segment_id": None if outcome.segment_id is None else str(outcome.segment_id),
        "status": outcome.status.value,
        "size": outcome.size,
        "stored_size": outcome.stored_size,
        "custom_metadata": None if outcome.custom_metadata is None else outcome.custom_metadata.hex(),
        "error": None if outcome.error is None else str(outcome.error),
    }


def _count(outcomes: Iterable[SegmentOutcome], status: SegmentStatus) -> int:
    return sum(outcome.status is status for outcome in outcomes)
