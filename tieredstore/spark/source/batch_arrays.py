"""A column of record batches into a column of their records, for a task of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from tieredstore.errors import BatchCorrupt, ConfigError
from tieredstore.kafka.records import RecordDecoder
from tieredstore.spark.source.rows import RowShape

# What its type stubs say of arrays is partial.
arrow: Any = pa
Array: TypeAlias = Any

OnCorrupt: TypeAlias = Literal["fail", "null"]

_ENOUGH_BYTES: Final = 4 * 1024 * 1024
"""Decoded bytes after which the values so far are given."""

_MOST_BYTES: Final = 1024 * 1024 * 1024
"""What one value may decode to: Spark holds it in one piece, of 2 GiB at most."""


class BatchArrays:
    """Decodes binary arrays, each value of whole record batches, to arrays of lists of records. For one thread.

    ``place`` says where a row is, for errors. A null stays one.
    """

    def __init__(self, shape: RowShape, on_corrupt: OnCorrupt, place: Callable[[int], str]) -> None:
        self._shape = shape
        self._on_corrupt = on_corrupt
        self._place = place
        self._decoder = RecordDecoder(shape.decoder_columns)
        self._row = 0

    def convert(self, arrays: Iterable[Array]) -> Iterator[Array]:
        """As many lists as there are values, in arrays of a few MiB; more only where one value decodes to more."""
        for array in arrays:
            decoded: list[pa.RecordBatch] = []
            counts: list[int | None] = []
            size = 0
            for value in array:
                batches = self._decode(value)
                counts.append(None if batches is None else sum(batch.num_rows for batch in batches))
                decoded += batches or ()
                size += _size(batches or ())
                if size >= _ENOUGH_BYTES:
                    yield self._lists(decoded, counts)
                    decoded, counts, size = [], [], 0
            if counts:
                yield self._lists(decoded, counts)

    def _decode(self, value: Any) -> list[pa.RecordBatch] | None:
        row, self._row = self._row, self._row + 1
        if not value.is_valid:
            return None
        try:
            return self._collect(row, memoryview(value.as_buffer()))
        except BatchCorrupt as error:
            if self._on_corrupt == "null":
                return None
            raise BatchCorrupt(f"{self._place(row)}: {error}") from error

    def _collect(self, row: int, content: memoryview) -> list[pa.RecordBatch]:
        collected: list[pa.RecordBatch] = []
        left = _MOST_BYTES
        for batch in self._decoder.decode([content]):
            # Counted while it decodes: a few stored bytes may stand for very many.
            left -= _size([batch])
            if left < 0:
                raise ConfigError(
                    f"{self._place(row)} decodes to over {_MOST_BYTES} bytes, too many for one value; decode_segments "
                    "gives a row for each record instead"
                )
            collected.append(batch)
        return collected

    def _lists(self, decoded: Sequence[pa.RecordBatch], counts: Sequence[int | None]) -> Array:
        records: Any = self._shape.convert(self._joined(decoded), None, None)
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + (count or 0))
        nulls = arrow.array([count is None for count in counts], arrow.bool_())
        structs = arrow.StructArray.from_arrays(records.columns, fields=list(self._shape.arrow_schema))
        return arrow.ListArray.from_arrays(arrow.array(ends, arrow.int32()), structs, mask=nulls)

    def _joined(self, decoded: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        columns: Any = arrow.Table.from_batches(decoded, schema=self._decoder.schema).columns
        arrays = [arrow.concat_arrays(column.chunks) if column.chunks else _empty(column) for column in columns]
        joined: pa.RecordBatch = arrow.RecordBatch.from_arrays(arrays, schema=self._decoder.schema)
        return joined


def _empty(column: Any) -> Array:
    return arrow.array([], column.type)


def _size(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.get_total_buffer_size() for batch in batches)
