"""The format ``text``: values with a delimiter after each value. A Parquet sidecar (a second file) holds the other
fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.pipelines.files.container_formats import Sidecar
from tieredstore.pipelines.writers import BuiltIn, FileWriter, compress_into


@dataclass(frozen=True, slots=True)
class Text(BuiltIn):
    """Values with a delimiter after each value. A Parquet sidecar holds the records' other fields, and the values'
    lengths if the delimiter is empty.
    """

    codec: str = "none"
    delimiter: bytes = b"\n"
    name: ClassVar[str] = "text"
    suffix: ClassVar[str] = ".txt"
    has_sidecar: ClassVar[bool] = True
    is_stream: ClassVar[bool] = True

    def faults(self, records: pa.RecordBatch) -> dict[int, str]:
        """Return a fault for each value that contains the delimiter, because a reader would split the value."""
        if not self.delimiter:
            return {}
        values = records.column("value")
        # Search in the value with its delimiter appended, because a delimiter may begin inside the value. With the
        # delimiter "||", the value "a|" is stored as "a|||", and a reader would split it after "a".
        ended = pc.binary_join_element_wise(values, self.delimiter, b"")
        first = pc.find_substring(ended, self.delimiter)
        inside = pc.fill_null(pc.less(first, pc.binary_length(values)), False)
        rows = cast("Sequence[int]", pc.indices_nonzero(inside).to_pylist())
        return dict.fromkeys(rows, "its value contains the delimiter")

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:
        """Return a writer that writes values to ``file`` and the other fields to the sidecar."""
        assert sidecar is not None, "the caller opens a sidecar, because the format has one"
        return _TextFile(file, self.codec, self.delimiter, sidecar)


class _TextFile(FileWriter):
    def __init__(self, file: BinaryIO, codec: str, delimiter: bytes, sidecar: BinaryIO) -> None:
        self._stream, self._end = compress_into(file, codec)
        self._delimiter = delimiter
        self._beside = Sidecar(sidecar, has_lengths=not delimiter)

    def write(self, rows: pa.RecordBatch) -> None:
        values = rows.column("value").to_pylist()
        self._stream.write(b"".join(part for value in values for part in (value or b"", self._delimiter)))
        self._beside.write(rows)

    def close(self) -> None:
        self._end()
        self._beside.close()
