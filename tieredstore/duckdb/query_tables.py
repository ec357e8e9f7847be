"""A query over topics with DuckDB: the tables that it reads, its rows, and one-sentence errors."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from tieredstore.catalog.names import topic_names
from tieredstore.config.nearest import did_you_mean
from tieredstore.errors import AlreadyClosedError, ConfigError, ResourceNotFoundError, TieredStoreError, excerpt
from tieredstore.process.closing import Closing
from tieredstore.process.interruption import Interrupted
from tieredstore.query.batch_tables import BatchTable, BatchTables
from tieredstore.query.table_names import (
    BATCHES,
    check_distinct,
    parse_table_name,
    quotes_missing,
    tables_in,
    tables_mentioned,
    topic_of,
)
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes
from tieredstore.query.topic_table import TableOptions, TopicDataset, TopicTable
from tieredstore.records.arrow_stream import ArrowStream

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager

_DUCK: Final[Any] = duckdb
_ALWAYS: Final = ("python_enable_replacements = false", "autoinstall_known_extensions = false", "TimeZone = 'UTC'")
_SANDBOXED: Final = (
    "autoload_known_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",  # must be the last statement, because it forbids all later changes of settings
)
_MAX_BRACKETS: Final = 250
_BRACKETS: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[(\[{}\])]""")
"""Matches a bracket or a quoted text."""

_SHOW_TABLES: Final = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
_NO_TABLE: Final = re.compile(r"Table with name \"?(\S+?)\"? does not exist")
_HINT: Final = re.compile(r"Candidate \w+: |Did you mean")
_NO_COLUMN: Final = re.compile(r"""Referenced column "(.+?)" not found|Cannot extract field '(.+?)' from expression""")
_PLAIN_NAME: Final = re.compile(r"\w+")
_NEAR: Final = re.compile(r'at or near "(.+)"')
_RESERVED: Final = '; offset is an SQL keyword: write "offset"'


class QueryRows(ArrowStream):
    """Rows of a query, read on demand and only once. Instead of DuckDB's error, raises the error that caused it."""

    def __init__(self, reader: pa.RecordBatchReader, cause_of: Callable[[Exception], TieredStoreError]) -> None:
        self.schema: Any = reader.schema
        self._reader: Any = reader
        self._cause_of = cause_of
        self._is_over = False
        self._error: TieredStoreError | None = None

    def __next__(self) -> pa.RecordBatch:
        if self._error is not None:
            raise self._error
        try:
            batch: pa.RecordBatch = self._reader.read_next_batch()
        except StopIteration:
            self._is_over = True
            raise
        except (pa.ArrowException, OSError, _DUCK.Error) as error:
            # Keep the original error, because Arrow converts an error raised in a stream to OSError or another class.
            self._error = self._cause_of(error)
            raise self._error from None
        return batch

    def reader(self) -> pa.RecordBatchReader:
        """Return the same rows as a stream for pyarrow. Raise AlreadyClosedError if the rows were already read."""
        if self._is_over or self._error is not None:
            raise AlreadyClosedError("these rows were read already; run the query again")
        return super().reader()


class QueryTables(Closing):
    """The connection of one query, with the topics that the query names as tables. Not thread-safe; close it.

    If the query names a topic several times, each scan reads the same snapshot of it. The SQL cannot use Python's
    variables, and DuckDB installs no extension by itself. Unless ``is_sandboxed``, the SQL itself may read and write
    local files and install extensions.
    """

    def __init__(
        self,
        source: RemoteStorageManager,
        options: TableOptions,
        types_of: Callable[[str], ColumnTypes] | None = None,
        *,
        batches: BatchTables | None = None,
        is_sandboxed: bool = False,
    ) -> None:
        """Open a connection. ``types_of`` returns a topic's types of keys and values; by default those in ``options``
        apply.

        ``batches`` are topics of batches. Each has a table ``topic$batches``, and also a table ``topic`` if no topic of
        segments has that name.
        """
        self._batches = batches
        self._batch_tables: dict[str, BatchTable] = {}
        self._source = source
        self._options = options
        self._types_of: Callable[[str], ColumnTypes] = types_of or (lambda _: options.types)
        self._tables: dict[str, TopicTable] = {}
        self._registered: dict[str, str] = {}
        self._sql = ""
        self._connection = _DUCK.connect(":memory:")
        for setting in (*_ALWAYS, *(_SANDBOXED if is_sandboxed else ())):
            self._connection.execute(f"SET {setting}")

    def run(self, sql: str, *, batch_rows: int = 10_000) -> QueryRows:
        """Return the rows of a query. Raise ConfigError for a faulty query. If a topic cannot be read, the error is
        raised while the rows are read."""
        rows = self.run_any(sql, batch_rows=batch_rows)
        if rows is None:
            raise ConfigError("the query returns no rows: begin it with SELECT, FROM or WITH")
        return rows

    def run_any(self, sql: str, *, batch_rows: int = 10_000) -> QueryRows | None:
        """Return the rows as :meth:`run` does; None for a statement without rows, such as SET or CREATE TABLE."""
        self._sql = sql
        _check_nesting(sql)
        if _SHOW_TABLES.fullmatch(sql):
            # DuckDB itself would merge tables with names that differ only in case, so list the tables here.
            self._check_ids()
            return QueryRows(pa.table({"name": self._table_names()}).to_reader(), self._cause_of)
        try:
            self._attach(sql)
            self._check_ids()
            relation = self._connection.sql(sql)
            if relation is None:
                return None
            reader: pa.RecordBatchReader = relation.to_arrow_reader(batch_rows)
        except _DUCK.Error as error:
            raise self._cause_of(error) from None
        except RecursionError:
            raise ConfigError("the query is nested too deeply: simplify it") from None
        except RuntimeError as error:
            # A signal handler's exception is lost while DuckDB waits: DuckDB raises this RuntimeError instead. So raise
            # the interrupt here.
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from None
            raise
        return QueryRows(reader, self._cause_of)

    def _cause_of(self, error: Exception) -> TieredStoreError:
        """Return the error of the table that made DuckDB's query fail. If all tables could be read, return a
        ConfigError about the query.

        If a signal ended the query, raise the interrupt instead.
        """
        for table in self._tables_read():
            table.check_interruption()
            if table.error is not None:
                return table.error
        # A signal handler may have raised an interrupt while DuckDB ran a table's Python code. DuckDB keeps only the
        # error's text, so raise the interrupt again.
        for kind in (Interrupted, KeyboardInterrupt):
            if f"\n{_name_of(kind)}" in str(error):
                raise kind
        if isinstance(error, TieredStoreError):
            return error
        return self._refusal(str(error))

    def _refusal(self, text: str) -> TieredStoreError:
        """Convert DuckDB's message to an error whose message is one sentence, with a hint."""
        if (missing := _NO_TABLE.search(text)) is not None:
            return self._absent(missing[1])
        first, *others = [line.strip() for line in text.split("\n")]
        hint = next((f" {line}" for line in others if _HINT.match(line)), "")
        if "syntax error" in first:
            hint = _RESERVED if _stumbles_over_offset(first, self._sql) else self._quotes_missing()
        if (column := _NO_COLUMN.search(first)) is not None:
            hint += self._field_of_value(column[1] or column[2])
        if "TimestampTZ to Microsecond" in first:
            hint = "; a record's time is later than DuckDB can hold (the year 294247): leave the column timestamp out"
        return ConfigError(f"the query: {excerpt(first, 500)}{excerpt(hint, 300)}")

    def _field_of_value(self, name: str) -> str:
        """Return a hint on how to read ``name`` as a field of the JSON values, or an empty text if ``name`` resembles a
        column's name.
        """
        if difflib.get_close_matches(name, TOPIC_COLUMNS, n=1, cutoff=0.75):
            return ""
        key = name if _PLAIN_NAME.fullmatch(name) else f'"{name}"'
        return (
            f"; write a field of JSON values as value->>'$.{key}', or as value.{key} with {self._options.words.schema}"
        )

    def _absent(self, name: str) -> TieredStoreError:
        topics, quotes = self._topics(), self._quotes_missing()
        if name not in topics:
            listed = excerpt(", ".join(topics) or "none", 300)
            meant = did_you_mean(name, topics, otherwise=f"there are {listed}")
            return ResourceNotFoundError(f"there is no topic {name}{meant}{quotes}")
        if quotes:
            return ResourceNotFoundError(f"there is no table of that name{quotes}")
        return ConfigError(f"the query: {name} is a topic: read it as FROM {name}")

    def interrupt(self) -> None:
        """Interrupt the running query. Any thread or a signal handler may call this.

        A signal handler that raises an exception must call this too. Otherwise DuckDB may wait until its threads have
        finished the query.
        """
        self._connection.interrupt()

    def drop_failed(self) -> None:
        """Close the tables that the last query could not read, so that the next query opens them again."""
        tables: dict[str, Any]
        for tables in (self._tables, self._batch_tables):
            for name, table in list(tables.items()):
                if _has_failed(table):
                    table.close()
                    del tables[name]

    def words(self) -> list[str]:
        """Return DuckDB's keywords and functions, and the names of topics and of the topics' columns."""
        own = "SELECT keyword_name FROM duckdb_keywords() UNION SELECT function_name FROM duckdb_functions()"
        return [word for (word,) in self._connection.execute(own).fetchall()] + self._table_names() + [*TOPIC_COLUMNS]

    def close(self) -> None:
        """Close the connection and end running reads."""
        self._connection.close()
        for table in self._tables_read():
            table.close()

    def _quotes_missing(self) -> str:
        # Keywords of other categories, such as "none", can name tables without quotes.
        words = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
        taken = {word for (word,) in self._connection.execute(words).fetchall()}
        return quotes_missing(self._sql, self._topics(), taken)

    def _tables_read(self) -> list[TopicTable | BatchTable]:
        return [*self._tables.values(), *self._batch_tables.values()]

    def _attach(self, sql: str) -> None:
        names = self._names_in(sql)
        topics = self._topics() if names else []
        for name in names:
            parsed = parse_table_name(name)
            asks_broker = self._options.client is not None
            is_of_batches = parsed is not None and parsed[1] == "batches"
            topic = None if parsed is None or is_of_batches else topic_of(parsed[0], topics, asks_broker=asks_broker)
            if parsed is not None and parsed[1] in (None, "batches") and (topic is None or topic not in topics):
                batches = self._batch_table(parsed[0])
                if batches is not None:
                    self._register(name, parsed[0], TopicDataset(batches))
                    continue
            if parsed is None or topic is None:
                continue  # leave other names to DuckDB: it finds its own tables, and reports an unknown name
            table = self._table(topic)
            content: object
            match parsed[1]:
                case "segments":
                    content = table.segments()
                case "partitions":
                    content = table.partitions()
                case _:
                    content = TopicDataset(table)
            self._register(name, topic, content)

    def _check_ids(self) -> None:
        """Raise ConfigError if an id was given for a topic that the query does not read. The topic's name may be
        misspelt.
        """
        unread = next((topic for topic in self._options.topic_ids if topic not in self._tables), None)
        if unread is not None:
            named = f"{self._options.words.choose_topic_id} names {excerpt(unread, 249)!r}"
            raise ConfigError(
                f"{named}, which the query does not read; it reads {', '.join(self._tables) or 'no topic'}"
            )

    def _register(self, name: str, topic: str, content: object) -> None:
        # Refuse names that differ only in case: DuckDB ignores case and would use one table for both names.
        check_distinct((self._registered.setdefault(name.lower(), topic), topic), "ask for one of them in a query")
        self._connection.register(name, content)

    def _table_names(self) -> list[str]:
        """Return the names of all topics. A topic of batches gets the suffix ``$batches`` if a topic of segments has
        the same name."""
        topics = self._topics()
        batches = () if self._batches is None else self._batches.names()
        return sorted((*topics, *(name + BATCHES if name in topics else name for name in batches)))

    def _names_in(self, sql: str) -> list[str]:
        if [one.type for one in self._connection.extract_statements(sql)] == [_DUCK.StatementType.MULTI]:
            # Search the query's text, because DuckDB returns no table names for some queries, such as PIVOT.
            return tables_mentioned(sql, self._topics())
        try:
            names = set(self._connection.get_table_names(sql))
        except _DUCK.BinderException:
            # For example, DuckDB cannot bind ``value.*`` before the topic is a table. So find the names in the query's
            # syntax tree.
            names = set(self._parse_names(sql))
        else:
            # DuckDB leaves out the names of its built-in views. So add the topics that have such a name.
            own = set(self._parse_names(sql)) - names
            names |= own & set(self._topics()) if own else own
        return sorted(names)

    def _parse_names(self, sql: str) -> Iterator[str]:
        ((tree,),) = self._connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        return tables_in(json.loads(tree))

    def _table(self, topic: str) -> TopicTable:
        if topic not in self._tables:
            chosen = replace(self._options, types=self._types_of(topic))
            self._tables[topic] = TopicTable(self._source, topic, chosen, keeps_snapshot=True)
        return self._tables[topic]

    def _batch_table(self, topic: str) -> BatchTable | None:
        """Return the table of a batch topic; None if there is no such topic."""
        if topic not in self._batch_tables:
            if self._batches is None or not self._batches.has(topic):
                return None
            types = self._types_of(topic)
            self._batch_tables[topic] = self._batches.table(topic, types.key, types.value)
        return self._batch_tables[topic]

    def _topics(self) -> list[str]:
        return topic_names(self._source.store, self._source.layout.prefix)


def _has_failed(table: TopicTable | BatchTable) -> bool:
    """Return True if an error or a signal has ended a scan of the table."""
    try:
        table.check_interruption()
    except (Interrupted, KeyboardInterrupt):
        return True
    return table.error is not None


def _stumbles_over_offset(refusal: str, sql: str) -> bool:
    """Return True if DuckDB's message is about the word OFFSET, which is both a keyword and a column of topics."""
    near = _NEAR.search(refusal)
    if near is None:
        return False
    return near[1].lower() == "offset" or re.search(rf"\boffset\s*{re.escape(near[1])}", sql, re.IGNORECASE) is not None


def _check_nesting(sql: str) -> None:
    """Raise ConfigError for too deeply nested brackets: DuckDB's parser recurses for each, and could overflow the
    stack."""
    depth = 0
    for match in _BRACKETS.finditer(sql):
        depth += 1 if match[0] in "([{" else -1 if match[0] in ")]}" else 0
        if depth > _MAX_BRACKETS:
            raise ConfigError(f"the query is nested more than {_MAX_BRACKETS} brackets deep: simplify it")


def _name_of(kind: type[BaseException]) -> str:
    """Return the class's name as the last line of a traceback shows it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
