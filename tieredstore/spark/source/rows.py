"""Rows of the Spark data sources: their schemas, and the conversion of decoded records to rows without copying values.

This module also converts the results of a user's function over records, which runs in the task that decodes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tieredstore.errors import ConfigError, TieredStoreError, excerpt
from tieredstore.kafka.arrow_values import repeat_value, scalar_of
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""Type of the column ``headers``."""

OutOfRange: TypeAlias = Literal["fail", "null"]
"""What to do with a timestamp outside Spark's range (64 bits of microseconds): fail or replace it by null."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns of a Spark source, and the names of the same columns in the decoder.

    ``of_batch`` names the columns that the caller adds with one value per batch, because the decoder does not provide
    them. If a query requests only these columns, the decoder reads the column ``counted``, so that rows can be counted.
    """

    types: Mapping[str, DataType]
    of_batch: tuple[str, ...]
    counted: str
    decoder_names: Mapping[str, str] = field(default_factory=dict[str, str])
    out_of_range_way: str = ""
    """Text for the error about a timestamp beyond Spark's range. The text names the option that accepts such
    timestamps, and is empty if there is no such option.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the source. A query has the column ``headers`` only if it requests that column."""
        return tuple(self.types)


KAFKA_ROWS: Final = RowLayout(
    {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        "timestampType": IntegerType(),
        "headers": HEADERS,
    },
    of_batch=("topic", "partition"),
    counted="offset",
)
"""The columns of Spark's Kafka source, in its order."""

MEMQ_ROWS: Final = RowLayout(
    {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "message": IntegerType(),
        "record": IntegerType(),
        "timestamp": TimestampType(),
        "messageId": BinaryType(),
        "headers": HEADERS,
    },
    of_batch=("topic", "partition", "offset"),
    counted="record",
    decoder_names={"messageId": "message_id"},
    out_of_range_way=", or read it as null (timestampOutOfRange=null)",
)
"""The columns of a topic of batches."""

COLUMNS: Final = tuple(name for name in KAFKA_ROWS.columns if name != "headers")
"""The default columns of a query."""

_ZERO: Final = scalar_of(0, pa.int32())
_THOUSAND: Final = scalar_of(1000, pa.int64())
_TRUE: Final = scalar_of(True, pa.bool_())
_MOST_MS: Final = ((1 << 63) - 1) // 1000


class RowShape:
    """Converts decoded records into rows with ``columns``, in that order. Not thread-safe, not picklable."""

    def __init__(
        self, columns: Sequence[str], layout: RowLayout = KAFKA_ROWS, *, out_of_range: OutOfRange = "fail"
    ) -> None:
        types = layout.types
        if not columns or len(set(columns)) < len(columns) or not types.keys() >= set(columns):
            raise ConfigError(f"columns {', '.join(columns)}: choose from {', '.join(types)}, each at most once")
        self.columns = tuple(columns)
        self.schema = StructType([StructField(name, types[name]) for name in columns])
        self.arrow_schema: pa.Schema = to_arrow_schema(self.schema, timezone="UTC")
        self._layout, self._out_of_range = layout, out_of_range
        self._constants: dict[str, tuple[str | int | None, pa.Array]] = {}

    @property
    def decoder_columns(self) -> tuple[str, ...]:
        """The columns to decode. There is at least one column, so that rows can be counted."""
        names = self._layout.decoder_names
        wanted = (names.get(name, name) for name in self.columns if name not in self._layout.of_batch)
        return tuple(wanted) or (self._layout.counted,)

    def convert(self, records: pa.RecordBatch, *of_batch: str | int | None) -> pa.RecordBatch:
        """Convert ``records``, which must have at least ``decoder_columns``, to rows. Keys and values are not copied.

        ``of_batch`` has a value for each column in the layout's ``of_batch``, in order.
        """
        constants = dict(zip(self._layout.of_batch, of_batch, strict=True))
        arrays = [
            self._repeat(name, constants[name], records.num_rows)
            if name in constants
            else self._build_column(name, records)
            for name in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def _build_column(self, name: str, records: pa.RecordBatch) -> pa.Array:
        kind = self.arrow_schema.field(name).type
        column = records.column(self._layout.decoder_names.get(name, name))
        match name:
            case "timestamp":
                return self._microseconds(column, kind)
            case "timestampType":
                return column.cast(kind)
            case "headers":
                return _spark_headers(column, kind)
            case _:
                return column

    def _microseconds(self, milliseconds: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return timestamps in Spark's type. As in Spark's Kafka source, a record without timestamp (-1) is 1 ms
        before 1970.
        """
        if self._out_of_range == "null":
            holds = pc.and_(pc.less_equal(milliseconds, _MOST_MS), pc.greater_equal(milliseconds, -_MOST_MS))
            milliseconds = pc.if_else(holds, milliseconds, pa.scalar(None, milliseconds.type))
        try:
            return pc.multiply_checked(milliseconds, _THOUSAND).view(kind)
        except pa.ArrowInvalid as error:
            farthest = max(pc.min_max(milliseconds).as_py().values(), key=abs)
            raise ConfigError(
                f"a record's timestamp is {farthest} ms, outside Spark's range; leave out the column timestamp "
                f"(option columns){self._layout.out_of_range_way}"
            ) from error

    def _repeat(self, name: str, value: str | int | None, count: int) -> pa.Array:
        """Return a column of ``count`` equal values. It is a slice of a cached array, which grows with the largest
        batch."""
        known, constants = self._constants.get(name, (None, None))
        if constants is None or known != value or len(constants) < count:
            constants = repeat_value(value, count, self.arrow_schema.field(name).type)
            self._constants[name] = value, constants
        return constants.slice(0, count)


def _spark_headers(headers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return headers in Spark's type, without copying keys or values. Like Spark's Kafka source, give null to records
    without headers.
    """
    assert isinstance(headers, pa.ListArray)
    assert isinstance(kind, pa.ListType)
    pairs, struct = headers.values, kind.value_type
    assert isinstance(pairs, pa.StructArray)
    is_null = pc.fill_null(pc.equal(pc.list_value_length(headers), _ZERO), _TRUE)
    fields = [struct.field(0), struct.field(1)]
    typed = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=fields)
    # Arrow accepts a mask only with offsets that begin at the start of their buffer. The offsets of a slice do not, so
    # copy them.
    offsets = pc.add(headers.offsets, _ZERO) if headers.offset else headers.offsets
    return pa.ListArray.from_arrays(offsets, typed, type=kind, mask=is_null)


RecordFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Takes an iterator over the record batches of a task, and returns an iterator over batches of rows."""


@dataclass(frozen=True, slots=True)
class MappedRows:
    """A function over records, and the schema of its rows. Spark pickles it for the tasks."""

    function: RecordFunction
    schema: StructType


def schema_of(schema: StructType | pa.Schema | str) -> StructType:
    """Convert a schema to Spark's. Raise ConfigError if it is invalid."""
    match schema:
        case StructType():
            return schema
        case str():
            return _parse_ddl(schema)
        case _ if isinstance(cast("object", schema), pa.Schema):
            return from_arrow_schema(schema)
        case _:
            raise ConfigError(
                f"schema is of the type {type(schema).__name__}; it must be Spark's StructType, a DDL text or a "
                "pyarrow.Schema"
            )


def apply_function(rows: Iterator[pa.RecordBatch], mapped: MappedRows | None) -> Iterator[pa.RecordBatch]:
    """Yield ``rows``, or the function's results if there is one, with exactly the types that Spark wants.

    If this package raises an error in ``rows``, Spark shows it as one sentence. If the user's function raises an error,
    its traceback has no frames of this package.
    """
    if mapped is None:
        return each_in_one_sentence(rows)
    result = _Result(rows)
    # map() and chain() are C code, so they leave no frames in tracebacks.
    results = chain(map(mapped.function, (each_in_one_sentence(result.records()),)), (_ENDED,))
    return map(_Shape(mapped.schema).of, chain.from_iterable(map(result.rows, results)))


_ENDED: Final = object()


class _Result:
    """Results of the user's function, with a check that they cover all records.

    If the function raises StopIteration, or catches an error that reading the records raised, its rows only seem
    complete. In both cases, ``_Result`` raises an error after the last row.
    """

    def __init__(self, records: Iterator[pa.RecordBatch]) -> None:
        self._records = records
        self._error: TieredStoreError | None = None
        self._is_given = False

    def records(self) -> Iterator[pa.RecordBatch]:
        """Yield the records that the function receives. If reading fails, keep the error."""
        try:
            yield from self._records
        except TieredStoreError as error:
            self._error = error
            raise

    def rows(self, result: object) -> Iterator[object]:
        """Return an iterator over a result's rows. Raise ConfigError if the result is not an iterator.

        If reading the records failed and the function caught the error, raise that error after the last row. If there
        was no result, raise ConfigError.
        """
        with one_sentence():
            if result is not _ENDED:
                self._is_given = True
                if isinstance(result, pa.RecordBatch | pa.Table) or not isinstance(result, Iterable):
                    raise ConfigError(
                        f"the function returned {type(result).__name__}, not an iterator of pyarrow.RecordBatch: let "
                        "it yield batches"
                    )
                return iter(cast("Iterable[object]", result))
            if self._error is not None:
                raise self._error
            if not self._is_given:
                raise ConfigError(
                    "the function raised StopIteration, as next() does without a batch: give next() a default, or let "
                    "the function yield"
                )
            return iter(())


class _Shape:
    """Converts batches to the columns and types of a schema."""

    def __init__(self, schema: StructType) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def of(self, batch: object) -> pa.RecordBatch:
        """Return a batch as Spark needs it. Raise ConfigError if its columns, their types or nulls do not fit the
        schema."""
        with one_sentence():
            if not isinstance(batch, pa.RecordBatch):
                raise ConfigError(f"the function yielded {type(batch).__name__}, but must yield pyarrow.RecordBatch")
            return _check_nulls(batch if batch.schema.equals(self._schema) else self._convert(batch))

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        wanted, given = self._schema.names, batch.schema.names
        if sorted(wanted) != sorted(given):
            raise ConfigError(
                f"the function yielded the columns {', '.join(given)}, but the schema has {', '.join(wanted)}"
            )
        columns: list[pa.Array] = []
        for column_field in self._schema:
            column = batch.column(column_field.name)
            try:
                columns.append(column.cast(column_field.type))
            except pa.ArrowException:
                raise ConfigError(
                    f"the function yielded {column.type} in the column {column_field.name}, but the schema has "
                    f"{column_field.type}"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _check_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch. Raise ConfigError for a null in a NOT NULL column; Spark's own error names no column."""
    for column_field, column in zip(batch.schema, batch.columns, strict=True):
        if not column_field.nullable and column.null_count:
            row: int = pc.indices_nonzero(column.is_null())[0].as_py()
            given = [name for name in ("topic", "partition", "offset") if name in batch.schema.names]
            place = ", ".join(f"{name} {batch.column(name)[row]}" for name in given) or f"row {row} of a batch"
            raise ConfigError(
                f"the function yielded null in the column {column_field.name} ({place}), but the schema has NOT NULL: "
                "allow null in the schema, or let the function leave out such rows"
            )
    return batch


def _parse_ddl(words: str) -> StructType:
    try:
        return cast("StructType", StructType.fromDDL(words))
    except PySparkException as error:
        raise ConfigError(f"{excerpt(words)!r} is not a Spark schema: {excerpt(error)}") from None
