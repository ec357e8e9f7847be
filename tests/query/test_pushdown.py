"""Tests of conditions that DuckDB and Polars push down: the rows stay the same, and no excluded data is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.records.stored_records import StoredTopic
from tests.support.records.topic_predicates import Place, Predicate, exact_ranges, predicates, ranges_of_time
from tieredstore.duckdb import attach
from tieredstore.model import TopicIdPartition
from tieredstore.polars import scan
from tieredstore.testing.segments import PARTITION, Record, build_batch
from tieredstore.values import Binary

pytestmark = pytest.mark.slow

PARTITIONS, OFFSETS, SEGMENT, BATCH = 3, 60, 10, 2


def time_of(number: int, offset: int) -> int:
    """Return a time in milliseconds. Times roughly ascend from segment to segment, but not within one."""
    return (offset // 20) * 20 + (offset * 7 + number * 5) % 23


RECORDS: list[Place] = [
    (number, offset, time_of(number, offset)) for number in range(PARTITIONS) for offset in range(OFFSETS)
]


class Engines:
    """One topic in DuckDB and in Polars, in a store that counts requests."""

    def __init__(self, topic: StoredTopic, connection: Any) -> None:
        self.topic = topic
        self._connection = connection
        self._frame: Any = scan(topic.manager, "events", parallelism=2)
        self.engines: dict[str, Callable[[Predicate], list[Any]]] = {"duckdb": self._duckdb, "polars": self._polars}

    def _duckdb(self, predicate: Predicate) -> list[Any]:
        columns = 'partition, "offset", epoch_ms(timestamp), octet_length(value)'
        sql = f"SELECT {columns} FROM events WHERE {predicate.sql} ORDER BY ALL"
        rows: list[Any] = self._connection.execute(sql).fetchall()
        return rows

    def _polars(self, predicate: Predicate) -> list[Any]:
        value, time = cast("Any", pl.col("value")), cast("Any", pl.col("timestamp"))
        wanted = self._frame.filter(predicate.polars)
        rows: list[Any] = wanted.select("partition", "offset", time.dt.epoch("ms"), value.bin.size()).collect().rows()
        return rows

    def asked(self, engine: str, predicate: Predicate) -> tuple[list[Place], set[str], int]:
        """Return the rows' places, the keys of the logs that the query fetched from, and how many bytes it fetched."""
        self.topic.store.reset()
        before = self.topic.manager.fetch_stats.bytes_fetched
        rows = self.engines[engine](predicate)
        gets = [operation for operation in self.topic.store.operations if operation.name.startswith("get")]
        logs = {key for operation in gets for key in operation.keys if key.endswith(".log")}
        size = self.topic.manager.fetch_stats.bytes_fetched - before
        return [(partition, offset, ms) for partition, offset, ms, _ in rows], logs, size

    def stored(self, logs: set[str]) -> int:
        """Return the total size of these logs in the store."""
        return sum(info.size for info in self.topic.store.list() if info.key in logs)


def batch_at(number: int, start: int) -> bytes:
    """Return a batch whose times do not ascend with its offsets."""
    offsets = range(start, start + BATCH)
    return build_batch(
        [Record(b"%d" % at + b"v" * 400, timestamp_ms=time_of(number, at)) for at in offsets], base_offset=start
    )


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    topic = StoredTopic(tmp_path_factory.mktemp("pushed"), chunk_size=1024)
    for number in range(PARTITIONS):
        where = TopicIdPartition(PARTITION.topic_id, PARTITION.topic, number)
        for base in range(0, OFFSETS, SEGMENT):
            batches = [batch_at(number, at) for at in range(base, base + SEGMENT, BATCH)]
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
    whole, logs, all_bytes = engines.asked(engine, EVERYTHING)
    assert (whole, len(logs)) == (RECORDS, PARTITIONS * OFFSETS // SEGMENT)
    assert all_bytes == engines.stored(logs)

    @settings(max_examples=examples(60), deadline=None)
    @given(predicate=predicates(PARTITIONS, OFFSETS))
    def check(predicate: Predicate) -> None:
        rows, fetched, size = engines.asked(engine, predicate)
        assert rows == [place for place in RECORDS if predicate.holds(place)]
        assert fetched <= logs
        assert size <= all_bytes

    check()


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_of_ranges_nothing_else_is_fetched(engines: Engines, engine: str) -> None:
    @settings(max_examples=examples(30), deadline=None)
    @given(predicate=exact_ranges(PARTITIONS, OFFSETS))
    def check(predicate: Predicate) -> None:
        rows, fetched, size = engines.asked(engine, predicate)
        assert rows == [place for place in RECORDS if predicate.holds(place)]
        assert len(fetched) == len({(partition, offset // SEGMENT) for partition, offset, _ in rows})
        assert size <= engines.stored(fetched)

    check()


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
def test_of_a_lower_bound_of_time_no_segment_is_fetched_that_ends_before_it(engines: Engines, engine: str) -> None:
    _, _, all_bytes = engines.asked(engine, EVERYTHING)
    a_log = all_bytes / (PARTITIONS * OFFSETS / SEGMENT)

    @settings(max_examples=examples(30), deadline=None)
    @given(drawn=ranges_of_time(OFFSETS))
    def check(drawn: tuple[Predicate, int]) -> None:
        predicate, low = drawn
        rows, fetched, size = engines.asked(engine, predicate)
        assert rows == [place for place in RECORDS if predicate.holds(place)]
        late = {(number, offset // SEGMENT) for number, offset, ms in RECORDS if ms >= low}
        assert len(fetched) == len(late)
        assert size <= 1.5 * (len(late) + 1) * a_log

    check()
