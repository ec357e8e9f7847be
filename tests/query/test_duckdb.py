"""Tests of topics as DuckDB's tables: conditions exclude segments, errors have our messages, and all parts of a
query see the topics at the same moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

from tests.support.golden.catalogs import managers_are_closed, opened
from tests.support.golden.records import expected_rows
from tests.support.golden.segments import segments, settings_text
from tests.support.records import fixtures
from tests.support.records.stored_records import StoredTopic
from tests.support.records.topic_buckets import FIRST_ID, SECOND_ID, Bucket
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.config import settings_from
from tieredstore.duckdb import attach
from tieredstore.duckdb.query_tables import QueryTables
from tieredstore.errors import (
    AlreadyClosedError,
    BatchCorruptError,
    ConfigError,
    DataLossError,
    EncryptionError,
    InvalidValueError,
    ResourceNotFoundError,
)
from tieredstore.process.interruption import Interrupted
from tieredstore.query.topic_columns import ColumnTypes
from tieredstore.query.topic_table import TableOptions, TopicTable
from tieredstore.remote import RemoteStorageManager
from tieredstore.testing.segments import Record, build_batch
from tieredstore.values import Binary, Json, Text

__all__ = ["managers_are_closed"]

pytestmark = pytest.mark.slow


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:")
    yield connection
    connection.close()


bucket = fixtures.filled_bucket


def rows(tables: QueryTables, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in tables.run(sql) for row in batch.to_pylist()]


def test_a_golden_topic_is_what_the_java_consumer_read(connection: duckdb.DuckDBPyConnection) -> None:
    manager, _ = opened("07-zstd-enc-txn")
    topic = segments("07-zstd-enc-txn")[0].topic
    with attach(connection, manager, key=Binary(), value=Binary()) as attached:
        assert attached.topics == (topic,)
        sql = f'SELECT "offset", epoch_ms(timestamp), key, value, leader_epoch FROM "{topic}" WHERE partition = 0'
        read = connection.execute(sql).fetchall()
    assert read == [
        (row["offset"], row["timestamp"], row["key"], row["value"], row["leaderEpoch"])
        for row in expected_rows("07-zstd-enc-txn", 0, "read_committed")
    ]


def test_topics_are_tables_until_they_are_detached(connection: duckdb.DuckDBPyConnection, bucket: Bucket) -> None:
    with attach(connection, bucket.options | {"chunk.size": "16384"}) as attached:
        assert attached.topics == ("marked", "orders", "payments")
        counted = connection.execute("SELECT partition, count(*), max(value) FROM orders GROUP BY ALL ORDER BY ALL")
        assert counted.fetchall() == [(0, 100, "v99"), (1, 50, "v9")]
        assert connection.execute("SELECT count(*) FROM marked").fetchone() == (20,)
    with pytest.raises(duckdb.CatalogException):
        connection.execute("SELECT count(*) FROM orders")


def test_topics_may_be_attached_for_a_window(connection: duckdb.DuckDBPyConnection, bucket: Bucket) -> None:
    with attach(connection, bucket.manager, topics=["orders"], partitions=0, start=90, stop="1970-01-01T00:00:09.500"):
        counted = connection.execute('SELECT partition, min("offset"), max("offset") FROM orders GROUP BY ALL')
        assert counted.fetchall() == [(0, 90, 94)]
    with pytest.raises(ConfigError, match="start 5 is after stop 4"):
        attach(connection, bucket.manager, start=5, stop=4)


def test_rows_of_a_query_are_given_once(bucket: Bucket) -> None:
    with QueryTables(bucket.manager, TableOptions()) as tables:
        rows = tables.run("SELECT * FROM orders")
        assert pa.table(rows).num_rows == 150
        with pytest.raises(AlreadyClosedError, match="these rows were read already; run the query again"):
            pa.table(rows)


HELD = (
    "CREATE TABLE orders AS SELECT 1 AS mine",
    "CREATE TEMP TABLE Orders AS SELECT 1 AS mine",
    "CREATE VIEW orders AS SELECT 1 AS mine",
)


@pytest.mark.parametrize("sql", HELD)
def test_a_table_of_ones_own_is_not_replaced_by_a_topic(
    connection: duckdb.DuckDBPyConnection, bucket: Bucket, sql: str
) -> None:
    connection.execute(sql)
    unread: Any = connection.sql("SELECT range AS n FROM range(100000)").to_arrow_reader(10)
    for topics in (None, ["marked", "orders"]):
        with pytest.raises(ConfigError, match="already has a table or view orders, which the topic would hide"):
            attach(connection, bucket.manager, topics=topics)
    assert unread.read_all().num_rows == 100_000
    with attach(connection, bucket.manager, topics=["payments"]) as attached:
        assert attached.topics == ("payments",)
    assert connection.execute("SELECT * FROM orders").fetchall() == [(1,)]
    # A table of the same name in another schema does not conflict with the topic, nor does a Python variable.
    connection.execute("CREATE SCHEMA old; CREATE TABLE old.payments AS SELECT 1 AS mine")
    payments = pa.table({"x": [1]})
    with attach(connection, bucket.manager, topics=["payments"]):
        assert connection.execute("SELECT count(*) FROM payments").fetchone() == (2000,)
    assert payments.num_rows == 1
    assert connection.execute("SELECT * FROM old.payments").fetchall() == [(1,)]


def test_a_frame_that_was_registered_is_not_replaced_either(
    connection: duckdb.DuckDBPyConnection, bucket: Bucket
) -> None:
    connection.register("pay.ments", pa.table({"x": [1]}))
    connection.register("orders", pa.table({"x": [1]}))
    with pytest.raises(ConfigError, match="already has a table or view orders"):
        attach(connection, bucket.options | {"chunk.size": "16384"})
    assert connection.execute("SELECT * FROM orders").fetchall() == [(1,)]


def test_a_result_that_is_open_keeps_topics_out_and_stays_whole(
    connection: duckdb.DuckDBPyConnection, bucket: Bucket
) -> None:
    unread: Any = connection.sql("SELECT range AS n FROM range(100000)").to_arrow_reader(10)
    with pytest.raises(duckdb.Error, match="open result"):
        attach(connection, bucket.manager)
    assert unread.read_all().num_rows == 100_000
    with attach(connection, bucket.manager):
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (150,)


def test_topics_are_not_attached_twice(connection: duckdb.DuckDBPyConnection, bucket: Bucket) -> None:
    with attach(connection, bucket.manager, topics=["orders"]) as first:
        with pytest.raises(ConfigError, match="topic orders is already attached to the connection: close"):
            attach(connection, bucket.manager)
        with attach(connection, bucket.manager, topics=["marked"]), attach(connection.cursor(), bucket.manager):
            pass
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (150,)
    # Closing again must not remove a table of the same name that was made in the meantime.
    with attach(connection, bucket.manager, topics=["orders"]):
        first.close()
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (150,)
    connection.execute("CREATE TABLE orders AS SELECT 1 AS mine")
    first.close()
    assert connection.execute("SELECT * FROM orders").fetchall() == [(1,)]


def test_a_topic_may_become_a_table_of_its_name(connection: duckdb.DuckDBPyConnection, bucket: Bucket) -> None:
    with attach(connection, bucket.manager, topics=["orders"]):
        connection.execute('CREATE TABLE orders AS SELECT * FROM orders WHERE "offset" < 3')
        assert connection.execute("SELECT count(*) FROM memory.orders").fetchone() == (6,)
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (150,)
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (6,)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"connection": duckdb}, "connection is of the type module; it must be a duckdb.DuckDBPyConnection"),
        ({"settings": None}, "no store is named: give a path, a URL"),
        ({"topics": "orders"}, "topics is of the type str; it must be a list of topics' names"),
        ({"topics": [1]}, "one of topics is of the type int"),
        ({"types": {"ordres": ColumnTypes()}}, "types names ordres, but the attached topics are: .*orders"),
        ({"types": {"orders": Text()}}, r"the entry orders of types is of the type Text; it must be ColumnTypes\("),
        ({"types": [ColumnTypes()]}, "types is of the type list"),
        ({"value": "text"}, r"value is 'text'; it must be Binary\(\)"),
        ({"client": "localhost:9092"}, "client is of the type str; it must be a map of properties"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(
    connection: duckdb.DuckDBPyConnection, bucket: Bucket, words: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        attach(**_with(words, connection=connection, settings=bucket.manager))


def _with(words: dict[str, Any], **usual: Any) -> dict[str, Any]:
    return usual | words


def test_names_that_are_given_once_are_enough(connection: duckdb.DuckDBPyConnection, bucket: Bucket) -> None:
    names: Any = iter(["orders", "marked"])
    with attach(connection, bucket.manager, topics=names) as attached:
        assert attached.topics == ("orders", "marked")


def test_a_result_that_is_not_read_to_its_end_is_an_error_behind_the_detaching(topic: StoredTopic) -> None:
    for base in range(0, 3000, 1000):
        topic.copy_plain(base, 1000, size=10_000)
    topic.catalog()
    connection: Any = duckdb.connect()
    with attach(connection, topic.manager, parallelism=1) as attached:
        # A result is abandoned. The end of the block must not raise the error of that result.
        reader = connection.sql("SELECT value FROM events").to_arrow_reader(10)
        assert reader.read_next_batch().num_rows == 10
    attached.close()
    with pytest.raises((pa.ArrowException, OSError), match="AlreadyClosedError"):
        reader.read_all()
    del reader
    with pytest.raises(duckdb.Error):
        connection.sql("SELECT count(*) FROM events").fetchall()
    with attach(connection, topic.manager):
        assert connection.sql("SELECT count(*) FROM events").fetchall() == [(3000,)]
        connection.close()


def test_conditions_keep_what_they_exclude_from_being_fetched(
    topic: StoredTopic, connection: duckdb.DuckDBPyConnection
) -> None:
    for base in range(0, 10_000, 1000):
        topic.copy_plain(base, 1000, size=1000)
    topic.catalog()
    with attach(connection, topic.manager):
        # Each segment has a megabyte. A range within one costs some chunks, the manifest, and the indexes.
        def asked(condition: str, *, most_bytes: int = 100_000) -> tuple[Any, int]:
            topic.store.reset()
            counted = connection.execute(f"SELECT count(*) FROM events WHERE {condition}").fetchone()
            logs = {op.keys[0] for op in topic.store.operations if op.name.startswith("get")}
            assert topic.store.bytes_down < most_bytes
            return counted, len({key for key in logs if key.endswith(".log")})

        assert asked('"offset" BETWEEN 4990 AND 5009') == ((20,), 2)
        assert asked('"offset" IN (5, 9999)') == ((2,), 2)
        assert asked('"offset" < 10 OR "offset" >= 9990') == ((20,), 2)
        assert asked("timestamp >= make_timestamptz(9995000)") == ((5,), 1)
        assert asked("partition = 7", most_bytes=10_000) == ((0,), 0)
        # Kafka stores no minimum time of a segment, so an upper bound excludes no segment: docs/how-to/query.md.
        assert asked("timestamp < make_timestamptz(1000000)", most_bytes=20_000_000) == ((1000,), 10)
        # The condition needs a column that is not in the result.
        assert asked("value LIKE '77%' AND \"offset\" < 1000", most_bytes=1_100_000) == ((11,), 1)


def test_a_lost_segment_is_our_sentence_in_duckdbs_error_and_our_error_from_the_block(
    topic: StoredTopic, connection: duckdb.DuckDBPyConnection
) -> None:
    for base in (0, 200):
        topic.copy_plain(base, 100)
    with pytest.raises(DataLossError, match="100 to 199"), attach(connection, topic.manager):
        connection.execute("SELECT count(*) FROM events").fetchall()
    with attach(connection, topic.manager) as attached:
        with pytest.raises(duckdb.Error, match="offsets 100 to 199 of events-0"):
            connection.execute("SELECT count(*) FROM events").fetchall()
        assert isinstance(attached.error, DataLossError)
    with QueryTables(topic.manager, TableOptions()) as tables, pytest.raises(DataLossError):
        tables.run("SELECT count(*) FROM events")


def test_names_that_sql_takes_for_one_are_refused(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(5, "Orders")
    bucket.write(3, "orders")
    bucket.write(2, "pay.ments-1")
    with pytest.raises(ConfigError, match="Orders and orders"):
        attach(connection, bucket.manager)
    with attach(connection, bucket.manager, topics=["Orders"]):
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (5,)
    for sql, expected in (
        ("SELECT count(*) FROM Orders", 5),
        ("SELECT count(*) FROM orders", 3),
        ('SELECT count(*) FROM "pay.ments-1"', 2),
        ('SELECT count(*) FROM "PAY.ments-1"', 2),
    ):
        with QueryTables(bucket.manager, TableOptions()) as tables:
            assert rows(tables, sql) == [(expected,)]
    with QueryTables(bucket.manager, TableOptions()) as tables, pytest.raises(ConfigError, match="Orders or orders"):
        tables.run("SELECT count(*) FROM ORDERS")
    # DuckDB ignores case, so it would use one of the two tables for both names.
    for both in ('SELECT * FROM "Orders", "orders"', 'FROM "Orders$segments", "orders$segments"'):
        with QueryTables(bucket.manager, TableOptions()) as tables, pytest.raises(ConfigError, match="one name in SQL"):
            tables.run(both)
    with QueryTables(bucket.manager, TableOptions()) as tables:
        assert rows(tables, "SHOW TABLES") == [("Orders",), ("orders",), ("pay.ments-1",)]
    with QueryTables(bucket.manager, TableOptions()) as tables:
        assert rows(tables, 'SELECT count(*) FROM "Orders" CROSS JOIN "orders$segments"') == [(5,)]
    bucket.close()


def test_columns_of_the_rows_themselves(bucket: Bucket) -> None:
    for sql, expected in (
        ("PIVOT orders ON partition USING count(*) GROUP BY topic", [("orders", 100, 50)]),
        ('FROM (PIVOT ORDERS ON partition USING max("offset") GROUP BY topic)', [("orders", 99, 49)]),
        ('PIVOT "orders$segments" ON partition USING count(*) GROUP BY topic', [("orders", 1, 1)]),
    ):
        with QueryTables(bucket.manager, TableOptions()) as tables:
            assert rows(tables, sql) == expected


def test_the_catalog_has_tables_too(bucket: Bucket) -> None:
    with QueryTables(bucket.manager, TableOptions()) as tables:
        assert rows(tables, 'SELECT partition, base_offset, last_offset FROM "payments$segments" ORDER BY ALL') == [
            (0, 0, 999),
            (0, 1000, 1999),
        ]
    with QueryTables(bucket.manager, TableOptions()) as tables:
        ((stored, keys),) = rows(tables, 'SELECT sum(stored_size), count(key_id) FROM "payments$segments"')
        listed = list_segments(bucket.manager.store, bucket.manager.layout.prefix, Scope("payments"))
        assert (stored, keys) == (sum(one.stored_size for one in listed), 0)
    manager, _ = opened("07-zstd-enc-txn")
    topic = segments("07-zstd-enc-txn")[0].topic
    with QueryTables(manager, TableOptions()) as tables:
        assert rows(tables, f'SELECT DISTINCT key_id FROM "{topic}$segments"') == [("key1",)]
    with QueryTables(bucket.manager, TableOptions()) as tables:
        sql = (
            'SELECT partition, earliest_offset, end_offset, broker_earliest_offset FROM "orders$partitions" ORDER BY 1'
        )
        assert rows(tables, sql) == [(0, 0, 100, None), (1, 0, 50, None)]


def test_times_of_a_segment_without_timestamps_are_null(topic: StoredTopic) -> None:
    topic.copy(0, [build_batch([Record(b"v", timestamp_ms=-1)], 0)])
    with QueryTables(topic.manager, TableOptions()) as tables:
        assert rows(tables, 'SELECT max_timestamp, first_timestamp FROM "events$segments"') == [(None, None)]


@pytest.mark.parametrize(
    ("sql", "expected", "chunks"),
    [
        ("SELECT base_offset, stored_size > 0 FROM {}", [(at, True) for at in (0, 100, 200)], 0),
        ("SELECT count(*) FROM {}", [(3,)], 0),
        ("SELECT base_offset, epoch_ms(first_timestamp) FROM {}", [(at, at) for at in (0, 100, 200)], 3),
        ("SELECT epoch_ms(first_timestamp) FROM {} WHERE base_offset = 100", [(100,)], 1),
        ("SELECT base_offset FROM {} WHERE first_timestamp >= make_timestamptz(100_000)", [(100,), (200,)], 3),
        ("SELECT count(*) FROM (SELECT * FROM {}) WHERE partition = 7", [(0,)], 0),
        # Which segments hold the times from 150 ms to 160 ms?
        (
            "SELECT base_offset FROM {} WHERE epoch_ms(first_timestamp) < 160 AND epoch_ms(max_timestamp) >= 150",
            [(100,)],
            3,
        ),
    ],
)
def test_first_times_of_segments_are_read_by_queries_that_ask_for_them(
    topic: StoredTopic, sql: str, expected: list[tuple[Any, ...]], chunks: int
) -> None:
    for base_offset in (0, 100, 200):
        topic.copy_plain(base_offset, 100)
    topic.store.reset()
    with QueryTables(topic.manager, TableOptions()) as tables:
        assert sorted(rows(tables, sql.format('"events$segments"'))) == expected
    assert topic.requests(".log") == chunks


def test_a_damaged_first_batch_ends_a_query_for_first_times(topic: StoredTopic) -> None:
    topic.copy_plain(0, 100)
    topic.overwrite(".log", b"\xff", at=70)
    with QueryTables(topic.manager, TableOptions()) as tables:
        assert rows(tables, 'SELECT base_offset FROM "events$segments"') == [(0,)]
        with pytest.raises(BatchCorruptError, match=re.escape(f"{topic.copied[0]}: the record batch at byte 0 ")):
            rows(tables, 'SELECT first_timestamp FROM "events$segments"')


def test_first_times_are_null_without_the_key(caplog: pytest.LogCaptureFixture) -> None:
    topic = segments("08-keyring")[0].topic
    only = {name: text for name, text in settings_text("08-keyring").items() if ".key1." not in name}
    with (
        RemoteStorageManager(settings_from(only | {"encryption.key.pairs": "key2"})) as manager,
        QueryTables(manager, TableOptions()) as tables,
    ):
        sql = f'SELECT key_id, count(first_timestamp) FROM "{topic}$segments" GROUP BY 1 ORDER BY 1'
        assert rows(tables, sql) == [("key1", 0), ("key2", 3)]
    (record,) = caplog.records
    assert "first_timestamp of 2 segments" in record.getMessage()
    assert "key pair 'key1', which is not on the ring" in record.getMessage()


@pytest.mark.parametrize("case", ["03-enc", "08-keyring"])
def test_segments_are_listed_without_a_key_ring(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """The other tables of the topic need the key, because they show which segments and offsets count."""
    stored = segments(case)
    topic, only = stored[0].topic, {n: text for n, text in settings_text(case).items() if not n.startswith("encr")}
    columns = "partition, base_offset, last_offset, segment_id, key_id IS NULL"
    expected = [(one.partition, one.base_offset, one.end_offset, one.segment_id, False) for one in stored]
    with RemoteStorageManager(settings_from(only)) as manager:
        with QueryTables(manager, TableOptions()) as tables:
            assert sorted(rows(tables, f'SELECT {columns} FROM "{topic}$segments"')) == sorted(expected)
        with QueryTables(manager, TableOptions()) as tables, pytest.raises(EncryptionError):
            rows(tables, f'FROM "{topic}$partitions"')
    assert "all segments of" in caplog.text


def test_one_query_sees_one_moment_of_a_topic(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(10)
    options = TableOptions()
    kept, anew = (TopicTable(bucket.manager, "orders", options, keeps_snapshot=kept) for kept in (True, False))
    assert [len(table.scan().reader().read_all()) for table in (kept, anew)] == [10, 10]
    bucket.write(5)
    assert [len(table.scan().reader().read_all()) for table in (kept, anew)] == [10, 15]
    bucket.close()


def test_values_of_a_topic_may_have_a_schema(bucket: Bucket, topic: StoredTopic) -> None:
    topic.copy_plain(0, 5, size=0)
    number = ColumnTypes(Binary(), Json(pa.schema([("a", pa.int64())]), on_invalid="null"))
    with QueryTables(topic.manager, TableOptions(), {"events": number}.__getitem__) as tables:
        assert rows(tables, "SELECT count(value.a), count(*) FROM events") == [(0, 5)]
    with QueryTables(topic.manager, TableOptions(), {"events": number}.__getitem__) as tables:
        sql = "WITH many AS (SELECT value.*, topic FROM events) SELECT a FROM many JOIN events USING (topic)"
        assert len(rows(tables, sql)) == 25
    json = TableOptions(ColumnTypes(Text(), Json(pa.schema([("a", pa.int64())]))))
    with QueryTables(topic.manager, json) as tables, pytest.raises(InvalidValueError, match="offset 0 of events-0"):
        rows(tables, "SELECT value.a FROM events")


@pytest.mark.parametrize(
    ("sql", "error", "sentence"),
    [
        ("SELECT", ConfigError, "the query: Parser Error"),
        ("SELECT offset FROM orders", ConfigError, 'write "offset"'),
        (
            "SELECT price FROM orders",
            ConfigError,
            'column "price" not found.*write a field of JSON values as value->>.\\$.price.',
        ),
        ("SELECT value.price FROM orders", ConfigError, "'price'.* or as value.price with value=Json"),
        ("SELECT * FROM order_s", ResourceNotFoundError, "no topic order_s; did you mean orders\\?$"),
        ("PIVOT order_s ON partition USING count(*)", ResourceNotFoundError, "no topic order_s; did you mean orders"),
        ("SELECT * FROM nothing", ResourceNotFoundError, "no topic nothing; there are marked, orders, payments"),
        ("SELECT lenght(value) FROM orders", ConfigError, 'lenght does not exist! Did you mean "length"'),
        ("SELECT offse FROM orders", ConfigError, 'Candidate bindings: .*"offset"$|"offset"[^;]*$'),
        ("SELECT lenght(value) FROM orders, order_s", ConfigError, "lenght does not exist"),
        ("INSERT INTO orders VALUES (1)", ConfigError, "orders is a topic: read it as FROM"),
        ("", ConfigError, "a single statement"),
    ],
)
def test_an_error_in_a_query_is_one_sentence(bucket: Bucket, sql: str, error: type[Exception], sentence: str) -> None:
    with QueryTables(bucket.manager, TableOptions()) as tables, pytest.raises(error, match=sentence) as caught:
        tables.run(sql)
    assert "\n" not in str(caught.value)


def test_no_variable_of_python_is_a_table(bucket: Bucket) -> None:
    orders_of_mine = pa.table({"x": [1]})
    assert orders_of_mine.num_rows
    with QueryTables(bucket.manager, TableOptions()) as tables, pytest.raises(ResourceNotFoundError):
        tables.run("SELECT * FROM orders_of_mine")


@pytest.mark.parametrize("kind", [Interrupted, KeyboardInterrupt])
@pytest.mark.parametrize(
    "place", ["process.fan_in.FanIn.__next__", "records.arrow_stream.iter", "query.topic_table.begin_read"]
)
def test_an_interruption_stays_one(
    bucket: Bucket, place: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise kind

    monkeypatch.setattr(f"tieredstore.{place}", interrupted, raising=False)
    with QueryTables(bucket.manager, TableOptions()) as tables, pytest.raises(kind):
        rows(tables, "SELECT count(*) FROM orders")


def test_an_older_topic_of_the_same_name_is_read_by_its_id(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    lives = Bucket(tmp_path)
    lives.write(10)
    lives.write(20, topic_id=SECOND_ID)
    for ids, count in (({}, 20), ({"orders": str(FIRST_ID)}, 10), ({"orders": SECOND_ID}, 20)):
        with attach(connection, lives.manager, topic_ids=ids):
            assert connection.execute("SELECT count(*) FROM orders").fetchone() == (count,)
    for wrong, sentence in (
        ({"order": FIRST_ID}, "topic_ids names order, but the attached topics are: orders"),
        ({"orders": 7}, "the entry orders of topic_ids is of the type int; give the topic id as text"),
        (FIRST_ID, "topic_ids is of the type Uuid; it must be a map from topics to their ids"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            attach(connection, lives.manager, topic_ids=cast("Any", wrong))
    lives.close()
