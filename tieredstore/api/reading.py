"""Options of reads and queries, and the functions that start reads and queries.

The bucket imports this module on first use, because this module imports pyarrow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, cast, get_args

import pyarrow as pa

from tieredstore.api.reads import Read
from tieredstore.api.scopes import check_keywords
from tieredstore.config.nearest import did_you_mean
from tieredstore.errors import ConfigError, TopicNotFoundError, quote
from tieredstore.model import DEFAULT_ISOLATION, Earliest, Isolation, Last, Latest, Place
from tieredstore.process.closing import Closing
from tieredstore.query.arguments import Partitions, TopicIdLike, partition_set, topic_id_of, topic_ids_of
from tieredstore.query.conditions import Condition
from tieredstore.query.positions import GivenPlace, window_of
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes, TopicColumns, topic_schema
from tieredstore.query.topic_read import ReadPlan, TopicRead
from tieredstore.query.topic_scan import begin_read
from tieredstore.reading.omitted_records import LeftOut
from tieredstore.reading.query import LogQuery, QueryWords
from tieredstore.reading.reader import TopicReader
from tieredstore.records.arrow_stream import ArrowStream
from tieredstore.records.settings import OnDataLoss, ReadSettings
from tieredstore.values import Avro, Binary, Json, Text, ValueType

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from tieredstore.api.bucket import Bucket
    from tieredstore.duckdb.query_tables import QueryTables
    from tieredstore.reading.log_snapshot import LogSnapshot
    from tieredstore.reading.tail import LogTail
    from tieredstore.schema_registry import SchemaRegistry
    from tieredstore.values import InvalidValues, OnInvalid

TypeName: TypeAlias = "Literal['bytes', 'text', 'json', 'avro'] | ValueType"
"""The type of keys or values: raw bytes, UTF-8 text, JSON of any form (kept as text), Avro with the registry's
schemas, or ``Json(schema)`` and ``Avro(schema)``.
"""

RegistryLike: TypeAlias = "str | Mapping[str, str] | SchemaRegistry"
"""A schema registry: its URL, the properties of its client under Confluent's names, or an open SchemaRegistry."""

_POLL_S: Final = 0.5
_WORDS: Final = QueryWords(accept_loss="use on_loss='report'", topic_ids="topic_id", choose_topic_id="topic_id")
_QUERY_WORDS: Final = QueryWords(accept_loss="use on_loss='report'")


class QueryOptions(TypedDict, total=False):
    """Options of reads and queries. ``key`` and ``value`` default to bytes, in SQL to text.

    ``registry`` has the schemas of Avro. ``types``, a function of the topic's name, replaces ``key``, ``value`` and
    ``registry``. ``limit`` is the largest number of records or rows. ``words`` gives the options' names for errors.
    """

    key: TypeName
    value: TypeName
    registry: RegistryLike
    types: Callable[[str], ColumnTypes]
    words: QueryWords
    limit: int
    isolation: Isolation
    on_loss: OnDataLoss
    parallel: int


class ReadOptions(QueryOptions, total=False):
    """Options of reads of one topic."""

    columns: Sequence[str]
    filter: ds.Expression | None
    follow: bool
    topic_id: TopicIdLike


def read_records(
    bucket: Bucket,
    topic: str,
    partitions: Partitions,
    *,
    start: GivenPlace,
    stop: GivenPlace,
    last: int | None,
    how: ReadOptions,
) -> Read:
    """Return records of a topic, from bucket and broker as one log: the records between two positions, or the last
    records."""
    check_keywords(bucket.read, how, ReadOptions)
    begin, end = places_of(start, stop, last)
    columns, limit = _columns(how), _limit(how)
    types = types_of(how, "bytes")(topic)
    if (follow := how.get("follow", False)) and stop is not None:
        raise ConfigError("follow has no end: leave stop out")
    query = query_of(bucket, topic, partitions, how)
    with contextlib.ExitStack() as opened:
        manager = bucket.manager
        reader = opened.enter_context(TopicReader(lambda: manager, query))
        with _naming_readers(bucket, topic):
            snapshot = reader.snapshot()
        left_out = LeftOut(query)
        plan = ReadPlan(begin, end, columns, how.get("filter"), types, parallelism=how.get("parallel"))
        rows: TopicRead | _FollowedRows
        if follow:
            rows = _FollowedRows(reader, snapshot, plan, left_out)
        else:
            rows = begin_read(reader, snapshot, plan, owns_reader=False, left_out=left_out)
        opened.push(rows)
        return Read(_GivenRows(rows, limit, left_out), opened.pop_all(), are_records=True, left_out=left_out)


@contextlib.contextmanager
def _naming_readers(bucket: Bucket, topic: str) -> Generator[None]:
    """If the block finds no segments of the topic, but the topic has batches, raise an error that names the commands
    for batches."""
    try:
        yield
    except TopicNotFoundError as error:
        from tieredstore.query.batch_tables import batches_beside  # noqa: PLC0415  other reads do not need it

        batches = batches_beside(bucket.manager.store, bucket.settings)
        if batches is None or not batches.has(topic):
            raise
        raise TopicNotFoundError(f"{topic} is a topic of batches: read it with {batches.READERS}") from error


def query_of(bucket: Bucket, topic: str, partitions: Partitions, how: ReadOptions) -> LogQuery:
    """Return a topic's query: the partitions to read, and the options of the read."""
    return LogQuery.of_topic(
        topic, partition_set(partitions), isolation=isolation_of(how), on_data_loss=policy_of(how),
        client=bucket.broker, topic_id=topic_id_of(how.get("topic_id")), words=how.get("words", _WORDS),
    )  # fmt: skip


def query_rows(
    bucket: Bucket, sql: str, how: QueryOptions, *, sandbox: bool, topic_ids: Mapping[str, TopicIdLike] | None
) -> Read:
    """Return the rows of a query over topics, in DuckDB's SQL."""
    if not isinstance(cast("object", sql), str):
        raise ConfigError(f"sql is of the type {type(sql).__name__}; give a query")
    with contextlib.ExitStack() as opened:
        tables = opened.enter_context(open_tables(bucket, how, sandbox=sandbox, topic_ids=topic_ids))
        return Read(_GivenRows(tables.run(sql), _limit(how)), opened.pop_all(), are_records=False)


def open_tables(
    bucket: Bucket, how: QueryOptions, *, sandbox: bool, topic_ids: Mapping[str, TopicIdLike] | None
) -> QueryTables:
    """Open a DuckDB connection in which topics are tables. The first query of a topic fixes which records its table
    has."""
    from tieredstore.duckdb.query_tables import QueryTables  # noqa: PLC0415  needs the extra `query`
    from tieredstore.query.batch_tables import batches_beside  # noqa: PLC0415
    from tieredstore.query.topic_table import TableOptions  # noqa: PLC0415

    check_keywords(bucket.query, how, QueryOptions)
    types = types_of(how, "text")
    options = TableOptions(
        isolation=isolation_of(how), on_data_loss=policy_of(how), client=bucket.broker,
        topic_ids=topic_ids_of(topic_ids), parallelism=how.get("parallel"), words=how.get("words", _QUERY_WORDS),
    )  # fmt: skip
    manager = bucket.manager
    batches = batches_beside(manager.store, manager.settings)
    return QueryTables(manager, options, types, batches=batches, is_sandboxed=sandbox)


def types_of(how: Mapping[str, Any], default: Literal["bytes", "text"]) -> Callable[[str], ColumnTypes]:
    """Return a function that gives the types of a topic's keys and values; raise ConfigError for wrong options."""
    given: Callable[[str], ColumnTypes] | None = how.get("types")
    if given is not None:
        if {"key", "value", "registry"} & how.keys():
            raise ConfigError("types already describes keys and values: leave key, value and registry out")
        return given
    registry = None if "registry" not in how else registry_of(how["registry"])
    if registry is not None and "avro" not in (how.get("key"), how.get("value")):
        raise ConfigError("registry has schemas for Avro: add value='avro' or key='avro', or leave registry out")
    key, value = (_kind(name, how.get(name, default), registry) for name in ("key", "value"))
    return lambda topic: ColumnTypes(key(f"{topic}-key"), value(f"{topic}-value"))


def registry_of(given: RegistryLike) -> SchemaRegistry:
    """Return the schema registry for a URL, for properties, or for an open registry; raise ConfigError for anything
    else."""
    from tieredstore.schema_registry import SchemaRegistry  # noqa: PLC0415  needs the extra `avro`

    match given:
        case str():
            return SchemaRegistry(given)
        case Mapping():
            return SchemaRegistry(properties=given)
        case SchemaRegistry():
            return given
        case _:
            raise ConfigError(f"registry is of the type {type(given).__name__}; give a URL or a mapping")


def kind_of(
    name: str,
    registry: SchemaRegistry | None,
    on_invalid: OnInvalid,
    way_out: str,
    nulls: InvalidValues | None = None,
) -> Callable[[str], ValueType] | None:
    """Return a function that makes the type called ``name`` for a subject of the schema registry; None for an unknown
    name.

    ``nulls`` counts the keys and values that the policy reads as null.
    """
    match name:
        case "bytes":
            return lambda _: Binary()
        case "text":
            return lambda _: Text(on_invalid, way_out=way_out, nulls=nulls)
        case "json":
            return lambda _: Json(on_invalid=on_invalid, way_out=way_out, nulls=nulls)
        case "avro" if registry is not None:
            return lambda subject: Avro(registry.latest(subject), registry, on_invalid, way_out=way_out, nulls=nulls)
        case _:
            return None


def isolation_of(how: Mapping[str, object]) -> Isolation:
    """Return Kafka's isolation level: read_committed unless set."""
    given = how.get("isolation", DEFAULT_ISOLATION)
    if given not in get_args(Isolation):
        raise ConfigError(f"isolation is {given!r:.60}; it must be read_committed or read_uncommitted")
    return cast("Isolation", given)


def policy_of(how: Mapping[str, object]) -> OnDataLoss:
    """Return the policy for lost offsets; by default, the read fails."""
    given = how.get("on_loss", "fail")
    if given not in get_args(OnDataLoss):
        raise ConfigError(f"on_loss is {given!r:.60}; it must be fail or report")
    return cast("OnDataLoss", given)


def places_of(start: GivenPlace, stop: GivenPlace, last: int | None) -> tuple[Place | None, Place | None]:
    """Return the start and the end of a read; raise ConfigError for a combination that makes no sense."""
    begin, end = window_of(start, stop)
    if last is None:
        return begin, end
    if start is not None:
        raise ConfigError("last and start exclude each other")
    if type(last) is not int or last < 0:
        raise ConfigError(f"last is {last!r:.60}; give a number of records")
    return Last(last), end


def _limit(how: QueryOptions) -> int | None:
    limit = how.get("limit")
    if limit is not None and (type(limit) is not int or limit < 0):
        raise ConfigError(f"limit is {limit!r:.60}; give a number of records")
    return limit


def _columns(how: ReadOptions) -> tuple[str, ...]:
    columns: object = how.get("columns", TOPIC_COLUMNS)
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ConfigError(f"columns is of the type {type(columns).__name__}; give a list of names")
    names = cast("Sequence[str]", columns)
    for name in names:
        if name not in TOPIC_COLUMNS:
            hint = did_you_mean(str(name), TOPIC_COLUMNS, otherwise=f"there are {', '.join(TOPIC_COLUMNS)}", show=repr)
            raise ConfigError(f"no column {quote(name)}{hint}")
    return tuple(names)


def _kind(option: str, given: object, registry: SchemaRegistry | None) -> Callable[[str], ValueType]:
    if isinstance(given, ValueType) and not isinstance(given, type):
        return lambda _: given
    if given == "avro" and registry is None:
        raise ConfigError(f"{option} is 'avro', and no schema is given: add registry=, or give Avro(…)")
    kind = kind_of(str(given), registry, "fail", f"read it as bytes ({option}='bytes')")
    if kind is None:
        raise ConfigError(f"{option} is {given!r:.60}; it must be bytes, text, json, avro, Json(…) or Avro(…)")
    return kind


class _GivenRows(ArrowStream):
    """Up to ``limit`` rows of a stream. ``left_out`` describes the records that the stream left out. Not
    thread-safe."""

    def __init__(self, rows: ArrowStream, limit: int | None, left_out: LeftOut | None = None) -> None:
        self.schema = rows.schema
        self._rows = rows
        self._left = limit
        self._left_out = left_out
        self._tells = left_out is not None and {"partition", "offset"} <= {*rows.schema.names}

    def __next__(self) -> pa.RecordBatch:
        # At the limit, end the stream without a request for the next batch.
        if self._left == 0:
            raise StopIteration
        try:
            batch = next(self._rows)
        except StopIteration:
            if self._left_out is not None:
                self._left_out.note_end()
            raise
        if self._left is not None:
            batch = batch.slice(0, min(self._left, batch.num_rows))
            self._left -= batch.num_rows
        if self._left_out is not None and self._tells and batch.num_rows:
            self._left_out.note_given(batch.column("partition")[0].as_py(), batch.column("offset")[-1].as_py() + 1)
        given: pa.RecordBatch = batch
        return given


class _FollowedRows(ArrowStream, Closing):
    """An endless stream of a topic's records as they arrive. Not thread-safe."""

    def __init__(self, reader: TopicReader, snapshot: LogSnapshot, plan: ReadPlan, left_out: LeftOut) -> None:
        self.schema = topic_schema(plan.columns, plan.types)
        self._condition = None if plan.filter is None else Condition(plan.filter, topic_schema(types=plan.types))
        wanted = () if self._condition is None else self._condition.columns
        lookup, begin = reader.lookup(snapshot), Earliest() if plan.start is None else cast("Place", plan.start)
        windows = {where: (first, first) for where, (first, _) in lookup.clamp(begin, Latest()).items()}
        lookup.check_readable(windows, begin, Latest())
        numbers = sorted(number for _, number in snapshot.logs)
        columns = tuple(dict.fromkeys((*plan.columns, *wanted)))
        self._columns = TopicColumns(columns, plan.types, reader.query.topic, numbers)
        for where in windows:
            left_out.begin(snapshot.logs[where], snapshot.logs[where].end, snapshot.logs[where].end)
        self._left_out = left_out
        places = {where: snapshot.logs[where].position(first) for where, (first, _) in windows.items()}
        self._tail: LogTail = reader.follow(places, ReadSettings(columns=self._columns.decoded))

    def __next__(self) -> pa.RecordBatch:
        while True:
            given = self._tail.poll(_POLL_S)
            if given is None or not given.records.num_rows:
                continue
            rows = self._columns.convert(given.records, given.where)
            if self._condition is not None:
                rows = self._condition.filter(rows)
            if rows.num_rows:
                return rows.select(self.schema.names)

    def close(self) -> None:
        self._tail.close()
        self._left_out.aborted_in_tail = self._tail.aborted
