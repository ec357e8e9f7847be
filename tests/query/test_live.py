"""Tests of queries over bucket and broker as one log: the rows are those of a Kafka consumer, wherever the seam is."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.kafka.kafka_topics import Row, consumed, end_offset, produce_transaction, random_produced
from tests.support.kafka.live_topics import TieredTopic, without
from tests.support.records.topic_reads import read_topic
from tests.support.servers.kafka import KafkaServer
from tieredstore.duckdb import attach
from tieredstore.polars import scan
from tieredstore.values import Binary

pytestmark = pytest.mark.slow

COLUMNS = ("key", "value", "headers", "offset", "timestamp", "timestampType")


class SeamTopic:
    """A topic whose first part is in a bucket and the rest on the broker. ``expected`` has the rows of a consumer."""

    def __init__(self, kafka: KafkaServer, folder: Path) -> None:
        self.tiered = TieredTopic(kafka, folder)
        self.name = self.tiered.topic
        source = random.Random(11)
        for outcome in ("commit", "abort"):
            self.tiered.produce(random_produced(source, 300))
            produce_transaction(kafka, self.name, random_produced(source, 40), outcome)
            self.tiered.produce(random_produced(source, 200), codec="zstd")
        self.seam = self.tiered.tier(but_last=2)
        self.end = end_offset(kafka, self.name)
        self.client = {"bootstrap.servers": kafka.bootstrap_servers}
        self.expected = {
            isolation: consumed(kafka, self.name, 0, self.end, isolation=isolation)
            for isolation in ("read_committed", "read_uncommitted")
        }
        assert 0 < self.seam < self.end

    def command(self, verb: str, *arguments: object) -> Result:
        store = (self.tiered.store["storage.root"], "--bootstrap-server", self.tiered.server.bootstrap_servers)
        done = tieredstore(verb, "--store", *store, *arguments)
        assert done.code == 0, done.stderr
        return done


@pytest.fixture(scope="module")
def topic(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeamTopic]:
    topic = SeamTopic(kafka, tmp_path_factory.mktemp("seam"))
    yield topic
    topic.tiered.close()


def rows(table: Any) -> list[Row]:
    """Return rows in the form of ``consumed``."""
    milliseconds = table.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    plain = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", milliseconds)
    plain = plain.rename_columns([{"timestamp_type": "timestampType"}.get(name, name) for name in plain.column_names])
    return [row | {"headers": row["headers"] or None} for row in plain.select(list(COLUMNS)).to_pylist()]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_each_of_them_has_the_rows_of_a_consumer(topic: SeamTopic, isolation: Any) -> None:
    options: dict[str, Any] = {"client": topic.client, "isolation": isolation}
    with read_topic(topic.tiered.manager, topic.name, parallelism=2, **options) as read:
        assert rows(pa.table(read)) == topic.expected[isolation]
    frame: Any = scan(topic.tiered.manager, topic.name, **options).collect()
    assert rows(frame.to_arrow()) == topic.expected[isolation]
    connection: Any = duckdb.connect()
    with attach(connection, topic.tiered.manager, key=Binary(), value=Binary(), topics=[topic.name], **options):
        sql = f'SELECT * FROM "{topic.name}" ORDER BY "offset"'
        assert rows(connection.sql(sql).to_arrow_table()) == topic.expected[isolation]
    connection.close()


def test_windows_and_filters_lie_across_the_seam(topic: SeamTopic) -> None:
    start, stop = topic.seam - 20, topic.seam + 20
    inside = [row for row in topic.expected["read_committed"] if start <= row["offset"] < stop]
    assert any(row["offset"] < topic.seam <= inside[-1]["offset"] for row in inside)
    offset = ds.field("offset")
    windows: list[dict[str, Any]] = [
        {"start": start, "stop": stop}, {"filter": (offset >= start) & (offset < stop)},
    ]  # fmt: skip
    for window in windows:
        with read_topic(topic.tiered.manager, topic.name, client=topic.client, **window) as read:
            assert rows(pa.table(read)) == inside


def test_a_query_reads_across_the_seam(topic: SeamTopic, tmp_path: Path) -> None:
    expected = topic.expected["read_committed"]
    sql = f'SELECT count(*) AS n, count(DISTINCT "offset") AS places, max("offset") AS last FROM "{topic.name}"'
    shown = topic.command("query", sql, "--value", "bytes", "--key", "bytes", "--json").json
    assert shown == {"n": len(expected), "places": len(expected), "last": expected[-1]["offset"]}
    uncommitted = topic.command("query", sql, "--isolation", "read_uncommitted", "--format", "csv").text
    assert int(next(csv.DictReader(io.StringIO(uncommitted)))["n"]) == len(topic.expected["read_uncommitted"])
    alone = ("--store", topic.tiered.store["storage.root"], sql, "--isolation", "read_uncommitted", "--json")
    stored = sum(row["offset"] < topic.seam for row in topic.expected["read_uncommitted"])
    assert tieredstore("query", *alone).json["n"] == stored

    out = tmp_path / "rows.parquet"
    sql = f'SELECT "offset", key, value FROM "{topic.name}" WHERE "offset" >= {topic.seam - 5} ORDER BY 1'
    topic.command("query", sql, "--value", "bytes", "--key", "bytes", "-o", out)
    table: Any = pq.read_table(out)
    assert table.to_pylist() == [
        {name: row[name] for name in ("offset", "key", "value")} for row in expected if row["offset"] >= topic.seam - 5
    ]


def test_the_catalog_tells_where_the_seam_is(topic: SeamTopic, tmp_path: Path) -> None:
    # A committed read ends before a transaction whose outcome is beyond the end of the bucket.
    sql = f'SELECT * FROM "{topic.name}$partitions"'
    shown = topic.command("query", sql, "--isolation", "read_uncommitted", "--json").json
    assert (shown["bucket_end_offset"], shown["end_offset"]) == (topic.seam, topic.end)
    assert (shown["earliest_offset"], shown["broker_earliest_offset"]) == (0, 0)
    sql = f'SELECT count(*) AS n, max(last_offset) + 1 AS seam FROM "{topic.name}$segments"'
    assert topic.command("query", sql, "--json").json == {"n": len(topic.tiered.copied), "seam": topic.seam}
    sql = f'SELECT "offset" // 100 AS hundred, count(*) AS n FROM "{topic.name}" GROUP BY 1'
    topic.command("query", sql, "--value", "bytes", "--plot", tmp_path / "n.png")
    assert (tmp_path / "n.png").read_bytes().startswith(b"\x89PNG")


def test_an_export_goes_on_behind_what_the_bucket_had(topic: SeamTopic, tmp_path: Path) -> None:
    out = tmp_path / "files"
    assert tieredstore("cat", "--store", topic.tiered.store["storage.root"], topic.name, "-o", out).code == 0
    topic.command("cat", topic.name, "-o", out)
    files = sorted(out.glob("*.parquet"))
    assert len(files) == 2
    table: Any = ds.dataset([str(path) for path in files]).to_table()
    assert rows(table) == [without(row) for row in topic.expected["read_committed"]]
