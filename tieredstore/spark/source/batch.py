"""The batch reader: offsets are resolved once, beside the driver, narrowed by Spark's filters, and cut into tasks."""

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
    """Reads what the options select."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds: Bounds | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the offsets, and cut them into tasks."""
        spare_modules()
        with one_sentence():
            return self._plan()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return each_in_one_sentence(read_task(partition, self._options))

    def _plan(self) -> list[InputPartition]:
        options, query = self._options, query_of(self._options)
        open_source = partial(manager_of, options.store)
        with TopicReader(open_source, query) as reader:
            snapshot = reader.snapshot()
            lookup = reader.lookup(snapshot)
            windows = lookup.exact(options.starting, options.ending, if_too_late=options.timestamp_strategy)
        lookup.check_readable(windows, options.starting, options.ending)
        windows = self._narrow(windows)
        since = None if self._bounds is None else self._bounds.since_ms
        options = replace(options, max_split_bytes=self._split_bytes(snapshot, windows))
        return plan_tasks(open_source(), snapshot, windows, options, since_ms=since)

    def _split_bytes(self, snapshot: LogSnapshot, windows: Mapping[TopicPartition, OffsetWindow]) -> int:  # noqa: ARG002  for others
        """How much of a log one task reads at most."""
        return self._options.max_split_bytes

    def _narrow(self, windows: dict[TopicPartition, OffsetWindow]) -> dict[TopicPartition, OffsetWindow]:
        """What Spark's filters leave of the windows."""
        bounds = self._bounds
        if bounds is None:
            return windows
        return {where: bounds.window(*window) for where, window in windows.items() if bounds.admits(*where)}


class PushdownBatchReader(BatchReader):
    """A batch reader that leaves out what Spark's filters exclude; Spark still looks at every row that it gives.

    Apart, because Spark refuses readers with ``pushFilters`` unless it is told to use them, and asked for by an option:
    Spark keeps the tasks of a DataFrame's latest filters, and reads these for its other uses too.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep what the filters say of topics, partitions, offsets and times; all are Spark's to check as well."""
        self._bounds = bounds_of(filters)
        return filters


_END: Final = MAX_OFFSET + 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may hold a row that the filters let through: no narrower than that, and Spark looks at each row again.

    ``topics`` and ``partitions`` are None where any will do, and topics begin with all ``beginnings``. Numbers of
    partitions are also ``first_partition`` up to ``stop_partition``, and offsets ``first_offset`` up to
    ``stop_offset`` (both half-open). ``since_ms`` leaves out what holds only earlier records; there is no bound on
    later ones, since records need not be in the order of time.
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
        """What both leave."""
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
        """Whether a partition may have such rows."""
        named = self.partitions is None or partition in self.partitions
        of_topic = self.topics is None or topic in self.topics
        begun = all(topic.startswith(beginning) for beginning in self.beginnings)
        return of_topic and begun and named and self.first_partition <= partition < self.stop_partition

    def window(self, start: int, stop: int) -> tuple[int, int]:
        """What of the offsets ``start`` up to ``stop`` (half-open) may have such rows; nothing is at ``start``."""
        first, last = max(start, self.first_offset), min(stop, self.stop_offset)
        return (first, last) if first < last else (start, start)


def _both(one: frozenset[_Value] | None, other: frozenset[_Value] | None) -> frozenset[_Value] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """What all ``filters`` together leave; one that is not of topic, partition, offset or timestamp is skipped."""
    # Spark applies every filter again: one that is not understood costs time, and no row.
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
    """Rows that have one of ``values``; none of ours is ever null, so that a null finds nothing."""
    match column:
        case "topic" if topics := _all(values, str):
            return Bounds(topics=frozenset(topics))
        case "partition" if numbers := _all(values, int):
            return Bounds(partitions=frozenset(numbers))
        case "offset" if numbers := _all(values, int):
            # One window, although the values may lie far apart: rows between them are left out by Spark.
            return Bounds(first_offset=min(numbers), stop_offset=max(numbers) + 1)
        case "timestamp" if times := _all(values, datetime):
            return _from(column, min(times, key=_microseconds), beyond=False)
        case _:
            return Bounds()


def _from(column: str, value: object, *, beyond: bool) -> Bounds:
    """Rows that have ``value`` or more, or only more."""
    match column, value:
        case "partition", int():
            return Bounds(first_partition=value + beyond)
        case "offset", int():
            return Bounds(first_offset=value + beyond)
        case "timestamp", datetime():
            # Records have whole milliseconds: the first one that is not before, or that is after, the microsecond.
            return Bounds(since_ms=-(-(_microseconds(value) + beyond) // 1000))
        case _:
            return Bounds()


def _upto(column: str, value: object, *, beyond: bool) -> Bounds:
    """Rows that have less than ``value``, or also ``value`` itself."""
    match column, value:
        case "partition", int():
            return Bounds(stop_partition=value + beyond)
        case "offset", int():
            return Bounds(stop_offset=value + beyond)
        case _:
            return Bounds()


def _all(values: Sequence[object], kind: type[_Value]) -> list[_Value]:
    """The values that are not null, if all are of this kind; else, and if there are none, an empty list."""
    known = [value for value in values if value is not None]
    of_kind = [value for value in known if isinstance(value, kind)]
    return of_kind if len(of_kind) == len(known) else []


def _microseconds(moment: datetime) -> int:
    """Since 1970, exactly. Spark hands over an instant with its zone; one without is in UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
