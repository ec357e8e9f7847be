"""Items in reports of pipeline commands: written windows, deleted files, complete directories."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tieredstore.api.outcomes import Outcome, Status
from tieredstore.cli.app.outcomes import OUTCOME, Teller, Words
from tieredstore.cli.terminal.output import iso_utc, print_lines, quantity
from tieredstore.cli.terminal.rows import Row, attributes
from tieredstore.cli.terminal.rows import field as declare
from tieredstore.model import Uuid, human_bytes

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.entries import BatchWindow, WrittenWindow
    from tieredstore.pipelines.run.runner import Runner
    from tieredstore.pipelines.run.source import Parts

PipelineFile: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's .properties file.")]
PipelineFiles: TypeAlias = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="The pipelines' .properties files.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOutcome(Outcome):
    """A window (offset range) that is written, or a file (``name``) that is deleted. In a plan, neither has happened
    yet.

    If the command extends the requested offsets to whole windows, ``asked`` has the first and last requested offset.
    ``quarantine_key`` and ``reasons`` (by offset) are set if the command parses quarantined messages again.
    """

    records: int | None = None
    filtered: int | None = None
    quarantined: int | None = None
    output_keys: tuple[str, ...] | None = None
    asked: tuple[int, int] | None = None
    quarantine_key: str | None = None
    reasons: Mapping[int, str] = field(default_factory=dict[int, str])

    def by_reason(self) -> list[tuple[str, list[int]]]:
        """Return the reasons why messages are bad, with the messages' offsets, most frequent first."""
        offsets: defaultdict[str, list[int]] = defaultdict(list)
        for offset, reason in sorted(self.reasons.items()):
            offsets[reason].append(offset)
        return sorted(offsets.items(), key=lambda item: (-len(item[1]), item[1][0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryOutcome(Outcome):
    """A directory that the command marks as complete, or would mark. ``statement`` is Hive SQL that adds the directory
    as a partition.
    """

    ends_ms: int
    files: int
    records: int
    statement: str | None


def of_window(
    action: str, window: BatchWindow | WrittenWindow, *, code: str = "written", status: Status = "done", **more: Any
) -> WindowOutcome:
    """Return the outcome of a window (offset range). An empty window stands for the start of a partition."""
    is_mark = window.start == window.stop
    return WindowOutcome(
        action=action, status=status, code="begun" if is_mark else code, topic=window.topic,
        topic_id=Uuid.parse(window.topic_id) if window.topic_id else None, partition=window.partition,
        base_offset=window.start, last_offset=None if is_mark else window.stop - 1, **more,
    )  # fmt: skip


def of_written(action: str, window: WrittenWindow, **more: Any) -> WindowOutcome:
    """Return the outcome of a written window."""
    return of_window(
        action, window, records=window.records, filtered=window.filtered, quarantined=window.quarantined,
        stored_size=sum(file.size for file in window.files), output_keys=tuple(file.key for file in window.files),
        **more,
    )  # fmt: skip


_WRITTEN: Final[Row[WindowOutcome]] = Row(
    OUTCOME.of(lambda one: one),
    attributes("records", "filtered", "quarantined", "output_keys"),
)
_AGAIN: Final[Row[WindowOutcome]] = Row(
    _WRITTEN,
    declare("asked_first_offset", lambda one: None if one.asked is None else one.asked[0]),
    declare("asked_last_offset", lambda one: None if one.asked is None else one.asked[1]),
    declare("quarantine_key", lambda one: one.quarantine_key),
    declare(
        "reasons",
        lambda one: [
            {"reason": reason, "quarantined": len(offsets), "first_offset": offsets[0]}
            for reason, offsets in one.by_reason()
        ],
    ),
)
_DIRECTORY: Final[Row[DirectoryOutcome]] = Row(
    OUTCOME.of(lambda one: one),
    declare("ends", lambda one: iso_utc(one.ends_ms)),
    attributes("ends_ms", "files", "records", "statement"),
)


def _show_window(outcome: WindowOutcome, verb: str) -> str:
    if outcome.name is not None:
        return f"{verb}: {outcome.name}"
    if outcome.last_offset is None:
        return f"{outcome.topic}-{outcome.partition} begins at offset {outcome.base_offset}"
    extent = f"{outcome.topic}-{outcome.partition} {outcome.base_offset} … {outcome.last_offset}"
    if outcome.status == "planned":
        span, asked = (outcome.base_offset, outcome.last_offset), outcome.asked
        requested = "" if asked is None or asked == span else f" (requested: {asked[0]} … {asked[1]})"
        return f"{verb}: {extent}{requested}"
    out = f", {outcome.filtered} dropped" if outcome.filtered else ""
    aside = f", {outcome.quarantined} quarantined" if outcome.quarantined else ""
    files = quantity(len(outcome.output_keys or ()), "file")
    return f"{extent}: {quantity(outcome.records or 0, 'record')} in {files}{out}{aside}"


def _show_bad(outcome: WindowOutcome, _: str) -> str:
    extent = f"{outcome.topic}-{outcome.partition} {outcome.base_offset} … {outcome.last_offset}"
    bad = outcome.quarantined or 0
    if outcome.status == "planned":
        return f"would be parsed: {extent}: {quantity(bad, 'message')} in {outcome.quarantine_key}"
    out = f", {outcome.filtered} dropped" if outcome.filtered else ""
    stays = f", {bad} still bad in {outcome.quarantine_key}" if outcome.quarantine_key is not None else ""
    return f"{extent}: {quantity(outcome.records or 0, 'message')} filed{out}{stays}"


def _show_directory(outcome: DirectoryOutcome, verb: str) -> str:
    return f"{verb}: {outcome.name} ({quantity(outcome.records, 'record')})"


RUN: Final = Words("window", "written", {}, _show_window, "writing", row=_WRITTEN)
BACKFILL: Final = Words("window", "written", {}, _show_window, "writing", none="nothing to write", row=_AGAIN)
BAD_MESSAGES: Final = Words("file", "parsed", {}, _show_bad, "parsing", none="no quarantined messages", row=_AGAIN)
FINALIZE: Final = Words("path", "finalized", {}, _show_directory, "finalizing", has_sizes=False, row=_DIRECTORY)


class WindowTeller(Teller):
    """Reporter of windows, which adds up their records."""

    def __init__(self, words: Words, as_json: bool, dry_run: bool) -> None:
        super().__init__(words, as_json, dry_run)
        self.sums: Counter[str] = Counter(records=0, filtered=0, quarantined=0, files=0)
        self.more.update(self.sums)
        self.size_gone = 0

    def tell(self, outcome: Outcome) -> None:
        """Report a window to write or a file to delete (planned or done), and add it to the totals."""
        super().tell(outcome)
        if isinstance(outcome, WindowOutcome):
            self.sums["records"] += outcome.records or 0
            self.sums["filtered"] += outcome.filtered or 0
            self.sums["quarantined"] += outcome.quarantined or 0
            self.sums["files"] += len(outcome.output_keys or ())
            self.more.update(self.sums)
            self.size_gone += (outcome.stored_size or 0) * (outcome.code == "deleted")

    def sentence(self) -> str:
        """Return a sentence with the totals of written and deleted files."""
        would = "would be " if self.dry_run else ""
        done = f"{quantity(self.counts['written'], 'window')} {would}written"
        if not self.dry_run:
            files = quantity(self.sums["files"], "new file")
            done = f"{quantity(self.sums['records'], 'record')} in {files} ({human_bytes(self.size - self.size_gone)})"
        going = self.counts["deleted"]
        return f"{done}; {quantity(going, 'file')} {would}deleted ({human_bytes(self.size_gone)})" if going else done


_REASONS: Final = 5
"""Maximum number of reasons shown per file without ``--json``."""


class BadMessagesTeller(WindowTeller):
    """Reporter of quarantine files."""

    def tell(self, outcome: Outcome) -> None:
        """Report a file, and why some of its messages are still bad."""
        super().tell(outcome)
        if self.as_json or not isinstance(outcome, WindowOutcome):
            return
        reasons = outcome.by_reason()
        more = len(reasons) - _REASONS
        print_lines(
            [
                *(f"  {len(offsets)} from offset {offsets[0]} on: {reason}" for reason, offsets in reasons[:_REASONS]),
                *([f"  and for {quantity(more, 'other reason')}"] if more > 0 else []),
            ]
        )

    def sentence(self) -> str:
        """Return a sentence with the number of messages that are good now."""
        files, bad = quantity(self.counts.total(), "file"), self.sums["quarantined"]
        if self.dry_run:
            return f"{quantity(bad, 'message')} in {files} would be parsed"
        out = f"; {self.sums['filtered']} dropped" if self.sums["filtered"] else ""
        stays = f"{bad} still bad" if bad else "none still bad"
        return f"{files} parsed again: {quantity(self.sums['records'], 'message')} filed{out}; {stays}"


@contextmanager
def open_pipeline(file: Path) -> Generator[tuple[Pipeline, Parts]]:
    """Open the pipeline of a settings file, and its stores."""
    from tieredstore.pipelines.config.settings import load_pipeline

    pipeline = load_pipeline(file)
    from tieredstore.pipelines.run.source import open_parts

    with open_parts(pipeline) as parts:
        yield pipeline, parts


@contextmanager
def open_runner(file: Path, *, threads: int | None = None, take_over: int | None = None) -> Generator[Runner]:
    """Open a runner for a settings file's pipeline. By default ``threads`` is the number of cores."""
    with open_pipeline(file) as (pipeline, parts):
        from tieredstore.pipelines.run.runner import Runner
        from tieredstore.query.topic_scan import default_parallelism

        threads = threads or default_parallelism()
        with Runner(pipeline, parts, threads=threads, take_over=take_over) as runner:
            yield runner
