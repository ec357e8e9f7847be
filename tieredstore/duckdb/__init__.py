"""Topics as tables of DuckDB, next to the connection's other tables: ``attach(connection, settings)``.

Needs ``tieredstore[query]``. The command ``tieredstore query`` uses ``tieredstore.duckdb.query_tables`` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias
from weakref import WeakKeyDictionary

from tieredstore.catalog.names import topic_names
from tieredstore.errors import ConfigError, TieredStoreError, excerpt
from tieredstore.installation import Extra
from tieredstore.model import DEFAULT_ISOLATION
from tieredstore.remote.stores import StoreLike, manager_of

with Extra("tieredstore.duckdb", "query"):
    import duckdb

    from tieredstore.query.arguments import (
        Partitions,
        TopicIdLike,
        check_client,
        check_map,
        partition_set,
        several_of,
        topic_ids_of,
        wrong_kind,
    )
    from tieredstore.query.batch_tables import BatchTable, BatchTables, batches_beside, check_no_window
    from tieredstore.query.positions import GivenPlace, window_of
    from tieredstore.query.table_names import BATCHES, check_distinct
    from tieredstore.query.topic_columns import ColumnTypes
    from tieredstore.query.topic_table import TableOptions, TopicDataset, TopicTable
    from tieredstore.values import Text, ValueType

if TYPE_CHECKING:
    from tieredstore.model import Isolation
    from tieredstore.records.settings import OnDataLoss
    from tieredstore.remote import RemoteStorageManager

__all__ = ["AttachedTopics", "attach"]

_logger: Final = logging.getLogger(__name__)

_TEXT: Final = Text()
_DUCK: Final[Any] = duckdb

_Table: TypeAlias = TopicTable | BatchTable

_ATTACHED: Final[WeakKeyDictionary[object, dict[str, _Table]]] = WeakKeyDictionary()
"""The attached topics of each connection, by name in lower case, because DuckDB ignores case."""


class AttachedTopics:
    """Topics attached to a connection as tables. Close this object, not the connection, after the last query."""

    def __init__(self, connection: Any, tables: Mapping[str, _Table], manager: RemoteStorageManager | None) -> None:
        self.topics: tuple[str, ...] = tuple(tables)
        self._connection = connection
        self._tables = tables
        self._manager = manager

    @property
    def error(self) -> TieredStoreError | None:
        """The TieredStoreError that ended a scan, or None. Use it for its class: DuckDB's own error contains only its
        text."""
        return next((table.error for table in self._tables.values() if table.error is not None), None)

    def close(self) -> None:
        """Remove the tables from the connection and end running reads, so that unread rows of a query's result are
        lost."""
        try:
            self._connection.abort()
            self._unregister()
        except _DUCK.Error:
            # Ignore the error: either the connection is closed, or a query's result is not read to its end. Reading
            # that result fails after the tables are closed below.
            _logger.debug("the connection kept the tables", exc_info=True)
        finally:
            self._close_tables()

    def register(self) -> None:
        """Register all tables, or none if one fails. The connection must not have other tables with these names."""
        try:
            for name, table in self._tables.items():
                self._connection.register(name, TopicDataset(table))
                _ATTACHED.setdefault(self._connection, {})[name.lower()] = table
        except BaseException:
            with suppress(_DUCK.Error):
                self._unregister()
            self._close_tables()
            raise

    def _unregister(self) -> None:
        """Remove the tables, except those whose names another attachment uses now."""
        attached = _ATTACHED.get(self._connection, {})
        for name, table in self._tables.items():
            if attached.get(name.lower()) is table:
                self._connection.unregister(name)
                del attached[name.lower()]

    def _close_tables(self) -> None:
        for table in self._tables.values():
            table.close()
        if self._manager is not None:
            self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        cause = self.error
        self.close()
        if cause is not None and isinstance(error, _DUCK.Error):
            raise cause from None


def attach(
    connection: duckdb.DuckDBPyConnection,
    settings: StoreLike,
    *,
    topics: Sequence[str] | None = None,
    partitions: Partitions = None,
    start: GivenPlace = None,
    stop: GivenPlace = None,
    key: ValueType = _TEXT,
    value: ValueType = _TEXT,
    types: Mapping[str, ColumnTypes] | None = None,
    isolation: Isolation = DEFAULT_ISOLATION,
    on_data_loss: OnDataLoss = "fail",
    client: Mapping[str, str] | None = None,
    topic_ids: Mapping[str, TopicIdLike] | None = None,
    parallelism: int | None = None,
) -> AttachedTopics:
    """Attach topics of a bucket (by default all) to ``connection`` as tables: ``SELECT … FROM orders``.

    ``settings`` name the store: a settings file, properties, settings or an open manager, which stays open. Each scan
    reads the topic again. It decodes only the columns that the query uses, and does not fetch records that conditions
    on partition, offset or time exclude. ``start``, ``stop`` (exclusive) and ``partitions`` restrict every table.
    ``start`` and ``stop`` are offsets or times. Keys and values are text by default. ``types`` sets other types for
    some topics. If a topic was deleted and re-created, several topics had its name: choose one by ``topic_ids``, as in
    ``{"orders": "<topic id>"}``. ``client`` has the properties of the Kafka client that reads the records after the
    bucket's end. ``parallelism`` is the number of splits to read at once, by default the number of cores.

    If requested offsets do not exist and the conditions do not exclude them, a scan fails with DataLossError before its
    first record. With ``on_data_loss="report"``, each gap is logged as a warning instead. ``isolation`` is Kafka's
    isolation level.

    A topic of batches becomes a table too, unless a topic of segments has the same name. In that case, add the topic of
    batches to ``topics`` as ``orders$batches``; this form is valid for every topic of batches. Without ``topics``, this
    call lists the names of all topics in the bucket.

    Raises ConfigError for topics whose names differ only in case, because DuckDB ignores case. Raises ConfigError too
    if the connection already has a table or view with a topic's name, because the topic would hide it. A table
    ``orders`` that you create later is hidden by the topic: write ``memory.orders`` until the topics are removed.
    """
    topics, ids = _check_arguments(connection, topics, types, client), topic_ids_of(topic_ids)
    numbers, window = partition_set(partitions), window_of(start, stop)
    manager, is_own = manager_of(settings)
    own = manager if is_own else None
    try:
        of_batches = _batch_topics(manager, topics)
        named = topic_names(manager.store, manager.layout.prefix) if topics is None else topics
        names = tuple(dict.fromkeys((*named, *of_batches)))
        check_distinct(names, "name only one of them (topics); attach the other to a separate connection")
        _check_named("types", types or {}, names)
        _check_named("topic_ids", ids, names)
        _check_free(connection, names)
        tables: dict[str, _Table] = {}
        for name in names:
            of_topic = (types or {}).get(name, ColumnTypes(key, value))
            if name in of_batches:
                check_no_window(name, numbers, *window)
                tables[name] = of_batches[name](of_topic)
            else:
                options = TableOptions(of_topic, numbers, *window, isolation, on_data_loss, client, ids, parallelism)
                tables[name] = TopicTable(manager, name, options)
    except BaseException:
        if own is not None:
            own.close()
        raise
    attached = AttachedTopics(connection, tables, own)
    attached.register()
    return attached


def _check_arguments(
    connection: object, topics: object, types: Mapping[str, object] | None, client: object
) -> Sequence[str] | None:
    """Return the topics as a sequence. Raise ConfigError if an argument has a wrong type."""
    if not isinstance(connection, duckdb.DuckDBPyConnection):
        raise wrong_kind("connection", connection, "a duckdb.DuckDBPyConnection, as duckdb.connect() gives")
    check_client(client)
    check_map("types", types, "a map from topics to ColumnTypes")
    for topic, kind in (types or {}).items():
        if not isinstance(kind, ColumnTypes):
            raise wrong_kind(f"the entry {topic} of types", kind, "ColumnTypes(key, value)")
    return None if topics is None else several_of("topics", topics, str, "topics' names")


def _check_named(argument: str, given: Mapping[str, object], names: Sequence[str]) -> None:
    """Raise ConfigError if ``given`` has an entry for a topic that is not attached. Such an entry has no effect, so the
    topic's name is probably misspelt.
    """
    missing = [topic for topic in given if topic not in names]
    if missing:
        listed = excerpt(", ".join(names) or "none", 300)
        raise ConfigError(f"{argument} names {missing[0]}, but the attached topics are: {listed}")


def _check_free(connection: Any, names: Sequence[str]) -> None:
    """Raise ConfigError for a name that the connection already uses."""
    attached = _ATTACHED.get(connection, {})
    for name in names:
        quoted = name.replace('"', '""')
        try:
            # Look the name up as FROM does, but without Python's variables. A topic may have the name of a variable,
            # because FROM prefers a table to a variable.
            connection.sql("SELECT * FROM pragma_table_info(?)", params=[f'"{quoted}"'])
        except _DUCK.CatalogException:
            continue
        table = attached.get(name.lower())
        if table is None:
            raise ConfigError(
                f"the connection already has a table or view {name}, which the topic would hide: attach other topics "
                "(topics), or use another connection"
            )
        # Replace the table of a closed attachment: the connection may have refused to remove it.
        if not table.is_closed:
            raise ConfigError(f"topic {name} is already attached to the connection: close the earlier attachment first")


def _batch_topics(
    manager: RemoteStorageManager, wanted: Sequence[str] | None
) -> dict[str, Callable[[ColumnTypes], BatchTable]]:
    """Return functions that create the tables of topics of batches, by topic name. ``wanted`` restricts the topics;
    None means all."""
    batches = batches_beside(manager.store, manager.settings)
    if batches is None:
        return {}
    topics = {name: name for name in batches.names()} if wanted is None else {}
    topics |= {name: topic for name in wanted or () if batches.has(topic := name.removesuffix(BATCHES))}
    if not topics:
        return {}
    others = set(topic_names(manager.store, manager.layout.prefix))
    return {name: partial(_batch_table, batches, topic) for name, topic in topics.items() if name not in others}


def _batch_table(batches: BatchTables, topic: str, types: ColumnTypes) -> BatchTable:
    return batches.table(topic, types.key, types.value, keeps_snapshot=False)
