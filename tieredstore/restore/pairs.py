"""Comparison of the records of two sides, in batches, with a digest of each side.

This module is separate from ``comparison``, because this module uses only columns of records. It uses no bucket and no
cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

What: TypeAlias = Literal["timestamp", "key", "value", "headers", "missing", "extra", "not_restored"]
"""Kind of a difference: the field that differs, or one of three other values. ``missing``: the target does not have the
record. ``extra``: the source does not have the record. ``not_restored``: the record is not in the run's offset map.
"""

_FIELDS: Final[tuple[What, ...]] = ("timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class RecordDifference:
    """The first record of a partition that differs between the sides. The offset of a side that lacks the record is
    None.

    ``target_partition`` is the partition of the target offset; None if the comparison has only one target partition.
    """

    what: What
    offset: int | None
    target_offset: int | None
    target_partition: int | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Records with the target offsets that they have or should have. ``offsets`` are the records' offsets on the side
    that they come from."""

    offsets: pa.Array
    records: pa.RecordBatch

    @classmethod
    def from_source(cls, records: pa.RecordBatch, there: pa.Array) -> Rows:
        """Return the rows of the source's ``records``. ``there`` has the records' offsets in the target."""
        return cls(records.column("offset"), records.set_column(0, records.schema.field("offset"), there))

    def __len__(self) -> int:
        return self.records.num_rows

    def cut(self, first: int, stop: int) -> Rows:
        """Return the rows from ``first`` up to ``stop`` (exclusive)."""
        return Rows(self.offsets.slice(first, stop - first), self.records.slice(first, stop - first))


class Side:
    """The number of records of one side, and their digest. The digest does not depend on the division into batches.

    A column of variable size is digested as two streams: the lengths of its values (-1 for null), and their bytes.
    """

    def __init__(self) -> None:
        self.records = 0
        self._streams = [hashlib.sha256() for _ in range(11)]

    def add_each(self, pieces: Iterator[Rows]) -> Iterator[Rows]:
        """Add each piece to the digest, then yield it."""
        for piece in pieces:
            self.add(piece.records)
            yield piece

    def add(self, records: pa.RecordBatch) -> None:
        """Add records."""
        self.records += records.num_rows
        headers = records.column("headers")
        pairs = pc.list_flatten(headers)
        parts = [
            _view_int64(records.column("offset")),
            _view_int64(records.column("timestamp")),
            *_binary(records.column("key")),
            *_binary(records.column("value")),
            _lengths(pc.list_value_length(headers)),
            *_binary(pc.struct_field(pairs, [0])),
            *_binary(pc.struct_field(pairs, [1])),
        ]
        for stream, part in zip(self._streams, parts, strict=True):
            stream.update(part)

    def hexdigest(self) -> str:
        """Return the digest of all streams."""
        return hashlib.sha256(b"".join(stream.digest() for stream in self._streams)).hexdigest()


@dataclass(slots=True)
class Pair:
    """The records compared so far on both sides of a partition."""

    ours: Side = field(default_factory=Side)
    theirs: Side = field(default_factory=Side)
    not_restored: int = 0
    difference: RecordDifference | None = None

    def note_not_restored(self, offsets: pa.Array) -> None:
        """Count records that the run did not restore, and report the first of them as a difference."""
        self.not_restored += len(offsets)
        self._note("not_restored", offsets[0].as_py(), None)

    def compare(self, ours: Iterator[Rows], theirs: Iterator[Rows]) -> None:
        """Compare the records up to the first difference; count and digest all records."""
        for one, other in _side_by_side(self.ours.add_each(ours), self.theirs.add_each(theirs)):
            if self.difference is not None:
                continue
            if one is None or other is None:
                self._note_single(one, other)
            elif not one.records.equals(other.records):
                self._note_different(one, other)

    def _note_single(self, one: Rows | None, other: Rows | None) -> None:
        if one is not None:
            self._note("missing", one.offsets[0].as_py(), one.records.column("offset")[0].as_py())
        elif other is not None:
            self._note("extra", None, other.records.column("offset")[0].as_py())

    def _note_different(self, one: Rows, other: Rows) -> None:
        row = _first_different(one.records, other.records)
        offset, expected = one.offsets[row].as_py(), one.records.column("offset")[row].as_py()
        actual = other.records.column("offset")[row].as_py()
        if actual > expected:
            self._note("missing", offset, expected)
        elif actual < expected:
            self._note("extra", None, actual)
        else:
            for name in _FIELDS:
                if not one.records.column(name)[row].equals(other.records.column(name)[row]):
                    self._note(name, offset, expected)

    def _note(self, what: What, offset: int | None, target_offset: int | None) -> None:
        if self.difference is None:
            self.difference = RecordDifference(what, offset, target_offset)


def _side_by_side(ours: Iterator[Rows], theirs: Iterator[Rows]) -> Iterator[tuple[Rows | None, Rows | None]]:
    """Yield rows of both sides in pairs of equal length. After the end of one side, yield None instead of its rows."""
    one, other = next(ours, None), next(theirs, None)
    while one is not None and other is not None:
        rows = min(len(one), len(other))
        yield one.cut(0, rows), other.cut(0, rows)
        one = one.cut(rows, len(one)) if rows < len(one) else next(ours, None)
        other = other.cut(rows, len(other)) if rows < len(other) else next(theirs, None)
    while one is not None or other is not None:
        yield one, other
        one, other = next(ours, None), next(theirs, None)


def _first_different(one: pa.RecordBatch, other: pa.RecordBatch) -> int:
    """Return the first row in which the tables differ, by binary search. The tables must differ, and have the same
    number of rows."""
    first, stop = 0, one.num_rows
    while stop - first > 1:
        middle = (first + stop) // 2
        if one.slice(first, middle - first).equals(other.slice(first, middle - first)):
            first = middle
        else:
            stop = middle
    return first


def _view_int64(column: pa.Array) -> memoryview:
    """Return the bytes of a column that has int64 values and no nulls."""
    octets = column.buffers()[1]
    assert octets is not None
    return memoryview(octets)[column.offset * 8 : (column.offset + len(column)) * 8]


def _lengths(lengths: pa.Array) -> memoryview:
    return _view_int64(pc.fill_null(lengths, -1).cast(pa.int64()))


def _binary(column: pa.Array) -> tuple[memoryview, bytes | memoryview]:
    """Return the lengths of a column's values, and the concatenated bytes of the values."""
    binary = column.cast(pa.large_binary())
    lengths = _lengths(pc.binary_length(binary))
    # Drop nulls, because a null in an Arrow column may still have bytes.
    values = pc.drop_null(binary) if binary.null_count else binary
    _, places, octets = values.buffers()
    if not len(values) or places is None or octets is None:
        return lengths, b""
    ends = memoryview(places).cast("q")
    return lengths, memoryview(octets)[ends[values.offset] : ends[values.offset + len(values)]]
