"""Tests that no reader decodes a column that was not requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest

from tests.support.records.stored_records import StoredTopic
from tests.support.records.topic_reads import read_topic
from tieredstore.duckdb import attach
from tieredstore.kafka.records import COLUMNS
from tieredstore.polars import scan
from tieredstore.query.topic_columns import TOPIC_COLUMNS
from tieredstore.reading.split_reads import QuerySources
from tieredstore.values import Binary

pytestmark = pytest.mark.slow

Query: TypeAlias = Callable[[StoredTopic], Any]


@pytest.fixture
def topic(topic: StoredTopic) -> StoredTopic:
    for base in (0, 100):
        topic.copy_plain(base, 100, size=10)
    return topic


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set to which each read adds the columns that it decodes."""
    names: set[str] = set()
    read = QuerySources.read_record_split

    def spied(*words: Any) -> Iterator[Any]:
        for batch in read(*words):
            names.update(batch.schema.names)
            yield batch

    monkeypatch.setattr(QuerySources, "read_record_split", spied)
    return names


def by_sql(sql: str) -> Query:
    def query(topic: StoredTopic) -> Any:
        connection: Any = duckdb.connect()
        with attach(connection, topic.manager, key=Binary(), value=Binary()):
            rows = connection.execute(sql).fetchall()
        connection.close()
        return rows

    return query


def by_polars(ask: Callable[[Any], Any]) -> Query:
    return lambda topic: ask(scan(topic.manager, "events")).collect().rows()


def by_read(*columns: str, filter: Any = None) -> Query:
    def query(topic: StoredTopic) -> Any:
        with read_topic(topic.manager, "events", columns=columns, filter=filter) as read:
            return [tuple(row.values()) for batch in read for row in batch.to_pylist()]

    return query


column: Final[Any] = pl.col
QUERIES: dict[str, tuple[Query, set[str]]] = {
    "read_topic of offsets": (by_read("offset"), {"offset"}),
    "read_topic of values": (by_read("value"), {"offset", "value"}),
    "read_topic of partitions": (by_read("partition"), {"offset"}),
    # The filter matches only some records of each segment, so the value must be decoded too.
    "read_topic with a filter": (by_read("key", filter=ds.field("value") != b"x"), {"offset", "key", "value"}),
    "read_topic of all": (by_read(*TOPIC_COLUMNS[2:]), {*COLUMNS}),
    "SQL that counts": (by_sql("SELECT count(*) FROM events"), {"offset"}),
    "SQL of values": (by_sql("SELECT max(octet_length(value)) FROM events"), {"offset", "value"}),
    "SQL with a condition": (by_sql("SELECT count(*) FROM events WHERE key IS NULL"), {"offset", "key"}),
    "SQL of all": (by_sql("SELECT * FROM events"), {*COLUMNS}),
    "Polars of partitions": (by_polars(lambda frame: frame.select("partition")), {"offset"}),
    "Polars of values": (by_polars(lambda frame: frame.select(column("value").bin.size().max())), {"offset", "value"}),
    "Polars with a predicate": (
        by_polars(lambda frame: frame.filter(column("value") != b"x").select("offset")), {"offset", "value"},
    ),
    "Polars of all": (by_polars(lambda frame: frame), {*COLUMNS}),
}  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_only_what_is_asked_for_is_decoded(topic: StoredTopic, decoded: set[str], query: str) -> None:
    ask, columns = QUERIES[query]
    assert ask(topic)
    assert decoded == columns
