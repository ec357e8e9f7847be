"""Filters over a topic's columns, as users and query engines write them, and records to filter."""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from hypothesis import strategies as st

from tieredstore.query.conditions import Condition
from tieredstore.query.topic_columns import topic_schema

PARTITIONS: Final = 3
OFFSETS: Final = 30


class Records:
    """Records of partitions 0 to 2, with offsets 0 to 29. Timestamps do not increase with offsets."""

    def __init__(self) -> None:
        self.rows = [
            (partition, offset, offset * 10 + (offset * 7 + partition) % 40)
            for partition in range(PARTITIONS)
            for offset in range(OFFSETS)
        ]
        schema = topic_schema(("topic", "partition", "offset", "timestamp", "value"))
        columns: dict[str, list[Any]] = {
            "topic": ["orders"] * len(self.rows),
            "partition": [partition for partition, _, _ in self.rows],
            "offset": [offset for _, offset, _ in self.rows],
            "timestamp": [time for _, _, time in self.rows],
            "value": [b"v%d" % (offset % 3) for _, offset, _ in self.rows],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in schema]
        self.batch = pa.RecordBatch.from_arrays(arrays, schema=schema)

    def wanted(self, condition: Condition) -> list[int]:
        numbered = self.batch.append_column("row", pa.array(range(len(self.rows))))
        rows: Any = condition.filter(numbered)
        numbers: list[int] = rows.column("row").to_pylist()
        return numbers


RECORDS: Final = Records()

_offsets = st.integers(-2, OFFSETS + 2)
_times = st.integers(-10, 350)
_partitions = st.integers(-1, PARTITIONS)


def _time(value: int) -> Any:
    return pa.scalar(value, pa.timestamp("ms", "UTC"))


def _compared(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = ds.field(name)
    return st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), values).map(
        lambda pair: {
            "==": field == pair[1], "!=": field != pair[1], "<": field < pair[1],
            "<=": field <= pair[1], ">": field > pair[1], ">=": field >= pair[1],
        }[pair[0]]
    )  # fmt: skip


def _among(name: str, values: st.SearchStrategy[int], kind: Any) -> st.SearchStrategy[Any]:
    """Return filters in the form into which DuckDB translates SQL's IN."""
    field = ds.field(name)
    return st.lists(values, min_size=1, max_size=4).map(
        lambda chosen: pc.if_else(
            pc.is_valid(field),
            pc.is_in(field, value_set=pa.array(chosen, kind)),
            pa.scalar(None, pa.bool_()),
        )
    )


def expressions() -> st.SearchStrategy[Any]:
    """Return arbitrary expressions over offset, timestamp and partition, sometimes also over values."""
    leaves = st.one_of(
        _compared("offset", _offsets),
        _compared("timestamp", _times.map(_time)),
        _compared("partition", _partitions.map(lambda value: pa.scalar(value, pa.int32()))),
        _among("offset", _offsets, pa.int64()),
        _among("partition", _partitions, pa.int32()),
        st.just(ds.field("value") == b"v1"),
        st.just(ds.field("offset").is_null()),
        st.just(ds.field("topic") == "orders"),
    )
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.lists(parts, min_size=2, max_size=3).map(lambda some: reduce(lambda a, b: a & b, some)),
            st.lists(parts, min_size=2, max_size=3).map(lambda some: reduce(lambda a, b: a | b, some)),
            parts.map(lambda part: ~part),
        ),
        max_leaves=5,
    )
