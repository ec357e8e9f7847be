"""``tieredstore pipeline backfill``: chosen offsets written once more, beside the generation that goes on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tieredstore.cli.app.arguments import Json
from tieredstore.cli.app.steps import Yes, is_dry, way_to_apply
from tieredstore.cli.records.query_output import extra_module
from tieredstore.cli.records.record_places import check_window, parse_offset_or_time, parse_partitions
from tieredstore.cli.terminal.output import counted, print_json_line, print_lines
from tieredstore.model import human_bytes
from tieredstore.pipelines.cli.files import PipelineFile, Written, extent, room

if TYPE_CHECKING:
    from tieredstore.pipelines.upkeep.backfill import Backfill


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
    parts: Any = extra_module("tieredstore.pipelines.upkeep.backfill_sources", "arrow")
    places = [None if text is None else parse_offset_or_time(text) for text in (start, stop)]
    check_window(*places)
    selected = parts.Selected(topic, *places, parse_partitions(partition))
    with ExitStack() as stack:
        work = _opened(file, generation, -1 if replaced is None else replaced, backup, threads, topic, stack)
        if replaced is not None and is_dry(yes=yes):
            _tell_plan(work, selected, as_json=as_json)
        else:
            _tell(work, selected, as_json=as_json)


def _opened(
    file: Path, generation: int, replaced: int, backup: Path | None, threads: int | None, topic: str, stack: ExitStack
) -> Backfill:
    sources: Any = extra_module("tieredstore.pipelines.upkeep.backfill_sources", "arrow")
    parallelism: Any = extra_module("tieredstore.query.topic_log", "arrow")
    pipeline = room().with_generation(room().load_pipeline(file), generation)
    parts = stack.enter_context(room(".run.opened").open_parts(pipeline))
    if backup is None:
        source = sources.LogSource(pipeline, parts.source, topic)
    else:
        other = room().load_pipeline(backup)
        store = stack.enter_context(room(".run.opened").open_parts(other)).store
        source = room(".upkeep.kept_files").KeptFiles(other, store, topic, pipeline.own.max_file_bytes)
    stack.callback(source.close)
    work: Backfill = room(".upkeep.backfill").Backfill(
        pipeline, parts.store, source, replaces=replaced, threads=threads or parallelism.default_parallelism()
    )
    return work


def _tell_plan(work: Backfill, selected: Any, *, as_json: bool) -> None:
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


def _tell(work: Backfill, selected: Any, *, as_json: bool) -> None:
    written = Written()
    for entry in work.run(selected):
        written.tell(entry, as_json=as_json)
    written.sum_up(as_json=as_json)
