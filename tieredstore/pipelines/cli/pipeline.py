"""The command ``tieredstore pipeline``: topics as files, each record exactly once.

Each subcommand imports the modules that it needs only when it runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import typer

from tieredstore.api.outcomes import Outcome, Plan
from tieredstore.cli.app.groups import Group
from tieredstore.cli.app.options import Json, JsonLogs, Once, Output, Work
from tieredstore.cli.app.outcomes import tell_all
from tieredstore.cli.terminal.log_lines import log_lines
from tieredstore.cli.terminal.output import (
    complain,
    human_time,
    iso_utc,
    print_json_line,
    print_lines,
    print_table,
    quantity,
)
from tieredstore.cli.terminal.rows import Row, attributes, column, field
from tieredstore.cli.terminal.tables import moment, number, text
from tieredstore.config.values import host_and_port
from tieredstore.errors import ConfigError, CorruptDataError, ResourceNotFoundError, excerpt
from tieredstore.model import human_bytes
from tieredstore.pipelines.cli.files import backfill, finalize, gc, rm
from tieredstore.pipelines.cli.items import (
    RUN,
    PipelineFile,
    PipelineFiles,
    WindowTeller,
    of_written,
    open_pipeline,
    open_runner,
)
from tieredstore.pipelines.cli.new_file import init
from tieredstore.query.positions import duration_of

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import Change
    from tieredstore.pipelines.upkeep.comparison import Against, Side
    from tieredstore.pipelines.upkeep.inspection import PartitionStatus, Verification
    from tieredstore.pipelines.upkeep.output_files import OutputProblem

app: Final = typer.Typer(add_completion=False)


@app.callback()
def pipeline() -> None:
    """Write topics as files, each record exactly once."""
    # Even without the option -v, show the log line about properties that have no effect.
    logging.getLogger("tieredstore.pipelines.config.settings").setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class OnSpark(Group):
    """Options for a pipeline that runs on Spark."""

    PANEL: ClassVar[str] = "Spark"
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="Spark setting, such as spark.master=local[4]."),
    ] = None
    drain: Annotated[
        str,
        typer.Option("--drain", metavar="DURATION", help="How long the last batch may take after SIGTERM: 90s, 5m."),
    ] = "30s"
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz here.")
    ] = None

    def run(self, files: list[Path], threads: int | None, take_over: int | None, *, json_logs: bool) -> int:
        """Run the pipelines until they are stopped; return the exit code."""
        try:
            address = None if self.listen is None else host_and_port(self.listen)
        except ValueError:
            shown = repr(excerpt(self.listen or ""))
            raise ConfigError(f"--listen is {shown}: give host and port, such as 127.0.0.1:9464") from None
        drain_s = duration_of("--drain", self.drain).total_seconds()
        from tieredstore.pipelines.config.settings import load_pipeline
        from tieredstore.spark.pipelines import runs

        settings = {part.partition("=")[0]: part.partition("=")[2] for part in self.conf or ()}
        if wrong := [name for name, value in settings.items() if not name.startswith("spark.") or not value]:
            raise ConfigError(f"--conf {wrong[0]} is not a Spark setting: give spark.NAME=VALUE")
        for file in files:
            load_pipeline(file)  # a wrong file is refused before Spark starts
        log_lines(as_json=json_logs)
        spark = runs.session(threads, settings)
        code = runs.pipeline_service(spark, files, drain_s=drain_s, listen=address, take_over=take_over).run()
        spark.stop()
        return code


@app.command()
def run(
    files: PipelineFiles,
    once: Once = False,
    take_over: Annotated[
        int | None,
        typer.Option("--take-over", metavar="N", min=0, help="Seal generation N and continue where it ends."),
    ] = None,
    *,
    spark: OnSpark,
    json_logs: JsonLogs = False,
    work: Work,
    output: Json,
) -> None:
    """Write records to files in batches: on Spark until stopped, or, with --once, in this process without Spark.

    A batch is committed before any of its files becomes visible. Anyone listing the output sees each record exactly
    once, however often this process is killed. SIGTERM lets the current batch finish. Exit code 4: a batch has too many
    bad messages. Exit code 5: another process runs the pipeline. Exit code 75: store or broker were unavailable for too
    long.

    With --take-over, this generation begins where generation N ends. A running process of N ends.

    Example: tieredstore pipeline run backup.properties --once
    """
    if not once:
        if output.as_json:
            raise ConfigError("--json needs --once; a running pipeline logs JSON with --json-logs")
        raise typer.Exit(spark.run(files, work.parallel, take_over, json_logs=json_logs))
    if spark.conf or spark.listen:
        raise ConfigError("--conf and --listen are for Spark, but --once does not use Spark: leave them out")
    plan = Plan("run", f"{len(files)} pipelines", partial(_run_once, files, work.parallel, take_over))
    tell_all(plan.apply, WindowTeller(RUN, output.as_json, dry_run=False))


def _run_once(files: list[Path], threads: int | None, take_over: int | None, _dry_run: bool) -> Generator[Outcome]:
    for file in files:
        with open_runner(file, threads=threads, take_over=take_over) as runner:
            for entry in runner.run_once():
                yield from (of_written("run", window) for window in entry.windows)


@app.command()
def status(
    file: PipelineFile,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="N", min=-1, help="List changes to the output after log entry N."),
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="List each changed file; without --after, from the first log entry on.")
    ] = False,
    *,
    output: Output,
) -> None:
    """Show how far each partition is written, and its lag in offsets and seconds.

    SEC is the age of the latest written record, by its timestamp. If none is written, it is the age of the first
    record. If all are written, it is 0. A named topic that does not exist has a row without numbers. If no other row
    exists, the exit code is 3. stderr names lost offsets on which the next run would fail. Offsets with replaced files
    are listed below the table.

    With --after, show changes to the output instead. A row shows the number of a commit log entry, its time by the
    store's clock, and the change. You can follow an output this way without listing it. Pass the last number to --after
    in the next call; -1 shows all changes.

    Example: tieredstore pipeline status backup.properties
    """
    if after is not None or files:
        _show_changes(file, -1 if after is None else after, files, output)
        return
    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.run.generation import commit_log_of
        from tieredstore.pipelines.run.source import absent_topics, check_topics, query_of
        from tieredstore.pipelines.upkeep.inspection import losses_of, partition_statuses, with_first_timestamps
        from tieredstore.reading.survey import survey_logs

        query = query_of(settings)
        snapshot = survey_logs(parts.source, query)
        rows = partition_statuses(settings, parts.store, snapshot)
        rows = list(with_first_timestamps(rows, parts.source, snapshot, query))
        state = commit_log_of(settings, parts.store).read()
        lost = losses_of(snapshot, state, settings)
        for sentence in dict.fromkeys(lost.values()):
            complain(sentence)
        written = {row.topic for row in rows}
        absent = absent_topics(query, snapshot, written)
        try:
            check_topics(query, snapshot, parts.source, written)
        except ResourceNotFoundError as error:
            if not rows:
                raise
            complain(str(error))
    now_ms = time.time_ns() // 1_000_000
    row = _status_row(now_ms, lost)
    if output.as_json:
        # A topic that does not exist gets a row with its name; all other fields are null.
        nothing = dict.fromkeys(row.names)
        for line in [*map(row.json, rows), *({**nothing, "topic": topic} for topic in absent)]:
            print_json_line(line)
        lag = sum(one.lag or 0 for one in rows)
        print_json_line({"summary": {"partitions": len(rows), "lag": lag, "commit": state.number}})
        return
    cells = [*map(row.cells, rows), *([topic, *["-"] * 8] for topic in absent)]
    print_table(row.columns, cells, wide=output.wide)
    print_lines(
        f"{row.topic}-{row.partition}: offsets {one.first} to {one.last} were replaced by generation {one.generation}"
        for row in rows
        for one in row.replaced
    )


def _show_changes(file: Path, after: int, files: bool, output: Output) -> None:
    as_json = output.as_json
    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.log.commit_log import changes_since
        from tieredstore.pipelines.run.generation import commit_log_of

        log = commit_log_of(settings, parts.store)
        # Report the number of the very last log entry, even if the last entries leave the output unchanged. The next
        # call with --after then does not read these entries again.
        last, count = max(log.read().number, after), 0
        rows: list[list[str]] = []
        for change in changes_since(log, after):
            last, count = max(last, change.number), count + 1
            if as_json:
                print_json_line(_CHANGE.json(change))
            elif files:
                print_lines(_change_lines(change))
            else:
                rows.append(_CHANGE.cells(change))
    if rows:
        print_table(_CHANGE.columns, rows, wide=output.wide)
    if as_json:
        print_json_line({"summary": {"changes": count, "commit": last}})
    elif not count:
        print_lines([f"no changes to the output after entry {after}"])


_DONE: Final = {
    "finalize": "is complete",
    "replacing": "is incomplete: its files are being replaced",
    "replaced": "may be complete again: its files were replaced",
}
"""Texts that ``status --after`` shows for a directory, by kind of change."""
_CHANGE: Final[Row[Change]] = Row(
    field("commit", lambda one: one.number, number("ENTRY")),
    field("committed_ms", lambda one: one.committed_ms),
    column(moment("TIME"), lambda one: human_time(one.committed_ms)),
    field("kind", lambda one: one.kind, text("KIND")),
    column(number("FILES"), lambda one: str(len(one.added))),
    column(number("DELETED"), lambda one: "all" if one.kind == "drop" else str(len(one.removed))),
    column(number("DIRECTORIES"), lambda one: str(len(one.directories))),
    column(number("SIZE"), lambda one: human_bytes(sum(file.size for file in one.added))),
    field("output_keys", lambda one: [file.key for file in one.added]),
    field("sizes", lambda one: [file.size for file in one.added]),
    field("removed_keys", lambda one: [*one.removed]),
    field("directories", lambda one: [*one.directories]),
)


def _change_lines(change: Change) -> list[str]:
    if change.kind == "drop":
        return [f"{change.number} rm: all files of the generation"]
    done = _DONE.get(change.kind, "has late records")
    return [
        *(f"{change.number} {change.kind}: {one.key} ({human_bytes(one.size)})" for one in change.added),
        *(f"{change.number} {change.kind}: deleted {key}" for key in change.removed),
        *(f"{change.number} {change.kind}: {path} {done}" for path in change.directories),
    ]


@app.command()
def verify(
    file: PipelineFile,
    sizes_only: Annotated[bool, typer.Option("--sizes-only", help="Compare names and sizes; read no file.")] = False,
    against: Annotated[
        Literal["bucket", "broker"] | None,
        typer.Option("--against", help="Also compare records with the bucket or the broker."),
    ] = None,
    *,
    output: Json,
) -> None:
    """Check the output against the commit log: each file must exist and be intact, and no other file may exist.

    With --against, read all written offsets from the bucket or the broker again. Compare their offsets, keys and values
    with the files. The report says what was read and what was not checked. Without a commit log, as for Secor's output,
    missing files cannot be detected.

    Exit code 4 if a problem is found, 3 if the generation has neither log nor files, or if no record was compared.

    Example: tieredstore pipeline verify backup.properties --against bucket
    """
    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.upkeep.inspection import Verification, check_written

        check_written(settings, parts.store)
        verification = Verification(settings, parts.store, contents=not sizes_only)
        problems = list(verification.problems())
    more = None if against is None else _compare(settings, against, problems)
    is_unproven = more is not None and more.gone > 0 and not more.compared and not problems
    if output.as_json:
        counts = {} if more is None else {"compared": more.compared, "not_compared": more.gone}
        sums = {"problems": len(problems), **_VERIFICATION.json(verification), **counts}
        _PROBLEM.show(problems, as_json=True, summary=sums)
    else:
        print_lines(f"{one.kind:<8}  {one.subject} {one.words}" for one in problems)
        if against is not None and more is not None:
            print_lines(
                [f"{quantity(more.compared, 'offset')} compared with the {against}; {more.gone} not in the {against}"]
            )
        print_lines(_read_lines(verification, against is not None))
        if not is_unproven:
            print_lines([quantity(len(problems), "problem") if problems else "no problems found"])
    if problems:
        raise typer.Exit(CorruptDataError.exit_code)
    if more is not None and is_unproven:
        raise ResourceNotFoundError(
            f"no record was compared: the {against} has none of the {quantity(more.gone, 'written offset')}; check the "
            f"pipeline's settings of the {against}"
        )


_VERIFICATION: Final[Row[Verification]] = Row(
    field("commit_log", lambda one: one.has_log),
    field("stored_size", lambda one: one.size),
    attributes("files", "read_files", "read_size"),
)
# A problem of a whole partition has no object key, so its text must name the partition.
_PROBLEM: Final[Row[OutputProblem]] = Row(
    field("fault", lambda one: one.kind),
    field("output_key", lambda one: one.subject if "/" in one.subject else None),
    field("problem", lambda one: one.words if "/" in one.subject else f"{one.subject} {one.words}"),
)


def _read_lines(verification: Verification, is_compared: bool) -> list[str]:
    """Return the report's lines about the checks done, and about the checks left out."""
    size = f"{human_bytes(verification.read_size)} of {human_bytes(verification.size)}"
    lines = [f"{verification.read_files} of {quantity(verification.files, 'file')} read in full ({size})"]
    if not verification.has_log:
        lines.append("there is no commit log, so missing files cannot be detected")
    elif not verification.read_files:
        lines.append("names and sizes were compared with the commit log")
    if not is_compared:
        lines.append("records were not compared with the source (--against)")
    return lines


def _compare(settings: Pipeline, side: Side, problems: list[OutputProblem]) -> Against:
    """Compare the files with the source; add the problems found to ``problems``, and return the comparison."""
    from tieredstore.pipelines.run.source import open_parts
    from tieredstore.pipelines.upkeep import comparison as comparing

    sided = comparing.keep_side(settings, side)
    with open_parts(sided) as parts:
        comparison = comparing.Against(sided, parts.store, parts.source)
        problems.extend(comparison.problems())
    return comparison


def _count_held(count: int, row: PartitionStatus) -> str:
    """Return the number of files or records. If all are replaced, return the replacing generation instead."""
    return str(count) if count or not row.replaced else f"by {row.replaced[-1].generation}"


def _status_row(now_ms: int, problems: Mapping[tuple[str, int], str]) -> Row[PartitionStatus]:
    return Row(
        field("topic", lambda row: row.topic, text("TOPIC")),
        field("partition", lambda row: row.partition, number("PART")),
        field("next_offset", lambda row: row.next_offset, number("NEXT")),
        field("end_offset", lambda row: row.end_offset, number("END")),
        field("lag", lambda row: row.lag, number("LAG")),
        field("lag_seconds", lambda row: row.lag_s(now_ms), number("SEC"), lambda lag_s: str(round(lag_s))),
        field("records", lambda row: row.records),
        column(number("RECORDS", rank=1), lambda row: _count_held(row.records, row)),
        field("files", lambda row: row.files),
        column(number("FILES", rank=1), lambda row: _count_held(row.files, row)),
        field("max_timestamp_ms", lambda row: None if row.max_timestamp < 0 else row.max_timestamp),
        field("max_timestamp", lambda row: iso_utc(row.max_timestamp), moment("LATEST", rank=2)),
        field("problem", lambda row: problems.get((row.topic, row.partition))),
        field(
            "replaced",
            lambda row: [
                {"generation": one.generation, "first_offset": one.first, "last_offset": one.last}
                for one in row.replaced
            ],
        ),
    )


for _verb in (init, finalize, backfill, gc, rm):
    app.command()(_verb)
