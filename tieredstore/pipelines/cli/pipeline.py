"""``tieredstore pipeline``: topics kept as files, each record exactly once.

Each command imports its modules only when it runs.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from tieredstore.api.outcomes import Outcome, Plan
from tieredstore.cli.app.options import Group, Json, JsonLogs, Once, Output, Work
from tieredstore.cli.app.outcomes import tell_all
from tieredstore.cli.terminal.log_lines import log_lines
from tieredstore.cli.terminal.output import complain, counted, iso_utc, print_json_line, print_lines, print_table
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

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.log.commit_log import Change
    from tieredstore.pipelines.upkeep.comparison import Against as Compared
    from tieredstore.pipelines.upkeep.inspection import OutputProblem, PartitionStatus, Verification

app: Final = typer.Typer(no_args_is_help=True, help="Topics kept as files, each record exactly once.")


class Against(enum.StrEnum):
    """Source to compare an output with."""

    BUCKET = "bucket"
    BROKER = "broker"


@app.callback()
def pipeline() -> None:
    """Topics kept as files, each record exactly once."""
    # Users of a subcommand see properties without effect even without -v.
    logging.getLogger("tieredstore.pipelines.config.settings").setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class OnSpark(Group):
    """How a pipeline runs on Spark."""

    PANEL: ClassVar[str] = "Spark"
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's, like its master.")
    ] = None
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="URI", help="A folder for Spark's notes; without it, a temporary one."),
    ] = None
    drain: Annotated[
        int, typer.Option("--drain", metavar="SECONDS", min=0, max=86400, help="How long the end may take.")
    ] = 30
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Answer /metrics, /healthz and /readyz there.")
    ] = None

    def run(self, files: list[Path], threads: int | None, take_over: int | None, *, json_logs: bool) -> int:
        """Run the pipelines until they are stopped; return the exit code."""
        try:
            address = None if self.listen is None else host_and_port(self.listen)
        except ValueError:
            shown = repr(excerpt(self.listen or ""))
            raise ConfigError(f"--listen is {shown}: give a host and a port, as 127.0.0.1:9464") from None
        from tieredstore.spark.pipelines import runs

        settings = {part.partition("=")[0]: part.partition("=")[2] for part in self.conf or ()}
        if wrong := [name for name, value in settings.items() if not name.startswith("spark.") or not value]:
            raise ConfigError(f"--conf {wrong[0]} is no setting of Spark's: give spark.NAME=VALUE")
        log_lines(as_json=json_logs)
        spark = runs.session(threads, settings)
        code = runs.pipeline_service(
            spark, files, checkpoint=self.checkpoint, drain_s=float(self.drain), listen=address, take_over=take_over
        ).run()
        spark.stop()
        return code


@app.command()
def run(
    files: PipelineFiles,
    once: Once = False,
    take_over: Annotated[
        int | None,
        typer.Option("--take-over", metavar="N", min=0, help="Seal generation N, and go on where it ends."),
    ] = None,
    *,
    spark: OnSpark,
    json_logs: JsonLogs = False,
    work: Work,
    output: Json,
) -> None:
    """Write what is due, batch by batch: on Spark until stopped, or with --once in this process, without Spark.

    A batch is committed before any of its files is visible, so that anyone listing the output sees each record exactly
    once, however often this is killed. SIGTERM lets the current batch finish. Exit code 4 if a batch has too many bad
    messages, 5 if another process runs the pipeline, 75 if store or broker were unavailable for too long.

    With --take-over this generation begins where generation N ends, and N is sealed: a running driver of N stops.

    Example: tieredstore pipeline run backup.properties --once
    """
    if not once:
        if output.as_json:
            raise ConfigError("--json is for --once; a running pipeline logs JSON with --json-logs")
        raise typer.Exit(spark.run(files, work.parallel, take_over, json_logs=json_logs))
    if spark.conf or spark.checkpoint or spark.listen:
        raise ConfigError("--conf, --checkpoint and --listen are for Spark, which --once does without: leave them out")
    plan = Plan("run", f"{len(files)} pipelines", partial(_run_once, files, work.parallel, take_over))
    tell_all(plan.apply, WindowTeller(RUN, output.as_json, is_plan=False))


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
        typer.Option("--after", metavar="N", min=-1, help="List changes to the output after entry N of its log."),
    ] = None,
    *,
    output: Output,
) -> None:
    """Show how far each partition is written, and how much of its log is not: offsets, and since when.

    SEC is the age of the latest written record, by its own time, if some are unwritten. A named topic that does not
    exist has a row without numbers; exit code 3 if there is nothing else. Lost offsets are named on stderr as long as
    the next run would fail on them; offsets whose files were replaced are named below the table.

    With --after it shows instead the changes of the output, entry by entry, to follow it without listing it. Pass the
    number of the last line to the next call's --after; -1 shows all.

    Example: tieredstore pipeline status backup.properties
    """
    if after is not None:
        _show_changes(file, after, as_json=output.as_json)
        return
    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.run.generation import commit_log_of
        from tieredstore.pipelines.run.selection import absent_topics, check_topics, query_of
        from tieredstore.pipelines.upkeep.inspection import losses_of, partition_statuses
        from tieredstore.reading.survey import survey_logs

        query = query_of(settings)
        snapshot = survey_logs(parts.source, query)
        rows = partition_statuses(settings, parts.store, snapshot)
        state = commit_log_of(settings, parts.store).read()
        lost = losses_of(snapshot, state.positions, query)
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
        # A topic that does not exist has null in every other column.
        nothing = dict.fromkeys(row.names)
        for line in [*map(row.json, rows), *({**nothing, "topic": topic} for topic in absent)]:
            print_json_line(line)
        lag = sum(one.lag or 0 for one in rows)
        print_json_line({"summary": {"partitions": len(rows), "lag": lag, "commit": state.number}})
        return
    cells = [*map(row.cells, rows), *([topic, *["-"] * 8] for topic in absent)]
    print_table(row.columns, cells, wide=output.wide)
    print_lines(
        f"{row.topic}-{row.partition}: offsets {one.first} to {one.last} gave way to generation {one.generation}"
        for row in rows
        for one in row.replaced
    )


def _show_changes(file: Path, after: int, *, as_json: bool) -> None:
    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.log.commit_log import changes_since
        from tieredstore.pipelines.run.generation import commit_log_of

        log = commit_log_of(settings, parts.store)
        # Entries that show nothing count too, so that they are not read again.
        last, count = max(log.read().number, after), 0
        for change in changes_since(log, after):
            last, count = max(last, change.number), count + 1
            if as_json:
                print_json_line(_CHANGE.json(change))
            else:
                print_lines(_change_lines(change))
    if as_json:
        print_json_line({"summary": {"changes": count, "commit": last}})
    elif not count:
        print_lines([f"nothing was done to the output behind entry {after}"])


_DONE: Final = {
    "finalize": "is complete",
    "replacing": "is not complete: files of it are being replaced",
    "replaced": "may be complete again: files of it were replaced",
}
"""Words for the directories of a change."""
_CHANGE: Final[Row[Change]] = Row(
    field("commit", lambda one: one.number),
    field("kind", lambda one: one.kind),
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
    sizes_only: Annotated[bool, typer.Option("--sizes-only", help="List, and read no file.")] = False,
    against: Annotated[
        Against | None, typer.Option("--against", help="Look also whether each record that this still has is there.")
    ] = None,
    *,
    output: Json,
) -> None:
    """Check the output against the commit log: each file exists and is intact, and there is no other.

    With --against each window is read again, and compared with its files: offsets, keys and values. The report tells
    how many files were read, and what was not checked: without a commit log, as for Secor's output, whether any file is
    missing.

    Exit code 4 if something is wrong, 3 if the generation has nothing.

    Example: tieredstore pipeline verify backup.properties --against bucket
    """
    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.upkeep.inspection import Verification, check_written

        check_written(settings, parts.store)
        verification = Verification(settings, parts.store, contents=not sizes_only)
        problems = list(verification.problems())
    more = None if against is None else _compare(settings, against, problems)
    if output.as_json:
        counts = {} if more is None else {"compared": more.compared, "not_compared": more.gone}
        sums = {"problems": len(problems), **_VERIFICATION.json(verification), **counts}
        _PROBLEM.show(problems, as_json=True, summary=sums)
    else:
        print_lines(f"{one.kind:<8}  {one.subject} {one.words}" for one in problems)
        if against is not None and more is not None:
            print_lines([f"{counted(more.compared, 'offset')} compared with the {against}; {more.gone} are not there"])
        print_lines(_read_lines(verification, against is not None))
        print_lines([counted(len(problems), "problem") if problems else "no problems found"])
    if problems:
        raise typer.Exit(CorruptDataError.exit_code)


_VERIFICATION: Final[Row[Verification]] = Row(
    field("commit_log", lambda one: one.has_log),
    field("stored_size", lambda one: one.size),
    attributes("files", "read_files", "read_size"),
)
# A problem of a partition has no key.
_PROBLEM: Final[Row[OutputProblem]] = Row(
    field("fault", lambda one: one.kind),
    field("output_key", lambda one: one.subject if "/" in one.subject else None),
    field("problem", lambda one: one.words if "/" in one.subject else f"{one.subject} {one.words}"),
)


def _read_lines(verification: Verification, is_compared: bool) -> list[str]:
    """Return what was checked, and what was not."""
    size = f"{human_bytes(verification.read_size)} of {human_bytes(verification.size)}"
    lines = [f"{verification.read_files} of {counted(verification.files, 'file')} read in full ({size})"]
    if not verification.has_log:
        lines.append("there is no commit log, so missing files cannot be detected")
    elif not verification.read_files:
        lines.append("names and sizes were compared with the commit log")
    if not is_compared:
        lines.append("records were not compared with the source (--against)")
    return lines


def _compare(settings: Pipeline, against: Against, problems: list[OutputProblem]) -> Compared:
    """Add problems from the comparison with the log; return what was compared."""
    from tieredstore.pipelines.run.stores import open_parts
    from tieredstore.pipelines.upkeep import comparison as comparing

    sided = comparing.one_sided(settings, "bucket" if against is Against.BUCKET else "broker")
    with open_parts(sided) as parts:
        comparison = comparing.Against(sided, parts.store, parts.source)
        problems.extend(comparison.problems())
    return comparison


def _count_held(count: int, row: PartitionStatus) -> str:
    """Return the number of present items, or the generation that replaced all of them."""
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


for _verb in (finalize, backfill, gc, rm):
    app.command()(_verb)
