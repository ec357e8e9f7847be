"""Arrow's side: the schema of records, and record batches over the buffers that the kernel has filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from tieredstore.errors import BatchCorrupt, ConfigError

if TYPE_CHECKING:
    from tieredstore.kafka.records._kernel import Taken
    from tieredstore.kafka.records._slabs import Slab

# What its type stubs say of arrays is partial.
arrow: Any = pa
Array: TypeAlias = Any
Buffer: TypeAlias = Any

_HEADER: Final = arrow.struct([arrow.field("key", arrow.string()), arrow.field("value", arrow.binary())])

# In the order of the kernel's bits. The names are those of Spark's Kafka source.
_FIELDS: Final = (
    arrow.field("key", arrow.binary()),
    arrow.field("value", arrow.binary()),
    arrow.field("headers", arrow.list_(_HEADER)),
    arrow.field("offset", arrow.int64()),
    arrow.field("timestamp", arrow.int64()),
    arrow.field("timestampType", arrow.int8()),
    arrow.field("leaderEpoch", arrow.int32()),
)

_EMPTY: Final = arrow.py_buffer(bytes(64))

COLUMNS: Final[tuple[str, ...]] = tuple(field.name for field in _FIELDS)
"""The names of all columns of a record."""


class RecordColumns:
    """The asked columns, and record batches of them."""

    def __init__(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in COLUMNS]
        if unknown or not names or len(set(names)) < len(names):
            raise ConfigError(f"columns {list(names)} are not some of {', '.join(COLUMNS)}, each once")
        self.schema: pa.Schema = arrow.schema([_FIELDS[COLUMNS.index(name)] for name in names])
        # A bit a column, as the kernel tests them in its inner loop.
        self.wanted = sum(1 << COLUMNS.index(name) for name in names)

    def build(self, taken: Taken) -> pa.RecordBatch:
        """A record batch over the kernel's slabs, without copying; it keeps them from being used again."""
        rows, header_rows, (key_nulls, value_nulls, headers_nulls, header_value_nulls), ascii_keys, slabs = taken
        buffers = [_buffer(slab) for slab in slabs]
        arrays: list[Array] = []
        for name in self.schema.names:
            match name:
                case "key":
                    arrays.append(_binary(rows, key_nulls, buffers[:3]))
                case "value":
                    arrays.append(_binary(rows, value_nulls, buffers[3:6]))
                case "headers":
                    keys = _header_keys(header_rows, buffers[9:11], ascii_keys=ascii_keys)
                    values = _binary(header_rows, header_value_nulls, buffers[11:14])
                    arrays.append(_lists(rows, headers_nulls, buffers[6:8], keys, values))
                case _:
                    column = COLUMNS.index(name)
                    arrays.append(arrow.Array.from_buffers(_FIELDS[column].type, rows, [None, buffers[11 + column]], 0))
        built: pa.RecordBatch = arrow.RecordBatch.from_arrays(arrays, schema=self.schema)
        return built


def _buffer(slab: tuple[Slab, int] | None) -> Buffer:
    # Without headers not even the offset that offsets begin with was written, and Arrow reads it all the same.
    return _EMPTY if slab is None or not slab[1] else arrow.foreign_buffer(slab[0].address, slab[1], slab[0])


def _binary(count: int, nulls: int, buffers: list[Buffer]) -> Array:
    return arrow.Array.from_buffers(arrow.binary(), count, [buffers[0] if nulls else None, *buffers[1:]], nulls)


def _header_keys(count: int, buffers: list[Buffer], *, ascii_keys: bool) -> Array:
    keys: Array = arrow.Array.from_buffers(arrow.string(), count, [None, *buffers], 0)
    if ascii_keys:
        return keys
    try:
        keys.validate(full=True)
    except arrow.ArrowInvalid:
        return _replace_malformed(arrow.Array.from_buffers(arrow.binary(), count, [None, *buffers], 0))
    return keys


def _replace_malformed(keys: Array) -> Array:
    """Kafka's own client, in Java, shows malformed UTF-8 as U+FFFD; Arrow's strings may not hold it."""
    # Each key that there is once: what a batch can have millions of are the same few.
    encoded = keys.dictionary_encode()
    replaced = arrow.array([key.decode("utf-8", "replace") for key in encoded.dictionary.to_pylist()], arrow.string())
    taken = replaced if isinstance(replaced, arrow.ChunkedArray) else replaced.take(encoded.indices)
    if isinstance(taken, arrow.ChunkedArray):
        raise BatchCorrupt("a record has more than 2 GiB of malformed header keys")
    return taken


def _lists(rows: int, nulls: int, buffers: list[Buffer], keys: Array, values: Array) -> Array:
    headers: Array = arrow.Array.from_buffers(_HEADER, len(keys), [None], 0, children=[keys, values])
    valid, ends = buffers
    return arrow.Array.from_buffers(
        arrow.list_(_HEADER), rows, [valid if nulls else None, ends], nulls, children=[headers]
    )
