"""All golden topics through everything that computes here: the rows that the Java consumer read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.support.golden.catalogs import managers_are_closed, opened
from tests.support.golden.records import Row, expected_rows, partitions_of
from tests.support.golden.segments import CASES, segments
from tieredstore.duckdb import attach
from tieredstore.polars import scan
from tieredstore.query import read_topic
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
    # Installed with what tests need; an environment that is older than that has it not yet.
    datafusion: Any = pytest.importorskip("datafusion")
    frame = datafusion.SessionContext().from_arrow(read_topic(manager, topic))
    rows: list[Row] = frame.to_arrow_table().to_pylist()
    return rows


ENGINES: dict[str, Callable[[RemoteStorageManager, str], list[Row]]] = {
    "duckdb": by_duckdb, "polars": by_polars, "pyarrow": by_pyarrow, "pandas": by_pandas, "datafusion": by_datafusion,
}  # fmt: skip


def plain(row: Row) -> Row:
    """A row as the consumer's files have it, with its topic and partition."""
    headers = row["headers"]
    return row | {
        "timestamp": round(row["timestamp"].timestamp() * 1000),
        "headers": [] if headers is None else [[header["key"], header["value"]] for header in headers],
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_each_of_them_has_the_rows_of_the_java_consumer(case: str, engine: str) -> None:
    manager, _ = opened(case)
    topic = segments(case)[0].topic
    rows = sorted(map(plain, ENGINES[engine](manager, topic)), key=lambda row: (row["partition"], row["offset"]))
    assert rows == [
        {"topic": topic, "partition": partition} | row
        for partition in partitions_of(case)
        for row in expected_rows(case, partition, "read_committed")
    ]
