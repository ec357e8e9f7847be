"""Output files of pipelines for the commands ``show -c PIPELINE`` and ``restore produce --backup``.

This module is separate from the pipeline commands, because ``show`` and ``restore`` load it by an entry point.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from tieredstore.cli.records.formats import Asked, Format, Records, Rows, Shown, View
from tieredstore.cli.terminal.rows import Row, attributes, field
from tieredstore.pipelines.cli.items import open_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from tieredstore.pipelines.upkeep.output_files import Origin
    from tieredstore.reading.topic_backup import TopicBackup


def _is_of_pipeline(asked: Asked) -> bool:
    if asked.path is not None or asked.store.settings is None or asked.store.url is not None:
        return False
    return _is_pipeline(asked.store.settings)


def _is_pipeline(settings: Path) -> bool:
    from tieredstore.config.properties import read_properties

    return "pipeline.name" in read_properties(settings)


def _topics(settings: Path, topics: Sequence[str]) -> AbstractContextManager[TopicBackup] | None:
    from tieredstore.pipelines.upkeep.topic_backup import open_backup

    return open_backup(settings, topics) if _is_pipeline(settings) else None


@contextmanager
def _show(asked: Asked) -> Generator[Shown]:
    file = asked.store.settings
    assert file is not None, "the format matches only stores with a settings file"
    if asked.view is View.SOURCES:
        with ExitStack() as stack:
            yield _sources_of(asked, file, stack)
        return
    with open_pipeline(file) as (settings, parts):
        from tieredstore.pipelines.run.recipes import places_of
        from tieredstore.pipelines.upkeep.output_files import place_of, read_records

        topic, partition = place_of(places_of(settings), asked.name)
        batches = read_records(settings, parts.store, asked.name)
        yield Records(((partition, batch) for batch in batches), topic)


def _sources_of(asked: Asked, file: Path, stack: ExitStack) -> Rows[Origin]:
    """Return the offsets in each output file, as the commit log records them. Secor's files have no commit log, so
    their names show the offsets."""
    settings, parts = stack.enter_context(open_pipeline(file))
    from tieredstore.pipelines.log.holdings import Committed
    from tieredstore.pipelines.run.generation import commit_log_of
    from tieredstore.pipelines.run.source import query_of
    from tieredstore.pipelines.upkeep.output_files import origins_of
    from tieredstore.reading.survey import survey_logs

    kept = [stack.enter_context(open_pipeline(path)) for path in asked.backups]
    backups = [Committed.of(commit_log_of(other, its.store)) for other, its in kept]
    snapshot = survey_logs(parts.source, query_of(settings))
    origins = origins_of(settings, parts.store, [asked.name], snapshot=snapshot, backups=backups)
    return Rows(_ORIGIN, origins, lines=_lines_of)


def _lines_of(origin: Origin) -> list[str]:
    by = "" if origin.committed else ", according to the file names"
    last = "…" if origin.last is None else f"… {origin.last}"
    return [
        f"{origin.key}: {origin.topic}-{origin.partition} {origin.first} {last}{by}",
        *(f"  backup   {key}" for key in origin.backups),
        *(f"  segment  {name}" for name in origin.segments),
    ]


_ORIGIN: Final[Row[Origin]] = Row(
    attributes("topic", "partition"),
    field("first_offset", lambda one: one.first),
    field("last_offset", lambda one: one.last),
    attributes("committed"),
    field("backup_keys", lambda one: one.backups),
    field("segment_names", lambda one: one.segments),
)
FILES: Final = (
    Format(
        "files of a pipeline (-c PIPELINE)",
        frozenset({View.CONTENTS, View.RECORDS, View.SOURCES}),
        _is_of_pipeline,
        _show,
        _topics,
    ),
)
