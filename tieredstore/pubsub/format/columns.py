"""Arrow's side: the schema of records, and record batches over the buffers that the kernel has filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tieredstore.errors import ConfigError
from tieredstore.kafka.arrow_values import array_of
from tieredstore.kafka.records.slab_arrays import Array, Buffer, array_over, arrow, buffer_of
from tieredstore.pubsub.errors import MessageCorrupt

if TYPE_CHECKING:
    from tieredstore.pubsub.format._reading import Taken

_HEADER: Final = arrow.struct([arrow.field("key", arrow.string()), arrow.field("value", arrow.binary())])
_FIELDS: Final = (  # in the order of the kernel's bits
    arrow.field("key", arrow.binary()),
    arrow.field("value", arrow.binary()),
    arrow.field("headers", arrow.list_(_HEADER)),
    arrow.field("message_id", arrow.binary()),
    arrow.field("timestamp", arrow.int64()),
    arrow.field("message", arrow.int32()),
    arrow.field("record", arrow.int32()),
)

COLUMNS: Final[tuple[str, ...]] = tuple(field.name for field in _FIELDS)
"""The names of all columns of a record. ``message`` and ``record`` are its place in the batch; ``key``, ``headers`` and
``message_id`` are null where they are empty, which the format cannot tell apart, ``timestamp`` where it is absent."""


class RecordColumns:
    """The asked columns, and record batches of them."""

    def __init__(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in COLUMNS]
        if unknown or not names or len(set(names)) < len(names):
            raise ConfigError(f"columns {list(names)} are not some of {', '.join(COLUMNS)}, each once")
        self.schema: pa.Schema = arrow.schema([_FIELDS[COLUMNS.index(name)] for name in names])
        self.wanted = sum(1 << COLUMNS.index(name) for name in names)

    def build(self, taken: Taken) -> pa.RecordBatch:
        """A record batch over the kernel's slabs, without copying; it keeps them from being used again."""
        rows, (key_nulls, id_nulls, timestamp_nulls, headers_nulls), headers, names_ascii, slabs = taken
        buffers = [buffer_of(slab) for slab in slabs]
        arrays: list[Array] = []
        for name in self.schema.names:
            kind = _FIELDS[COLUMNS.index(name)].type
            match name:
                case "key":
                    arrays.append(array_over(kind, rows, buffers[0:3], key_nulls))
                case "value":
                    arrays.append(array_over(kind, rows, [None, *buffers[3:5]], 0))
                case "message_id":
                    arrays.append(array_over(kind, rows, buffers[5:8], id_nulls))
                case "timestamp":
                    arrays.append(array_over(kind, rows, buffers[8:10], timestamp_nulls))
                case "headers":
                    names = _names(headers, buffers[12:14], are_ascii=names_ascii)
                    values = array_over(arrow.binary(), headers, [None, *buffers[14:16]], 0)
                    items = arrow.Array.from_buffers(_HEADER, headers, [None], 0, children=[names, values])
                    valid = buffers[10] if headers_nulls else None
                    arrays.append(
                        arrow.Array.from_buffers(kind, rows, [valid, buffers[11]], headers_nulls, children=[items])
                    )
                case _:
                    arrays.append(array_over(kind, rows, [None, buffers[16 if name == "message" else 17]], 0))
        built: pa.RecordBatch = arrow.RecordBatch.from_arrays(arrays, schema=self.schema)
        return built


def _names(count: int, buffers: list[Buffer], *, are_ascii: bool) -> Array:
    names: Array = arrow.Array.from_buffers(arrow.string(), count, [None, *buffers], 0)
    if are_ascii:
        return names
    try:
        names.validate(full=True)
    except arrow.ArrowInvalid:
        # MemQ's own client, in Java, shows malformed UTF-8 as U+FFFD; Arrow's strings may not hold it.
        raw = arrow.Array.from_buffers(arrow.binary(), count, [None, *buffers], 0).dictionary_encode()
        replaced = array_of([name.decode("utf-8", "replace") for name in raw.dictionary.to_pylist()], arrow.string())
        names = replaced.take(raw.indices)
        if isinstance(names, arrow.ChunkedArray):
            raise MessageCorrupt("the headers of a batch have more than 2 GiB of names that are no UTF-8") from None
    return names
