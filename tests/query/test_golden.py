"""Tests of all golden topics in every query engine: the rows are those that the Java consumer read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from tests.support.golden.catalogs import managers_are_closed, opened
from tests.support.golden.records import Row, expected_rows, partitions_of
from tests.support.golden.segments import CASES, segments
from tests.support.records.topic_reads import read_topic
from tieredstore.duckdb import attach
from tieredstore.polars import scan
from tieredstore.remote import RemoteStorageManager
from tieredstore.values import Binary

__all__ = ["managers_are_closed"]

pytestmark = pytest.mark.slow


def by_duckdb(manager: RemoteStorageManager, topic: str) -> list[Row]:
    connection: Any = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    with attach(connection, manager, topics=[topic], key=Binary(), value=Binary()):
        rows: list[Row] = connection.sql(f'SELECT * FROM "{topic}"').to_arrow_table().to_pylist()
    connection.close()
    return rows


def by_polars(manager: RemoteStorageManager, topic: str) -> list[Row]:
    frame: Any = scan(manager, topic)
    rows: list[Row] = frame.collect().to_dicts()
    return rows


def by_pyarrow(manager: RemoteStorageManager, topic: str) -> list[Row]:
    table: Any = pa.table(read_topic(manager, topic))
    rows: list[Row] = table.to_pylist()
    return rows


def by_pandas(manager: RemoteStorageManager, topic: str) -> list[Row]:
    table: Any = pa.table(read_topic(manager, topic))
    rows: list[Row] = table.to_pandas().to_dict("records")
    return rows


def by_datafusion(manager: RemoteStorageManager, topic: str) -> list[Row]:
    # The tests' requirements include DataFusion, but an older environment may lack it.
    datafusion: Any = pytest.importorskip("datafusion")
    frame = datafusion.SessionContext().from_arrow(read_topic(manager, topic))
    rows: list[Row] = frame.to_arrow_table().to_pylist()
    return rows


ENGINES: dict[str, Callable[[RemoteStorageManager, str], list[Row]]] = {
    "duckdb": by_duckdb, "polars": by_polars, "pyarrow": by_pyarrow, "pandas": by_pandas, "datafusion": by_datafusion,
}  # fmt: skip


def plain(row: Row) -> Row:
    """Return a row with its topic and partition, in the form of the consumer's files."""
    headers = row["headers"]
    return row | {
        "timestamp": round(row["timestamp"].timestamp() * 1000),
        "headers": [] if headers is None else [[header["key"], header["value"]] for header in headers],
    }


NAMES: Final = {"timestampType": "timestamp_type", "leaderEpoch": "leader_epoch"}
"""Names of the decoder's columns in rows of topics."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_each_of_them_has_the_rows_of_the_java_consumer(case: str, engine: str) -> None:
    manager, _ = opened(case)
    topic = segments(case)[0].topic
    rows = sorted(map(plain, ENGINES[engine](manager, topic)), key=lambda row: (row["partition"], row["offset"]))
    assert rows == [
        {"topic": topic, "partition": partition} | {NAMES.get(name, name): value for name, value in row.items()}
        for partition in partitions_of(case)
        for row in expected_rows(case, partition, "read_committed")
    ]


def polars_of(stream: Any) -> list[Row]:
    rows: list[Row] = pl.DataFrame(stream).to_dicts()
    return rows


def duckdb_of(stream: Any) -> list[Row]:
    connection: Any = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("records", stream)
    rows: list[Row] = connection.sql("SELECT * FROM records").to_arrow_table().to_pylist()
    connection.close()
    return rows


def datafusion_of(stream: Any) -> list[Row]:
    datafusion: Any = pytest.importorskip("datafusion")
    rows: list[Row] = datafusion.SessionContext().from_arrow(stream).to_arrow_table().to_pylist()
    return rows


@pytest.mark.parametrize("take", [polars_of, duckdb_of, datafusion_of])
def test_one_partition_is_a_stream_that_each_of_them_takes(take: Callable[[Any], list[Row]]) -> None:
    manager, _ = opened("07-txn")
    topic = segments("07-txn")[0].topic
    for partition in partitions_of("07-txn"):
        with read_topic(manager, topic, partitions=[partition], columns=("offset", "key", "value", "headers")) as read:
            taken = take(read)
        assert [row["offset"] for row in taken] == [
            row["offset"] for row in expected_rows("07-txn", partition, "read_committed")
        ]
        with read_topic(manager, topic, partitions=[partition], columns=("offset", "key", "value", "headers")) as read:
            assert taken == [row for batch in read for row in batch.to_pylist()]
