"""The rows of the sources: their schemas, and their Arrow form over decoded records without copying values.

Or the results of a user's function over records, in the task that decodes them.
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
"""The type of a record's headers."""

OutOfRange: TypeAlias = Literal["fail", "null"]
"""The policy for a record's time beyond Spark's timestamps, microseconds of 64 bits."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns of a source in their order, and the decoder's names of those that it provides.

    Columns ``of_batch`` are the same in all rows of a batch, and given by the caller; ``counted`` is decoded for the
    number of rows if no other column is requested.
    """

    types: Mapping[str, DataType]
    of_batch: tuple[str, ...]
    counted: str
    decoder_names: Mapping[str, str] = field(default_factory=dict[str, str])
    out_of_range_way: str = ""
    """The error's advice about a time that Spark cannot hold, if there is an option for it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns; ``headers`` only if requested."""
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
"""The default columns of a topic's query."""

_ZERO: Final = scalar_of(0, pa.int32())
_THOUSAND: Final = scalar_of(1000, pa.int64())
_TRUE: Final = scalar_of(True, pa.bool_())
_MOST_MS: Final = ((1 << 63) - 1) // 1000


class RowShape:
    """Converts decoded records into rows of ``columns``, in their order. For one thread; not to be pickled."""

    def __init__(
        self, columns: Sequence[str], layout: RowLayout = KAFKA_ROWS, *, out_of_range: OutOfRange = "fail"
    ) -> None:
        types = layout.types
        if not columns or len(set(columns)) < len(columns) or not types.keys() >= set(columns):
            raise ConfigError(f"columns {', '.join(columns)} are not some of {', '.join(types)}, each once")
        self.columns = tuple(columns)
        self.schema = StructType([StructField(name, types[name]) for name in columns])
        self.arrow_schema: pa.Schema = to_arrow_schema(self.schema, timezone="UTC")
        self._layout, self._out_of_range = layout, out_of_range
        self._constants: dict[str, tuple[str | int | None, pa.Array]] = {}

    @property
    def decoder_columns(self) -> tuple[str, ...]:
        """The columns to decode: at least one, for the number of rows."""
        names = self._layout.decoder_names
        wanted = (names.get(name, name) for name in self.columns if name not in self._layout.of_batch)
        return tuple(wanted) or (self._layout.counted,)

    def convert(self, records: pa.RecordBatch, *of_batch: str | int | None) -> pa.RecordBatch:
        """Return the rows of ``records``, which have at least ``decoder_columns``; keys and values are not copied.

        ``of_batch`` are the values of the layout's columns of that name.
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
        """As in Spark's Kafka source, a record without timestamp (-1) is a millisecond before 1970."""
        if self._out_of_range == "null":
            holds = pc.and_(pc.less_equal(milliseconds, _MOST_MS), pc.greater_equal(milliseconds, -_MOST_MS))
            milliseconds = pc.if_else(holds, milliseconds, pa.scalar(None, milliseconds.type))
        try:
            return pc.multiply_checked(milliseconds, _THOUSAND).view(kind)
        except pa.ArrowInvalid as error:
            farthest = max(pc.min_max(milliseconds).as_py().values(), key=abs)
            raise ConfigError(
                f"a record's timestamp is {farthest} ms, which Spark's timestamps cannot hold; leave the column "
                f"timestamp out (option columns){self._layout.out_of_range_way}"
            ) from error

    def _repeat(self, name: str, value: str | int | None, count: int) -> pa.Array:
        """Repeat ``value`` in every row: a slice of one array that grows with the largest batch."""
        known, constants = self._constants.get(name, (None, None))
        if constants is None or known != value or len(constants) < count:
            constants = repeat_value(value, count, self.arrow_schema.field(name).type)
            self._constants[name] = value, constants
        return constants.slice(0, count)


def _spark_headers(headers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return null for a record without headers, like Spark's Kafka source; keys and values are not copied."""
    assert isinstance(headers, pa.ListArray)
    assert isinstance(kind, pa.ListType)
    pairs, struct = headers.values, kind.value_type
    assert isinstance(pairs, pa.StructArray)
    is_null = pc.fill_null(pc.equal(pc.list_value_length(headers), _ZERO), _TRUE)
    fields = [struct.field(0), struct.field(1)]
    typed = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=fields)
    # A mask needs offsets that begin where their memory does, unlike those of a slice.
    offsets = pc.add(headers.offsets, _ZERO) if headers.offset else headers.offsets
    return pa.ListArray.from_arrays(offsets, typed, type=kind, mask=is_null)


RecordFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Takes the records of a task, batch by batch, and returns rows."""


@dataclass(frozen=True, slots=True)
class MappedRows:
    """A function over records, and the schema of its rows. Travels to the tasks like Spark's functions."""

    function: RecordFunction
    schema: StructType


def schema_of(schema: StructType | pa.Schema | str) -> StructType:
    """Convert to Spark's schema; raise ConfigError if it is invalid."""
    match schema:
        case StructType():
            return schema
        case str():
            return _parse_ddl(schema)
        case _ if isinstance(cast("object", schema), pa.Schema):
            return from_arrow_schema(schema)
        case _:
            raise ConfigError(
                f"schema is of the type {type(schema).__name__}; it must be Spark's StructType or words, or a "
                "pyarrow.Schema"
            )


def apply_function(rows: Iterator[pa.RecordBatch], mapped: MappedRows | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows, or the function's results, with exactly the types that Spark wants.

    An error of ours in ``rows`` is one sentence; the function's own has no frame of ours in its traceback.
    """
    if mapped is None:
        return each_in_one_sentence(rows)
    result = _Result(rows)
    # map() and chain() are C code: they leave no frame, neither of the call nor of its results.
    results = chain(map(mapped.function, (each_in_one_sentence(result.records()),)), (_ENDED,))
    return map(_Shape(mapped.schema).of, chain.from_iterable(map(result.rows, results)))


_ENDED: Final = object()


class _Result:
    """The function's results, checked to cover all records.

    If the function raises StopIteration, or catches an error of the records, its rows would seem complete. So either
    raises at the end.
    """

    def __init__(self, records: Iterator[pa.RecordBatch]) -> None:
        self._records = records
        self._error: TieredStoreError | None = None
        self._is_given = False

    def records(self) -> Iterator[pa.RecordBatch]:
        """Yield the function's input."""
        try:
            yield from self._records
        except TieredStoreError as error:
            self._error = error
            raise

    def rows(self, result: object) -> Iterator[object]:
        """Return the rows of a result; raise ConfigError unless it is an iterator.

        At the end, raise an error of the records that the function has caught, or ConfigError if there was no result.
        """
        with one_sentence():
            if result is not _ENDED:
                self._is_given = True
                if isinstance(result, pa.RecordBatch | pa.Table) or not isinstance(result, Iterable):
                    raise ConfigError(
                        f"the function gives {type(result).__name__}, and has to give an iterator of "
                        "pyarrow.RecordBatch: have it yield them"
                    )
                return iter(cast("Iterable[object]", result))
            if self._error is not None:
                raise self._error
            if not self._is_given:
                raise ConfigError(
                    "the function raised StopIteration, as next() does where there is no batch: give next() a "
                    "default, or have the function yield"
                )
            return iter(())


class _Shape:
    """Gives batches the schema's columns, in its order and of its types."""

    def __init__(self, schema: StructType) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def of(self, batch: object) -> pa.RecordBatch:
        """Convert the batch for Spark; raise ConfigError for other columns, or values of other types."""
        with one_sentence():
            if not isinstance(batch, pa.RecordBatch):
                raise ConfigError(f"the function yields {type(batch).__name__}, and has to yield pyarrow.RecordBatch")
            if batch.schema.equals(self._schema):
                return batch
            return self._convert(batch)

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        wanted, given = self._schema.names, batch.schema.names
        if sorted(wanted) != sorted(given):
            raise ConfigError(
                f"the function yields the columns {', '.join(given)}, and the schema has {', '.join(wanted)}"
            )
        columns: list[pa.Array] = []
        for column_field in self._schema:
            column = batch.column(column_field.name)
            try:
                columns.append(column.cast(column_field.type))
            except pa.ArrowException:
                raise ConfigError(
                    f"the function yields {column.type} in the column {column_field.name}, which is not "
                    f"{column_field.type}"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _parse_ddl(words: str) -> StructType:
    try:
        return cast("StructType", StructType.fromDDL(words))
    except PySparkException as error:
        raise ConfigError(f"{excerpt(words)!r} is no schema in Spark's words: {excerpt(error)}") from None
