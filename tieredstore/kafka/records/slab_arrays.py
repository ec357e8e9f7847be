"""Arrow's arrays over memory that a kernel has filled, without copying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from tieredstore.kafka.records._slabs import Slab

# What its type stubs say of arrays is partial.
arrow: Any = pa
Array: TypeAlias = Any
Buffer: TypeAlias = Any

_EMPTY: Final = arrow.py_buffer(bytes(64))


def buffer_of(slab: tuple[Slab, int] | None) -> Buffer:
    """The bytes of a slab that were written; the buffer keeps the slab from being used again."""
    # Without headers not even the offset that offsets begin with was written, and Arrow reads it all the same.
    return _EMPTY if slab is None or not slab[1] else arrow.foreign_buffer(slab[0].address, slab[1], slab[0])


def array_over(kind: Any, rows: int, buffers: list[Buffer], nulls: int) -> Array:
    """An array of the type ``kind``; the first buffer is that of nulls, and is left out where there are none."""
    return arrow.Array.from_buffers(kind, rows, [buffers[0] if nulls else None, *buffers[1:]], nulls)
