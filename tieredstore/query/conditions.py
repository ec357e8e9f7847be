"""Finds the partitions, offsets and times that a filter excludes, so that their records need not be read.

This module works on Arrow's expressions, and uses neither logs nor readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from tieredstore.errors import ConfigError, excerpt
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicPartition

_INT32: Final = pa.int32()
_MS: Final = pa.timestamp("ms", "UTC")
_LATEST_MS: Final = 1 << 62
_NO_COLUMN: Final = re.compile(r"No match for FieldRef\.(?:Name\((.*?)\) in|Nested)")


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """Records of a partition with offsets from ``start`` up to ``stop`` (exclusive), none earlier than ``earliest_ms``
    or later than ``latest_ms``."""

    where: TopicPartition
    start: int
    stop: int
    latest_ms: int | None = None
    earliest_ms: int | None = None


class Condition:
    """A filter (a pyarrow expression) over the columns of ``schema``. It excludes records only if none of them can
    pass.

    For a partition, a range of offsets or a greatest timestamp, Arrow decides if the expression can be true. Arrow
    decides in the same way which files of a dataset it skips. Raise ConfigError for unknown columns or an invalid
    comparison.
    """

    def __init__(self, expression: ds.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self._schema = schema
        # Arrow compares a range of values only with a column that has no dictionary.
        types = (one.type.value_type if pa.types.is_dictionary(one.type) else one.type for one in schema)
        self._plain = pa.schema(list(zip(schema.names, types, strict=True)))
        self._may_hold([None])
        try:
            pa.RecordBatch.from_pylist([], schema=schema).filter(expression)
        except (pa.ArrowException, TypeError) as error:
            raise _refused_filter(expression, schema, error) from None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the expression uses, in the order of the schema."""
        return tuple(name for name in self._schema.names if not self._binds_without(name))

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the filter holds. Raise ConfigError if the filter cannot be computed, for example
        if a sum overflows.
        """
        try:
            rows = batch.filter(self._expression)
        except pa.ArrowException:
            # Do not show Arrow's message, which may contain a record's data.
            raise ConfigError(
                f"the filter {excerpt(self._expression)} cannot be computed for a record: a number is too large, or a "
                "text cannot be converted to the type that the filter needs"
            ) from None
        return rows

    def possible(self, spans: Iterable[PartitionSpan]) -> list[PartitionSpan]:
        """Return the spans that may have records for which the filter holds, in the same order."""
        asked = list(spans)
        if not asked:
            return []
        kept = self._may_hold_in(asked, ("partition", "offset"))
        return [span for span, is_kept in zip(asked, kept, strict=True) if is_kept]

    def hull(self, spans: Sequence[PartitionSpan]) -> tuple[int, int]:
        """Return the start and exclusive end of the smallest range with all offsets that can pass the filter.

        ``spans`` are spans of one partition that :meth:`possible` returned. Each begins where the previous one ends.
        """
        first, last = spans[0], spans[-1]
        start = _least(
            first.start, first.stop - 1,
            lambda at: self._may_hold_in([PartitionSpan(first.where, first.start, at + 1, first.latest_ms)])[0],
        )  # fmt: skip
        stop = -_least(
            -last.stop, -last.start - 1,
            lambda at: self._may_hold_in([PartitionSpan(last.where, -at - 1, last.stop, last.latest_ms)])[0],
        )  # fmt: skip
        return start, max(start, stop)

    def since_ms(self) -> int | None:
        """Return the earliest timestamp that can pass the filter; None if the filter has no such limit."""
        if self._may_hold_before(0):
            return None
        return _least(0, _LATEST_MS, self._may_hold_before)

    def holds_for_all(self, span: PartitionSpan) -> bool:
        """Return True if every record of the span certainly passes, so that the filter need not be applied."""
        others = Condition(~self._expression | self._expression.is_null(), self._schema)
        return not others._may_hold_in([span])[0]

    def _may_hold_in(self, spans: Sequence[PartitionSpan], exact: Sequence[str] = ("partition",)) -> list[bool]:
        """Return True for each span that may have a record for which the filter holds. ``exact`` are the columns whose
        value Arrow gets, and not only a range, if the span has only one."""
        try:
            return self._may_hold([_of_span(span, exact) for span in spans])
        except ConfigError:
            if not exact:
                raise
            # The filter cannot be computed for a partition or offset, for example because it divides by 0.
            return self._may_hold_in(spans, exact[:-1])

    def _may_hold_before(self, timestamp_ms: int) -> bool:
        """Return True if the filter may hold for a record with this timestamp or an earlier one."""
        return self._may_hold([ds.field("timestamp") <= pa.scalar(timestamp_ms, _MS)])[0]

    def _binds_without(self, name: str) -> bool:
        rest = pa.schema([field for field in self._schema if field.name != name])
        try:
            _fragments(rest, [ds.scalar(True)], self._expression)
        except pa.ArrowInvalid:
            return False
        return True

    def _may_hold(self, guarantees: Sequence[ds.Expression | None]) -> list[bool]:
        known = [ds.scalar(True) if guarantee is None else guarantee for guarantee in guarantees]
        try:
            kept = _fragments(self._plain, known, self._expression)
        except (pa.ArrowException, TypeError) as error:
            raise _refused_filter(self._expression, self._schema, error) from None
        return [str(number) in kept for number in range(len(known))]


def _fragments(schema: pa.Schema, guarantees: Sequence[ds.Expression], expression: ds.Expression) -> set[str]:
    """Return the names of the files that Arrow would read for ``expression`` if each file satisfied one of
    ``guarantees``.

    The files do not exist, because Arrow needs only their names. A name is the index of the file's guarantee.
    """
    names = [str(number) for number in range(len(guarantees))]
    files = ds.FileSystemDataset.from_paths(
        names, schema=schema, format=ds.IpcFileFormat(), filesystem=LocalFileSystem(), partitions=guarantees
    )
    return {fragment.path for fragment in files.get_fragments(filter=expression)}


def _of_span(span: PartitionSpan, exact: Sequence[str]) -> ds.Expression:
    topic, partition = span.where
    number, start = pa.scalar(partition, _INT32), pa.scalar(span.start)
    known = [ds.field("topic") == pa.scalar(topic)]
    for name, first, last in (
        ("partition", number, number),
        ("offset", start, pa.scalar(min(span.stop - 1, MAX_OFFSET))),
    ):
        column = ds.field(name)
        # Arrow computes a condition such as ``offset != 7`` only for an exact value.
        known += [column == first] if name in exact and first == last else [column >= first, column <= last]
    if span.latest_ms is not None:
        known.append(ds.field("timestamp") <= pa.scalar(span.latest_ms, _MS))
    if span.earliest_ms is not None:
        known.append(ds.field("timestamp") >= pa.scalar(span.earliest_ms, _MS))
    return reduce(lambda one, other: one & other, known)


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Find the smallest number from ``low`` to ``high`` for which ``holds`` is true, by bisection.

    ``holds`` must be true for ``high``. If it is true for a number, it must be true for all greater numbers.
    """
    if holds(low):
        return low
    while low + 1 < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _refused_filter(expression: object, schema: pa.Schema, error: Exception) -> ConfigError:
    """Return a ConfigError in place of ``error``, which Arrow raised for an expression over the columns of
    ``schema``."""
    # Show only the column's name, because the rest of Arrow's message is about its own functions and classes.
    missing = _NO_COLUMN.match(str(error))
    if missing is not None:
        named = "such column" if missing[1] is None else f"column {excerpt(missing[1])}"
        reason = f"there is no {named}, but {', '.join(schema.names)}"
    else:
        types = ", ".join(f"{column.name} {_type_text(column.type)}" for column in schema)
        reason = f"it must be true or false of a record, and compare a column with values of its type: {types}"
    return ConfigError(f"the filter {excerpt(expression)} cannot be applied: {reason}")


def _type_text(kind: pa.DataType) -> str:
    return excerpt(kind.value_type if pa.types.is_dictionary(kind) else kind, 60)
