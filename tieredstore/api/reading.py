"""What a read and a query are told, and how they begin.

It lies apart from the bucket, which imports it once it is asked for: it needs pyarrow.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypedDict, cast, get_args

import pyarrow as pa

from tieredstore.api.positions import GivenPlace, place_of
from tieredstore.api.reads import Read
from tieredstore.api.scopes import Partitions, TopicIdLike, partition_set, topic_id_of
from tieredstore.errors import ConfigError, quoted
from tieredstore.model import Earliest, Isolation, Last, Latest, Place
from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes, TopicColumns, topic_schema
from tieredstore.query.topic_read import ReadPlan
from tieredstore.query.topic_scan import begin_read
from tieredstore.reading.query import LogQuery, QueryWords
from tieredstore.reading.reader import TopicReader
from tieredstore.records.arrow_stream import ArrowStream
from tieredstore.records.settings import OnDataLoss, ReadSettings
from tieredstore.values import Binary, Text, ValueType

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.reading.tail import LogTail

TypeName: TypeAlias = "Literal['bytes', 'text'] | ValueType"
"""What keys or values are read as: as they are, as UTF-8, or as ``Json(schema)`` and ``Avro(schema)`` say."""

_POLL_S: Final = 0.5


class ReadOptions(TypedDict, total=False):
    """How records are read; the same for reads and queries. ``key`` and ``value`` are bytes, in SQL text."""

    columns: Sequence[str]
    filter: Any
    follow: bool
    key: TypeName
    value: TypeName
    isolation: Isolation
    on_loss: OnDataLoss
    topic_id: TopicIdLike
    parallel: int


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
    """The records of a topic between two places, or the last ones, of bucket and broker as one log."""
    begin, end = _window(start, stop, last)
    chosen = partition_set(partitions)
    columns = _columns(how)
    types = types_of(how, "bytes")
    if (follow := how.get("follow", False)) and (stop is not None or last is not None):
        raise ConfigError("follow has no end: leave stop and last out")
    query = LogQuery.of_topic(
        topic, chosen, isolation=isolation_of(how), on_data_loss=policy_of(how), client=bucket.broker,
        topic_id=topic_id_of(how.get("topic_id")), words=QueryWords(accept_loss="use on_loss='report'"),
    )  # fmt: skip
    with contextlib.ExitStack() as opened:
        manager = bucket.manager
        reader = opened.enter_context(TopicReader(lambda: manager, query))
        snapshot = reader.snapshot()
        rows: ArrowStream
        if follow:
            rows = opened.enter_context(_FollowedRows(reader, snapshot, begin, columns, types))
        else:
            plan = ReadPlan(begin, end, columns, how.get("filter"), types, parallelism=how.get("parallel"))
            rows = opened.enter_context(begin_read(reader, snapshot, plan, owns_reader=False))
        return Read(rows, opened.pop_all(), are_records=True)


def query_rows(bucket: Bucket, sql: str, how: ReadOptions) -> Read:
    """The rows of a query over topics, in DuckDB's SQL."""
    from tieredstore.duckdb.query_tables import QueryTables  # noqa: PLC0415  of the extra `query`
    from tieredstore.query.batch_tables import batches_beside  # noqa: PLC0415
    from tieredstore.query.topic_table import TableOptions  # noqa: PLC0415

    _check_text(sql)
    options = TableOptions(
        types_of(how, "text"), isolation_of(how), policy_of(how), bucket.broker, parallelism=how.get("parallel")
    )
    manager = bucket.manager
    with contextlib.ExitStack() as opened:
        batches = batches_beside(manager.store, manager.settings)
        tables = opened.enter_context(QueryTables(manager, options, batches=batches))
        return Read(tables.run(sql), opened.pop_all(), are_records=False)


def _check_text(sql: object) -> None:
    if not isinstance(sql, str):
        raise ConfigError(f"sql is of the type {type(sql).__name__}; give a query")


def types_of(how: Mapping[str, Any], default: Literal["bytes", "text"]) -> ColumnTypes:
    """What keys and values are read as; ConfigError for what is none."""
    return ColumnTypes(_type("key", how.get("key", default)), _type("value", how.get("value", default)))


def isolation_of(how: Mapping[str, Any]) -> Isolation:
    """Kafka's isolation level: read_committed unless it says otherwise."""
    given: Any = how.get("isolation", "read_committed")
    if given not in get_args(Isolation):
        raise ConfigError(f"isolation is {given!r:.60}; it must be read_committed or read_uncommitted")
    level: Isolation = given
    return level


def policy_of(how: Mapping[str, Any]) -> OnDataLoss:
    """What becomes of a read that meets lost offsets: it fails unless it says otherwise."""
    given: Any = how.get("on_loss", "fail")
    if given not in get_args(OnDataLoss):
        raise ConfigError(f"on_loss is {given!r:.60}; it must be fail or report")
    policy: OnDataLoss = given
    return policy


def _window(start: GivenPlace, stop: GivenPlace, last: int | None) -> tuple[Place | None, Place | None]:
    begin, end = place_of("start", start), place_of("stop", stop)
    if last is None:
        if isinstance(begin, int) and isinstance(end, int) and begin > end:
            raise ConfigError(f"start {begin} is after stop {end}")
        return begin, end
    if start is not None:
        raise ConfigError("last and start exclude each other")
    if type(last) is not int or last < 0:
        raise ConfigError(f"last is {last!r:.60}; give how many records")
    return Last(last), end


def _columns(how: ReadOptions) -> tuple[str, ...]:
    columns: Any = how.get("columns", TOPIC_COLUMNS)
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ConfigError(f"columns is of the type {type(columns).__name__}; give a list of names")
    names = cast("Sequence[str]", columns)
    for name in names:
        if name not in TOPIC_COLUMNS:
            meant = difflib.get_close_matches(str(name), TOPIC_COLUMNS, n=1)
            hint = f"did you mean {meant[0]!r}?" if meant else f"there are {', '.join(TOPIC_COLUMNS)}"
            raise ConfigError(f"no column {quoted(name)}; {hint}")
    return tuple(names)


def _type(name: str, given: Any) -> ValueType:
    match given:
        case "bytes":
            return Binary()
        case "text":
            return Text(way_out=f"read it as bytes ({name}='bytes')")
        case _ if isinstance(given, str) or not hasattr(given, "convert"):
            raise ConfigError(f"{name} is {given!r:.60}; it must be bytes, text, Json(…) or Avro(…)")
        case _:
            kind: ValueType = given
            return kind


class _FollowedRows(ArrowStream):
    """The records of a topic as they come, without an end. For one thread."""

    def __init__(
        self, reader: TopicReader, snapshot: Any, begin: Place | None, columns: tuple[str, ...], types: ColumnTypes
    ) -> None:
        self.schema = topic_schema(columns, types)
        lookup = reader.lookup(snapshot)
        windows = lookup.clamped(Earliest() if begin is None else begin, Latest())
        numbers = sorted(number for _, number in snapshot.logs)
        self._columns = TopicColumns(columns, types, reader.query.topic, numbers)
        reader.settings = ReadSettings(columns=self._columns.decoded)
        places = {where: snapshot.logs[where].position(first) for where, (first, _) in windows.items()}
        self._tail: LogTail = reader.follow(places)

    def __next__(self) -> pa.RecordBatch:
        while True:
            given = self._tail.poll(_POLL_S)
            if given is not None and given.records.num_rows:
                return self._columns.convert(given.records, given.where).select(self.schema.names)

    def close(self) -> None:
        self._tail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self
