"""Sizes of records: what files and groups of rows are measured by, whatever they are compressed to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.records.numbers import int64_values

_arrow: Final[Any] = pa
_compute: Final[Any] = pc


def running_sizes(records: Any) -> Sequence[int]:
    """Of each record how many bytes of key and value there are up to it, with its own."""
    if not records.num_rows:
        return ()
    keys, values = (
        _compute.fill_null(_compute.binary_length(records.column(name)), 0).cast(_arrow.int64())
        for name in ("key", "value")
    )
    sums = _compute.cumulative_sum(_compute.add(keys, values))
    return int64_values(_arrow.RecordBatch.from_arrays([sums], ["sizes"]), "sizes")
