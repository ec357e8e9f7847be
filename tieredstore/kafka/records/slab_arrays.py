"""Arrow's arrays over memory that a kernel has filled, without copying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from tieredstore.kafka.records._slabs import Slab

_EMPTY: Final = pa.py_buffer(bytes(64))


def buffer_of(slab: tuple[Slab, int] | None) -> pa.Buffer:
    """The bytes of a slab that were written; the buffer keeps the slab from being used again."""
    # Without headers not even the offset that offsets begin with was written, and Arrow reads it all the same.
    return _EMPTY if slab is None or not slab[1] else pa.foreign_buffer(slab[0].address, slab[1], slab[0])


def array_over(kind: pa.DataType, rows: int, buffers: Sequence[pa.Buffer | None], nulls: int) -> pa.Array:
    """An array of the type ``kind``; the first buffer is that of nulls, and is left out where there are none."""
    return pa.Array.from_buffers(kind, rows, [buffers[0] if nulls else None, *buffers[1:]], nulls)
