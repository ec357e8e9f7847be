"""Tests of topics of batches as tables: all columns, batches that a condition excludes, and joins with topics of
segments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.support.cli.cli_process import tieredstore
from tests.support.pubsub.pubsub_topics import topics_in, topics_on
from tests.support.records.topic_buckets import Bucket
from tests.support.stores.doubles import ScriptedStore
from tieredstore import open as open_bucket
from tieredstore import polars
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import settings_from
from tieredstore.duckdb import attach
from tieredstore.duckdb.query_tables import QueryTables
from tieredstore.errors import (
    AlreadyClosedError,
    ConfigError,
    DataLossError,
    InvalidValueError,
    ResourceNotFoundError,
    TopicNotFoundError,
)
from tieredstore.pubsub.consume.tables import BatchTable, BatchTables
from tieredstore.pubsub.errors import MessageCorruptError
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.query.topic_columns import ColumnTypes
from tieredstore.query.topic_table import TableOptions
from tieredstore.remote import RemoteStorageManager
from tieredstore.values import Binary, Text

TEXT = TableOptions(ColumnTypes(Text(), Text()))
BATCHES = 4


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore(MemoryObjectStore())


def fetched_batches(store: ScriptedStore) -> int:
    return sum("!tieredstore" not in key for key in store.keys_of("get"))


@pytest.fixture
def topics(store: ScriptedStore) -> Topics:
    """Fill ``orders``: batch n of a partition has two records with the time of second n and the values ``n.0`` and
    ``n.1``.
    """
    topics = topics_on(store)
    topics.create("orders")
    for batch in range(BATCHES):
        with BatchProducer(topics, "orders") as producer:
            for record in range(2):
                producer.send(
                    b"%d.%d" % (batch, record), b"k", [("h", b"x")], 1000 * batch + record, b"id" if record else None
                )
    return topics


def rows(topics: Topics, sql: str, options: TableOptions = TEXT) -> list[Any]:
    settings = settings_from({"storage.backend.class": "memory", "chunk.size": "4096"})
    with (
        RemoteStorageManager(settings, store=topics.store) as manager,
        QueryTables(manager, options, batches=BatchTables(topics)) as tables,
    ):
        return [tuple(row.values()) for batch in tables.run(sql) for row in batch.to_pylist()]


def test_all_columns(topics: Topics) -> None:
    (first, second) = rows(topics, 'SELECT *, epoch_ms(timestamp) FROM orders WHERE "offset" = 512 ORDER BY record')
    assert first[:5] == ("orders", 0, 512, 0, 0)
    assert first[6:] == ("k", "2.0", [{"key": "h", "value": b"x"}], None, 2000)
    assert second[9] == b"id"
    assert rows(topics, "SELECT count(*) FROM orders") == [(8,)]
    assert rows(topics, 'SELECT count(*) FROM "orders$batches"') == [(8,)]
    joined = "SELECT count(*) FROM orders a JOIN orders b ON a.value = b.value WHERE b.record = 1"
    assert rows(topics, joined) == [(4,)]


@pytest.mark.parametrize(
    ("condition", "fetched", "count"),
    [
        ('"offset" >= 256 AND "offset" < 700', 2, 4),
        ("partition = 1", 0, 0),
        ("topic = 'sales'", 0, 0),
        ("timestamp >= to_timestamp(3)", 1, 2),
        ("timestamp < to_timestamp(1) AND record = 1", 1, 1),
        ("value = '2.1'", 4, 1),
    ],
)
def test_batches_that_conditions_exclude_are_not_fetched(
    topics: Topics, store: ScriptedStore, condition: str, fetched: int, count: int
) -> None:
    assert rows(topics, f"SELECT count(*) FROM orders WHERE {condition}") == [(count,)]
    assert fetched_batches(store) == fetched


@pytest.mark.parametrize("before", [0, 1])
def test_a_scan_that_is_closed_in_the_middle_fetches_no_more(topics: Topics, store: ScriptedStore, before: int) -> None:
    scan = BatchTable(BatchLog(topics_on(store, fetches="1"), topics.get("orders"))).scan()
    rows = iter(scan)
    for _ in range(before):
        next(rows)
    scan.close()
    with pytest.raises(AlreadyClosedError, match="this scan was closed before its end"):
        next(rows)
    assert fetched_batches(store) == before


def test_a_filter_that_cannot_be_computed_shows_no_record(topics: Topics) -> None:
    whole = ds.field("value").cast(pa.int64()) > 0
    table = BatchTable(BatchLog(topics, topics.get("orders")))
    with pytest.raises(ConfigError, match="cannot be computed for a record") as caught:
        list(table.scan(["value"], whole))
    assert "0.0" not in str(caught.value)
    table.close()


def test_names_that_there_are_not(topics: Topics) -> None:
    with pytest.raises(ResourceNotFoundError, match="there is no topic sales"):
        rows(topics, "SELECT * FROM sales")
    with pytest.raises(ResourceNotFoundError, match="there is no topic"):
        rows(topics, 'SELECT * FROM "sales$batches"')
    with pytest.raises(ConfigError, match="what"):
        rows(topics, "SELECT what FROM orders")


def test_what_is_absent_or_damaged_or_of_another_type(topics: Topics, store: ScriptedStore) -> None:
    topics.create("bytes")
    with BatchProducer(topics, "bytes") as producer:
        producer.send(b"\xff")
    with pytest.raises(InvalidValueError, match="the value of record 0 of the batch at offset 0 of bytes-0"):
        rows(topics, 'SELECT value FROM "bytes"')
    keys = [info.key for info in store.list("") if "/topics/orders/" in info.key]
    body = store.inner.get(keys[0])
    store.put(keys[0], body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(MessageCorruptError, match="CRC-32 differs"):
        rows(topics, "SELECT count(*) FROM orders")
    store.delete([keys[0]])
    with pytest.raises(DataLossError, match=f"the object {keys[0]} is missing"):
        rows(topics, "SELECT count(*) FROM orders")


def test_the_command(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path))
    assert tieredstore("pubsub", "topics", "orders", "--create", *store).code == 0
    shown = tieredstore("query", "SELECT count(*) AS records FROM orders", "--json", *store)
    assert json.loads(shown.text) == {"records": 0}


SETTINGS = {"storage.backend.class": "filesystem", "chunk.size": "4096"}


@pytest.fixture
def bucket(tmp_path: Path) -> dict[str, str]:
    """Return the properties of a folder that has ``orders`` as two batches of one record each."""
    properties = {**SETTINGS, "storage.root": str(tmp_path)}
    topics = topics_in(tmp_path)
    topics.create("orders")
    publish(topics, 0)
    publish(topics, 1)
    return properties


def publish(topics: Topics, number: int) -> None:
    with BatchProducer(topics, "orders") as producer:
        producer.send(b"%d" % number, b"k", None, 1000 * number)


def test_tables_of_a_connection_read_each_time_what_is_there_then(bucket: dict[str, str], tmp_path: Path) -> None:
    connection: Any = duckdb.connect()
    with attach(connection, bucket) as attached:
        assert attached.topics == ("orders",)
        assert connection.sql("SELECT value, partition FROM orders ORDER BY value").fetchall() == [("0", 0), ("1", 0)]
        publish(topics_in(tmp_path), 2)
        assert connection.sql("SELECT count(*) FROM orders WHERE timestamp >= to_timestamp(1)").fetchall() == [(2,)]
    with attach(connection, bucket, topics=["orders$batches"], value=Binary()) as attached:
        assert connection.sql('SELECT min(value) FROM "orders$batches"').fetchall() == [(b"0",)]
    (key, *_) = (info.key for info in topics_in(tmp_path).store.list("") if "/topics/orders/" in info.key)
    topics_in(tmp_path).store.delete([key])
    with pytest.raises(DataLossError, match="is missing"), attach(connection, bucket, topics=["orders"]):
        connection.sql("SELECT value FROM orders").fetchall()


def test_an_error_is_a_sentence_without_a_traceback_and_a_closed_table_is_not_read(
    bucket: dict[str, str], tmp_path: Path
) -> None:
    connection: Any = duckdb.connect()
    topics = topics_in(tmp_path)
    table = BatchTable(BatchLog(topics, topics.get("orders")))
    table.close()
    with pytest.raises(AlreadyClosedError, match="the table of orders is closed; attach the topic again"):
        table.scan()
    for info in list(topics.store.list("")):
        if "/topics/orders/" in info.key:
            topics.store.delete([info.key])
    with attach(connection, bucket):
        with pytest.raises(duckdb.Error, match=r"DataLossError: .*is missing") as caught:
            connection.sql("SELECT value FROM orders").fetchall()
        assert "Traceback" not in str(caught.value)


def test_a_topic_of_segments_goes_before_one_of_batches(tmp_path: Path) -> None:
    segments = Bucket(tmp_path)
    segments.write(3)
    properties = segments.options | {"chunk.size": "16384"}
    topics = topics_in(Path(segments.options["storage.root"]))
    topics.create("orders")
    publish(topics, 0)
    connection: Any = duckdb.connect()
    with attach(connection, properties) as attached:
        assert attached.topics == ("orders",)
        assert connection.sql("SELECT count(leader_epoch), count(*) FROM orders").fetchall() == [(3, 3)]
    with attach(connection, properties, topics=["orders", "orders$batches"]):
        counts = 'SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM "orders$batches")'
        assert connection.sql(counts).fetchall() == [(3, 1)]
    segments.close()


def test_frames(bucket: dict[str, str], tmp_path: Path) -> None:
    frame = polars.scan(bucket, "orders$batches")
    assert frame.collect_schema().names()[:5] == ["topic", "partition", "offset", "message", "record"]
    assert frame.filter(pl.col("offset") >= 256).select("value", "key").collect().rows() == [(b"1", b"k")]
    publish(topics_in(tmp_path), 2)
    assert frame.select("value").head(2).collect()["value"].to_list() == [b"0", b"1"]
    assert frame.collect().height == 3
    with pytest.raises(Exception, match="there is no topic sales"):
        polars.scan(bucket, "sales$batches").collect()


def test_a_read_names_what_reads_a_topic_of_batches(tmp_path: Path) -> None:
    topics_in(tmp_path).create("orders")
    with open_bucket(tmp_path) as bucket:
        with pytest.raises(TopicNotFoundError, match=r"orders is a topic of batches: read it with .*BatchConsumer"):
            bucket.read("orders")
        with pytest.raises(TopicNotFoundError, match="there is no topic 'order'"):
            bucket.read("order")
