"""Conditions that DuckDB and Polars push down: the same rows for any of them, and nothing fetched that they exclude."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.stored_records import StoredTopic, plain_batch
from tests.support.topic_predicates import Place, Predicate, exact_ranges, predicates
from tieredstore.duckdb import attach
from tieredstore.model import TopicIdPartition
from tieredstore.polars import scan
from tieredstore.testing.segments import PARTITION
from tieredstore.values import Binary

pytestmark = pytest.mark.slow

PARTITIONS, OFFSETS, SEGMENT, BATCH = 3, 60, 10, 2
RECORDS: list[Place] = [(number, offset, offset) for number in range(PARTITIONS) for offset in range(OFFSETS)]


class Engines:
    """The same topic by DuckDB and by Polars, over a store that counts."""

    def __init__(self, topic: StoredTopic, connection: Any) -> None:
        self.topic = topic
        self._connection = connection
        self._frame: Any = scan(topic.manager, "events", parallelism=2)
        self.engines: dict[str, Callable[[Predicate], list[Any]]] = {"duckdb": self._duckdb, "polars": self._polars}

    def _duckdb(self, predicate: Predicate) -> list[Any]:
        sql = f'SELECT partition, "offset", octet_length(value) FROM events WHERE {predicate.sql} ORDER BY ALL'
        rows: list[Any] = self._connection.execute(sql).fetchall()
        return rows

    def _polars(self, predicate: Predicate) -> list[Any]:
        value: Any = pl.col("value")
        rows: list[Any] = (
            self._frame.filter(predicate.polars).select("partition", "offset", value.bin.size()).collect().rows()
        )
        return rows

    def asked(self, engine: str, predicate: Predicate) -> tuple[list[Place], set[str], int]:
        """The places of the rows, the logs that were fetched from, and how many bytes came down."""
        self.topic.store.reset()
        rows = self.engines[engine](predicate)
        gets = [operation for operation in self.topic.store.operations if operation.name.startswith("get")]
        logs = {key for operation in gets for key in operation.keys if key.endswith(".log")}
        return [(partition, offset, offset) for partition, offset, _ in rows], logs, self.topic.store.bytes_down


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    topic = StoredTopic(tmp_path_factory.mktemp("pushed"), chunk_size=1024)
    for number in range(PARTITIONS):
        where = TopicIdPartition(PARTITION.topic_id, PARTITION.topic, number)
        for base in range(0, OFFSETS, SEGMENT):
            batches = [plain_batch(range(at, at + BATCH), 400) for at in range(base, base + SEGMENT, BATCH)]
            topic.copy(base, batches, partition=where)
    connection: Any = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    with attach(connection, topic.manager, key=Binary(), value=Binary(), parallelism=2):
        yield Engines(topic, connection)
    connection.close()
    topic.close()


EVERYTHING = Predicate("true", True, lambda _: True)


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_any_condition_gives_its_rows_and_fetches_no_more_than_there_is(engines: Engines, engine: str) -> None:
    # What is read ahead and not needed differs from one run to the next.
    whole, logs, all_bytes = engines.asked(engine, EVERYTHING)
    assert (whole, len(logs)) == (RECORDS, PARTITIONS * OFFSETS // SEGMENT)

    @settings(max_examples=examples(60), deadline=None)
    @given(predicate=predicates(PARTITIONS, OFFSETS))
    def check(predicate: Predicate) -> None:
        rows, fetched, size = engines.asked(engine, predicate)
        assert rows == [place for place in RECORDS if predicate.holds(place)]
        assert fetched <= logs
        assert size <= 1.5 * all_bytes

    check()


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_of_ranges_nothing_else_is_fetched(engines: Engines, engine: str) -> None:
    _, _, all_bytes = engines.asked(engine, EVERYTHING)
    a_log = all_bytes / (PARTITIONS * OFFSETS / SEGMENT)

    @settings(max_examples=examples(30), deadline=None)
    @given(predicate=exact_ranges(PARTITIONS, OFFSETS))
    def check(predicate: Predicate) -> None:
        rows, fetched, size = engines.asked(engine, predicate)
        assert rows == [place for place in RECORDS if predicate.holds(place)]
        assert len(fetched) == len({(partition, offset // SEGMENT) for partition, offset, _ in rows})
        assert size <= 1.5 * (len(fetched) + 1) * a_log

    check()
