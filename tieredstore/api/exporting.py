"""Export of a topic into a folder of files, incrementally.

The bucket imports this module on first use, because this module imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tieredstore.api.reading import ReadOptions, places_of, query_of, types_of
from tieredstore.api.scopes import check_keywords
from tieredstore.errors import ConfigError
from tieredstore.model import Earliest, Latest
from tieredstore.query.arguments import check_callback
from tieredstore.query.export import Exported, export_files, export_folder, plan_export
from tieredstore.query.positions import GivenPlace
from tieredstore.query.topic_read import ReadPlan
from tieredstore.query.topic_scan import default_parallelism
from tieredstore.reading.reader import TopicReader

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.query.arguments import Partitions

OnFile: TypeAlias = Callable[[Exported, int, int], object]
"""A function that is called with each finished file, the file's number, and the number of files."""

_OF_FILES: Final = ("columns", "filter", "follow", "limit")


def export_records(
    bucket: Bucket,
    topic: str,
    folder: Path,
    partitions: Partitions,
    window: tuple[GivenPlace, GivenPlace, int | None],
    *,
    file_format: str,
    on_file: OnFile | None,
    how: ReadOptions,
) -> int:
    """Write the records that the folder lacks, and return their number."""
    check_keywords(bucket.export, how, ReadOptions)
    check_callback("on_file", on_file)
    begin, end = places_of(*window)
    # Compare by identity with None and False, because a filter has no truth value, and a limit of 0 is false.
    surplus = next((name for name in _OF_FILES if how.get(name) is not None and how.get(name) is not False), None)
    if surplus is not None:
        raise ConfigError(f"an export to a folder writes all records from start to stop: leave {surplus} out")
    plan = ReadPlan(types=types_of(how, "bytes")(topic), parallelism=how.get("parallel"))
    query, manager, records = query_of(bucket, topic, partitions, how), bucket.manager, 0
    with TopicReader(lambda: manager, query) as reader:
        snapshot = reader.snapshot()
        starts, stops = Earliest() if begin is None else begin, Latest() if end is None else end
        lookup = reader.lookup(snapshot)
        windows = lookup.clamp(starts, stops)
        # The reads of single files begin and end at given offsets, so they miss unreadable segments between them.
        lookup.check_readable(windows, starts, stops)
        try:
            with export_folder(folder, query, snapshot, plan, file_format):
                files = plan_export(snapshot, folder, file_format, windows=windows)
                at_once = plan.parallelism or default_parallelism()
                with closing(export_files(reader, snapshot, files, plan, at_once=at_once)) as done:
                    for number, exported in enumerate(done, 1):
                        records += exported.records
                        if on_file is not None:
                            on_file(exported, number, len(files))
        except OSError as error:
            raise ConfigError(f"{folder} cannot be written: {error.strerror}") from None
    return records
