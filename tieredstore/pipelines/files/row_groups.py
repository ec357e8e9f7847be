"""Row groups that end at the same rows, however the rows are divided into batches; and sizes of records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.records.columns import int64_values

GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 64 << 20
"""A row group ends with the record that reaches GROUP_ROWS or GROUP_BYTES."""

PIECE_ROWS: Final = 1024
"""Rows per chunk of a row group. pyarrow encodes 1024 rows at once, so chunks of this size do not slow it down. Most
chunks lie within one batch, so their rows are not copied.
"""


class RowGroups:
    """Divider of rows into row groups; all rows have one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces: list[pa.RecordBatch] = []
        self._edge: list[pa.RecordBatch] = []
        """Rows of an incomplete chunk of a row group, from one or several record batches."""
        self._edge_rows = self._rows = self._bytes = 0

    def add(self, rows: pa.RecordBatch, records: pa.RecordBatch | None) -> Iterator[pa.Table]:
        """Add rows, and yield each row group that is now complete.

        ``rows`` were made from ``records``. A group ends at a number of rows, or at a size of the records' keys and
        values. If ``records`` is None, only the number of rows ends a group.
        """
        count = int(rows.num_rows)
        pieces = divide(count, records, lambda _: (GROUP_ROWS - self._rows, GROUP_BYTES - self._bytes))
        for start, stop, size, is_full in pieces:
            self._take(rows.slice(start, stop - start), size)
            if is_full:
                yield self._group()

    def rest(self) -> pa.Table | None:
        """Return the last row group, or None if no rows are left."""
        return self._group() if self._rows else None

    def _take(self, rows: pa.RecordBatch, size: int) -> None:
        count, start = int(rows.num_rows), 0
        self._rows += count
        self._bytes += size
        if self._edge_rows:
            start = min(PIECE_ROWS - self._edge_rows, count)
            self._add_to_edge(rows.slice(0, start))
        while count - start >= PIECE_ROWS:
            self._pieces.append(rows.slice(start, PIECE_ROWS))
            start += PIECE_ROWS
        if start < count:
            self._add_to_edge(rows.slice(start))

    def _add_to_edge(self, rows: pa.RecordBatch) -> None:
        self._edge.append(rows)
        self._edge_rows += rows.num_rows
        if self._edge_rows >= PIECE_ROWS:
            self._end_edge()

    def _end_edge(self) -> None:
        if self._edge:
            self._pieces += pa.Table.from_batches(self._edge, self._schema).combine_chunks().to_batches()
        self._edge, self._edge_rows = [], 0

    def _group(self) -> pa.Table:
        self._end_edge()
        group: pa.Table = pa.Table.from_batches(self._pieces, self._schema)
        self._pieces, self._rows, self._bytes = [], 0, 0
        return group


def divide(
    count: int, records: pa.RecordBatch | None, room: Callable[[int], tuple[int, int]]
) -> Iterator[tuple[int, int, int, bool]]:
    """Divide ``count`` rows, which were made from ``records``, into pieces that end with the row that reaches a limit.

    Yield each piece's first row and end, the bytes of its keys and values, and True if it reaches a limit. ``room``
    returns how many rows and how many bytes reach a limit from this row on. If ``records`` is None, only the number of
    rows counts.
    """
    size, (most_rows, most_bytes) = 0 if records is None else total_size(records), room(0)
    if count < most_rows and size < most_bytes:
        yield 0, count, size, False
        return
    running, start, before = [0] * count if records is None else running_sizes(records), 0, 0
    while start < count:
        most_rows, most_bytes = room(start)
        full = min(start + most_rows, bisect_left(running, before + most_bytes, start) + 1)
        stop = min(full, count)
        yield start, stop, running[stop - 1] - before, stop == full
        start, before = stop, running[stop - 1]


_BINARY: Final = pa.binary()


def total_size(records: pa.RecordBatch) -> int:
    """Return the size of all keys and values. This takes constant time if no key and no value is null."""
    return sum(_bytes_of(records.column(name)) for name in ("key", "value"))


def _bytes_of(column: pa.Array) -> int:
    if column.type != _BINARY or column.null_count or not len(column) or (offsets := column.buffers()[1]) is None:
        # Sum the lengths of the values, because Arrow does not define how many bytes a null takes.
        return pc.sum(pc.binary_length(column)).as_py() or 0
    first = column.offset
    ends = memoryview(offsets).cast("B").cast("i")
    return ends[first + len(column)] - ends[first]


def running_sizes(records: pa.RecordBatch) -> Sequence[int]:
    """Return cumulative sums of the bytes of keys and values, one per record."""
    if not records.num_rows:
        return ()
    keys, values = (
        pc.fill_null(pc.binary_length(records.column(name)), 0).cast(pa.int64()) for name in ("key", "value")
    )
    sums = pc.cumulative_sum(pc.add(keys, values))
    return int64_values(pa.RecordBatch.from_arrays([sums], ["sizes"]), "sizes")
