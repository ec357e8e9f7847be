"""The rows of an Iceberg table, for a restore. This module is separate from ``iceberg``, because it only reads."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.pipelines.files.reading import as_records
from tieredstore.pipelines.log.entries import BatchWindow

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table

Column = TypeVar("Column")

_WINDOW_BYTES: Final = 16 << 20
"""Approximate limit for the compressed size of rows that are in memory at once."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A file of a snapshot, with its first and last offset (-1: unknown). ``size`` is the approximate number of the
    file's bytes that belong to one partition."""

    first: int
    last: int
    size: float
    scan: FileScanTask


class TableRows:
    """The rows of a topic in the snapshot that was current when this object was made. Deleted rows are left out."""

    def __init__(self, table: Table, topic: str, translate_errors: Callable[[], AbstractContextManager[None]]) -> None:
        self._table, self._translate_errors = table, translate_errors
        self._expressions = importlib.import_module("pyiceberg.expressions")
        self._is_topic: Any = self._expressions.EqualTo("topic", topic)
        self._files = list(table.scan(self._is_topic).plan_files())

    @property
    def identity(self) -> str:
        """The table's id, which stays the same when rows move to other files."""
        return str(self._table.metadata.table_uuid)

    def records(self, window: BatchWindow) -> Iterator[list[pa.RecordBatch]]:
        """Yield the records of an offset window by ascending ranges of offsets. Within a range, the records are
        unordered."""
        names = ("offset", "timestamp", "key", "value", "headers")
        yield from self._read(window, names, _as_records)

    def count(self, window: BatchWindow) -> int:
        """Return the number of different offsets in an offset window."""
        ranges = self._read(window, ("offset",), methodcaller("column", "offset"))
        return sum(pc.count_distinct(pa.chunked_array(offsets)).as_py() for offsets in ranges)

    def _read(
        self, window: BatchWindow, names: tuple[str, ...], change: Callable[[pa.RecordBatch], Column]
    ) -> Iterator[list[Column]]:
        arrow = importlib.import_module("pyiceberg.io.pyarrow")
        by, table = self._expressions, self._table
        for start, stop, tasks in _cut(self._tasks(window.partition), window.start, window.stop):
            rows = by.And(
                self._is_topic,
                by.EqualTo("partition", window.partition),
                by.GreaterThanOrEqual("offset", start),
                by.LessThan("offset", stop),
            )
            schema = table.scan(selected_fields=names).projection()
            scan = arrow.ArrowScan(table.metadata, table.io, schema, rows)
            with self._translate_errors():
                batches = [change(batch) for batch in scan.to_record_batches([task.scan for task in tasks])]
            if batches:
                yield batches

    def _tasks(self, partition: int) -> list[_Task]:
        tasks: list[_Task] = []
        for scan in self._files:
            lowest, highest = self._bounds(scan, "partition")
            if min(lowest, highest) < 0 or lowest <= partition <= highest:
                count = highest - lowest + 1
                tasks.append(_Task(*self._bounds(scan, "offset"), scan.file.file_size_in_bytes / count, scan))
        return tasks

    def _bounds(self, scan: FileScanTask, name: str) -> tuple[int, int]:
        """Return the lowest and the highest value of a column in a file. Both are -1 if the file has no statistics."""
        at = self._table.schema().find_field(name).field_id
        bounds = ((bounds or {}).get(at) for bounds in (scan.file.lower_bounds, scan.file.upper_bounds))
        low, high = (-1 if value is None else int.from_bytes(value, "little", signed=True) for value in bounds)
        return low, high


def _as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as records. pyiceberg reads null headers as empty lists, so make them null again."""
    records = as_records(batch)
    headers = records.column("headers")
    headers = pc.if_else(pc.equal(pc.list_value_length(headers), 0), None, headers)
    return records.set_column(records.schema.get_field_index("headers"), records.schema.field("headers"), headers)


def _cut(tasks: Sequence[_Task], start: int, stop: int) -> Iterator[tuple[int, int, list[_Task]]]:
    """Yield ranges of offsets, each with its files. A range has at most about ``_WINDOW_BYTES`` of compressed rows."""
    size, inside = 0.0, list[_Task]()
    for task in tasks:
        first, end = (task.first, task.last + 1) if min(task.first, task.last) >= 0 else (start, stop)
        if (common := min(stop, end) - max(start, first)) > 0:
            inside.append(task)
            size += task.size * common / (end - first)
    if size > _WINDOW_BYTES and stop - start > 1:
        middle = (start + stop) // 2
        yield from _cut(inside, start, middle)
        yield from _cut(inside, middle, stop)
    elif inside:
        yield start, stop, inside
