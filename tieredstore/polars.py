"""Topics as lazy Polars frames: ``scan(settings, "orders")``. Needs ``tieredstore[polars]``."""

from __future__ import annotations

import io
import json
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tieredstore.errors import ConfigError
from tieredstore.installation import Extra
from tieredstore.model import DEFAULT_ISOLATION
from tieredstore.remote.stores import StoreLike, manager_of

with Extra("tieredstore.polars", "polars"):
    import polars as pl
    import pyarrow as pa
    import pyarrow.dataset as ds
    from polars.io.plugins import register_io_source

    from tieredstore.query.arguments import (
        Partitions,
        TopicIdLike,
        check_client,
        check_topic,
        partition_set,
        topic_ids_of,
    )
    from tieredstore.query.batch_tables import BatchTable, batch_tables, batches_beside, check_no_window
    from tieredstore.query.positions import GivenPlace, window_of
    from tieredstore.query.table_names import BATCHES
    from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes, topic_schema
    from tieredstore.query.topic_table import TableOptions, TopicTable
    from tieredstore.values import Binary, ValueType
    from tieredstore.values.json_text import is_json

if TYPE_CHECKING:
    from tieredstore.model import Isolation
    from tieredstore.records.settings import OnDataLoss
    from tieredstore.remote import RemoteStorageManager

__all__ = ["scan"]

_logger: Final = logging.getLogger(__name__)

# Treat Polars as untyped, because the type stubs of its datasets and expressions are incomplete.
_pl: Final[Any] = pl

_BINARY: Final = Binary()

_Json: TypeAlias = Any
"""A node of an expression that Polars has exported as JSON."""


def scan(
    settings: StoreLike,
    topic: str,
    *,
    partitions: Partitions = None,
    start: GivenPlace = None,
    stop: GivenPlace = None,
    key: ValueType = _BINARY,
    value: ValueType = _BINARY,
    isolation: Isolation = DEFAULT_ISOLATION,
    on_data_loss: OnDataLoss = "fail",
    client: Mapping[str, str] | None = None,
    topic_id: TopicIdLike = None,
    parallelism: int | None = None,
) -> pl.LazyFrame:
    """Return a topic as a lazy frame. Each ``collect`` reads the topic again.

    Only the columns that the query uses are decoded. Records that predicates on partition, offset or time exclude are
    not fetched. ``start`` and ``stop`` (exclusive) can be an offset or a time.

    ``settings`` is a settings file, properties, or an open manager. A given manager must stay open; otherwise each
    ``collect`` opens its own. If the topic was deleted and re-created, choose an incarnation by ``topic_id``.
    ``client`` has the properties of the Kafka client that reads the records after the bucket's end. ``parallelism`` is
    the number of splits to read at once, by default the number of cores. If a read fails, Polars raises its own error,
    which contains this package's error as text. For a topic of MemQ batches, add ``$batches`` to its name.

    If requested offsets do not exist and the predicate does not exclude them, the read fails with DataLossError before
    its first record. With ``on_data_loss="report"``, each gap is logged as a warning instead. ``isolation`` is Kafka's
    isolation level.
    """
    check_topic(topic)
    check_client(client)
    types = ColumnTypes(key, value)
    numbers, window, ids = partition_set(partitions), window_of(start, stop), topic_ids_of({topic: topic_id})
    options = TableOptions(types, numbers, *window, isolation, on_data_loss, client, ids, parallelism)
    if topic.endswith(BATCHES):
        check_no_window(topic, numbers, *window)

    def batches(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size  # ignore Polars' batch size, because batches of a read have a few MiB
        manager, is_own = manager_of(settings)
        with manager if is_own else nullcontext():
            yield from _frames(*_table(manager, topic, options), with_columns, predicate, n_rows)

    of_batches = batch_tables() if topic.endswith(BATCHES) else None
    empty: Any = topic_schema(types=types) if of_batches is None else of_batches.schema(key, value)
    return register_io_source(batches, schema=frame_of(empty.empty_table()).schema)


def frame_of(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Return a frame of these rows. Values of type JSON become text, because Polars' expressions support no extension
    types.
    """
    frame: pl.DataFrame = _pl.from_arrow(rows)
    untyped: Any = rows
    names = [column.name for column in untyped.schema if is_json(column.type)]
    return frame.with_columns(_pl.col(names).ext.storage()) if names else frame


def _frames(
    table: TopicTable | BatchTable,
    names: Sequence[str],
    with_columns: Sequence[str] | None,
    predicate: Any,
    n_rows: int | None,
) -> Iterator[pl.DataFrame]:
    wanted = list(names if with_columns is None else with_columns)
    looked_at: list[str] = [] if predicate is None else predicate.meta.root_names()
    columns = list(dict.fromkeys((*wanted, *looked_at))) or ["offset"]
    pruning = None if predicate is None else arrow_condition(predicate)
    left = n_rows
    with closing(table.scan(columns, pruning)) as read:
        for batch in read:
            frame: Any = frame_of(batch)
            # Apply the whole predicate, because the scan's condition ``pruning`` may select more rows than the
            # predicate.
            frame = frame if predicate is None else frame.filter(predicate)
            # Drop the other columns, because ``select`` without columns would drop all rows too.
            frame = frame.drop(columns[len(wanted) :])
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame
            if left == 0:
                return


def _table(
    manager: RemoteStorageManager, topic: str, options: TableOptions
) -> tuple[TopicTable | BatchTable, Sequence[str]]:
    """Return the table of a topic, and the names of its columns."""
    if not topic.endswith(BATCHES):
        return TopicTable(manager, topic, options), TOPIC_COLUMNS
    batches = batches_beside(manager.store, manager.settings)
    if batches is None:
        raise ConfigError(f"there are no topics of batches in {manager.store.identity}")
    types = options.types
    table = batches.table(topic.removesuffix(BATCHES), types.key, types.value)
    return table, table.schema.names


def arrow_condition(predicate: pl.Expr) -> ds.Expression | None:
    """Return an Arrow condition that is true for at least the rows that the predicate selects; None if this function
    understands no part of the predicate.

    Polars exports an expression as JSON, whose form may change between versions. So a part that this function does not
    understand excludes no rows.
    """
    untyped: Any = predicate
    try:
        return _necessary(json.loads(untyped.meta.serialize(format="json")))
    except Exception:  # without a condition, the read fetches all rows and then filters them
        _logger.debug("the predicate of Polars is not understood", exc_info=True)
        return None


_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "Eq": operator.eq,
    "Lt": operator.lt,
    "LtEq": operator.le,
    "Gt": operator.gt,
    "GtEq": operator.ge,
    "NotEq": operator.ne,
}
_TURNED: Final = {"Eq": "Eq", "NotEq": "NotEq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_UNITS: Final[Mapping[str, Literal["ms", "us", "ns"]]] = {
    "Milliseconds": "ms",
    "Microseconds": "us",
    "Nanoseconds": "ns",
}
_BETWEEN: Final = {"Both": ("GtEq", "LtEq"), "Left": ("GtEq", "Lt"), "Right": ("Gt", "LtEq"), "None": ("Gt", "Lt")}


def _necessary(node: _Json) -> ds.Expression | None:
    """Return a condition that is true for at least the rows for which the node is true; None if there is none. For AND,
    one known part is enough. For OR, both must be known."""
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            parts = [part for part in (_necessary(left), _necessary(right)) if part is not None]
            return reduce(lambda one, other: one & other, parts) if parts else None
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            one, other = _necessary(left), _necessary(right)
            return None if one is None or other is None else one | other
        case _:
            return _exact(node)


def _exact(node: _Json) -> ds.Expression | None:
    """Convert a node of Polars' JSON to an Arrow condition; return None if there is no certain equivalent."""
    match node:
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": {"Literal": literal}}}:
            return _comparison(name, op, literal)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": str(op), "right": {"Column": str(name)}}}:
            return _comparison(name, _TURNED.get(op, ""), literal)
        case {"BinaryExpr": {"left": left, "op": str(op), "right": right}}:
            return _both(_exact(left), op, _exact(right))
        case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
            exact = _exact(inner)
            return None if exact is None else ~exact
        case {
            "Function": {"input": [{"Column": str(name)}, {"Literal": literal}], "function": {"Boolean": {"IsIn": _}}}
        }:
            return _among(name, literal)
        case {
            "Function": {
                "input": [{"Column": str(name)}, {"Literal": low}, {"Literal": high}],
                "function": {"Boolean": {"IsBetween": {"closed": str(closed)}}},
            }
        }:
            first, last = _BETWEEN[closed]
            return _both(_comparison(name, first, low), "And", _comparison(name, last, high))
        case _:
            return None


def _both(one: ds.Expression | None, op: str, other: ds.Expression | None) -> ds.Expression | None:
    if one is None or other is None:
        return None
    match op:
        case "And" | "LogicalAnd":
            return one & other
        case "Or" | "LogicalOr":
            return one | other
        case _:
            return None


def _comparison(name: str, op: str, literal: _Json) -> ds.Expression | None:
    value = _scalar(name, literal)
    return None if value is None or op not in _COMPARED else _COMPARED[op](ds.field(name), value)


def _scalar(name: str, literal: _Json) -> Any:
    """Return the literal as a value of the column's type; None if it has another type."""
    match name, literal:
        case (
            "offset" | "partition",
            {"Dyn": {"Int": int(number)}} | {"Scalar": {"Int64": int(number)} | {"Int32": int(number)}},
        ):
            return pa.scalar(number, pa.int64())
        case "timestamp", {"Scalar": {"Datetime": [int(number), str(unit), {"inner": "UTC"}]}}:
            return pa.scalar(number, pa.timestamp(_UNITS[unit], "UTC"))
        case _:
            return None


def _among(name: str, literal: _Json) -> ds.Expression | None:
    """Return the condition that a column's value is in a list of numbers. The JSON contains the list as an Arrow
    stream."""
    match name, literal:
        case "offset" | "partition", {"Scalar": {"List": octets}}:
            table = pa.ipc.open_stream(io.BytesIO(bytes(octets))).read_all()
            values = table.column(0).combine_chunks()
            is_plain = pa.types.is_integer(values.type) and not values.null_count
            return ds.field(name).isin(values.cast(pa.int64())) if is_plain else None
        case _:
            return None
