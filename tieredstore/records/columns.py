"""Numeric columns of record batches, read without a Python object for each value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def int64_values(records: pa.RecordBatch, name: str) -> Sequence[int]:
    """Return an int64 column without nulls as a view of its buffer."""
    column = _untyped(records).column(name)
    return memoryview(column.buffers()[1]).cast("q")[column.offset : column.offset + len(column)]


def leading(records: pa.RecordBatch, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return the first ``rows`` rows, with the columns of ``schema``."""
    kept: pa.RecordBatch = _untyped(records).select(schema.names).slice(0, rows)
    return kept


def _untyped(records: pa.RecordBatch) -> Any:
    """Return the records as Any: pyarrow's stubs do not type columns."""
    return records
