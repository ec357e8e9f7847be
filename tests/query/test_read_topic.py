"""Tests of a topic as one Arrow stream: all partitions, any window and filter, and errors that name the problem."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.golden.catalogs import managers_are_closed, opened
from tests.support.golden.records import expected_rows, partitions_of
from tests.support.golden.segments import segments
from tests.support.records import fixtures
from tests.support.records.stored_records import StoredTopic
from tests.support.records.topic_buckets import Bucket
from tests.support.records.topic_filters import expressions
from tests.support.records.topic_reads import read_topic
from tests.support.waiting import wait_until
from tieredstore.errors import (
    AlreadyClosedError,
    BatchCorruptError,
    ConfigError,
    DataLossError,
    InvalidValueError,
    ResourceNotFoundError,
    TieredStoreError,
)
from tieredstore.model import AtTime
from tieredstore.query.topic_columns import TOPIC_COLUMNS
from tieredstore.values import Json, Text

__all__ = ["managers_are_closed"]

pytestmark = pytest.mark.slow

PLACES = ("topic", "partition", "offset")


bucket = fixtures.filled_bucket


def table(stream: Any) -> Any:
    return pa.table(stream)


def places(stream: Any) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in table(stream).to_pylist()]


@pytest.mark.parametrize("case", ["01-none", "07-zstd-enc-txn"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_topic_has_the_records_that_the_java_consumer_read(case: str, isolation: Any) -> None:
    manager, _ = opened(case)
    rows = table(read_topic(manager, segments(case)[0].topic, isolation=isolation, parallelism=2)).to_pylist()
    expected = [
        (partition, row["offset"], row["timestamp"], row["key"], row["value"], row["leaderEpoch"])
        for partition in partitions_of(case)
        for row in expected_rows(case, partition, isolation)
    ]
    assert [
        (row["partition"], row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"], row["value"],
         row["leader_epoch"])
        for row in rows
    ] == expected  # fmt: skip


def test_all_who_take_arrow_get_the_same(bucket: Bucket) -> None:
    def read() -> Any:
        return read_topic(bucket.manager, "orders", columns=("partition", "offset", "value"), value=Text())

    expected = [{"partition": p, "offset": at, "value": f"v{at}"} for p, n in ((0, 100), (1, 50)) for at in range(n)]
    assert table(read()).to_pylist() == expected
    assert pl.DataFrame(read()).to_dicts() == expected
    assert pd.DataFrame(table(read()).to_pandas()).to_dict("records") == expected
    stream = read()
    rows = duckdb.execute("SELECT * FROM stream").fetchall()
    assert sorted(rows) == sorted(tuple(row.values()) for row in expected)
    with pytest.raises(AlreadyClosedError):
        stream.reader()  # DuckDB took the rows, so another reader would get an empty result that looks complete


def test_topic_and_partition_are_dictionaries_and_times_are_times(bucket: Bucket) -> None:
    read = read_topic(bucket.manager, "orders")
    schema: Any = read.schema
    assert tuple(schema.names) == TOPIC_COLUMNS
    batches = list(read)
    assert {str(field.type) for field in schema if field.name in ("topic", "partition")} == {
        "dictionary<values=string, indices=int32, ordered=0>",
        "dictionary<values=int32, indices=int32, ordered=0>",
    }
    assert all(batch.schema == read.schema for batch in batches)
    assert batches[-1].to_pylist()[-1]["timestamp"].timestamp() == 4.9


def test_windows_are_of_offsets_of_times_or_of_each_partition(bucket: Bucket) -> None:
    def read(**window: Any) -> list[tuple[int, int]]:
        return places(read_topic(bucket.manager, "orders", columns=PLACES, **window))

    assert read(start=48, stop=50) == [(0, 48), (0, 49), (1, 48), (1, 49)]
    assert read(start={("orders", 0): 98, ("orders", 1): AtTime(4850)}) == [(0, 98), (0, 99), (1, 49)]
    assert read(partitions=[1], stop=AtTime(150)) == [(1, 0), (1, 1)]
    assert read(start=100) == []
    assert read(start=60, stop=70) == [(0, offset) for offset in range(60, 70)]
    for window in ({"start": 101}, {"stop": 101}, {"start": {("orders", 1): 51}}, {"stop": 1_795_428_000_000}):
        with pytest.raises(ConfigError, match=r"a time .*is written"):
            read(**window)
    with pytest.raises(ConfigError, match="from 9 up to 3"):
        read(start=9, stop=3)
    with pytest.raises(ConfigError, match="no partition 7"):
        read(start={("orders", 7): 1})
    with pytest.raises(ResourceNotFoundError, match="order"):
        read_topic(bucket.manager, "order")
    with pytest.raises(ConfigError, match="columns"):
        read_topic(bucket.manager, "orders", columns=["price"])


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_any_filter_gives_the_rows_that_it_gives_of_all(filtered: tuple[StoredTopic, Any], data: st.DataObject) -> None:
    topic, everything = filtered
    expression = data.draw(expressions())
    columns = data.draw(st.sampled_from([("offset", "partition"), ("value",), ("topic", "offset")]))
    read = read_topic(topic.manager, "events", columns=columns, filter=expression, parallelism=2)
    assert table(read).to_pylist() == everything.filter(expression).select(list(columns)).to_pylist()


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoredTopic, Any]]:
    topic = StoredTopic(tmp_path_factory.mktemp("filtered"), chunk_size=512)
    for base in range(0, 30, 10):
        topic.copy_plain(base, 10, batch=2, size=300)
    topic.catalog()
    yield topic, table(read_topic(topic.manager, "events"))
    topic.close()


def test_segments_that_a_filter_excludes_are_not_fetched(topic: StoredTopic) -> None:
    for base in range(0, 10_000, 1000):
        topic.copy_plain(base, 1000, size=1000)

    def fetched(expression: Any) -> int:
        topic.catalog()
        read = read_topic(topic.manager, "events", columns=("offset",), filter=expression)
        rows: int = table(read).num_rows
        logs = [operation for operation in topic.store.operations if operation.keys[0].endswith(".log")]
        return rows * 1_000_000 + len({operation.keys[0] for operation in logs if operation.name.startswith("get")})

    offset, time = ds.field("offset"), ds.field("timestamp")
    assert fetched((offset >= 4990) & (offset < 5010)) == 20_000_002
    assert fetched((offset == 5) | (offset == 9_999)) == 2_000_002
    assert fetched(time >= pa.scalar(9_990, pa.timestamp("ms", "UTC"))) == 10_000_001
    assert fetched(ds.field("partition") == 3) == 0
    assert topic.store.bytes_down < 20_000
    fetched((offset >= 5000) & (offset < 5010))
    assert topic.store.bytes_down < 150_000


def test_a_lower_bound_of_time_is_sought_and_an_upper_one_is_a_stop(topic: StoredTopic) -> None:
    for base in range(0, 5000, 1000):
        topic.copy_plain(base, 1000, size=1000)
    a_segment = 1000 * 1000

    def fetched(**words: Any) -> tuple[int, int]:
        topic.catalog()
        rows: int = table(read_topic(topic.manager, "events", columns=("offset",), **words)).num_rows
        return rows, topic.store.bytes_down

    time = ds.field("timestamp")
    rows, size = fetched(filter=time >= pa.scalar(4_990, pa.timestamp("ms", "UTC")))
    assert (rows, size < a_segment / 4) == (10, True), size
    # Kafka stores no minimum time of a segment, so each segment may have earlier records: docs/how-to/query.md.
    rows, size = fetched(filter=time < pa.scalar(10, pa.timestamp("ms", "UTC")))
    assert (rows, size > 5 * a_segment) == (10, True), size
    rows, size = fetched(stop=AtTime(10))
    assert (rows, size < a_segment / 4) == (10, True), size


def test_splits_that_are_read_side_by_side_come_in_order(topic: StoredTopic) -> None:
    for base in range(0, 12_000, 3000):
        topic.copy_plain(base, 3000, size=2000)
    topic.catalog()
    read = read_topic(topic.manager, "events", columns=("offset",), parallelism=4, max_bytes=1000)
    assert [offset for batch in read for offset in batch.to_pydict()["offset"]] == list(range(12_000))


@pytest.fixture
def trouble(tmp_path: Path) -> Iterator[StoredTopic]:
    topic = StoredTopic(tmp_path)
    for base in (0, 100, 300):
        topic.copy_plain(base, 100)
    yield topic
    topic.close()


def damage(topic: StoredTopic) -> None:
    """Change one byte of the second segment."""
    key = next(info.key for info in topic.store.list("") if info.key.endswith(".log") and "00100-" in info.key)
    data = bytearray(topic.store.get(key))
    data[-200] ^= 1
    topic.store.delete([key])
    topic.store.put(key, bytes(data))


CONSUMERS: dict[str, Callable[[Any], Any]] = {
    "pyarrow": pa.table,
    "polars": pl.DataFrame,
    "pandas": lambda stream: table(stream).to_pandas(),
    "duckdb": lambda stream: duckdb.execute("SELECT count(*) FROM stream").fetchall(),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_an_error_of_ours_is_a_sentence_in_each_of_them(trouble: StoredTopic, consumer: str) -> None:
    damage(trouble)
    read = read_topic(trouble.manager, "events", stop=200)
    with pytest.raises(Exception, match=r"BatchCorruptError: .*its bytes have the CRC") as caught:
        CONSUMERS[consumer](read)
    assert not isinstance(caught.value, TieredStoreError)
    assert "Traceback" not in str(caught.value)
    assert isinstance(read.error, BatchCorruptError)
    # If a caller reads on, the error comes again.
    with pytest.raises(BatchCorruptError):
        list(read)
    # A ``with`` block raises the read's own error instead of the library's.
    with pytest.raises(BatchCorruptError), read_topic(trouble.manager, "events", stop=200) as stream:
        CONSUMERS[consumer](stream)


def test_lost_offsets_are_an_error_before_the_first_record_or_a_warning(
    trouble: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLossError, match="offsets 200 to 299 of events-0"):
        read_topic(trouble.manager, "events")
    # A lost record counts unless the filter excludes its offset. A filter by time cannot exclude it, as its time is
    # unknown.
    assert table(read_topic(trouble.manager, "events", filter=ds.field("offset") < 200)).num_rows == 200
    with pytest.raises(DataLossError):
        read_topic(trouble.manager, "events", filter=ds.field("timestamp") > pa.scalar(0, pa.timestamp("ms", "UTC")))
    assert table(read_topic(trouble.manager, "events", on_data_loss="report")).num_rows == 300
    assert caplog.text.count("200 to 299") == 1


def test_keys_and_values_of_another_type_name_the_offset(bucket: Bucket) -> None:
    read = read_topic(bucket.manager, "orders", columns=("value",), value=Json(pa.schema([("a", pa.int64())])))
    with pytest.raises(InvalidValueError, match="the value at offset 0 of orders-0 is not JSON"):
        list(read)
    schema: Any = read.schema
    assert str(schema.field("value").type) == "struct<a: int64>"


def test_a_read_that_is_closed_in_the_middle_is_no_shorter_one(bucket: Bucket) -> None:
    with read_topic(bucket.manager, "payments") as read:
        assert next(read).num_rows
    with pytest.raises(AlreadyClosedError, match="payments was closed before its end"):
        list(read)
    # A second read of the same stream gives no rows. It must be an error and not an empty result.
    read = read_topic(bucket.manager, "payments")
    assert sum(batch.num_rows for batch in read) == 2000
    assert list(read) == []
    for again in (table, read_batches):
        with pytest.raises(AlreadyClosedError, match="start another read"):
            again(read)


def read_batches(read: Any) -> list[Any]:
    return list(read.reader())


def test_a_read_that_is_forgotten_ends(topic: StoredTopic) -> None:
    for base in range(0, 3000, 500):
        topic.copy_plain(base, 500, size=2000)
    topic.catalog()
    before = {thread.ident for thread in readers()}
    for _ in range(3):
        for _ in read_topic(topic.manager, "events", parallelism=2, max_bytes=1000):
            break
    next(read_topic(topic.manager, "events", parallelism=2, max_bytes=1000))
    wait_until(lambda: {thread.ident for thread in readers()} <= before)


def readers() -> list[threading.Thread]:
    gc.collect()
    return [thread for thread in threading.enumerate() if thread.name.startswith("tieredstore-fan-in")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"parallelism": 0}, "parallelism is 0"),
        ({"value": "text"}, r"value is 'text'; it must be Binary\(\)"),
        ({"key": None}, r"key is None; it must be Binary\(\)"),
        ({"parallelism": "4"}, "parallelism is of the type str; it must be a whole number"),
        ({"max_bytes": 1.5}, "max_bytes is of the type float; it must be a whole number"),
        ({"filter": "offset > 3"}, "the filter offset > 3 cannot be applied"),
        ({"start": 5.5}, "5.5 is not an offset"),
        ({"stop": "5"}, "5 is not an offset"),
    ],
)
def test_words_that_mean_nothing_are_refused(bucket: Bucket, words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_topic(bucket.manager, "orders", **words)
