"""Raw ``.log`` bytes in a DataFrame into rows, for a task of Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tieredstore.errors import BatchCorrupt
from tieredstore.kafka.records import RecordDecoder
from tieredstore.limits import MAX_INT32
from tieredstore.spark.source.rows import RowShape

CONTENT: Final = "content"
"""The column with the bytes of a log, named as in Spark's ``binaryFile``."""

PATH: Final = "path"

_PATH_OF_BROKER: Final = re.compile(r"(?:^|/)([A-Za-z0-9._-]{1,249})-(\d{1,10})/(\d{20})\.log$", re.ASCII)
_BASE_OFFSET_SIZE: Final = 8


@dataclass(frozen=True, slots=True)
class LogName:
    """What a log's path says; None of each where it is not ``<topic>-<partition>/<base offset>.log``."""

    path: str | None = None
    topic: str | None = None
    partition: int | None = None
    base_offset: int | None = None

    @classmethod
    def of(cls, path: str | None) -> LogName:
        """The parts of the path of a broker's file."""
        name = None if path is None else _PATH_OF_BROKER.search(path)
        if name is None or int(name[2]) > MAX_INT32:
            return cls(path)
        return cls(path, name[1], int(name[2]), int(name[3]))

    def __str__(self) -> str:
        return "a log without a path" if self.path is None else self.path


def rows_of_logs(batches: Iterable[pa.RecordBatch], shape: RowShape) -> Iterator[pa.RecordBatch]:
    """The rows of all records; a null log has none. BatchCorrupt names the log's path."""
    decoder = RecordDecoder(shape.decoder_columns)
    for batch in batches:
        for content, name in _logs(batch):
            try:
                _check_beginning(name, content)
                for records in decoder.decode([content]):
                    yield shape.convert(records, name.topic, name.partition)
            except BatchCorrupt as error:
                raise BatchCorrupt(f"{name}: {error}") from error


def _logs(batch: Any) -> Iterator[tuple[memoryview, LogName]]:
    """The logs of one batch, not copied."""
    contents = batch.column(CONTENT)
    paths = batch.column(PATH) if PATH in batch.schema.names else [None] * len(contents)
    for content, path in zip(contents, paths, strict=True):
        if content.is_valid:
            yield memoryview(content.as_buffer()), LogName.of(None if path is None else path.as_py())


def _check_beginning(name: LogName, content: memoryview) -> None:
    """A log under another one's name would give rows under another partition's."""
    if name.base_offset is None or len(content) < _BASE_OFFSET_SIZE:
        return
    first = int.from_bytes(content[:_BASE_OFFSET_SIZE], "big", signed=True)
    # It may well begin later: compaction takes a log's first records and leaves its name.
    if first < name.base_offset:
        raise BatchCorrupt(
            f"its first record batch begins at offset {first}, before the {name.base_offset} of its name"
        )
