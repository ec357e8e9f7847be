"""The rows of a topic of batches: their schema, and their Arrow shape over decoded records without copying values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tieredstore.errors import ConfigError
from tieredstore.kafka.arrow_values import repeated
from tieredstore.spark.source import option_values
from tieredstore.spark.source.rows import HEADERS, microseconds, spark_headers

# What its type stubs say of arrays is partial.
arrow: Any = pa
compute: Any = pc

TYPES: Final[dict[str, DataType]] = {
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
}
"""All columns, in their order; ``headers`` is there when it is asked for."""

_NAMES: Final = {"messageId": "message_id"}  # of columns that the decoder calls otherwise
_OF_THE_BATCH: Final = ("topic", "partition", "offset")

OutOfRange: TypeAlias = Literal["fail", "null"]
"""What becomes of a record's time that Spark's timestamps, microseconds of 64 bits, do not hold."""

_MOST_MS: Final = ((1 << 63) - 1) // 1000


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that ``columns`` and ``includeHeaders`` ask for, in their order; ConfigError for others."""
    return option_values.columns_of(options, tuple(TYPES))


class BatchRows:
    """Turns decoded records into rows of ``columns``. Not to be pickled."""

    def __init__(self, columns: Sequence[str], *, out_of_range: OutOfRange = "fail") -> None:
        self.columns = tuple(columns)
        self._out_of_range: OutOfRange = out_of_range
        self.schema = StructType([StructField(name, TYPES[name]) for name in columns])
        self.arrow_schema: pa.Schema = to_arrow_schema(self.schema, timezone="UTC")

    @property
    def decoder_columns(self) -> tuple[str, ...]:
        """What has to be decoded: at least one column, for the number of rows."""
        return tuple(_NAMES.get(name, name) for name in self.columns if name not in _OF_THE_BATCH) or ("record",)

    def convert(self, records: pa.RecordBatch, topic: str, partition: int | None, offset: int | None) -> pa.RecordBatch:
        """The rows of records of one batch, whose place it has in the queue, if any."""
        decoded: Any = records
        of_the_batch = {"topic": topic, "partition": partition, "offset": offset}
        arrays = [self._array(name, decoded, of_the_batch) for name in self.columns]
        rows: pa.RecordBatch = arrow.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)
        return rows

    def _array(self, name: str, records: Any, of_the_batch: Mapping[str, Any]) -> Any:
        schema: Any = self.arrow_schema
        kind: Any = schema.field(name).type
        if name in of_the_batch:
            return repeated(of_the_batch[name], records.num_rows, kind)
        column: Any = records.column(_NAMES.get(name, name))
        match name:
            case "timestamp":
                return _timestamps(column, kind, self._out_of_range)
            case "headers":
                return spark_headers(column, kind)
            case _:
                return column


def _timestamps(milliseconds: Any, kind: Any, out_of_range: OutOfRange) -> Any:
    if out_of_range == "null":
        return microseconds(_within(milliseconds), kind)
    try:
        return microseconds(milliseconds, kind)
    except ConfigError as error:
        raise ConfigError(f"{error}, or read it as null (timestampOutOfRange=null)") from error


def _within(milliseconds: Any) -> Any:
    """The same, null where Spark has no timestamp for it."""
    holds = compute.and_(compute.less_equal(milliseconds, _MOST_MS), compute.greater_equal(milliseconds, -_MOST_MS))
    return compute.if_else(holds, milliseconds, arrow.scalar(None, milliseconds.type))
