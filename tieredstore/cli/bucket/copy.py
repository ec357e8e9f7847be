"""``tieredstore copy``: closed segments of a broker's disk into the store, each once."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Generator
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
from tieredstore.cli.terminal.rows import Row, field
from tieredstore.errors import ConfigError, TieredStoreError
from tieredstore.kafka.logdir import PARTITION_METADATA, Discovery, FoundSegment, PartitionFileMissingError, discover
from tieredstore.model import RemoteLogSegmentMetadata, Uuid, human_bytes
from tieredstore.ops.copies.shipping import Shipper, ShipStep, size_on_disk
from tieredstore.ops.steps import Outcome
from tieredstore.places.record import refuse_other_layout
from tieredstore.process.interruption import at_sudden_end

_MOST_NAMED: Final = 5
_STATUSES: Final = {
    Outcome.COPIED: "copied",
    Outcome.THERE: "skipped",
    Outcome.ACTIVE: "active",
    Outcome.GONE: "deleted",
    Outcome.FAILED: "failed",
    Outcome.NOT_TRIED: "not_tried",
}


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
    with open_chosen_bucket(settings, store) as bucket, contextlib.ExitStack() as stack:
        refuse_other_layout(bucket.store, bucket.prefix)
        manager = None if dry_run else stack.enter_context(bucket.manager())
        teller = stack.enter_context(telling(discovery, as_json=as_json, dry_run=dry_run))
        shipper = Shipper(
            CommittedSegments(bucket.store, bucket.prefix, rules=bucket.manifest_rules),
            manager,
            topic_id=incarnation,
            broker_id=broker_id,
            on_progress=teller.bar.advance,
            around_upload=leftover_named,
        )
        for step in shipper.ship_all(discovery.segments):
            teller.tell(step)
    teller.sum_up()
    for step in teller.steps:
        if step.error is not None:
            raise typer.Exit(step.error.exit_code)


def _check_one_topic(path: Path, discovery: Discovery) -> None:
    topics = sorted({segment.topic for segment in discovery.segments})
    if len(topics) > 1:
        named = ", ".join([*topics[:_MOST_NAMED], *(["…"] if len(topics) > _MOST_NAMED else [])])
        raise ConfigError(
            f"--topic-id is that of one topic, and {path} holds {len(topics)} ({named}): copy the folders of each by "
            "themselves"
        )


class CopyTeller:
    """Says what became of each segment: what failed on stderr, the rest on stdout unless the bar or JSON is enough.

    An error that one segment after the other of a partition meets is said once, and at the end of them how often.
    """

    def __init__(self, bar: Bar, steps: list[ShipStep], discovery: Discovery, *, as_json: bool, dry_run: bool) -> None:
        self.bar = bar
        self.steps = steps
        self._discovery = discovery
        self._as_json = as_json
        self._statuses = _STATUSES | ({Outcome.COPIED: "would_copy"} if dry_run else {})
        self._started = time.monotonic()
        # Where both streams are one terminal the bar is enough.
        self._is_quiet = as_json or (sys.stderr.isatty() and sys.stdout.isatty())
        self._error: tuple[str, int, str] | None = None
        self._repeated: list[FoundSegment] = []

    def tell(self, step: ShipStep) -> None:
        """Of one segment more."""
        self.steps.append(step)
        if step.outcome is Outcome.THERE:
            self.bar.advance(step.size or 0)
        line = f"{_words(self._statuses[step.outcome]):<10} {step.item}{_detail(step)}"
        if step.error is None:
            self.end_repetition()
            if not self._is_quiet:
                print_lines([line])
            return
        error = (step.item.topic, step.item.partition, str(step.error))
        if error == self._error:
            self._repeated.append(step.item)
            return
        self.end_repetition()
        self._error = error
        self.bar.say(line)

    def end_repetition(self) -> None:
        """Say of how many segments more the last error was."""
        repeated, self._repeated, self._error = self._repeated, [], None
        if repeated:
            first, last = repeated[0], repeated[-1]
            where = f"{first} to {last.base_offset}" if last is not first else str(first)
            self.bar.say(f"{'failed':<10} {where}: the same ({len(repeated)} more segments)")

    def sum_up(self) -> None:
        """The end of a run: in JSON all steps and their sums, else what was left alone, and one line of sums."""
        seconds = time.monotonic() - self._started
        counts = Counter(self._statuses[step.outcome] for step in self.steps)
        copied = [step for step in self.steps if step.stored_size is not None and step.outcome is Outcome.COPIED]
        size, stored = sum(step.size or 0 for step in copied), sum(step.stored_size or 0 for step in copied)
        if self._as_json:
            summary: dict[str, JsonValue] = {status: counts[status] for status in ("would_copy", *_STATUSES.values())}
            summary |= {"size": size, "stored_size": stored, "ratio": ratio_of(size, stored)}
            summary |= {"seconds": round(seconds, 3), "bytes_per_second": round(size / max(seconds, 1e-9))}
            left_alone = [{"path": str(left.path), "reason": left.reason} for left in self._discovery.left_alone]
            row = Row(_SEGMENT, field("status", lambda step: self._statuses[step.outcome]), _COPY)
            segments = [row.json(step) for step in self.steps]
            print_json({"segments": segments, "left_alone": left_alone, "summary": summary})
            return
        print_lines(f"left alone {left.path}: {left.reason}" for left in self._discovery.left_alone)
        done = ", ".join(f"{counts[status]} {_words(status)}" for status in self._statuses.values() if counts[status])
        rate = f"ratio {human_ratio(size, stored)}, {human_rate(size, seconds)}"
        sizes = f" ({human_bytes(size)} as {human_bytes(stored)}, {rate})" if stored else ""
        print_lines([(done or "no segments found") + sizes])


@contextlib.contextmanager
def telling(discovery: Discovery, *, as_json: bool, dry_run: bool) -> Generator[CopyTeller]:
    """Who tells of the segments; where a signal ends it before: what was done, and how to go on."""
    steps: list[ShipStep] = []

    def stopped() -> str:
        counts = Counter(step.outcome for step in steps)
        skipped = f", {counts[Outcome.THERE]} skipped" if counts[Outcome.THERE] else ""
        done = f"{counts[Outcome.COPIED]} of {len(discovery.segments)} copied"
        return f"stopped; {done}{skipped}; run again to go on"

    # Around the bar: whoever sees it may press Ctrl-C, and the sentence stands where the bar was.
    with tell_if_stopped(stopped), progress("copy", sum(map(size_on_disk, discovery.segments))) as bar:
        teller = CopyTeller(bar, steps, discovery, as_json=as_json, dry_run=dry_run)
        yield teller
        teller.end_repetition()


@contextlib.contextmanager
def leftover_named(metadata: RemoteLogSegmentMetadata) -> Generator[None]:
    """Says what may be left of an upload that there was no time to take back."""
    segment_id, where = metadata.remote_log_segment_id.id, metadata.topic_id_partition
    name = f"{where.topic} -p {where.partition} --segment={segment_id} --yes"

    def tell() -> None:
        complain(
            f"the copy that was under way may have left objects, which no reader sees: tieredstore rm {name} "
            "removes them, and a lifecycle rule of the bucket the parts of an upload"
        )

    with at_sudden_end(tell, needs_time=True):
        yield


def _words(status: str) -> str:
    return status.replace("_", " ")


def _detail(step: ShipStep) -> str:
    if step.error is not None:
        return f": {step.error}{_way_out(step.error)}"
    if step.size is None:
        return ""
    size = f": {human_bytes(step.size)}"
    if step.outcome is Outcome.THERE:
        return f"{size}, committed already as segment {step.segment_id}"
    if step.stored_size is None:
        return size
    return f"{size} as {human_bytes(step.stored_size)}, ratio {human_ratio(step.size, step.stored_size)}"


def _way_out(error: TieredStoreError) -> str:
    if not isinstance(error, PartitionFileMissingError) or error.path.name != PARTITION_METADATA:
        return ""
    return (
        f"; brokers before Kafka 2.8 wrote none: copy {error.path.parent} by itself with --topic-id ID "
        "(kafka-topics --describe shows it)"
    )


_SEGMENT: Final[Row[ShipStep]] = Row(
    field("topic", lambda step: step.item.topic),
    field("topic_id", lambda step: step.partition and step.partition.topic_id),
    field("partition", lambda step: step.item.partition),
    field("base_offset", lambda step: step.item.base_offset),
    field("last_offset", lambda step: step.end_offset),
    field("segment_id", lambda step: step.segment_id),
)
_COPY: Final[Row[ShipStep]] = Row(
    field("size", lambda step: step.size),
    field("stored_size", lambda step: step.stored_size),
    field("custom_metadata", lambda step: None if step.custom_metadata is None else step.custom_metadata.hex()),
    field("error", lambda step: None if step.error is None else str(step.error)),
)
