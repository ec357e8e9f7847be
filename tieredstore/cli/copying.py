"""``tieredstore copy``: closed segments of a broker's disk into the store, each once."""

from __future__ import annotations

import contextlib
import enum
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from tieredstore.cli.arguments import DryRun, Json, SettingsPath, StoreUrl
from tieredstore.cli.committed import CommittedSegments, SegmentIdentity
from tieredstore.cli.listing import partition_row
from tieredstore.cli.opened import OpenedStore, opened
from tieredstore.cli.output import JsonValue, human_rate, human_ratio, print_json, print_lines, ratio_of
from tieredstore.cli.progress import Bar, progress
from tieredstore.errors import (
    CorruptData,
    InvalidKey,
    InvalidSegment,
    SegmentAlreadyExists,
    SegmentTooLarge,
    TieredStoreError,
)
from tieredstore.kafka.checkpoints import parse_broker_id
from tieredstore.kafka.logdir import Discovery, FoundSegment, LogSegment, describe, discover
from tieredstore.model import TopicIdPartition, Uuid, human_bytes
from tieredstore.remote import RemoteStorageManager

_OF_ONE_SEGMENT: Final = (InvalidSegment, SegmentTooLarge, CorruptData, SegmentAlreadyExists, InvalidKey)
"""Errors that tell nothing of the next segment. All others would meet it too, so the run stops."""


class Status(enum.Enum):
    """What became of one segment."""

    COPIED = "copied"
    WOULD_COPY = "would_copy"
    SKIPPED = "skipped"
    ACTIVE = "active"
    FAILED = "failed"
    NOT_TRIED = "not_tried"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one segment. ``stored_log_size`` is that of the ``.log`` object alone."""

    found: FoundSegment
    status: Status
    where: TopicIdPartition | None = None
    end_offset: int | None = None
    size: int | None = None
    segment_id: Uuid | None = None
    stored_log_size: int | None = None
    custom_metadata: bytes | None = None
    error: TieredStoreError | None = None

    @property
    def line(self) -> str:
        """One line for a person."""
        return f"{self.status.value.replace('_', ' '):<10} {self.found}{self._detail}"

    @property
    def row(self) -> JsonValue:
        """The segment for scripts; what is not known is null."""
        unknown: dict[str, JsonValue] = {
            "topic": self.found.topic,
            "topic_id": None,
            "partition": self.found.partition,
        }
        return {
            **(unknown if self.where is None else partition_row(self.where)),
            "base_offset": self.found.base_offset,
            "end_offset": self.end_offset,
            "segment_id": None if self.segment_id is None else str(self.segment_id),
            "status": self.status.value,
            "size": self.size,
            "stored_log_size": self.stored_log_size,
            "custom_metadata": None if self.custom_metadata is None else self.custom_metadata.hex(),
            "error": None if self.error is None else str(self.error),
        }

    @property
    def _detail(self) -> str:
        if self.error is not None:
            return f": {self.error}"
        if self.size is None:
            return ""
        if self.stored_log_size is not None:
            stored = self.stored_log_size
            return f": {human_bytes(self.size)} as {human_bytes(stored)}, ratio {human_ratio(self.size, stored)}"
        known = f", committed already as segment {self.segment_id}" if self.status is Status.SKIPPED else ""
        return f": {human_bytes(self.size)}{known}"


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
    wanted_id = None if topic_id is None else Uuid.parse(topic_id)
    discovery = discover(path)
    total = sum(map(_size_on_disk, discovery.segments))
    with opened(settings, store) as place, contextlib.ExitStack() as stack:
        manager = None if dry_run else stack.enter_context(place.manager())
        started = time.monotonic()
        bar = stack.enter_context(progress("copy", total))
        run = _Run(place, manager, bar, wanted_id, broker_id)
        # Where both streams are one terminal the bar is enough.
        tell = not (as_json or (sys.stderr.isatty() and sys.stdout.isatty()))
        outcomes = [_told(outcome, bar, tell) for outcome in run.copy_all(discovery.segments)]
        report = _Report(discovery, outcomes, time.monotonic() - started)
    if as_json:
        print_json(report.as_json())
    else:
        print_lines(report.lines())
    _exit_by(outcomes)


def _told(outcome: Outcome, bar: Bar, tell: bool) -> Outcome:
    if outcome.error is not None:
        bar.say(outcome.line)
    elif tell:
        print_lines([outcome.line])
    return outcome


class _Run:
    """Copies segments one after another."""

    def __init__(
        self,
        place: OpenedStore,
        manager: RemoteStorageManager | None,
        bar: Bar,
        topic_id: Uuid | None,
        broker_id: int | None,
    ) -> None:
        self._manager = manager
        self._chunk_size = place.settings.chunk_size
        self._committed = CommittedSegments(place)
        self._bar = bar
        self._topic_id = topic_id
        self._broker_id = broker_id

    def copy_all(self, segments: Sequence[FoundSegment]) -> Iterator[Outcome]:
        """Every segment's outcome. After an error that the next one would meet too, the rest is not tried."""
        stopped = False
        for found in segments:
            if stopped:
                yield Outcome(found, Status.NOT_TRIED)
                continue
            outcome = self._attempt(found)
            stopped = outcome.error is not None and not isinstance(outcome.error, _OF_ONE_SEGMENT)
            yield outcome

    def _attempt(self, found: FoundSegment) -> Outcome:
        try:
            return self._copy(found)
        except TieredStoreError as error:
            return Outcome(found, Status.FAILED, error=error)
        except OSError as error:
            # The store translates its own: this is the broker, which may delete a segment while it is copied.
            gone = InvalidSegment(f"{error.filename or found} cannot be read: {error.strerror}")
            return Outcome(found, Status.FAILED, error=gone)

    def _copy(self, found: FoundSegment) -> Outcome:
        identity = SegmentIdentity.without_log(found, self._topic_id)
        if identity is not None and (skipped := self._skipped(found, identity)):
            return skipped
        segment = describe(found, self._topic_id)
        if segment.active:
            return Outcome(found, Status.ACTIVE, segment.topic_id_partition, size=segment.size_in_bytes)
        if identity is None and (skipped := self._skipped(found, SegmentIdentity.of(segment))):
            return skipped
        if self._manager is None:
            where = segment.topic_id_partition
            return Outcome(found, Status.WOULD_COPY, where, segment.end_offset, segment.size_in_bytes)
        return self._upload(self._manager, found, segment)

    def _skipped(self, found: FoundSegment, identity: SegmentIdentity) -> Outcome | None:
        committed = self._committed.find(identity)
        if committed is None:
            return None
        size = _size_on_disk(found)
        self._bar.advance(size)
        segment_id = committed.objects.segment_id.id
        return Outcome(found, Status.SKIPPED, identity.where, identity.end_offset, size, segment_id)

    def _upload(self, manager: RemoteStorageManager, found: FoundSegment, segment: LogSegment) -> Outcome:
        segment_id = Uuid.random()
        broker_id = _broker_id(found) if self._broker_id is None else self._broker_id
        metadata = segment.to_metadata(segment_id, broker_id, time.time_ns() // 1_000_000)
        stored = 0
        left = segment.size_in_bytes

        def on_chunk(stored_size: int) -> None:
            nonlocal stored, left
            stored += stored_size
            self._bar.advance(min(self._chunk_size, left))
            left = max(0, left - self._chunk_size)

        custom_metadata = manager.copy_log_segment_data(metadata, segment.files, on_progress=on_chunk)
        return Outcome(
            found,
            Status.COPIED,
            segment.topic_id_partition,
            segment.end_offset,
            segment.size_in_bytes,
            segment_id,
            stored,
            custom_metadata,
        )


@dataclass(frozen=True, slots=True)
class _Report:
    """The end of a run."""

    discovery: Discovery
    outcomes: Sequence[Outcome]
    seconds: float

    def as_json(self) -> JsonValue:
        """All outcomes and their sums."""
        size, stored = self._sizes()
        summary: dict[str, JsonValue] = {status.value: self._count(status) for status in Status}
        summary |= {"size": size, "stored_log_size": stored, "ratio": ratio_of(size, stored)}
        summary |= {"seconds": round(self.seconds, 3), "mb_per_second": round(size / self.seconds / 1e6, 1)}
        return {
            "segments": [outcome.row for outcome in self.outcomes],
            "left_alone": [{"path": str(left.path), "reason": left.reason} for left in self.discovery.left_alone],
            "summary": summary,
        }

    def lines(self) -> list[str]:
        """What was left alone, and one line of sums."""
        lines = [f"left alone {left.path}: {left.reason}" for left in self.discovery.left_alone]
        counts = [f"{count} {status.value.replace('_', ' ')}" for status in Status if (count := self._count(status))]
        size, stored = self._sizes()
        done = f" ({human_bytes(size)} as {human_bytes(stored)}, ratio {human_ratio(size, stored)}, " if stored else ""
        rate = f"{human_rate(size, self.seconds)})" if stored else ""
        lines.append((", ".join(counts) or "no segments found") + done + rate)
        return lines

    def _count(self, status: Status) -> int:
        return sum(outcome.status is status for outcome in self.outcomes)

    def _sizes(self) -> tuple[int, int]:
        copied = [outcome for outcome in self.outcomes if outcome.status is Status.COPIED]
        return sum(outcome.size or 0 for outcome in copied), sum(outcome.stored_log_size or 0 for outcome in copied)


def _exit_by(outcomes: Iterable[Outcome]) -> None:
    """Exit as the first error says, if there was one."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise typer.Exit(outcome.error.exit_code)


def _size_on_disk(found: FoundSegment) -> int:
    with contextlib.suppress(OSError):
        return found.path("log").stat().st_size
    return 0


def _broker_id(found: FoundSegment) -> int:
    """The id in the log directory's ``meta.properties``; -1 where there is none."""
    try:
        raw = (found.directory.absolute().parent / "meta.properties").read_bytes()
    except FileNotFoundError:
        return -1
    known = parse_broker_id(raw)
    return -1 if known is None else known
