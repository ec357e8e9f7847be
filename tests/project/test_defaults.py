"""By default, every way to read a topic gives the same records, with equal keys and values.

tests/spark/source/test_golden.py compares the records of Spark's source with the same golden records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import duckdb
import pytest

import tieredstore as ts
from tests.support.cli.cli_process import tieredstore
from tests.support.golden.records import expected_rows
from tests.support.golden.segments import case_path
from tieredstore.duckdb import attach
from tieredstore.polars import scan

pytestmark = pytest.mark.slow

SETTINGS: Final = case_path("07-txn") / "rsm.properties"
COUNT: Final = 2357

Row: TypeAlias = "tuple[int, bytes | None, bytes | None]"


@pytest.fixture(scope="module")
def bucket() -> Iterator[ts.Bucket]:
    with ts.open(SETTINGS) as opened:
        yield opened


def by_read(bucket: ts.Bucket) -> list[Row]:
    return [(record.offset, record.key, record.value) for record in bucket.read("txn")]


def by_sql(bucket: ts.Bucket) -> list[Row]:
    rows = bucket.query('SELECT "offset", key, value FROM txn ORDER BY "offset"')
    return [as_bytes(row.values()) for row in rows]


def by_duckdb(bucket: ts.Bucket) -> list[Row]:
    connection: Any = duckdb.connect()
    with attach(connection, bucket):
        rows = connection.execute('SELECT "offset", key, value FROM txn ORDER BY "offset"').fetchall()
    return [as_bytes(row) for row in rows]


def by_polars(bucket: ts.Bucket) -> list[Row]:
    frame: Any = scan(bucket, "txn").collect().sort("offset")
    return [as_bytes(row) for row in frame.select("offset", "key", "value").rows()]


def by_cat(_: ts.Bucket) -> list[Row]:
    lines = tieredstore("cat", "-c", SETTINGS, "txn", "--json").lines
    return [as_bytes((row["offset"], row["key"], row["value"])) for row in lines]


def by_query(_: ts.Bucket) -> list[Row]:
    sql = 'SELECT "offset", key, value FROM txn ORDER BY "offset"'
    return [as_bytes(row.values()) for row in tieredstore("query", "-c", SETTINGS, sql, "--json").clean().lines]


def by_consumer(bucket: ts.Bucket) -> list[Row]:
    from confluent_kafka import TopicPartition  # noqa: PLC0415  of the extra `kafka`

    rows: list[Row] = []
    config = {"group.id": "g", "tiered.storage.mode": "remote_only", "auto.offset.reset": "earliest"}
    with ts.Consumer(config, store=bucket) as consumer:
        consumer.assign([TopicPartition("txn", 0, 0)])
        while len(rows) < COUNT:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            rows.append((message.offset() or 0, message.key(), message.value()))
        assert consumer.poll(0) is None
    return rows


def as_bytes(row: Any) -> Row:
    """Convert a row with text keys and values."""
    offset, *data = row
    key, value = (one.encode() if isinstance(one, str) else one for one in data)
    return offset, key, value


READERS: Final[dict[str, Callable[[ts.Bucket], list[Row]]]] = {
    "Bucket.read": by_read, "Bucket.query": by_sql, "duckdb.attach": by_duckdb, "polars.scan": by_polars,
    "cat": by_cat, "query": by_query, "Consumer": by_consumer,
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_each_way_of_reading_has_the_committed_records(bucket: ts.Bucket, reader: str) -> None:
    rows = READERS[reader](bucket)
    assert len(rows) == COUNT
    assert rows == [(row["offset"], row["key"], row["value"]) for row in expected_rows("07-txn", 0, "read_committed")]


def test_programs_get_bytes_and_sql_text(bucket: ts.Bucket) -> None:
    (record,) = bucket.read("txn", limit=1)
    assert (type(record.key), type(record.value)) == (bytes, bytes)
    (row,) = bucket.query("SELECT key, value FROM txn LIMIT 1")
    assert [type(cell) for cell in row.values()] == [str, str]
    assert json.loads(row["value"])["id"] == 0
