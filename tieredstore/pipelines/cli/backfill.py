"""``tieredstore pipeline backfill``: chosen offsets written once more, beside the generation that goes on."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tieredstore.cli.app.arguments import Json
from tieredstore.cli.app.steps import Yes, is_dry_run, way_to_apply
from tieredstore.cli.records.record_places import check_window, parse_offset_or_time, parse_partitions
from tieredstore.cli.terminal.output import counted, print_json_line, print_lines
from tieredstore.model import human_bytes
from tieredstore.pipelines.cli.files import PipelineFile, Written, extent, load, open_pipeline

if TYPE_CHECKING:
    from tieredstore.pipelines.config.settings import Pipeline
    from tieredstore.pipelines.run.stores import Parts
    from tieredstore.pipelines.upkeep.backfill import Backfill
    from tieredstore.pipelines.upkeep.record_sources import RecordSource, Selected


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
    pipeline = load(file)
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
        else:
            _tell(work, selected, as_json=as_json)


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
                "topic": one.topic, "partition": one.partition, "first_offset": one.start, "last_offset": one.stop - 1,
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
    print_lines(f"asked: {extent(one)}" for one in plan.asked)
    print_lines(f"would be replaced, in whole windows: {extent(one)}" for one in plan.windows)
    print_lines(f"would be deleted: {file.key}" for file in plan.going)
    print_lines([f"{counted(len(plan.going), 'file')} would be deleted ({human_bytes(freed)})"])
    print_lines([way_to_apply("replaced") if plan.windows or plan.going else "there is nothing to replace"])


def _tell(work: Backfill, selected: Selected, *, as_json: bool) -> None:
    written = Written()
    for entry in work.run(selected):
        written.tell(entry, as_json=as_json)
    written.sum_up(as_json=as_json)
