"""Predicates over partition, offset and timestamp, each as SQL, as an expression of Polars, and as what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final

import polars as pl
from hypothesis import strategies as st

Place = tuple[int, int, int]
"""Partition, offset and milliseconds."""

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
    """One condition in three languages."""

    sql: str
    polars: Any
    holds: Callable[[Place], bool]

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


def _all(parts: list[Predicate]) -> Predicate:
    return Predicate(
        " AND ".join(f"({part.sql})" for part in parts), reduce(lambda a, b: a & b, [part.polars for part in parts]),
        lambda place: all(part.holds(place) for part in parts),
    )  # fmt: skip


def _any(parts: list[Predicate]) -> Predicate:
    return Predicate(
        " OR ".join(f"({part.sql})" for part in parts), reduce(lambda a, b: a | b, [part.polars for part in parts]),
        lambda place: any(part.holds(place) for part in parts),
    )  # fmt: skip


def _not(part: Predicate) -> Predicate:
    return Predicate(f"NOT ({part.sql})", ~part.polars, lambda place: not part.holds(place))


def predicates(partitions: int, offsets: int) -> st.SearchStrategy[Predicate]:
    """Any of them over so many partitions and offsets, whose records' milliseconds are their offsets."""
    values = {
        "partition": st.integers(-1, partitions), "offset": st.integers(-2, offsets + 2),
        "timestamp": st.integers(-2, offsets + 2),
    }  # fmt: skip
    names = st.sampled_from(_NAMES)
    leaves = st.one_of(
        names.flatmap(lambda name: st.builds(_comparison, st.just(name), st.sampled_from([*_COMPARED]), values[name])),
        names.flatmap(lambda name: st.builds(_between, st.just(name), values[name], values[name])),
        st.sampled_from(_NAMES[:2]).flatmap(
            lambda name: st.builds(_among, st.just(name), st.lists(values[name], min_size=1, max_size=3))
        ),
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


def exact_ranges(partitions: int, offsets: int) -> st.SearchStrategy[Predicate]:
    """Some ranges of offsets of some partitions: what a reader may fetch for it is known exactly."""
    one = st.tuples(st.integers(0, partitions - 1), st.integers(0, offsets - 1), st.integers(0, offsets // 4)).map(
        lambda drawn: _all([_comparison("partition", "=", drawn[0]), _between("offset", drawn[1], drawn[1] + drawn[2])])
    )
    return st.lists(one, min_size=1, max_size=3).map(lambda parts: parts[0] if len(parts) == 1 else _any(parts))
