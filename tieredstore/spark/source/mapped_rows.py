"""What a user's function makes of records, in the task that decodes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tieredstore.errors import ConfigError, TieredStoreError, excerpt
from tieredstore.spark.source.sentences import each_in_one_sentence, one_sentence

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
