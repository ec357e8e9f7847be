"""Subcommands of ``tieredstore pipeline`` that change output files.

The other subcommands are in ``pipeline``: they write records, or only read. Each command imports the modules that it
needs only when it runs.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.api.outcomes import Outcome, Plan, Status, status_of
from tieredstore.cli.app.options import BACKUP, Apply, FromTo, Json, MinAge, Partitions, Work, parse_partitions
from tieredstore.cli.app.outcomes import Words, carry_out, tell_all
from tieredstore.errors import ConfigError
from tieredstore.pipelines.cli.items import (
    BACKFILL,
    BAD_MESSAGES,
    FINALIZE,
    BadMessagesTeller,
    DirectoryOutcome,
    PipelineFile,
    PipelineFiles,
    WindowOutcome,
    WindowTeller,
    of_window,
    of_written,
    open_pipeline,
    open_runner,
)
from tieredstore.query.positions import duration_of

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.run.redrive import Redriven
    from tieredstore.pipelines.run.source import Parts
    from tieredstore.pipelines.upkeep.backfill import Backfill
    from tieredstore.pipelines.upkeep.record_sources import RecordSource, Selected


def _show_file(outcome: Outcome, verb: str) -> str:
    return f"{verb}: {outcome.name}"


_FILES: Final = Words("file", "deleted", {}, _show_file, "deleting")
_PIECES: Final = Words(
    "piece", "deleted",
    {
        "young": "too young: a task may be using it",
        "committed": "committed: the next run publishes it",
        "left": "left to the store's own cleanup",
    },
    _show_file, "collecting",
)  # fmt: skip


def finalize(files: PipelineFiles, *, apply: Apply, output: Json) -> None:
    """Mark directories of past periods as complete by _SUCCESS, oldest first.

    A directory is complete once all partitions of its topic are written up to partitioner.finalizer.delay.seconds after
    the end of its period. Without --yes, the command only shows the oldest directories. If the pipeline is running, its
    process ends with exit code 5; set pipeline.finalize=true to let that process mark directories.

    Example: tieredstore pipeline finalize events.properties --yes
    """
    plan = Plan("finalize", f"of {len(files)} pipelines", partial(_finalize, files))
    carry_out(plan, FINALIZE, yes=apply.yes, as_json=output.as_json)


def _finalize(files: list[Path], dry_run: bool) -> Generator[Outcome]:
    for file in files:
        with open_runner(file) as runner:
            finished = runner.find_unfinalized() if dry_run else runner.finalize()
            if not dry_run:
                runner.driver.mark_published()
        for one in finished:
            yield DirectoryOutcome(
                action="finalize", status="planned" if dry_run else "done", code="finalized", topic=one.topic,
                name=one.path, kind="directory", ends_ms=one.ends_ms, files=one.files, records=one.records,
                statement=one.statement,
            )  # fmt: skip


def gc(file: PipelineFile, min_age: MinAge = "24h", *, apply: Apply, output: Json) -> None:
    """Delete invisible files that killed runs have left behind.

    Without --yes, only show the plan.

    Example: tieredstore pipeline gc backup.properties --yes
    """
    min_age_ms = int(duration_of("--min-age", min_age).total_seconds() * 1000)
    with open_pipeline(file) as (settings, parts):
        plan = Plan("gc", settings.own.name, partial(_collect, settings, parts, min_age_ms))
        carry_out(plan, _PIECES, yes=apply.yes, as_json=output.as_json, store=parts.store)


def _collect(settings: Pipeline, parts: Parts, min_age_ms: int, dry_run: bool) -> Generator[Outcome]:
    from tieredstore.backends.base import AbandonedWrite
    from tieredstore.ops.garbage.collection import AGES_APART, trusted_time_ms
    from tieredstore.pipelines.upkeep.deletion import LEAST_AGE_MS, collect_garbage

    as_of_ms = trusted_time_ms(parts.store, min_age_ms, LEAST_AGE_MS // AGES_APART, young="files of running tasks")
    for step in collect_garbage(settings, parts.store, min_age_ms=min_age_ms, as_of_ms=as_of_ms, dry_run=dry_run):
        kind = "unfinished_write" if isinstance(step.item, AbandonedWrite) else "staged"
        yield Outcome(
            action="gc", status=status_of(step.outcome, dry_run=dry_run), code=step.outcome.value, kind=kind,
            name=step.item.key, stored_size=step.item.size,
        )  # fmt: skip


def rm(file: PipelineFile, *, apply: Apply, output: Json) -> None:
    """Delete all files of the pipeline's generation, and end the generation for good.

    Without --yes, only show the plan. A running process of the generation ends with exit code 5. The commit log stays,
    so the generation's number cannot be used again.

    Example: tieredstore pipeline rm events.properties --yes
    """
    with open_pipeline(file) as (settings, parts):
        plan = Plan("remove", f"generation {settings.own.generation}", partial(_remove, settings, parts))
        carry_out(plan, _FILES, yes=apply.yes, as_json=output.as_json, store=parts.store)


def _remove(settings: Pipeline, parts: Parts, dry_run: bool) -> Generator[Outcome]:
    from tieredstore.pipelines.upkeep.deletion import drop_generation

    for one in drop_generation(settings, parts.store, dry_run=dry_run):
        yield Outcome(
            action="remove", status="planned" if dry_run else "done", code="deleted", kind="file", name=one.key,
            stored_size=one.size,
        )  # fmt: skip


def backfill(
    file: PipelineFile,
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Topic to write.")] = None,
    partitions: Partitions = None,
    generation: Annotated[
        int | None,
        typer.Option("--generation", metavar="N", min=0, max=999999999, help="Generation number of the new files."),
    ] = None,
    replaced: Annotated[
        int | None,
        typer.Option("--replace", metavar="M", min=0, help="Replace the files of generation M for these offsets."),
    ] = None,
    backup: Annotated[Path | None, BACKUP] = None,
    bad_messages: Annotated[
        bool, typer.Option("--bad-messages", help="Parse quarantined messages again; give no offsets.")
    ] = False,
    *,
    window: FromTo,
    work: Work,
    apply: Apply,
    output: Json,
) -> None:
    """Write chosen offsets of a topic again, with the current settings and as a new generation.

    Without --yes, only show the plan. The pipeline of FILE may run at the same time. If the command is killed, repeat
    it with the same settings to complete the work. With --backup, read the files of the backup pipeline instead of the
    bucket.

    --replace deletes generation M's files of the same offsets, extended to whole windows (offset ranges that one task
    wrote). Until the command ends, the directories of these files have no _SUCCESS. A running process of generation M
    ends with exit code 5 twice: before the command writes and before it deletes. Restart it at once.

    --bad-messages parses the quarantined messages of the pipeline again. It writes messages that are good now to new
    files, each once. It shows why the other messages stay quarantined. A running process of the pipeline ends with exit
    code 5: restart it.

    Example: tieredstore pipeline backfill events.properties orders --generation 2 --replace 1 --yes
    """
    if bad_messages:
        if (topic, partitions, generation, replaced, backup, window.start, window.stop) != (None,) * 7:
            raise ConfigError(
                "--bad-messages parses all quarantined messages of the pipeline: give only FILE, without topic, "
                "offsets or --generation"
            )
        plan = Plan("backfill", f"bad messages of {file}", partial(_parse_again, file, work.parallel))
        again = BadMessagesTeller(BAD_MESSAGES, output.as_json, not apply.yes)
        tell_all(plan.apply if apply.yes else plan.show, again)
        return
    if topic is None or generation is None:
        raise ConfigError("pipeline backfill needs FILE TOPIC --generation N, or FILE --bad-messages")
    from tieredstore.pipelines.config.settings import load_pipeline, with_generation

    pipeline = with_generation(load_pipeline(file), generation)
    window.check_order()
    from tieredstore.pipelines.upkeep.record_sources import Selected

    selected = Selected(topic, window.first, window.end, parse_partitions(partitions))
    with ExitStack() as stack:
        from tieredstore.pipelines.run.source import open_parts
        from tieredstore.pipelines.upkeep.backfill import Backfill
        from tieredstore.query.topic_scan import default_parallelism

        parts = stack.enter_context(open_parts(pipeline))
        source = _open_source(pipeline, parts, topic, backup, stack)
        filling = Backfill(
            pipeline,
            parts.store,
            source,
            replaces=-1 if replaced is None else replaced,
            threads=work.parallel or default_parallelism(),
        )
        plan = Plan("backfill", f"{topic} as generation {generation}", partial(_fill, filling, selected))
        teller = WindowTeller(BACKFILL, output.as_json, not apply.yes)
        store = None if replaced is None else parts.store
        tell_all(plan.apply if apply.yes else plan.show, teller, store)


def _open_source(pipeline: Pipeline, parts: Parts, topic: str, backup: Path | None, stack: ExitStack) -> RecordSource:
    from tieredstore.pipelines.upkeep.record_sources import KeptFiles, LogSource

    if backup is None:
        return stack.enter_context(closing(LogSource(pipeline, parts.source, topic)))
    other, kept = stack.enter_context(open_pipeline(backup))
    return KeptFiles(other, kept.store, topic, pipeline.own.limits.max_file_bytes)


def _fill(work: Backfill, selected: Selected, dry_run: bool) -> Generator[Outcome]:
    """Yield each window (offset range) to write and each file to delete. A planned window also shows which of its
    offsets the user requested.
    """
    if not dry_run:
        for entry in work.run(selected):
            sizes = {file.key: file.size for file in entry.files}
            if not entry.removed:
                yield from (of_written("backfill", window) for window in entry.windows)
            yield from (_of_file("done", key, sizes.get(key)) for key in entry.removed)
        return
    plan = work.plan(selected)
    asked = {one.where: (one.start, one.stop - 1) for one in plan.asked}
    for one in plan.windows:
        yield of_window("backfill", one, status="planned", asked=asked.get(one.where))
    yield from (_of_file("planned", file.key, file.size) for file in plan.going)


def _of_file(status: Status, key: str, size: int | None) -> WindowOutcome:
    return WindowOutcome(action="backfill", status=status, code="deleted", kind="file", name=key, stored_size=size)


def _parse_again(file: Path, threads: int | None, dry_run: bool) -> Generator[Outcome]:
    with open_runner(file, threads=threads) as runner:
        if not dry_run:
            yield from map(_of_redriven, runner.redrive())
            return
        for one in runner.find_bad_messages():
            yield of_window(
                "backfill", one.window, code="parsed", status="planned", kind="bad_messages",
                quarantined=one.file.records, quarantine_key=one.file.key, stored_size=one.file.size,
            )  # fmt: skip


def _of_redriven(one: Redriven) -> WindowOutcome:
    """Return the outcome for a quarantine file. The file stays unchanged if all its messages are still bad."""
    told = {"kind": "bad_messages", "quarantine_key": one.key, "reasons": one.reasons}
    if one.entry is not None:
        return of_written("backfill", one.window, code="parsed", **told)
    return of_window(
        "backfill", one.window, code="still_bad", status="kept", records=0, filtered=0,
        quarantined=one.window.quarantined, output_keys=(), **told,
    )  # fmt: skip
