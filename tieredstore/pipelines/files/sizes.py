"""Sizes of records: what files and groups of rows are measured by, whatever they are compressed to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.records.columns import int64_values

_BINARY: Final = pa.binary()


def total_size(records: Any) -> int:
    """How many bytes of keys and values there are; without a look at each record, as batches nearly always come."""
    return sum(_bytes_of(records.column(name)) for name in ("key", "value"))


def _bytes_of(column: Any) -> int:
    if column.type != _BINARY or column.null_count or not len(column):
        # What lies below a null is anybody's guess.
        return pc.sum(pc.binary_length(column)).as_py() or 0
    first: int = column.offset
    ends = memoryview(column.buffers()[1]).cast("B").cast("i")
    return ends[first + len(column)] - ends[first]


def running_sizes(records: Any) -> Sequence[int]:
    """Of each record how many bytes of key and value there are up to it, with its own."""
    if not records.num_rows:
        return ()
    keys, values = (
        pc.fill_null(pc.binary_length(records.column(name)), 0).cast(pa.int64()) for name in ("key", "value")
    )
    sums = pc.cumulative_sum(pc.add(keys, values))
    return int64_values(pa.RecordBatch.from_arrays([sums], ["sizes"]), "sizes")
