"""Times out of a column of JSON at once, where they are plain whole numbers: nearly all are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from tieredstore.pipelines.filing._json_scan import epoch_millis

_arrow: Final[Any] = pa


def json_times(values: Any, path: Sequence[str]) -> Any:
    """The times since the epoch under the names of ``path`` in ms; null where only a look at the one value tells.

    Known only of texts that ``json.loads`` takes, and that have each name of the path once.
    """
    rows = len(values)
    ends, data = values.buffers()[1:] if rows and _arrow.types.is_binary(values.type) else (None, None)
    if ends is None or data is None:
        return None
    valid, times, known = values.buffers()[0], bytearray(8 * rows), bytearray(-(-rows // 8))
    try:
        names = [name.encode() for name in path]
    except UnicodeEncodeError:
        return None
    epoch_millis(
        memoryview(ends).cast("i"), memoryview(data).cast("B"), None if valid is None else memoryview(valid).cast("B"),
        values.offset, rows, names, memoryview(times).cast("q"), known,
    )  # fmt: skip
    return _arrow.Array.from_buffers(_arrow.int64(), rows, [_arrow.py_buffer(known), _arrow.py_buffer(times)])
