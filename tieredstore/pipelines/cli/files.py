"""``tieredstore pipeline``, verbs about files that are written: print, sources, changes, finalize, gc, drop.

What the commands do lies in modules that are imported when one of them is asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tieredstore.cli.app.arguments import DryRun, Json
from tieredstore.cli.app.durations import parse_duration_ms
from tieredstore.cli.app.steps import Report, Tally, Yes, is_dry_run, say_what_stays, telling, way_to_apply
from tieredstore.cli.terminal.output import JsonValue, counted, iso_utc, print_json_line, print_lines
from tieredstore.model import human_bytes
from tieredstore.ops.steps import Outcome

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import Change
    from tieredstore.pipelines.log.entries import Entry, Window, WrittenWindow
    from tieredstore.pipelines.run.finalizing import Finished
    from tieredstore.pipelines.run.runner import Runner
    from tieredstore.pipelines.run.stores import Parts
    from tieredstore.pipelines.upkeep.origins import Origin

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


def window_json(window: WrittenWindow) -> JsonValue:
    """A window of an entry, as all commands that write show it."""
    return {
        "topic": window.topic,
        "partition": window.partition,
        "first_offset": window.start,
        "last_offset": window.stop - 1,
        "records": window.records,
        "filtered": window.filtered,
        "quarantined": window.quarantined,
        "output_keys": [one.key for one in window.files],
    }


def window_line(window: WrittenWindow) -> str:
    """The same for people."""
    if window.start == window.stop:
        return f"{window.topic}-{window.partition} begins at offset {window.start}"
    out = f", {window.filtered} left out" if window.filtered else ""
    aside = f", {window.quarantined} put aside" if window.quarantined else ""
    return f"{extent(window)}: {counted(window.records, 'record')} in {counted(len(window.files), 'file')}{out}{aside}"


def extent(window: WrittenWindow | Window) -> str:
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
                print_json_line(window_json(window))
            else:
                print_lines([window_line(window)])

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


def load(file: Path) -> Pipeline:
    """Read a pipeline's file."""
    from tieredstore.pipelines.config.settings import load_pipeline

    return load_pipeline(file)


@contextmanager
def open_pipeline(file: Path) -> Generator[tuple[Pipeline, Parts]]:
    """The pipeline of a file, and its stores."""
    pipeline = load(file)
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
    from tieredstore.cli.records.record_rows import JsonBytes

    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.run.recipes import places_of
        from tieredstore.pipelines.upkeep.origins import place_of
        from tieredstore.pipelines.upkeep.output_files import read_records

        for key in output:
            topic, partition = place_of(places_of(settings), key)
            batches = _first(read_records(settings, parts.store, key), count)
            if as_json:
                write_json(((partition, batch) for batch in batches), topic=topic, coding=JsonBytes.BOTH)
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
                print_json_line(_origin_json(origin))
            else:
                print_lines(_origin_lines(origin))


def _origin_json(origin: Origin) -> JsonValue:
    return {
        "output_key": origin.key,
        "topic": origin.topic,
        "partition": origin.partition,
        "first_offset": origin.first,
        "last_offset": origin.last,
        "committed": origin.committed,
        "backup_keys": [*origin.backups],
        "segment_names": [*origin.segments],
    }


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
                print_json_line(_change_json(change))
            else:
                print_lines(_change_lines(change))


def _change_json(change: Change) -> JsonValue:
    return {
        "commit": change.number,
        "kind": change.kind,
        "output_keys": [one.key for one in change.added],
        "sizes": [one.size for one in change.added],
        "removed_keys": [*change.removed],
        "directories": [*change.directories],
    }


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
                print_json_line(_finished_json(one, dry_run=dry_run))
        else:
            would = "would be finalized" if dry_run else "finalized"
            print_lines(f"{would}: {one.path} ({counted(one.records, 'record')})" for one in finished)
            print_lines([f"{counted(len(finished), 'path')} {would}"])
            if dry_run and finished:
                print_lines([way_to_apply("written")])


def _finished_json(one: Finished, *, dry_run: bool) -> JsonValue:
    return {
        "topic": one.topic,
        "directory": one.path,
        "ends_ms": one.ends_ms,
        "ends": iso_utc(one.ends_ms),
        "files": one.files,
        "records": one.records,
        "statement": one.statement,
        "dry_run": dry_run,
    }


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
