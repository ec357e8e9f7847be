"""Arrow arrays made from Python values without pandas.

``pyarrow.array`` and ``pyarrow.scalar`` import pandas, if it is installed, on their first call with values. That costs
0.3 s of processor time, which each new Spark worker would pay for its first batch. So this module fills the buffers
itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

_CODES: Final = {8: "b", 16: "h", 32: "i", 64: "q"}


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Make an array of the type ``kind``: signed integers, timestamps, booleans, text, bytes, lists, or structs (given
    as tuples).

    None becomes a null, but is not allowed for a struct. Raise OverflowError for integers beyond the type, and for more
    than 2 GiB of text or bytes.
    """
    nulls = values.count(None)
    if nulls and nulls == len(values):
        return pa.nulls(nulls, kind)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return _bytes(values, kind)
    if pa.types.is_boolean(kind):
        return _booleans([bool(value) for value in values], _validity(values))
    if pa.types.is_list(kind):
        items = [item for value in values if value for item in value]
        return _lists(values, kind, array_of(items, kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        children = [array_of([value[at] for value in values], field.type) for at, field in enumerate(fields)]
        return pa.Array.from_buffers(kind, len(values), [None], children=children)
    present = [0 if value is None else value for value in values] if nulls else values
    numbers = array(_CODES[kind.bit_width], present)
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(numbers)])


def scalar_of(value: object, kind: pa.DataType) -> pa.Scalar:
    """Make an Arrow scalar for Arrow's compute functions. A Python value in its place would make these functions import
    pandas.
    """
    return array_of([value], kind)[0]


def repeat_value(value: object, count: int, kind: pa.DataType) -> pa.Array:
    """Repeat the same value ``count`` times."""
    return pa.nulls(count, kind) if value is None else pa.repeat(scalar_of(value, kind), count)


def _bytes(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        values = [None if value is None else value.encode() for value in values]
    validity = _validity(values)
    present = values if validity is None else [value or b"" for value in values]
    ends = array("i", accumulate(map(len, present), initial=0))
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _lists(values: Sequence[Any], kind: pa.DataType, items: pa.Array) -> pa.Array:
    ends = array("i", accumulate((len(value) if value else 0 for value in values), initial=0))
    buffers = [_validity(values), pa.py_buffer(ends)]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[items])


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    """Return a bitmap with a bit set for each value that is not null. Return None if there is no null."""
    if None not in values:
        return None
    return _booleans([value is not None for value in values], None).buffers()[1]


def _booleans(flags: Sequence[bool], validity: pa.Buffer | None) -> pa.Array:
    """Return an array of booleans. A cast by Arrow packs them into bits."""
    octets = pa.Array.from_buffers(pa.uint8(), len(flags), [validity, pa.py_buffer(bytes(flags))])
    return octets.cast(pa.bool_())
