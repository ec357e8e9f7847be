"""Columns of records in Arrow: their schema, record batches over the buffers that the kernel has filled, and numbers
read from a batch without a Python object for each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.errors import BatchCorruptError, ConfigError

if TYPE_CHECKING:
    from tieredstore.kafka.records._kernel import Taken
    from tieredstore.kafka.records._slabs import Slab

_EMPTY: Final = pa.py_buffer(bytes(64))


def buffer_of(slab: tuple[Slab, int] | None) -> pa.Buffer:
    """Wrap the written bytes of a slab (a reused memory block). The slab is not reused as long as the buffer exists."""
    # If there are no headers, the kernel has written no offsets. Arrow still reads the first offset, so give it a
    # buffer of zeros.
    return _EMPTY if slab is None or not slab[1] else pa.foreign_buffer(slab[0].address, slab[1], slab[0])


def array_over(kind: pa.DataType, rows: int, buffers: Sequence[pa.Buffer | None], nulls: int) -> pa.Array:
    """Make an array of the type ``kind``. The first buffer holds the validity bits, None if there are no nulls."""
    return pa.Array.from_buffers(kind, rows, [buffers[0] if nulls else None, *buffers[1:]], nulls)


_BINARY: Final = pa.binary()
_HEADER_KINDS: Final = (pa.string(), pa.binary())
_HEADER: Final = pa.struct([pa.field("key", _HEADER_KINDS[0]), pa.field("value", _HEADER_KINDS[1])])

_HEADERS: Final = pa.list_(_HEADER)
# Arrow reads the first offset even of an empty array. Empty arrays that Arrow itself makes may lack that offset, and
# making them imports pandas.
_NOTHING: Final = [None, pa.py_buffer(bytes(64)), pa.py_buffer(bytes(64))]
_NO_HEADERS: Final = pa.Array.from_buffers(
    _HEADER, 0, [None], 0, children=[pa.Array.from_buffers(kind, 0, _NOTHING, 0) for kind in _HEADER_KINDS]
)

# The kernel gets the requested columns as bits of a number, in this order (see ``wanted``). The names are those of
# Spark's Kafka source.
_FIELDS: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", _HEADERS),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.int64()),
    pa.field("timestampType", pa.int8()),
    pa.field("leaderEpoch", pa.int32()),
)

COLUMNS: Final[tuple[str, ...]] = tuple(field.name for field in _FIELDS)
"""The names of all columns of a record."""


class RecordColumns:
    """The requested columns. Builds record batches of them."""

    def __init__(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in COLUMNS]
        if unknown or not names or len(set(names)) < len(names):
            raise ConfigError(
                f"columns is {list(names)}; choose at least one of {', '.join(COLUMNS)}, each at most once"
            )
        self.schema = pa.schema([_FIELDS[COLUMNS.index(name)] for name in names])
        # Each requested column is one bit of a number: the scanner tests these bits in its inner loop.
        self.wanted: int = sum(1 << COLUMNS.index(name) for name in names)

    def build(self, taken: Taken) -> pa.RecordBatch:
        """Make a record batch over the kernel's slabs, without copying. The slabs are not reused as long as the batch
        exists.
        """
        rows, header_rows, (key_nulls, value_nulls, headers_nulls, header_value_nulls), ascii_keys, slabs = taken
        buffers = [buffer_of(slab) for slab in slabs]
        arrays: list[pa.Array] = []
        for name in self.schema.names:
            match name:
                case "key":
                    arrays.append(array_over(_BINARY, rows, buffers[:3], key_nulls))
                case "value":
                    arrays.append(array_over(_BINARY, rows, buffers[3:6], value_nulls))
                case "headers" if not header_rows:
                    arrays.append(_lists(rows, headers_nulls, buffers[6:8], _NO_HEADERS))
                case "headers":
                    keys = header_keys(header_rows, buffers[9:11], ascii_keys=ascii_keys)
                    values = array_over(_BINARY, header_rows, buffers[11:14], header_value_nulls)
                    headers = pa.Array.from_buffers(_HEADER, header_rows, [None], 0, children=[keys, values])
                    arrays.append(_lists(rows, headers_nulls, buffers[6:8], headers))
                case _:
                    column = COLUMNS.index(name)
                    arrays.append(pa.Array.from_buffers(_FIELDS[column].type, rows, [None, buffers[11 + column]], 0))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def header_keys(count: int, buffers: list[pa.Buffer], *, ascii_keys: bool) -> pa.Array:
    """Make an array of header keys. Raise BatchCorruptError for more than 2 GiB of keys that are not UTF-8."""
    keys: pa.Array = pa.Array.from_buffers(pa.string(), count, [None, *buffers], 0)
    if ascii_keys:
        return keys
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        return _replace_malformed(pa.Array.from_buffers(pa.binary(), count, [None, *buffers], 0))
    return keys


def _replace_malformed(keys: pa.Array) -> pa.Array:
    """Replace malformed UTF-8 by U+FFFD, as Kafka's Java client does. An Arrow string must be valid UTF-8."""
    # Convert each distinct key once, because a batch may repeat a few keys millions of times.
    encoded = keys.dictionary_encode()
    replaced = pa.array([key.decode("utf-8", "replace") for key in encoded.dictionary.to_pylist()], pa.string())
    taken = replaced if isinstance(replaced, pa.ChunkedArray) else replaced.take(encoded.indices)
    if isinstance(taken, pa.ChunkedArray):
        raise BatchCorruptError("a record has more than 2 GiB of malformed header keys")
    return taken


def _lists(rows: int, nulls: int, buffers: list[pa.Buffer], headers: pa.Array) -> pa.Array:
    valid, ends = buffers
    return pa.Array.from_buffers(_HEADERS, rows, [valid if nulls else None, ends], nulls, children=[headers])


def int64_values(records: pa.RecordBatch, name: str) -> Sequence[int]:
    """Return an int64 column without nulls as a view of its buffer."""
    column = records.column(name)
    values = column.buffers()[1]
    assert values is not None
    return memoryview(values).cast("q")[column.offset : column.offset + len(column)]


def first_rows(records: pa.RecordBatch, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return the first ``rows`` rows, with the columns of ``schema``."""
    return records.select(schema.names).slice(0, rows)
