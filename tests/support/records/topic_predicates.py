"""Predicates over partition, offset and timestamp, each in SQL, as a Polars expression, and as a Python function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final, cast

import polars as pl
from hypothesis import strategies as st

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
