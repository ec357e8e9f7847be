"""The source's rows, made from decoded records."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tests.support.golden.segments import CASES, segments
from tieredstore.errors import ConfigError
from tieredstore.kafka.records import RecordDecoder
from tieredstore.spark.source.rows import COLUMNS, KAFKA_ROWS, RowShape
from tieredstore.testing.batches import Record, build_batch


def decoded(shape: RowShape, *records: Record) -> Any:
    (batch,) = RecordDecoder(shape.decoder_columns).decode([build_batch(records, 5)])
    return batch


@pytest.mark.parametrize("columns", [COLUMNS, KAFKA_ROWS.columns, ("topic",), ("headers", "key"), ("timestamp",)])
def test_rows_have_exactly_the_types_that_spark_asks_for(columns: tuple[str, ...]) -> None:
    shape = RowShape(columns)
    rows = shape.convert(decoded(shape, Record(b"v", timestamp_ms=7)), "orders", 3)
    assert rows.schema == to_arrow_schema(shape.schema, timezone="UTC")
    rows.validate(full=True)


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("06")])
def test_slices_of_records_are_those_slices_of_the_rows(case: str) -> None:
    shape, source = RowShape(KAFKA_ROWS.columns), random.Random(case)
    for segment in segments(case):
        for batch in RecordDecoder(shape.decoder_columns).decode([segment.original("log").read_bytes()]):
            whole = shape.convert(batch, "orders", 3)
            start = source.randrange(batch.num_rows)
            stop = source.randrange(start, batch.num_rows) + 1
            cut = shape.convert(batch.slice(start, stop - start), "orders", 3)
            cut.validate(full=True)
            assert cut.to_pylist() == whole.slice(start, stop - start).to_pylist()


def test_keys_and_values_are_not_copied() -> None:
    shape = RowShape(KAFKA_ROWS.columns)
    records = decoded(shape, Record(b"value" * 100, key=b"key" * 100, timestamp_ms=1))
    rows: Any = shape.convert(records, "orders", 3)
    for name in ("key", "value", "offset"):
        theirs, ours = records.column(name).buffers(), rows.column(name).buffers()
        assert [b and b.address for b in ours] == [b and b.address for b in theirs]


@pytest.mark.parametrize("timestamp_ms", [2**62, -(2**62), 2**63 // 1000 + 1])
def test_a_time_beyond_sparks_is_an_error_that_names_the_way_out(timestamp_ms: int) -> None:
    shape = RowShape(COLUMNS)
    records = decoded(shape, Record(b"v", timestamp_ms=1)).to_pydict() | {"timestamp": [timestamp_ms]}
    batch = pa.RecordBatch.from_pydict(records, schema=RecordDecoder(shape.decoder_columns).schema)
    with pytest.raises(ConfigError, match=f"{timestamp_ms} ms.*option columns"):
        shape.convert(batch, "orders", 3)


def test_a_record_without_timestamp_is_as_in_sparks_kafka_source() -> None:
    shape = RowShape(("timestamp",))
    rows: Any = shape.convert(decoded(shape, Record(b"v", timestamp_ms=-1)), "orders", 0)
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [-1000]


@pytest.mark.parametrize("columns", [(), ("key", "key"), ("nothing",)])
def test_columns_that_are_none_are_refused(columns: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        RowShape(columns)
