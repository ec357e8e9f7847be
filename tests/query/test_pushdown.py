"""Tests of conditions that DuckDB and Polars push down: the rows stay the same, and no excluded data is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final, cast

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.records.stored_records import StoredTopic
from tieredstore.duckdb import attach
from tieredstore.model import TopicIdPartition
from tieredstore.polars import scan
from tieredstore.testing.segments import PARTITION, Record, build_batch
from tieredstore.values import Binary

Place = tuple[int, int, int]
"""Partition, offset and timestamp (ms) of a record."""

Truth = bool | None
"""Result of a predicate for a row: true, false or null, as in SQL. A query returns the rows with the result true."""

_NAMES: Final = ("partition", "offset", "timestamp")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


@dataclass(frozen=True)
class Predicate:
    """One condition: in SQL, as a Polars expression, and as a Python function."""

    sql: str
    polars: Any
    holds: Callable[[Place], Truth]

    def __repr__(self) -> str:
        return self.sql


def _literals(name: str, value: int) -> tuple[str, Any]:
    if name != "timestamp":
        return str(value), value
    return f"make_timestamptz({value * 1000})", pl.lit(_EPOCH + timedelta(milliseconds=value))


def _comparison(name: str, op: str, value: int) -> Predicate:
    (sql, literal), at, compare = _literals(name, value), _NAMES.index(name), _COMPARED[op]
    column: Any = pl.col(name)
    return Predicate(f'"{name}" {op} {sql}', compare(column, literal), lambda place: compare(place[at], value))


def _between(name: str, low: int, high: int) -> Predicate:
    (first, low_literal), (last, high_literal), at = _literals(name, low), _literals(name, high), _NAMES.index(name)
    column: Any = pl.col(name)
    return Predicate(
        f'"{name}" BETWEEN {first} AND {last}', column.is_between(low_literal, high_literal),
        lambda place: low <= place[at] <= high,
    )  # fmt: skip


def _among(name: str, values: list[int]) -> Predicate:
    at = _NAMES.index(name)
    column: Any = pl.col(name)
    return Predicate(
        f'"{name}" IN ({", ".join(map(str, values))})', column.is_in(values), lambda place: place[at] in values
    )


def _among_or_null(name: str, values: list[int]) -> Predicate:
    """Return a predicate that is true for these values, and null for all others. So its negation is never true."""
    among, column = _among(name, values), cast("Any", pl.col(name))
    return Predicate(
        f'"{name}" IN ({", ".join(map(str, values))}, NULL)',
        pl.when(column.is_in(values)).then(statement=True).otherwise(None),
        lambda place: True if among.holds(place) else None,
    )


def _number(name: str) -> tuple[str, Any]:
    """Return a column as a number for arithmetic."""
    column: Any = pl.col(name)
    return (f'"{name}"', column) if name != "timestamp" else (f'epoch_ms("{name}")', column.dt.epoch("ms"))


def _remainder(name: str, divisor: int, rest: int) -> Predicate:
    (sql, column), at = _number(name), _NAMES.index(name)
    return Predicate(f"{sql} % {divisor} = {rest}", column % divisor == rest, lambda place: place[at] % divisor == rest)


def _sum(name: str, added: int, op: str, value: int) -> Predicate:
    (sql, column), at, compare = _number(name), _NAMES.index(name), _COMPARED[op]
    return Predicate(
        f"{sql} + ({added}) {op} {value}",
        compare(column + added, value),
        lambda place: compare(place[at] + added, value),
    )


def _case(when: Predicate, name: str, value: int, otherwise: int) -> Predicate:
    (sql, column), at = _number(name), _NAMES.index(name)
    return Predicate(
        f"CASE WHEN {when.sql} THEN {sql} ELSE {otherwise} END >= {value}",
        pl.when(when.polars).then(column).otherwise(otherwise) >= value,
        lambda place: (place[at] if when.holds(place) else otherwise) >= value,
    )


def _digits(name: str, first: int) -> Predicate:
    (sql, column), at = _number(name), _NAMES.index(name)
    return Predicate(
        f"CAST({sql} AS VARCHAR) LIKE '{first}%'", column.cast(pl.String).str.starts_with(str(first)),
        lambda place: str(place[at]).startswith(str(first)),
    )  # fmt: skip


def _half(name: str, value: int) -> Predicate:
    (sql, column), at = _number(name), _NAMES.index(name)
    return Predicate(
        f"CAST({sql} AS DOUBLE) / 2 < {value}.25", column.cast(pl.Float64) / 2 < value + 0.25,
        lambda place: place[at] / 2 < value + 0.25,
    )  # fmt: skip


def _conjunction(truths: Iterable[Truth]) -> Truth:
    known = list(truths)
    return False if False in known else None if None in known else True


def _contrary(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _all(parts: list[Predicate]) -> Predicate:
    return Predicate(
        " AND ".join(f"({part.sql})" for part in parts), reduce(lambda a, b: a & b, [part.polars for part in parts]),
        lambda place: _conjunction(part.holds(place) for part in parts),
    )  # fmt: skip


def _any(parts: list[Predicate]) -> Predicate:
    return Predicate(
        " OR ".join(f"({part.sql})" for part in parts), reduce(lambda a, b: a | b, [part.polars for part in parts]),
        lambda place: _contrary(_conjunction(_contrary(part.holds(place)) for part in parts)),
    )  # fmt: skip


def _not(part: Predicate) -> Predicate:
    return Predicate(f"NOT ({part.sql})", ~part.polars, lambda place: _contrary(part.holds(place)))


def predicates(partitions: int, offsets: int) -> st.SearchStrategy[Predicate]:
    """Return arbitrary predicates over partitions, offsets and timestamps (ms) of such a topic."""
    values = {
        "partition": st.integers(-1, partitions), "offset": st.integers(-2, offsets + 2),
        "timestamp": st.integers(-2, offsets + 2),
    }  # fmt: skip
    names = st.sampled_from(_NAMES)
    leaves = st.one_of(
        names.flatmap(lambda name: st.builds(_comparison, st.just(name), st.sampled_from([*_COMPARED]), values[name])),
        names.flatmap(lambda name: st.builds(_between, st.just(name), values[name], values[name])),
        st.sampled_from(_NAMES[:2]).flatmap(
            lambda name: st.lists(values[name], min_size=1, max_size=3).flatmap(
                lambda some: st.sampled_from([_among(name, some), _among_or_null(name, some)])
            )
        ),
        _computed(names, values),
    )
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.lists(parts, min_size=2, max_size=3).map(_all),
            st.lists(parts, min_size=2, max_size=3).map(_any),
            parts.map(_not),
        ),
        max_leaves=5,
    )


def _computed(names: st.SearchStrategy[str], values: dict[str, st.SearchStrategy[int]]) -> st.SearchStrategy[Predicate]:
    """Return predicates with computed columns, which cannot narrow a read, and must not be mistaken for simple ones."""
    number = st.integers(-3, 9)

    def of(name: str) -> st.SearchStrategy[Predicate]:
        this, value, op = st.just(name), values[name], st.sampled_from([*_COMPARED])
        return st.one_of(
            st.builds(_remainder, this, st.integers(2, 7), st.integers(0, 6)),
            st.builds(_sum, this, number, op, value),
            st.builds(_case, st.builds(_comparison, this, op, value), names, value, number),
            st.builds(_digits, this, st.integers(0, 9)),
            st.builds(_half, this, value),
        )

    return names.flatmap(of)


def ranges_of_time(times: int) -> st.SearchStrategy[tuple[Predicate, int]]:
    """Return predicates with a lower (and sometimes an upper) bound of timestamps, each with its lower bound."""
    low = st.integers(-2, times + 2)
    since = low.map(lambda at: (_comparison("timestamp", ">=", at), at))
    within = st.tuples(low, st.integers(0, times)).map(
        lambda drawn: (_between("timestamp", drawn[0], drawn[0] + drawn[1]), drawn[0])
    )
    return since | within


def exact_ranges(partitions: int, offsets: int) -> st.SearchStrategy[Predicate]:
    """Return predicates of offset ranges in partitions, for which a test knows exactly what data is fetched."""
    one = st.tuples(st.integers(0, partitions - 1), st.integers(0, offsets - 1), st.integers(0, offsets // 4)).map(
        lambda drawn: _all([_comparison("partition", "=", drawn[0]), _between("offset", drawn[1], drawn[1] + drawn[2])])
    )
    return st.lists(one, min_size=1, max_size=3).map(lambda parts: parts[0] if len(parts) == 1 else _any(parts))


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
