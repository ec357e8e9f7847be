"""The rows of a topic of batches: their schema, and their Arrow shape over decoded records without copying values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
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

from tieredstore.kafka.arrow_values import repeated
from tieredstore.spark.source import option_values
from tieredstore.spark.source.rows import HEADERS, microseconds, spark_headers

# What its type stubs say of arrays is partial.
arrow: Any = pa

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


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that ``columns`` and ``includeHeaders`` ask for, in their order; ConfigError for others."""
    return option_values.columns_of(options, tuple(TYPES))


class BatchRows:
    """Turns decoded records into rows of ``columns``. Not to be pickled."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
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
                return microseconds(column, kind)
            case "headers":
                return spark_headers(column, kind)
            case _:
                return column
