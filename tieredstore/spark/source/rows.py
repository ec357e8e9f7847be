"""The rows of the sources: their schemas, and their Arrow shape over decoded records without copying values.

Or what a user's function makes of records, in the task that decodes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias, cast

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
from tieredstore.kafka.arrow_values import repeated, scalar_of
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence

# What its type stubs say of arrays and of compute is partial.
arrow: Any = pa
compute: Any = pc

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""The type of a record's headers."""

_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}

COLUMNS: Final = tuple(name for name in _TYPES if name != "headers")
"""The columns of Spark's Kafka source, in its order."""

COLUMNS_WITH_HEADERS: Final = tuple(_TYPES)
"""Those of ``includeHeaders``."""

_OF_THE_SPLIT: Final = ("topic", "partition")

_ZERO: Final = scalar_of(0, arrow.int32())
_THOUSAND: Final = scalar_of(1000, arrow.int64())
_TRUE: Final = scalar_of(True, arrow.bool_())


class RowShape:
    """Turns decoded records into rows of ``columns``, in their order. For one thread; not to be pickled."""

    def __init__(self, columns: Sequence[str]) -> None:
        unknown = [name for name in columns if name not in _TYPES]
        if unknown or not columns or len(set(columns)) < len(columns):
            raise ConfigError(f"columns {', '.join(columns)} are not some of {', '.join(_TYPES)}, each once")
        self.columns = tuple(columns)
        self.schema = StructType([StructField(name, _TYPES[name]) for name in columns])
        self.arrow_schema: pa.Schema = to_arrow_schema(self.schema, timezone="UTC")
        self._constants: dict[object, Any] = {}

    @property
    def decoder_columns(self) -> tuple[str, ...]:
        """What has to be decoded: at least one column, for the number of rows."""
        wanted = tuple(name for name in self.columns if name not in _OF_THE_SPLIT)
        return wanted or ("offset",)

    def convert(self, records: pa.RecordBatch, topic: str | None, partition: int | None) -> pa.RecordBatch:
        """The rows of ``records``, which have at least ``decoder_columns``; keys and values are not copied."""
        decoded: Any = records
        arrays = [self._array(name, decoded, topic, partition) for name in self.columns]
        rows: pa.RecordBatch = arrow.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)
        return rows

    def _array(self, name: str, records: Any, topic: str | None, partition: int | None) -> Any:
        schema: Any = self.arrow_schema
        kind: Any = schema.field(name).type
        match name:
            case "topic":
                return self._repeated(topic, records.num_rows, kind)
            case "partition":
                return self._repeated(partition, records.num_rows, kind)
            case "timestamp":
                return microseconds(records.column(name), kind)
            case "timestampType":
                return records.column(name).cast(kind)
            case "headers":
                return spark_headers(records.column(name), kind)
            case _:
                return records.column(name)

    def _repeated(self, value: str | int | None, count: int, kind: Any) -> Any:
        """``value`` in every row: a slice of one array that grows with the largest batch."""
        constants = self._constants.get((kind, value))  # a null topic is not a null partition
        if constants is None or len(constants) < count:
            constants = self._constants[kind, value] = repeated(value, count, kind)
        return constants.slice(0, count)


def microseconds(milliseconds: Any, kind: Any) -> Any:
    """As Spark's Kafka source: a record without timestamp (-1) is a millisecond before 1970."""
    try:
        return compute.multiply_checked(milliseconds, _THOUSAND).view(kind)
    except arrow.ArrowInvalid as error:
        farthest = max(compute.min_max(milliseconds).as_py().values(), key=abs)
        raise ConfigError(
            f"a record's timestamp is {farthest} ms, which Spark's timestamps cannot hold; leave the column timestamp "
            "out (option columns)"
        ) from error


def spark_headers(headers: Any, kind: Any) -> Any:
    """Null for a record without headers, as Spark's Kafka source gives it; keys and values are not copied."""
    counts = compute.list_value_length(headers)
    is_null = compute.fill_null(compute.equal(counts, _ZERO), _TRUE)
    pairs: Any = headers.values
    struct: Any = kind.value_type
    children = [pairs.field(0), pairs.field(1)]
    typed = arrow.StructArray.from_arrays(children, fields=[struct.field(0), struct.field(1)])
    # A mask needs offsets that begin where their memory does, which those of a slice do not.
    offsets: Any = compute.add(headers.offsets, _ZERO) if headers.offset else headers.offsets
    lists: Any = arrow.ListArray.from_arrays(offsets, typed, type=kind, mask=is_null)
    return lists


# What its type stubs say of batches is partial.
_arrow: Final[Any] = pa

RecordFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Takes the records of a task, batch by batch, and gives rows of its own."""


@dataclass(frozen=True, slots=True)
class MappedRows:
    """A function over records, and the schema of what it yields. Travels to the tasks as Spark's functions do."""

    function: RecordFunction
    schema: StructType


def schema_of(schema: StructType | pa.Schema | str) -> StructType:
    """The schema as Spark has it; ConfigError for what is none."""
    match schema:
        case StructType():
            return schema
        case str():
            return _parsed(schema)
        case _ if isinstance(cast("object", schema), pa.Schema):
            parsed: StructType = from_arrow_schema(schema)
            return parsed
        case _:
            raise ConfigError(
                f"schema is of the type {type(schema).__name__}; it must be Spark's StructType or words, or a "
                "pyarrow.Schema"
            )


def rows_given(rows: Iterator[pa.RecordBatch], mapped: MappedRows | None) -> Iterator[pa.RecordBatch]:
    """The rows, or what a function makes of them, of exactly the types that Spark wants.

    An error of ours in ``rows`` is one sentence; one of the function's own has no frame of ours in its traceback.
    """
    if mapped is None:
        return each_in_one_sentence(rows)
    result = _Result(rows)
    # map() and chain() are not Python's: they leave no frame, neither of the call nor of what it gives.
    results = chain(map(mapped.function, (each_in_one_sentence(result.records()),)), (_ENDED,))
    return map(_Shape(mapped.schema).of, chain.from_iterable(map(result.rows, results)))


_ENDED: Final = object()


class _Result:
    """What the function gave, checked to be rows of all records.

    One that ended by StopIteration gave nothing, as if it was done. One may catch an error of the records, too.
    """

    def __init__(self, records: Iterator[pa.RecordBatch]) -> None:
        self._records = records
        self._error: TieredStoreError | None = None
        self._is_given = False

    def records(self) -> Iterator[pa.RecordBatch]:
        """What the function gets."""
        try:
            yield from self._records
        except TieredStoreError as error:
            self._error = error
            raise

    def rows(self, result: Any) -> Iterator[Any]:
        """The rows; ConfigError for what has none."""
        with one_sentence():
            if result is not _ENDED:
                self._is_given = True
                rows: Any = result
                if isinstance(result, pa.RecordBatch | pa.Table) or not isinstance(result, Iterable):
                    raise ConfigError(
                        f"the function gives {type(result).__name__}, and has to give an iterator of "
                        "pyarrow.RecordBatch: have it yield them"
                    )
                return iter(rows)
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
        self._schema: Any = to_arrow_schema(schema, timezone="UTC")

    def of(self, batch: Any) -> pa.RecordBatch:
        """The batch as Spark takes it; ConfigError for other columns, or values that are not of their types."""
        with one_sentence():
            if not isinstance(batch, pa.RecordBatch):
                raise ConfigError(f"the function yields {type(batch).__name__}, and has to yield pyarrow.RecordBatch")
            if batch.schema.equals(self._schema):
                return batch
            return self._converted(batch)

    def _converted(self, batch: Any) -> pa.RecordBatch:
        wanted, given = self._schema.names, batch.schema.names
        if sorted(wanted) != sorted(given):
            raise ConfigError(
                f"the function yields the columns {', '.join(given)}, and the schema has {', '.join(wanted)}"
            )
        columns: list[Any] = []
        for field in self._schema:
            column = batch.column(field.name)
            try:
                columns.append(column.cast(field.type))
            except _arrow.ArrowException:
                raise ConfigError(
                    f"the function yields {column.type} in the column {field.name}, which is not {field.type}"
                ) from None
        converted: pa.RecordBatch = _arrow.RecordBatch.from_arrays(columns, schema=self._schema)
        return converted


def _parsed(words: str) -> StructType:
    untyped: Any = StructType
    try:
        schema: StructType = untyped.fromDDL(words)
    except PySparkException as error:
        raise ConfigError(f"{excerpt(words)!r} is no schema in Spark's words: {excerpt(error)}") from None
    return schema
