"""``tieredstore pipeline``: topics kept as files, each record exactly once.

What the commands do lies in modules that are imported when one of them is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tieredstore.cli.arguments import Json, Wide
from tieredstore.cli.output import JsonValue, counted, iso_utc, print_json, print_json_line, print_lines, print_table
from tieredstore.cli.pipeline_backfill import backfill
from tieredstore.cli.pipeline_files import PipelineFile as _File
from tieredstore.cli.pipeline_files import (
    changes,
    drop,
    finalize,
    gc,
    print_,
    redrive,
    sources,
    window_json,
    window_line,
)
from tieredstore.cli.query_output import extra_module
from tieredstore.cli.service_logs import log_lines
from tieredstore.cli.tables import moment, number, text
from tieredstore.config.values import host_and_port
from tieredstore.errors import ConfigError, CorruptData, excerpt
from tieredstore.model import human_bytes

_STATUS: Final = (
    text("TOPIC"),
    number("PART"),
    number("NEXT"),
    number("END"),
    number("LAG"),
    number("RECORDS", rank=1),
    number("FILES", rank=1),
    moment("LATEST", rank=2),
)

app: Final = typer.Typer(no_args_is_help=True, help="Topics kept as files, each record exactly once.")


@app.callback()
def pipeline() -> None:
    """Topics kept as files, each record exactly once."""


@app.command()
def run(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="The pipelines' .properties files (docs/pipelines.md).")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Write all that there is by now, in this process and without Spark, and end.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, max=64, help="Windows at once; as many as cores.")
    ] = None,
    take_over: Annotated[
        int | None,
        typer.Option("--take-over", metavar="N", min=0, help="Seal generation N, and go on where it ends."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's, like its master.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="URI", help="A folder for Spark's notes; without it, a temporary one."),
    ] = None,
    drain: Annotated[
        int, typer.Option("--drain", metavar="SECONDS", min=0, max=86400, help="How long the end may take.")
    ] = 30,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="Answer /metrics, /healthz and /readyz there.")
    ] = None,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log lines of JSON, for a collector of logs.")] = False,
    as_json: Json = False,
) -> None:
    """Write what is due, batch by batch, on Spark until it is stopped, or with --once in this process.

    A batch is committed before any of its files is seen, so that whoever lists the output has each record once, however
    often this is killed. SIGTERM lets the batch that is under way end. Exit code 4 if a batch has too many bad
    messages, 5 if another process runs the pipeline, 75 if store or broker were away for too long.

    With --take-over this generation begins where generation N ends, which is sealed: whoever runs that one ends.

    Example: tieredstore pipeline run backup.properties --once
    """
    if not once:
        if as_json:
            raise ConfigError("--json is for --once; a running pipeline logs JSON with --json-logs")
        if take_over is not None:
            raise ConfigError("--take-over is for --once: take over by that, then run the pipeline on Spark without it")
        _run_on_spark(files, threads, conf or [], checkpoint, drain, listen, json_logs=json_logs)
    if conf or checkpoint or listen:
        raise ConfigError("--conf, --checkpoint and --listen are for Spark, which --once does without: leave them out")
    for file in files:
        _run_once(file, threads, take_over, as_json=as_json)


def _run_on_spark(
    files: list[Path],
    threads: int | None,
    conf: list[str],
    checkpoint: str | None,
    drain_s: int,
    listen: str | None,
    *,
    json_logs: bool,
) -> None:
    address = None if listen is None else _address(listen)
    runs: Any = extra_module("tieredstore.spark.pipelines.runs", "spark")
    settings = {part.partition("=")[0]: part.partition("=")[2] for part in conf}
    if wrong := [name for name, value in settings.items() if not name.startswith("spark.") or not value]:
        raise ConfigError(f"--conf {wrong[0]} is no setting of Spark's: give spark.NAME=VALUE")
    log_lines(as_json=json_logs)
    spark = runs.session(threads, settings)
    code = runs.pipeline_service(spark, files, checkpoint=checkpoint, drain_s=float(drain_s), listen=address).run()
    spark.stop()
    raise typer.Exit(code)


def _address(listen: str) -> tuple[str, int]:
    try:
        return host_and_port(listen)
    except ValueError:
        raise ConfigError(f"--listen is {excerpt(listen)!r}: give a host and a port, as 127.0.0.1:9464") from None


def _run_once(file: Path, threads: int | None, take_over: int | None, *, as_json: bool) -> None:
    room: Any = extra_module("tieredstore.pipelines", "arrow")
    opened: Any = extra_module("tieredstore.pipelines.opened", "arrow")
    parallelism: Any = extra_module("tieredstore.query.topic_log", "arrow")
    settings = room.load_pipeline(file)
    files = records = size = 0
    with (
        opened.open_parts(settings) as parts,
        room.Runner(
            settings, parts, threads=threads or parallelism.default_parallelism(), take_over=take_over
        ) as runner,
    ):
        for entry in runner.run_once():
            files += len(entry.files)
            records += sum(window.records for window in entry.windows)
            size += sum(one.size for one in entry.files)
            if as_json:
                for window in entry.windows:
                    print_json_line(window_json(window))
            else:
                print_lines(map(window_line, entry.windows))
    if not as_json:
        print_lines([f"{counted(records, 'record')} in {counted(files, 'new file')} ({human_bytes(size)})"])


@app.command()
def status(file: _File, as_json: Json = False, wide: Wide = False) -> None:
    """Show how far each partition is written, and how much of its log is not.

    Example: tieredstore pipeline status backup.properties
    """
    room: Any = extra_module("tieredstore.pipelines", "arrow")
    opened: Any = extra_module("tieredstore.pipelines.opened", "arrow")
    inspection: Any = extra_module("tieredstore.pipelines.inspection", "arrow")
    partitions: Any = extra_module("tieredstore.partitions", "arrow")
    selection: Any = extra_module("tieredstore.pipelines.selection", "arrow")
    settings = room.load_pipeline(file)
    with opened.open_parts(settings) as parts:
        snapshot = partitions.LogSnapshot.take(parts.source, selection.query_of(settings))
        rows = inspection.partition_statuses(settings, parts.store, snapshot)
    if as_json:
        print_json([_status_json(row) for row in rows])
        return
    print_table(_STATUS, [_status_cells(row) for row in rows], wide=wide)


@app.command()
def verify(
    file: _File,
    sizes_only: Annotated[bool, typer.Option("--sizes-only", help="List, and read no file.")] = False,
    as_json: Json = False,
) -> None:
    """Check that the output is what the commit log says: each file there, whole, and no other.

    Exit code 4 if it is not.

    Example: tieredstore pipeline verify backup.properties
    """
    room: Any = extra_module("tieredstore.pipelines", "arrow")
    opened: Any = extra_module("tieredstore.pipelines.opened", "arrow")
    inspection: Any = extra_module("tieredstore.pipelines.inspection", "arrow")
    settings = room.load_pipeline(file)
    with opened.open_parts(settings) as parts:
        problems = list(inspection.verify_output(settings, parts.store, contents=not sizes_only))
    if as_json:
        named: list[JsonValue] = [
            {"fault": one.kind, "output_key": one.subject, "problem": one.words} for one in problems
        ]
        print_json({"problems": named})
    else:
        print_lines(f"{one.kind:<8}  {one.subject} {one.words}" for one in problems)
        print_lines([counted(len(problems), "problem") if problems else "all is as it was committed"])
    if problems:
        raise typer.Exit(CorruptData.exit_code)


def _status_json(row: Any) -> JsonValue:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "next_offset": row.next_offset,
        "end_offset": row.end_offset,
        "lag": row.lag,
        "records": row.records,
        "files": row.files,
        "max_timestamp_ms": None if row.max_timestamp < 0 else row.max_timestamp,
        "max_timestamp": None if row.max_timestamp < 0 else iso_utc(row.max_timestamp),
    }


def _status_cells(row: Any) -> list[str]:
    return [
        row.topic,
        str(row.partition),
        str(row.next_offset),
        "-" if row.end_offset is None else str(row.end_offset),
        "-" if row.lag is None else str(row.lag),
        str(row.records),
        str(row.files),
        "-" if row.max_timestamp < 0 else iso_utc(row.max_timestamp) or "-",
    ]


app.command("print")(print_)
for _verb in (backfill, sources, changes, redrive, finalize, gc, drop):
    app.command()(_verb)
