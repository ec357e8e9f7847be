"""Redriving quarantined messages: they are parsed again by the current settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.errors import CorruptDataError
from tieredstore.pipelines.files.reading import download
from tieredstore.pipelines.log.entries import Window
from tieredstore.pipelines.run.window_writing import Recipe, Written, write_window

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.pipelines.log.commit_log import CommitLog
    from tieredstore.pipelines.log.entries import Entry, OutputFile, WrittenWindow


_AGAIN: Final = re.compile(r"\.r(\d{1,9})\.parquet")
_NEEDED: Final = ("key", "value", "headers", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True)
class Aside:
    """A file of bad messages, its range of offsets, and the generation that quarantined it."""

    file: OutputFile
    window: Window
    generation: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result for a file of bad messages: ``window`` has those that are good now.

    ``reasons`` are those of the remaining ones by offset; they are in the file ``key``, None if none remain. Without an
    ``entry`` none is good, and nothing was written.
    """

    window: WrittenWindow
    reasons: Mapping[int, str]
    key: str | None
    entry: Entry | None


def asides(logs: Mapping[int, CommitLog]) -> list[Aside]:
    """Return the committed files not yet redriven, in the order of their entries.

    ``logs`` by generation: each continues the one before it and inherits its bad messages.
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


def redrive_file(store: ObjectStore, recipe: Recipe, window: Window, key: str) -> Written:
    """Write the bad messages of a file again: those good now are filed, the others quarantined again."""
    match = _AGAIN.search(key)
    naming = replace(recipe.naming, redriven=1 + (int(match[1]) if match else 0))
    with download(store, key) as file:
        return write_window(window, _records(file, key), replace(recipe, naming=naming), store)


def _records(file: BinaryIO, key: str) -> Iterator[pa.RecordBatch]:
    """Yield the original records."""
    try:
        for batch in pq.ParquetFile(file).iter_batches():
            columns = [batch.column(name) for name in _NEEDED]
            columns[4] = columns[4].cast(pa.int64())
            yield pa.RecordBatch.from_arrays(columns, names=list(_NEEDED))
    except (pa.ArrowInvalid, KeyError) as error:
        raise CorruptDataError(f"{key} is no file of bad messages that this pipeline wrote") from error
