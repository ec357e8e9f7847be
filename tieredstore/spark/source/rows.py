"""The rows of the source: Spark's Kafka schema, and its Arrow shape over decoded records without copying values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
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

from tieredstore.errors import ConfigError
from tieredstore.kafka.arrow_values import repeated, scalar_of

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
