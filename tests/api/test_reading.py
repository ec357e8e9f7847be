"""Tests of reads: the records, how many there are, and the report that a read gives beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import tieredstore as ts
from tests.support.golden.records import expected_rows
from tests.support.golden.segments import case_path
from tests.support.network.key_services import serving
from tests.support.network.schema_registry_server import RegistryService, framed, written
from tests.support.records.topic_buckets import FIRST_ID, Bucket
from tieredstore.errors import ConfigError, InvalidValueError
from tieredstore.model import TopicIdPartition
from tieredstore.polars import scan
from tieredstore.query.topic_columns import ColumnTypes
from tieredstore.reading.tail import LogTail
from tieredstore.schema_registry import SchemaRegistry
from tieredstore.testing.segments import Record, build_batch, write_segment
from tieredstore.values import Json, Text

ABORTED = "the records of 22 aborted transactions"


@pytest.fixture
def txn() -> Iterator[ts.Bucket]:
    with ts.open(case_path("07-txn") / "rsm.properties") as bucket:
        yield bucket


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Bucket]:
    topics = Bucket(tmp_path)
    yield topics
    topics.close()


@pytest.mark.slow
def test_what_nobody_committed_is_told_of_as_far_as_was_read(txn: ts.Bucket) -> None:
    read = txn.read("txn")
    assert read.left_out() == []
    assert len(list(read)) == 2357
    assert read.left_out() == [ABORTED]
    first = next(o for o, row in enumerate(expected_rows("07-txn", 0, "read_committed")) if row["offset"] != o)
    for limit, told in ((first, []), (first + 1, ["the records of 1 aborted transaction"])):
        read = txn.read("txn", limit=limit)
        assert read.to_arrow().num_rows == limit
        assert read.left_out() == told
    everything = txn.read("txn", isolation="read_uncommitted")
    assert everything.to_arrow().num_rows == len(expected_rows("07-txn", 0))
    assert everything.left_out() == []


@pytest.mark.parametrize("limit", [0, 1, 604, 10**9])
def test_a_limit_bounds_what_is_given_whatever_takes_it(txn: ts.Bucket, limit: int) -> None:
    count = min(limit, 2357)
    assert len(list(txn.read("txn", limit=limit))) == count
    assert txn.read("txn", limit=limit).to_polars().height == count
    assert txn.query("FROM txn", limit=limit).to_arrow().num_rows == count
    assert sum(batch.num_rows for batch in txn.read("txn", limit=limit).batches()) == count


def test_types_are_said_by_topic(txn: ts.Bucket) -> None:
    asked: list[str] = []

    def types_of(topic: str) -> ColumnTypes:
        asked.append(topic)
        return ColumnTypes(value=Text())

    (record,) = txn.read("txn", types=types_of, limit=1)
    assert isinstance(record.value, str)
    assert isinstance(record.key, bytes)
    (row,) = txn.query("SELECT typeof(key) AS k, typeof(value) AS v FROM txn LIMIT 1", types=types_of)
    assert row == {"k": "BLOB", "v": "VARCHAR"}
    assert set(asked) >= {"txn"}
    with pytest.raises(ConfigError, match="leave key, value and registry out"):
        txn.read("txn", types=types_of, key="text")


def stored(topics: Bucket, topic: str, values: list[bytes]) -> ts.Bucket:
    batch = build_batch([Record(value) for value in values], 0)
    topics.copy(TopicIdPartition(FIRST_ID, topic, 0), [batch], range(len(values)))
    return ts.open(topics.root)


def test_partitions_are_numbers_in_a_pandas_frame(growing: Bucket) -> None:
    with stored(growing, "orders", [b"a", b"b"]) as bucket:
        frame = bucket.read("orders").to_pandas()
        assert (str(frame["partition"].dtype), str(frame["topic"].dtype)) == ("int32", "category")
        assert len(frame[frame["partition"] >= 0]) == 2
        assert str(bucket.read("orders", columns=["offset"]).to_pandas()["offset"].dtype) == "int64"


@pytest.mark.slow
def test_json_of_any_form_is_its_text_to_frames_and_what_it_says_to_programs(growing: Bucket, tmp_path: Path) -> None:
    texts = ['{"id": 7, "of": {"name": "é"}}', "[1, 2.5]", "null", '"x"']
    with stored(growing, "orders", [text.encode() for text in texts]) as bucket:
        assert [record.value for record in bucket.read("orders", value="json")] == [json.loads(text) for text in texts]
        frame = bucket.read("orders", value="json").to_polars()
        assert frame["value"].to_list() == texts
        assert frame["value"].str.json_path_match("$.of.name").to_list() == ["é", None, None, None]
        assert bucket.read("orders", value="json").to_pandas()["value"].tolist() == texts
        scanned = scan(bucket, "orders", value=Json()).collect()
        assert scanned["value"].equals(frame["value"])
        for sandbox in (False, True):
            (row,) = bucket.query(
                "SELECT value.id::INT AS id, value.of.name->>'$' AS name FROM orders WHERE value.id = '7'",
                value="json", sandbox=sandbox,
            )  # fmt: skip
            assert row == {"id": 7, "name": "é"}
        assert bucket.read("orders", value="json").write(tmp_path / "o.jsonl") == 4
        lines = (tmp_path / "o.jsonl").read_text().splitlines()
        assert [json.loads(line)["value"] for line in lines] == [json.loads(text) for text in texts]
        for name in ("o.parquet", "o.arrow", "o.csv"):
            assert bucket.read("orders", value="json").write(tmp_path / name) == 4
        assert pq.read_table(tmp_path / "o.parquet").column("value").to_pylist() == texts
        assert bucket.export("orders", tmp_path / "folder", value="json") == 4
        assert bucket.export("orders", tmp_path / "folder", value="json") == 0


def test_invalid_json_is_an_error_that_names_the_record(growing: Bucket) -> None:
    with (
        stored(growing, "orders", [b"{}", b"{"]) as bucket,
        pytest.raises(InvalidValueError, match=r"^the value at offset 1 of orders-0 is not JSON: .*\(value='bytes'\)"),
    ):
        bucket.read("orders", value="json").to_arrow()


def test_a_registry_has_the_schemas_of_avro(growing: Bucket) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}]}
    service = RegistryService()
    number = service.register("orders-value", schema)
    values = [framed(number, written(schema, {"n": n})) for n in range(3)]
    with stored(growing, "orders", values) as bucket, serving(service):
        url = service.url
        for registry in (url, {"schema.registry.url": url}, SchemaRegistry(url)):
            read = bucket.read("orders", value="avro", registry=registry)
            assert [record.value for record in read] == [{"n": n} for n in range(3)]
        (row,) = bucket.query("SELECT sum(value.n)::INT AS n FROM orders", value="avro", registry=url)
        assert row == {"n": 3}


@pytest.mark.parametrize(
    ("far", "refusal"),
    [
        pytest.param(253_402_300_800_000, "a time is outside Python's calendar", id="year 10000"),
        pytest.param(1_767_225_600_000_000, "a time is outside Python's calendar", id="microseconds"),
        pytest.param(2**63 - 1, "a record's time is later than DuckDB can hold", id="the greatest"),
    ],
)
def test_a_record_s_time_beyond_the_calendar_does_not_end_a_read(tmp_path: Path, far: int, refusal: str) -> None:
    root = tmp_path / "store"
    root.mkdir()
    batches = [build_batch([Record(b"v", timestamp_ms=time)], at) for at, time in enumerate((253_402_300_799_999, far))]
    write_segment(tmp_path / "logs", batches)
    with ts.open(root) as bucket:
        bucket.upload(tmp_path / "logs")
        records = [(one.offset, one.value, one.timestamp) for one in bucket.read("events")]
        assert records == [(0, b"v", datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)), (1, b"v", None)]
        assert [row["offset"] for row in bucket.query('SELECT "offset" FROM events')] == [0, 1]
        with pytest.raises(ConfigError, match=refusal):
            list(bucket.query("SELECT timestamp FROM events"))


def test_a_query_in_a_sandbox_reads_topics_alone(txn: ts.Bucket, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    sql = f"SELECT a FROM '{tmp_path}/a.csv'"
    assert list(txn.query(sql)) == [{"a": 1}]
    with pytest.raises(ConfigError):
        txn.query(sql, sandbox=True)
    assert list(txn.query("SELECT count(*) AS n FROM txn", sandbox=True)) == [{"n": 2357}]


def test_what_comes_is_filtered_too(growing: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tieredstore.reading.reader.LogTail", partial(LogTail, look_s=0.05))
    growing.write(10)
    with ts.open(growing.root) as bucket:
        wanted = ds.field("value") == b"orders-0@7"
        assert [one.offset for one in bucket.read("orders", follow=True, filter=wanted, limit=1)] == [7]
        rows = bucket.read("orders", follow=True, last=3, limit=5)
        records = iter(rows)
        seen = [next(records).offset for _ in range(3)]
        growing.write(5)
        seen += [one.offset for one in records]
    assert seen == [7, 8, 9, 10, 11]
