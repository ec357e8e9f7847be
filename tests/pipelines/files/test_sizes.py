"""Sizes of records, looked up or counted: the same."""

from __future__ import annotations

from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.pipelines.files.row_groups import running_sizes, total_size

CELLS = st.none() | st.binary(max_size=9)


@given(
    rows=st.lists(st.tuples(CELLS, CELLS), max_size=12), start=st.integers(0, 12), kind=st.sampled_from(["", "large_"])
)
def test_a_batch_is_as_large_as_its_records(rows: list[tuple[bytes | None, ...]], start: int, kind: str) -> None:
    binary = getattr(pa, f"{kind}binary")()
    schema = pa.schema([("key", binary), ("value", binary)])
    records = pa.RecordBatch.from_pylist([{"key": key, "value": value} for key, value in rows], schema=schema)
    sizes = list(accumulate(sum(len(cell or b"") for cell in row) for row in rows[start:]))
    assert total_size(records.slice(start)) == (sizes[-1] if sizes else 0)
    assert list(running_sizes(records.slice(start))) == sizes


@pytest.mark.parametrize("validity", [0b1101, 0b1111])
def test_what_lies_below_a_null_counts_for_nothing(validity: int) -> None:
    buffers = [pa.py_buffer(bytes([validity])), pa.array([0, 3, 5, 5, 9], pa.int32()).buffers()[1]]
    column = pa.Array.from_buffers(pa.binary(), 4, [*buffers, pa.py_buffer(b"123456789")])
    records = pa.RecordBatch.from_arrays([column, column], ["key", "value"])
    assert total_size(records) == (18 if validity == 0b1111 else 14)
    assert list(running_sizes(records))[-1] == total_size(records)
