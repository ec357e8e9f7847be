"""``tieredstore pipeline``: the verbs about files that are written.

What the commands do lies in modules that are imported when one of them is asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tieredstore.cli.app.arguments import DryRun, Json
from tieredstore.cli.app.durations import parse_duration_ms
from tieredstore.cli.app.steps import Report, Tally, Yes, is_dry_run, say_what_stays, telling, way_to_apply
from tieredstore.cli.records.record_places import check_window, parse_offset_or_time, parse_partitions
from tieredstore.cli.terminal.output import JsonValue, counted, iso_utc, print_json_line, print_lines
from tieredstore.cli.terminal.rows import Row, field
from tieredstore.model import human_bytes
from tieredstore.ops.steps import Outcome

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import Change
    from tieredstore.pipelines.log.entries import Entry, Window, WrittenWindow
    from tieredstore.pipelines.run.finalizing import Finished
    from tieredstore.pipelines.run.redrive import Aside, Redriven
    from tieredstore.pipelines.run.runner import Runner
    from tieredstore.pipelines.run.stores import Parts
    from tieredstore.pipelines.upkeep.backfill import Backfill
    from tieredstore.pipelines.upkeep.origins import Origin
    from tieredstore.pipelines.upkeep.record_sources import RecordSource, Selected

PipelineFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="The pipeline's .properties file (docs/pipelines.md).")
]

_SAID: Final = {
    "finalize": "is complete",
    "replacing": "is not complete: files of it are being replaced",
    "replaced": "may be complete again: files of it were replaced",
}
"""Of directories that a change names."""
_WORDS: Final = {
    Outcome.YOUNG: "too young, or of a task at work",
    Outcome.COMMITTED: "committed, to be published by the next run",
    Outcome.LEFT: "that only the store takes away, in its own time",
}


_EXTENT: Final[Row[Window | WrittenWindow]] = Row(
    field("topic", lambda one: one.topic),
    field("partition", lambda one: one.partition),
    field("first_offset", lambda one: one.start),
    field("last_offset", lambda one: one.stop - 1),
)
_COUNTS: Final[Row[WrittenWindow]] = Row(
    _EXTENT.of(lambda one: one),
    field("records", lambda one: one.records),
    field("filtered", lambda one: one.filtered),
    field("quarantined", lambda one: one.quarantined),
)
_WRITTEN: Final[Row[WrittenWindow]] = Row(_COUNTS, field("output_keys", lambda one: [file.key for file in one.files]))
_REDRIVEN: Final[Row[Redriven]] = Row(
    _COUNTS.of(lambda one: one.window),
    field("output_keys", lambda one: [] if one.entry is None else [file.key for file in one.window.files]),
    field("quarantine_key", lambda one: one.key),
    field(
        "reasons",
        lambda one: [
            {"reason": reason, "quarantined": len(offsets), "first_offset": offsets[0]}
            for reason, offsets in _by_reason(one)
        ],
    ),
)
_ASIDE: Final[Row[Aside]] = Row(
    _EXTENT.of(lambda one: one.window),
    field("quarantined", lambda one: one.file.records),
    field("quarantine_key", lambda one: one.file.key),
)
_ORIGIN: Final[Row[Origin]] = Row(
    field("output_key", lambda one: one.key),
    field("topic", lambda one: one.topic),
    field("partition", lambda one: one.partition),
    field("first_offset", lambda one: one.first),
    field("last_offset", lambda one: one.last),
    field("committed", lambda one: one.committed),
    field("backup_keys", lambda one: [*one.backups]),
    field("segment_names", lambda one: [*one.segments]),
)
_CHANGE: Final[Row[Change]] = Row(
    field("commit", lambda one: one.number),
    field("kind", lambda one: one.kind),
    field("output_keys", lambda one: [file.key for file in one.added]),
    field("sizes", lambda one: [file.size for file in one.added]),
    field("removed_keys", lambda one: [*one.removed]),
    field("directories", lambda one: [*one.directories]),
)
_FINISHED: Final[Row[Finished]] = Row(
    field("topic", lambda one: one.topic),
    field("directory", lambda one: one.path),
    field("ends_ms", lambda one: one.ends_ms),
    field("ends", lambda one: iso_utc(one.ends_ms)),
    field("files", lambda one: one.files),
    field("records", lambda one: one.records),
    field("statement", lambda one: one.statement),
)


def _window_line(window: WrittenWindow) -> str:
    """The same for people."""
    if window.start == window.stop:
        return f"{window.topic}-{window.partition} begins at offset {window.start}"
    out = f", {window.filtered} left out" if window.filtered else ""
    aside = f", {window.quarantined} put aside" if window.quarantined else ""
    return f"{_extent(window)}: {counted(window.records, 'record')} in {counted(len(window.files), 'file')}{out}{aside}"


def _extent(window: WrittenWindow | Window) -> str:
    """Partition and offsets, for people."""
    return f"{window.topic}-{window.partition} {window.start} … {window.stop - 1}"


class Written:
    """The sums of what a command has written."""

    def __init__(self) -> None:
        self._files = self._records = self._filtered = self._quarantined = self._size = 0

    def tell(self, entry: Entry, *, as_json: bool) -> None:
        """Show the windows of an entry, and count them."""
        self._files += len(entry.files)
        self._size += sum(one.size for one in entry.files)
        for window in entry.windows:
            self._records += window.records
            self._filtered += window.filtered
            self._quarantined += window.quarantined
            if as_json:
                print_json_line(_WRITTEN.json(window))
            else:
                print_lines([_window_line(window)])

    def sum_up(self, *, as_json: bool) -> None:
        """All of it."""
        if as_json:
            print_json_line({
                "summary": {
                    "records": self._records, "filtered": self._filtered, "quarantined": self._quarantined,
                    "files": self._files, "stored_size": self._size,
                }
            })  # fmt: skip
            return
        files = counted(self._files, "new file")
        print_lines([f"{counted(self._records, 'record')} in {files} ({human_bytes(self._size)})"])


def _load(file: Path) -> Pipeline:
    """Read a pipeline's file."""
    from tieredstore.pipelines.config.settings import load_pipeline

    return load_pipeline(file)


@contextmanager
def open_pipeline(file: Path) -> Generator[tuple[Pipeline, Parts]]:
    """The pipeline of a file, and its stores."""
    pipeline = _load(file)
    from tieredstore.pipelines.run.stores import open_parts

    with open_parts(pipeline) as parts:
        yield pipeline, parts


@contextmanager
def open_runner(file: Path, *, threads: int | None = None, take_over: int | None = None) -> Generator[Runner]:
    """The pipeline of a file at work in this process, on as many threads as there are cores."""
    with open_pipeline(file) as (pipeline, parts):
        from tieredstore.pipelines.run.runner import Runner
        from tieredstore.query.topic_scan import default_parallelism

        threads = threads or default_parallelism()
        with Runner(pipeline, parts, threads=threads, take_over=take_over) as runner:
            yield runner


def print_(
    file: PipelineFile,
    output: Annotated[list[str], typer.Argument(metavar="KEY", help="Files of the output, by their keys.")],
    count: Annotated[
        int | None, typer.Option("-n", metavar="N", min=1, help="At most so many records of each file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the records in files of an output, of whatever format, Secor's too; a file's first bytes tell it.

    Of text also what the file beside it says. Files of bad messages can be shown as well.

    Example: tieredstore pipeline print backup.properties kafka/orders/base_offset=0/1_0_00000000000000000000.parquet
    """
    from tieredstore.cli.records.record_output import write_json, write_table

    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.run.recipes import places_of
        from tieredstore.pipelines.upkeep.origins import place_of
        from tieredstore.pipelines.upkeep.output_files import read_records

        for key in output:
            topic, partition = place_of(places_of(settings), key)
            batches = _first(read_records(settings, parts.store, key), count)
            if as_json:
                write_json(((partition, batch) for batch in batches), topic=topic)
            else:
                write_table((partition, batch) for batch in batches)


def _first(batches: Iterator[Any], count: int | None) -> Iterator[Any]:
    left = count
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        left = None if left is None else left - batch.num_rows
        if left is not None and left <= 0:
            return


def sources(
    file: PipelineFile,
    output: Annotated[list[str], typer.Argument(metavar="KEY", help="Files of the output, by their keys.")],
    backup: Annotated[
        list[Path] | None,
        typer.Option("--backup", metavar="FILE", help="A pipeline that keeps the same topics as they came."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show where the records of files came from: their offsets, and what else holds these raw.

    That is segments of the bucket, and files of the pipelines that --backup names. The commit log tells the offsets; of
    files that it does not have, as Secor's, the names of the partition's files do.

    Example: tieredstore pipeline sources events.properties KEY --backup backup.properties
    """
    with ExitStack() as stack:
        settings, parts = stack.enter_context(open_pipeline(file))
        from tieredstore.pipelines.run.selection import query_of
        from tieredstore.pipelines.upkeep.origins import Backup, origins_of
        from tieredstore.reading.survey import survey_logs

        kept = [stack.enter_context(open_pipeline(path)) for path in backup or ()]
        backups = [Backup.of(other, its.store) for other, its in kept]
        snapshot = survey_logs(parts.source, query_of(settings))
        for origin in origins_of(settings, parts.store, output, snapshot=snapshot, backups=backups):
            if as_json:
                print_json_line(_ORIGIN.json(origin))
            else:
                print_lines(_origin_lines(origin))


def _origin_lines(origin: Origin) -> list[str]:
    by = "" if origin.committed else ", by the names of files"
    last = "…" if origin.last is None else f"… {origin.last}"
    return [
        f"{origin.key}: {origin.topic}-{origin.partition} {origin.first} {last}{by}",
        *(f"  backup   {key}" for key in origin.backups),
        *(f"  segment  {name}" for name in origin.segments),
    ]


def changes(
    file: PipelineFile,
    since: Annotated[
        int, typer.Option("--since", metavar="N", min=-1, help="Only behind entry N of the commit log.")
    ] = -1,
    as_json: Json = False,
) -> None:
    """Show what was done to the output, entry by entry: for whoever follows it without listing it.

    The number of the last line is what the next call gives to --since.

    Example: tieredstore pipeline changes backup.properties --since 41
    """
    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.log.commit_log import changes_since
        from tieredstore.pipelines.run.generation import commit_log_of

        for change in changes_since(commit_log_of(settings, parts.store), since):
            if as_json:
                print_json_line(_CHANGE.json(change))
            else:
                print_lines(_change_lines(change))


def _change_lines(change: Change) -> list[str]:
    if change.kind == "drop":
        return [f"{change.number} drop: all files of the generation"]
    said = _SAID.get(change.kind, "has late records")
    return [
        *(f"{change.number} {change.kind}: {one.key} ({human_bytes(one.size)})" for one in change.added),
        *(f"{change.number} {change.kind}: deleted {key}" for key in change.removed),
        *(f"{change.number} {change.kind}: {path} {said}" for path in change.directories),
    ]


def finalize(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="The pipelines' .properties files (docs/pipelines.md).")
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Say of directories whose time is over that they are complete: they get _SUCCESS, the oldest first.

    Over is what lies partitioner.finalizer.delay.seconds before the time up to which all partitions of the topic are
    written. Without --yes it only shows the oldest of them. Whoever runs the pipeline ends with exit code 5; one that
    runs with pipeline.finalize=true does it by itself.

    Example: tieredstore pipeline finalize events.properties --yes
    """
    dry_run = is_dry_run(yes=yes, dry_run=dry_run)
    for file in files:
        with open_runner(file) as runner:
            finished = runner.find_unfinalized() if dry_run else runner.finalize()
            if not dry_run:
                runner.driver.mark_published()
        if as_json:
            for one in finished:
                print_json_line({**_FINISHED.json(one), "dry_run": dry_run})
        else:
            would = "would be finalized" if dry_run else "finalized"
            print_lines(f"{would}: {one.path} ({counted(one.records, 'record')})" for one in finished)
            print_lines([f"{counted(len(finished), 'path')} {would}"])
            if dry_run and finished:
                print_lines([way_to_apply("written")])


def gc(
    file: PipelineFile,
    min_age: Annotated[
        str, typer.Option("--min-age", metavar="AGE", help="Only what is older, by the store's clock: 24h, 7d.")
    ] = "24h",
    yes: Yes = False,
    dry_run: DryRun = False,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Delete what killed runs prepared and nobody will publish; no listing of a topic shows it.

    Without --yes it only says what would go.

    Example: tieredstore pipeline gc backup.properties --yes
    """
    dry_run, min_age_ms = is_dry_run(yes=yes, dry_run=dry_run), parse_duration_ms("--min-age", min_age)
    tally = Tally(Outcome.DELETED, _WORDS, "piece", dry_run=dry_run)
    with open_pipeline(file) as (settings, parts), telling(as_json=as_json, report=report) as teller:
        from tieredstore.pipelines.upkeep.garbage import collect_garbage

        for step in collect_garbage(settings, parts.store, min_age_ms=min_age_ms, dry_run=dry_run):
            tally.add(step.outcome, step.item.size)
            row: dict[str, JsonValue] = {"output_key": step.item.key, "size": step.item.size, "outcome": step.outcome}
            teller.tell(row, f"{tally.verb_of(step.outcome)}: {step.item.key}")
        done = "would be deleted" if dry_run else "deleted"
        sentence = f"{counted(tally.counts[Outcome.DELETED], 'piece')} {done} ({human_bytes(tally.size)})"
        tally.tell_deleted(teller, parts.store, sentence)


def drop(
    file: PipelineFile,
    yes: Yes = False,
    dry_run: DryRun = False,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Delete all files of the pipeline's generation, and end it for good: an entry of its log says so before.

    Without --yes it only says what would go. Whoever runs the generation ends with exit code 5. Its number cannot be
    used again, and its log stays.

    Example: tieredstore pipeline drop events.properties --yes
    """
    dry_run = is_dry_run(yes=yes, dry_run=dry_run)
    files = freed = 0
    with open_pipeline(file) as (settings, parts), telling(as_json=as_json, report=report) as teller:
        from tieredstore.pipelines.upkeep.dropping import drop_generation

        for dropped in drop_generation(settings, parts.store, dry_run=dry_run):
            files += 1
            freed += dropped.size
            row: dict[str, JsonValue] = {"output_key": dropped.key, "size": dropped.size, "deleted": not dry_run}
            teller.tell(row, f"{'would be deleted' if dry_run else 'deleted'}: {dropped.key}")
        stays = say_what_stays(parts.store) if files else []
        done = "would be deleted" if dry_run else "deleted"
        summary: JsonValue = {"deleted": files, "stored_size": freed, "dry_run": dry_run, "stays": stays}
        hint = way_to_apply("deleted") if dry_run else None
        teller.tell({"summary": summary}, f"{counted(files, 'file')} {done} ({human_bytes(freed)})", hint)


_REASONS: Final = 5
"""How many of them a file's lines have."""


def redrive(file: PipelineFile, yes: Yes = False, as_json: Json = False) -> None:
    """Parse the bad messages once more that were put aside, by the settings of now, and file those that are good.

    Without --yes it only shows the files that it would parse. Records are filed below what is there, each once; what is
    still bad stays aside, with its reason, which is told. Whoever runs the pipeline ends with exit code 5, and may be
    started again.

    Example: tieredstore pipeline redrive events.properties --yes
    """
    if is_dry_run(yes=yes):
        with open_runner(file) as runner:
            _tell_asides(runner.bad_messages(), as_json=as_json)
        return
    files = records = filtered = bad = 0
    with open_runner(file) as runner:
        for one in runner.redrive():
            files += 1
            records += one.window.records
            filtered += one.window.filtered
            bad += one.window.quarantined
            if as_json:
                print_json_line(_REDRIVEN.json(one))
            else:
                print_lines(_redriven_lines(one))
    if as_json:
        print_json_line(
            {"summary": {"records": records, "filtered": filtered, "quarantined": bad, "parsed_files": files}}
        )
    elif files:
        out = f"; {filtered} left out" if filtered else ""
        still = f"{bad} stay bad" if bad else "none stays bad"
        print_lines([f"{counted(files, 'file')} parsed once more: {counted(records, 'message')} filed{out}; {still}"])
    else:
        print_lines(["no bad messages are put aside"])


def _tell_asides(asides: list[Aside], *, as_json: bool) -> None:
    bad = sum(one.file.records for one in asides)
    if not as_json:
        print_lines(
            f"would be parsed again: {_extent(one.window)}: {counted(one.file.records, 'message')} in {one.file.key}"
            for one in asides
        )
        print_lines([way_to_apply("parsed") if asides else "no bad messages are put aside"])
        return
    for one in asides:
        print_json_line(_ASIDE.json(one))
    print_json_line({"summary": {"quarantined": bad, "parsed_files": len(asides), "dry_run": True}})


def _redriven_lines(one: Redriven) -> list[str]:
    out = f", {one.window.filtered} left out" if one.window.filtered else ""
    bad = f", {one.window.quarantined} stay bad in {one.key}" if one.key is not None else ""
    reasons = list(_by_reason(one))
    more = len(reasons) - _REASONS
    return [
        f"{_extent(one.window)}: {counted(one.window.records, 'message')} filed{out}{bad}",
        *(f"  {len(offsets)} from offset {offsets[0]} on: {reason}" for reason, offsets in reasons[:_REASONS]),
        *([f"  and for {counted(more, 'other reason')}"] if more > 0 else []),
    ]


def _by_reason(one: Redriven) -> list[tuple[str, list[int]]]:
    """What most messages are bad for first."""
    offsets: defaultdict[str, list[int]] = defaultdict(list)
    for offset, reason in sorted(one.reasons.items()):
        offsets[reason].append(offset)
    return sorted(offsets.items(), key=lambda item: (-len(item[1]), item[1][0]))


def backfill(
    file: PipelineFile,
    topic: Annotated[str, typer.Option("--topic", help="The topic that is written.")],
    generation: Annotated[
        int, typer.Option("--generation", metavar="N", min=0, max=999999999, help="The number that the files get.")
    ],
    start: Annotated[
        str | None, typer.Option("--from", metavar="PLACE", help="The first offset, or a time; all without it.")
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="The offset behind the last, or a time; the end without."),
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", metavar="N", help="Only these: 3, 0,2 or 4-7; repeatable.")
    ] = None,
    replaced: Annotated[
        int | None,
        typer.Option("--replace", metavar="M", min=0, help="Generation M's files of these offsets give way."),
    ] = None,
    backup: Annotated[
        Path | None,
        typer.Option("--backup", metavar="FILE", help="Read a backup pipeline's files, or Secor's, by its settings."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, max=64, help="Windows at once; as many as cores.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Write chosen offsets of a topic once more by the settings of now, as a generation that does not go on.

    It may run beside the pipeline, whose file this is, and be killed at any instant: the same command completes it,
    under the same settings. With --replace the files of generation M go that have the same offsets, whole windows of
    it; before that their directories lose _SUCCESS, and get it again at the end. That needs --yes; without it, only
    the plan is shown. Whoever runs generation M ends with exit code 5, twice, and may be started again at once.

    Example: tieredstore pipeline backfill events.properties --topic orders --generation 2 --replace 1 --yes
    """
    pipeline = _load(file)
    from tieredstore.pipelines.upkeep.record_sources import Selected

    places = [None if text is None else parse_offset_or_time(text) for text in (start, stop)]
    check_window(*places)
    selected = Selected(topic, places[0], places[1], parse_partitions(partition))
    with ExitStack() as stack:
        from tieredstore.pipelines.config.settings import with_generation
        from tieredstore.pipelines.run.stores import open_parts
        from tieredstore.pipelines.upkeep.backfill import Backfill
        from tieredstore.query.topic_scan import default_parallelism

        pipeline = with_generation(pipeline, generation)
        parts = stack.enter_context(open_parts(pipeline))
        source = _open_source(pipeline, parts, topic, backup, stack)
        work = Backfill(
            pipeline,
            parts.store,
            source,
            replaces=-1 if replaced is None else replaced,
            threads=threads or default_parallelism(),
        )
        if replaced is not None and is_dry_run(yes=yes):
            _tell_plan(work, selected, as_json=as_json)
            return
        written = Written()
        for entry in work.run(selected):
            written.tell(entry, as_json=as_json)
        written.sum_up(as_json=as_json)


def _open_source(pipeline: Pipeline, parts: Parts, topic: str, backup: Path | None, stack: ExitStack) -> RecordSource:
    from tieredstore.pipelines.upkeep.record_sources import KeptFiles, LogSource

    if backup is None:
        return stack.enter_context(closing(LogSource(pipeline, parts.source, topic)))
    other, kept = stack.enter_context(open_pipeline(backup))
    return KeptFiles(other, kept.store, topic, pipeline.own.limits.max_file_bytes)


def _tell_plan(work: Backfill, selected: Selected, *, as_json: bool) -> None:
    """What was asked, the whole windows that this becomes, and each file that goes."""
    plan = work.plan(selected)
    freed = sum(file.size for file in plan.going)
    if as_json:
        asked = {one.where: one for one in plan.asked}
        for one in plan.windows:
            its = asked.get(one.where)
            print_json_line({
                **_EXTENT.json(one),
                "asked_first_offset": None if its is None else its.start,
                "asked_last_offset": None if its is None else its.stop - 1,
            })  # fmt: skip
        print_json_line({
            "summary": {
                "removed_keys": [file.key for file in plan.going], "deleted": len(plan.going), "stored_size": freed,
                "dry_run": True,
            }
        })  # fmt: skip
        return
    print_lines(f"asked: {_extent(one)}" for one in plan.asked)
    print_lines(f"would be replaced, in whole windows: {_extent(one)}" for one in plan.windows)
    print_lines(f"would be deleted: {file.key}" for file in plan.going)
    print_lines([f"{counted(len(plan.going), 'file')} would be deleted ({human_bytes(freed)})"])
    print_lines([way_to_apply("replaced") if plan.windows or plan.going else "there is nothing to replace"])
