"""Tasks of decode_batches, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.golden.records import Row
from tieredstore.errors import BatchCorruptError, ConfigError
from tieredstore.spark.source.rows import RowShape
from tieredstore.spark.source.udf import BatchArrays, OnCorrupt
from tieredstore.testing.batches import Record, build_batch

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECORD = ("offset", "key", "value", "headers", "timestamp", "timestampType")
BATCH = build_batch([Record(b"a", b"k", 7, (("h", b"1"), ("h", None))), Record(None)], 10)


def offsets_of(rows: Sequence[Row]) -> list[int]:
    return [row["offset"] for row in rows]


def decoded(values: Sequence[bytes | None], on_corrupt: OnCorrupt = "fail", kind: Any = None) -> list[Any]:
    arrays = BatchArrays(RowShape(RECORD), on_corrupt, "value {}".format)
    lists_of_records: list[Any] = []
    for lists in arrays.convert([pa.array(values, kind or pa.binary())]):
        lists.validate(full=True)
        lists_of_records += lists.to_pylist()
    return lists_of_records


def records(*offsets: int) -> list[Row]:
    return [record for offset in offsets for value in decoded([batch_at(offset)]) for record in value]


def batch_at(offset: int, value: bytes = b"v") -> bytes:
    return build_batch([Record(value, timestamp_ms=offset)], offset)


def test_a_value_becomes_an_array_of_its_records() -> None:
    ((first, second),) = decoded([BATCH])
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    at = EPOCH + timedelta(milliseconds=7)
    values = {"offset": 10, "key": b"k", "value": b"a", "headers": headers, "timestamp": at, "timestampType": 0}
    assert first == values
    assert (second["offset"], second["value"], second["headers"]) == (11, None, None)


def test_null_stays_null_and_no_bytes_are_no_records() -> None:
    assert decoded([None, b"", batch_at(5), None, b""]) == [None, [], records(5), None, []]
    assert decoded([None, None]) == [None, None]
    assert decoded([]) == []


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=4, unique=True).map(sorted)), max_size=8))
def test_each_value_has_its_own_records_and_no_others(values: list[list[int] | None]) -> None:
    stored = [None if offsets is None else b"".join(map(batch_at, offsets)) for offsets in values]
    records_by_value = decoded(stored, kind=pa.large_binary())
    assert [None if rows is None else offsets_of(rows) for rows in records_by_value] == values


def test_large_values_are_given_as_they_come() -> None:
    values = [batch_at(offset, bytes(1 << 20)) for offset in range(12)]
    arrays = BatchArrays(RowShape(["value"]), "fail", str)
    sizes = [len(lists) for lists in arrays.convert([pa.array(values, pa.binary())])]
    assert sizes == [4, 4, 4]


def test_slices_of_arrays_are_read_as_what_they_show() -> None:
    values = pa.array([batch_at(1), batch_at(2), None, batch_at(3)])
    (lists,) = BatchArrays(RowShape(["offset"]), "fail", str).convert([values.slice(1, 2)])
    assert lists.to_pylist() == [[{"offset": 2}], None]


def test_a_damaged_value_fails_and_names_its_place() -> None:
    with pytest.raises(BatchCorruptError, match=r"^value 2: the log ends \d+ bytes into the record batch at byte 0"):
        decoded([None, BATCH, BATCH[:-3]])


def test_rows_are_counted_over_all_arrays() -> None:
    arrays = BatchArrays(RowShape(["offset"]), "fail", "value {}".format)
    good, bad = pa.array([BATCH, None]), pa.array([b"x"])
    with pytest.raises(BatchCorruptError, match=r"^value 4:"):
        list(arrays.convert([good, good, bad]))


def test_a_damaged_value_is_null_if_wanted_and_takes_no_other_with_it() -> None:
    damaged = bytearray(batch_at(1) + batch_at(2))
    damaged[-1] ^= 1
    assert decoded([batch_at(0), bytes(damaged), batch_at(3)], "null") == [records(0), None, records(3)]


class SmallValues(BatchArrays):
    most_bytes = 1 << 20


def test_a_value_that_decodes_to_too_much_is_refused() -> None:
    arrays = SmallValues(RowShape(RECORD), "fail", "value {}".format)
    values = pa.array([batch_at(0), batch_at(1, bytes(1 << 20))], pa.binary())
    with pytest.raises(ConfigError, match="value 1 decodes to over 1048576 bytes"):
        list(arrays.convert([values]))
