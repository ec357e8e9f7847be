"""Numeric columns of record batches, read without a Python object for each value."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def int64_values(records: pa.RecordBatch, name: str) -> Sequence[int]:
    """Return an int64 column without nulls as a view of its buffer."""
    column = records.column(name)
    values = column.buffers()[1]
    assert values is not None
    return memoryview(values).cast("q")[column.offset : column.offset + len(column)]


def leading(records: pa.RecordBatch, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return the first ``rows`` rows, with the columns of ``schema``."""
    return records.select(schema.names).slice(0, rows)
