"""The reader of batch queries. It resolves offsets once, in a planning process separate from the driver, and plans the
tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from tieredstore.limits import MAX_OFFSET
from tieredstore.model import EPOCH
from tieredstore.reading.reader import TopicReader
from tieredstore.spark.source.options import SourceOptions
from tieredstore.spark.source.store_source import manager_of
from tieredstore.spark.source.tasks import plan_tasks, query_of, read_task
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence, spare_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow
    from tieredstore.reading.log_snapshot import LogSnapshot


class BatchReader(DataSourceReader):
    """Reads the records that the options select."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """Find the offsets to read, and divide them among tasks."""
        spare_modules()
        with one_sentence():
            return self._plan()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))

    def _plan(self) -> list[InputPartition]:
        options, query = self._options, query_of(self._options)
        open_source = partial(manager_of, options.store)
        with TopicReader(open_source, query) as reader:
            snapshot = reader.snapshot()
            lookup = reader.lookup(snapshot)
            windows = lookup.exact(options.starting, options.ending, if_too_late=options.timestamp_strategy)
        lookup.check_readable(windows, options.starting, options.ending)
        bounds = self._bounds
        windows = {where: bounds.window(*window) for where, window in windows.items() if bounds.admits(*where)}
        options = replace(options, max_split_bytes=self._split_bytes(snapshot, windows))
        return plan_tasks(open_source(), snapshot, windows, options, since_ms=bounds.since_ms)

    def _split_bytes(self, snapshot: LogSnapshot, windows: Mapping[TopicPartition, OffsetWindow]) -> int:  # noqa: ARG002  subclasses use it
        """Return the maximum bytes of a log that one task reads."""
        return self._options.max_split_bytes


class PushdownBatchReader(BatchReader):
    """A batch reader that skips data which Spark's filters exclude. Spark still checks every row.

    This is a separate class, because Spark rejects readers with ``pushFilters`` if its configuration forbids pushdown.

    Users must enable pushdown by an option, because it may give wrong results: Spark caches the tasks for the last
    filters of a DataFrame, and reuses these tasks in other queries of the same DataFrame.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use filters on topics, partitions, offsets and timestamps. Return all filters, so that Spark applies them
        too.
        """
        self._bounds = bounds_of(filters)
        return filters


_END: Final = MAX_OFFSET + 1

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of topic, partition, offset and time. They include all rows that match Spark's filters, and possibly more,
    because Spark checks each row again.

    - ``topics`` and ``partitions``: allowed values, None for any. A topic must start with all ``beginnings``.
    - ``first_partition`` to ``stop_partition``, ``first_offset`` to ``stop_offset``: ranges with exclusive ends.
    - ``since_ms``: splits with only earlier records are skipped. Time has no upper bound, because records need not
      be in order of time.
    """

    topics: frozenset[str] | None = None
    beginnings: tuple[str, ...] = ()
    partitions: frozenset[int] | None = None
    first_partition: int = 0
    stop_partition: int = _END
    first_offset: int = 0
    stop_offset: int = _END
    since_ms: int | None = None

    def __and__(self, other: Bounds) -> Bounds:
        """Return the bounds of the rows that are within both bounds."""
        return Bounds(
            topics=_both(self.topics, other.topics),
            beginnings=self.beginnings + other.beginnings,
            partitions=_both(self.partitions, other.partitions),
            first_partition=max(self.first_partition, other.first_partition),
            stop_partition=min(self.stop_partition, other.stop_partition),
            first_offset=max(self.first_offset, other.first_offset),
            stop_offset=min(self.stop_offset, other.stop_offset),
            since_ms=max((one for one in (self.since_ms, other.since_ms) if one is not None), default=None),
        )

    def admits(self, topic: str, partition: int) -> bool:
        """Return False if the bounds exclude the whole partition."""
        named = self.partitions is None or partition in self.partitions
        of_topic = self.topics is None or topic in self.topics
        begun = all(topic.startswith(beginning) for beginning in self.beginnings)
        return of_topic and begun and named and self.first_partition <= partition < self.stop_partition

    def window(self, start: int, stop: int) -> tuple[int, int]:
        """Return the part of the range ``start`` to ``stop`` (exclusive) that is within the bounds. It may be empty."""
        first, last = max(start, self.first_offset), min(stop, self.stop_offset)
        return (first, last) if first < last else (start, start)


def _both(one: frozenset[_Value] | None, other: frozenset[_Value] | None) -> frozenset[_Value] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return the bounds of all ``filters``. Filters on columns other than topic, partition, offset and timestamp are
    ignored.
    """
    # Ignore unknown filters. This costs time but gives no wrong row, because Spark applies every filter again.
    bounds = Bounds()
    for one in filters:
        match one:
            case EqualTo(attribute=(column,), value=value) | EqualNullSafe(attribute=(column,), value=value):
                bounds &= _among(column, (value,))
            case In(attribute=(column,), value=values):
                bounds &= _among(column, values)
            case GreaterThan(attribute=(column,), value=value):
                bounds &= _from(column, value, beyond=True)
            case GreaterThanOrEqual(attribute=(column,), value=value):
                bounds &= _from(column, value, beyond=False)
            case LessThan(attribute=(column,), value=value):
                bounds &= _upto(column, value, beyond=False)
            case LessThanOrEqual(attribute=(column,), value=value):
                bounds &= _upto(column, value, beyond=True)
            case StringStartsWith(attribute=("topic",), value=str() as beginning):
                bounds &= Bounds(beginnings=(beginning,))
            case _:
                pass
    return bounds


def _among(column: str, values: Sequence[object]) -> Bounds:
    """Return bounds that include all rows with one of ``values`` in the column. A null among the values matches
    no row.
    """
    match column:
        case "topic" if topics := _all(values, str):
            return Bounds(topics=frozenset(topics))
        case "partition" if numbers := _all(values, int):
            return Bounds(partitions=frozenset(numbers))
        case "offset" if numbers := _all(values, int):
            # Return one offset range that covers all values of the filter, even if they are far apart. Spark drops the
            # rows between them.
            return Bounds(first_offset=min(numbers), stop_offset=max(numbers) + 1)
        case "timestamp" if times := _all(values, datetime):
            return _from(column, min(times, key=_microseconds), beyond=False)
        case _:
            return Bounds()


def _from(column: str, value: object, *, beyond: bool) -> Bounds:
    """Return bounds of the rows whose column is at least ``value``. With ``beyond``, exclude ``value`` itself."""
    match column, value:
        case "partition", int():
            return Bounds(first_partition=value + beyond)
        case "offset", int():
            return Bounds(first_offset=value + beyond)
        case "timestamp", datetime():
            # Round up, because record timestamps are whole milliseconds, but filters have microseconds.
            return Bounds(since_ms=-(-(_microseconds(value) + beyond) // 1000))
        case _:
            return Bounds()


def _upto(column: str, value: object, *, beyond: bool) -> Bounds:
    """Return bounds of the rows whose column is less than ``value``. With ``beyond``, include ``value`` itself."""
    match column, value:
        case "partition", int():
            return Bounds(stop_partition=value + beyond)
        case "offset", int():
            return Bounds(stop_offset=value + beyond)
        case _:
            return Bounds()


def _all(values: Sequence[object], kind: type[_Value]) -> list[_Value]:
    """Return the values without nulls if all of them are of this type, else an empty list."""
    known = [value for value in values if value is not None]
    of_kind = [value for value in known if isinstance(value, kind)]
    return of_kind if len(of_kind) == len(known) else []


def _microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970. Spark passes datetimes with a zone. A datetime without zone counts as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)
