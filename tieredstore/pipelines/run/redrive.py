"""Redrive: parse quarantined messages again, with the current settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.errors import CorruptDataError
from tieredstore.pipelines.files.reading import download
from tieredstore.pipelines.log.entries import BatchWindow
from tieredstore.pipelines.run.source import COLUMNS
from tieredstore.pipelines.run.window_writing import Recipe, Written, write_window

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.log.commit_log import CommitLog
    from tieredstore.pipelines.log.entries import Entry, OutputFile, WrittenWindow


_AGAIN: Final = re.compile(r"\.r(\d{1,9})\.parquet")


@dataclass(frozen=True, slots=True)
class Aside:
    """A quarantine file, the offset window that it spans, and the generation (a version of the output) that wrote
    it.
    """

    file: OutputFile
    window: BatchWindow
    generation: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result of parsing a quarantine file again. The files of ``window`` contain the messages that are good now.

    ``reasons`` has, by offset, the reason why each other message of the file is still bad. ``key`` is the quarantine
    file that now holds the bad messages, or None. ``entry`` is the log entry, or None if no message is good, because
    nothing was written then.
    """

    window: WrittenWindow
    reasons: Mapping[int, str]
    key: str | None
    entry: Entry | None


def find_asides(logs: Mapping[int, CommitLog]) -> list[Aside]:
    """Return the quarantine files that still exist according to the logs, in the order of their log entries.

    ``logs`` has the commit logs of generations of the output, oldest first. Each generation continues the one before
    and inherits the quarantine files of all earlier generations.
    """
    files: dict[str, Aside] = {}
    for generation, log in logs.items():
        for entry in log.entries():
            for window in entry.windows:
                for file in window.files:
                    if file.kind == "quarantine":
                        reach = replace(window.window, start=file.first_offset, stop=file.last_offset + 1)
                        files[file.key] = Aside(file, reach, generation)
            for key in entry.removed:
                files.pop(key, None)
    return list(files.values())


def redrive_file(store: ObjectStore, recipe: Recipe, window: BatchWindow, key: str) -> Written:
    """Parse a quarantine file again: write its good messages to data files, and the others to a new quarantine file."""
    match = _AGAIN.search(key)
    naming = replace(recipe.naming, redriven=1 + (int(match[1]) if match else 0))
    with download(store, key) as file:
        return write_window(window, _records(file, key), replace(recipe, naming=naming), store)


def _records(file: BinaryIO, key: str) -> Iterator[pa.RecordBatch]:
    """Yield the records in a quarantine file with the columns that Kafka's records have."""
    try:
        for batch in pq.ParquetFile(file).iter_batches():
            columns = {name: batch.column(name) for name in COLUMNS}
            columns["timestamp"] = columns["timestamp"].cast(pa.int64())
            yield pa.RecordBatch.from_pydict(columns)
    except (pa.ArrowInvalid, KeyError) as error:
        raise CorruptDataError(f"{key} is not a quarantine file of this pipeline, or is damaged") from error
