"""Arrow's side: the schema of records, and record batches over the buffers that the kernel has filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.errors import BatchCorrupt, ConfigError
from tieredstore.kafka.records.slab_arrays import Array, Buffer, array_over, arrow, buffer_of

if TYPE_CHECKING:
    from tieredstore.kafka.records._kernel import Taken

_BINARY: Final = arrow.binary()
_HEADER_KINDS: Final = (arrow.string(), arrow.binary())
_HEADER: Final = arrow.struct([arrow.field("key", _HEADER_KINDS[0]), arrow.field("value", _HEADER_KINDS[1])])

_HEADERS: Final = arrow.list_(_HEADER)
# Arrow reads the first offset of empty arrays too, which those that it makes itself may not have; and it would import
# pandas to make them.
_NOTHING: Final = [None, arrow.py_buffer(bytes(64)), arrow.py_buffer(bytes(64))]
_NO_HEADERS: Final = arrow.Array.from_buffers(
    _HEADER, 0, [None], 0, children=[arrow.Array.from_buffers(kind, 0, _NOTHING, 0) for kind in _HEADER_KINDS]
)

# In the order of the kernel's bits. The names are those of Spark's Kafka source.
_FIELDS: Final = (
    arrow.field("key", arrow.binary()),
    arrow.field("value", arrow.binary()),
    arrow.field("headers", _HEADERS),
    arrow.field("offset", arrow.int64()),
    arrow.field("timestamp", arrow.int64()),
    arrow.field("timestampType", arrow.int8()),
    arrow.field("leaderEpoch", arrow.int32()),
)

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
        buffers = [buffer_of(slab) for slab in slabs]
        arrays: list[Array] = []
        for name in self.schema.names:
            match name:
                case "key":
                    arrays.append(array_over(_BINARY, rows, buffers[:3], key_nulls))
                case "value":
                    arrays.append(array_over(_BINARY, rows, buffers[3:6], value_nulls))
                case "headers" if not header_rows:
                    arrays.append(_lists(rows, headers_nulls, buffers[6:8], _NO_HEADERS))
                case "headers":
                    keys = _header_keys(header_rows, buffers[9:11], ascii_keys=ascii_keys)
                    values = array_over(_BINARY, header_rows, buffers[11:14], header_value_nulls)
                    headers = arrow.Array.from_buffers(_HEADER, header_rows, [None], 0, children=[keys, values])
                    arrays.append(_lists(rows, headers_nulls, buffers[6:8], headers))
                case _:
                    column = COLUMNS.index(name)
                    arrays.append(arrow.Array.from_buffers(_FIELDS[column].type, rows, [None, buffers[11 + column]], 0))
        built: pa.RecordBatch = arrow.RecordBatch.from_arrays(arrays, schema=self.schema)
        return built


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


def _lists(rows: int, nulls: int, buffers: list[Buffer], headers: Array) -> Array:
    valid, ends = buffers
    return arrow.Array.from_buffers(_HEADERS, rows, [valid if nulls else None, ends], nulls, children=[headers])
