"""The columns of a topic's records in record batches: their names and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import pyarrow as pa

from tieredstore.errors import ConfigError
from tieredstore.kafka.records import COLUMNS
from tieredstore.kafka.records.columns import int64_values
from tieredstore.model import TopicPartition
from tieredstore.records.settings import ReadSettings
from tieredstore.values import Binary, ValueType

_TIME: Final = pa.timestamp("ms", "UTC")
_TOPIC: Final = pa.dictionary(pa.int32(), pa.string())
_PARTITION: Final = pa.dictionary(pa.int32(), pa.int32())
_BINARY: Final = Binary()
_SPARE: Final = 4
"""A new array for n rows has n / 4 spare elements, so that it suffices for a slightly larger next batch."""

TOPIC_COLUMNS: Final = (
    "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "leader_epoch",
)  # fmt: skip
"""The names of all columns of a topic."""


_DECODED: Final = {"timestamp_type": "timestampType", "leader_epoch": "leaderEpoch"}
"""The decoder's names for columns that have other names here. The decoder uses the names of Spark's Kafka source."""


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """The types of a topic's keys and values."""

    key: ValueType = field(default=_BINARY)
    value: ValueType = field(default=_BINARY)

    def __post_init__(self) -> None:
        for name, kind in (("key", self.key), ("value", self.value)):
            if not isinstance(cast("object", kind), ValueType):
                raise ConfigError(f"{name} is {kind!r}; it must be Binary(), Text(), Json(schema) or Avro(schema)")


_BYTES: Final = ColumnTypes()


def topic_schema(columns: Sequence[str] = TOPIC_COLUMNS, types: ColumnTypes = _BYTES) -> pa.Schema:
    """Return the schema of these columns. Raise ConfigError for an unknown or repeated column."""
    if not columns or len(set(columns)) < len(columns) or not set(columns) <= set(TOPIC_COLUMNS):
        raise ConfigError(
            f"columns is {list(columns)}; choose at least one of {', '.join(TOPIC_COLUMNS)}, each at most once"
        )
    decoded = ReadSettings(columns=COLUMNS).schema
    special = {
        "topic": _TOPIC, "partition": _PARTITION, "timestamp": _TIME,
        "key": types.key.arrow_type, "value": types.value.arrow_type,
    }  # fmt: skip
    schema: pa.Schema = pa.schema(
        [pa.field(name, special.get(name) or decoded.field(_DECODED.get(name, name)).type) for name in columns]
    )
    return schema


class TopicColumns:
    """Converts decoded records into batches with ``columns``. Thread-safe.

    ``topic`` and ``partition`` are dictionary columns, each with the same dictionary in all batches of a read.
    """

    def __init__(self, columns: Sequence[str], types: ColumnTypes, topic: str, partitions: Sequence[int]) -> None:
        self.schema = topic_schema(columns, types)
        self._columns = tuple(columns)
        self._types = types
        self._topic = pa.array([topic], pa.string())
        self._partitions = pa.array(partitions, pa.int32())
        self._numbers = {partition: number for number, partition in enumerate(partitions)}
        self._indices: tuple[int, pa.Array] = (0, pa.array([], pa.int32()))

    @property
    def decoded(self) -> tuple[str, ...]:
        """The columns to decode. Offsets are always included, because errors name them."""
        decoded = (_DECODED.get(name, name) for name in self._columns)
        return tuple(dict.fromkeys((*(name for name in decoded if name in COLUMNS), "offset")))

    def convert(self, records: pa.RecordBatch, where: TopicPartition) -> pa.RecordBatch:
        """Return the records with these columns. Raise InvalidValueError for an invalid key or value, if its type is
        set to fail.
        """
        arrays = [self._array(name, records, where) for name in self._columns]
        batch: pa.RecordBatch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return batch

    def _array(self, name: str, records: pa.RecordBatch, where: TopicPartition) -> pa.Array:
        match name:
            case "topic":
                return self._constant(0, self._topic, records.num_rows)
            case "partition":
                return self._constant(self._numbers[where[1]], self._partitions, records.num_rows)
            case "timestamp":
                return records.column(name).view(_TIME)
            case "key" | "value":
                kind = self._types.key if name == "key" else self._types.value

                def place(row: int) -> str:
                    return f"the {name} at offset {int64_values(records, 'offset')[row]} of {where[0]}-{where[1]}"

                return kind.convert(records.column(name), place)
            case _:
                return records.column(_DECODED.get(name, name))

    def _constant(self, number: int, dictionary: pa.Array, count: int) -> pa.Array:
        # Reuse the array for the next batches, because a new array for each took 2% of a read. Usually the next
        # batches belong to the same partition and are no larger. The assignment is atomic, so other threads may use
        # the array.
        kept, indices = self._indices
        if kept != number or len(indices) < count:
            indices = pa.repeat(pa.scalar(number, pa.int32()), count + count // _SPARE)
            self._indices = number, indices
        return pa.DictionaryArray.from_arrays(indices.slice(0, count), dictionary, safe=False)
