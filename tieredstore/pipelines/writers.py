"""Base classes of file formats and writers, row groups of records, and JSON lines.

The same records always give the same bytes, however they are divided into batches.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, BinaryIO, ClassVar, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from tieredstore.errors import ConfigError
from tieredstore.kafka.records.columns import int64_values
from tieredstore.pipelines.filing.directories import YEAR_10000_MS

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
ENVELOPE: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(_HEADER)),
    ]
)
"""Columns of Kafka records, named as in Spark's Kafka source. Files have these columns unless values are decoded."""

DECODED: Final = "decoded"
"""Name of the column that holds decoded values in memory. No file has this column."""

KAFKA: Final = "kafka"
"""Name of the struct column that holds key, offset and other metadata of a record, in files with decoded values."""


def envelope(records: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Return the records with all columns of ENVELOPE."""
    rows = records.num_rows
    columns = {
        "topic": pa.repeat(topic, rows),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows),
        "timestamp": records.column("timestamp").cast(pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC")),
        "timestampType": records.column("timestampType").cast(pa.int32()),
    }
    arrays = [columns[name] if name in columns else records.column(name) for name in ENVELOPE.names]
    batch: pa.RecordBatch = pa.RecordBatch.from_arrays(arrays, schema=ENVELOPE)
    return batch


_LEAST_MS: Final = -62_135_596_800_000


def find_undatable(records: pa.RecordBatch) -> dict[int, str]:
    """Return the reason why rows of Python objects cannot hold a record, by row number: their times are dates of the
    years 1 to 9999."""
    times = records.column("timestamp").cast(pa.int64())
    rows = pc.indices_nonzero(pc.or_(pc.less(times, _LEAST_MS), pc.greater_equal(times, YEAR_10000_MS)))
    return dict.fromkeys(rows.to_pylist(), "its timestamp is not within the years 1 to 9999")


def find_undatable_values(column: pa.Array) -> dict[int, str]:
    """Return the reason why rows of Python objects cannot hold a decoded value, by row number."""
    faults: dict[int, str] = {}
    for row in range(len(column)) if _has_undatable(column) else ():
        try:
            column[row].as_py()
        except OverflowError:
            faults[row] = "a time of its value is not within the years 1 to 9999"
    return faults


def _has_undatable(array: pa.Array) -> bool:
    """Return True if Python's dates cannot hold a time of the array, at any depth."""
    match array:
        case pa.StructArray():
            return any(map(_has_undatable, array.flatten()))
        case pa.MapArray():
            return _has_undatable(array.keys) or _has_undatable(array.items)
        case pa.ListArray():
            return _has_undatable(array.flatten())
        case _:
            try:
                if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
                    pc.min_max(array).as_py()
            except OverflowError:
                return True
            return False


_STREAM_ENDINGS: Final = {"none": "", "gzip": ".gz", "zstd": ".zst"}


class FileWriter(ABC):
    """Writer of one file and, for some formats, of a sidecar: a second file for fields that the format cannot hold."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows with the columns of ENVELOPE."""

    @abstractmethod
    def close(self) -> None:
        """Write the end of the file, but leave the file object open."""

    def abandon(self) -> None:
        """Release resources; the file may stay incomplete."""
        self.close()


class Format(ABC):
    """A file format. Frozen and picklable."""

    name: ClassVar[str]
    has_sidecar: ClassVar[bool] = False

    @property
    @abstractmethod
    def ending(self) -> str:
        """The suffix of the format's file names."""

    @property
    def writes_forward(self) -> bool:
        """True if the format's writers only append: they neither seek nor read back.

        If the result is True, a file is uploaded while it is written. If it is False, the file is written to a
        temporary file first.
        """
        return False

    @abstractmethod
    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:
        """Return a writer into ``file``, and into ``sidecar`` if the format has one."""

    def faults(self, records: pa.RecordBatch) -> dict[int, str]:  # noqa: ARG002  most formats accept every row
        """Return the reasons why rows cannot be written, by row number."""
        return {}

    def for_window(self, topic: str) -> Format:  # noqa: ARG002  for subclasses with schemas
        """Return the format for a topic; raise ConfigError if the settings do not describe the topic's values."""
        return self

    def decode(self, records: pa.RecordBatch) -> tuple[pa.Array | None, dict[int, str]]:
        """Return the columns decoded from values, or None, and the faults by row number."""
        return None, self.faults(records)

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:  # noqa: ARG002  no columns
        """Return a writer of rows with the columns of ``schema``, not of ENVELOPE. Raise ConfigError if the format has
        no columns.
        """
        raise ConfigError(f"{self.name} files cannot hold columns: choose parquet, orc, avro or json")


class BuiltIn(Format):
    """A built-in format. Its writers only append, and file names end with the suffixes of format and codec."""

    suffix: ClassVar[str]
    is_stream: ClassVar[bool] = False
    """True if the codec compresses the whole file, not blocks inside it."""
    codec: str

    @property
    def ending(self) -> str:
        """The suffix of the format, followed by the codec's suffix if the codec compresses the whole file."""
        return f"{self.suffix}{_STREAM_ENDINGS[self.codec] if self.is_stream else ''}"

    @property
    def writes_forward(self) -> bool:
        """Return True: the writers of this package only append."""
        return True

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  for formats with a sidecar
        """Return a writer of rows with the columns of ENVELOPE."""
        return self.open_columns(file, ENVELOPE)


GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 64 << 20
"""A row group ends with the record that reaches GROUP_ROWS or GROUP_BYTES."""

PIECE_ROWS: Final = 1024
"""Rows per chunk of a row group. pyarrow encodes 1024 rows at once, so chunks of this size do not slow it down. Most
chunks lie within one batch, so their rows are not copied.
"""


class RowGroups:
    """Divider of rows into row groups; all rows have one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._pieces: list[pa.RecordBatch] = []
        self._edge: list[pa.RecordBatch] = []
        """Rows of an incomplete chunk of a row group, from one or several record batches."""
        self._edge_rows = self._rows = self._bytes = 0

    def add(self, rows: pa.RecordBatch, records: pa.RecordBatch | None) -> Iterator[pa.Table]:
        """Add rows, and yield each row group that is now complete.

        ``rows`` were made from ``records``. A group ends at a number of rows, or at a size of the records' keys and
        values. If ``records`` is None, only the number of rows ends a group.
        """
        count = int(rows.num_rows)
        pieces = divide_rows(count, records, lambda _: (GROUP_ROWS - self._rows, GROUP_BYTES - self._bytes))
        for start, stop, size, is_full in pieces:
            self._take(rows.slice(start, stop - start), size)
            if is_full:
                yield self._group()

    def rest(self) -> pa.Table | None:
        """Return the last row group, or None if no rows are left."""
        return self._group() if self._rows else None

    def _take(self, rows: pa.RecordBatch, size: int) -> None:
        count, start = int(rows.num_rows), 0
        self._rows += count
        self._bytes += size
        if self._edge_rows:
            start = min(PIECE_ROWS - self._edge_rows, count)
            self._add_to_edge(rows.slice(0, start))
        while count - start >= PIECE_ROWS:
            self._pieces.append(rows.slice(start, PIECE_ROWS))
            start += PIECE_ROWS
        if start < count:
            self._add_to_edge(rows.slice(start))

    def _add_to_edge(self, rows: pa.RecordBatch) -> None:
        self._edge.append(rows)
        self._edge_rows += rows.num_rows
        if self._edge_rows >= PIECE_ROWS:
            self._end_edge()

    def _end_edge(self) -> None:
        if self._edge:
            self._pieces += pa.Table.from_batches(self._edge, self._schema).combine_chunks().to_batches()
        self._edge, self._edge_rows = [], 0

    def _group(self) -> pa.Table:
        self._end_edge()
        group: pa.Table = pa.Table.from_batches(self._pieces, self._schema)
        self._pieces, self._rows, self._bytes = [], 0, 0
        return group


def divide_rows(
    count: int, records: pa.RecordBatch | None, room: Callable[[int], tuple[int, int]]
) -> Iterator[tuple[int, int, int, bool]]:
    """Divide ``count`` rows, which were made from ``records``, into pieces that end with the row that reaches a limit.

    Yield each piece's first row and end, the bytes of its keys and values, and True if it reaches a limit. ``room``
    returns how many rows and how many bytes reach a limit from this row on. If ``records`` is None, only the number of
    rows counts.
    """
    size, (most_rows, most_bytes) = 0 if records is None else total_size(records), room(0)
    if count < most_rows and size < most_bytes:
        yield 0, count, size, False
        return
    running, start, before = [0] * count if records is None else running_sizes(records), 0, 0
    while start < count:
        most_rows, most_bytes = room(start)
        full = min(start + most_rows, bisect_left(running, before + most_bytes, start) + 1)
        stop = min(full, count)
        yield start, stop, running[stop - 1] - before, stop == full
        start, before = stop, running[stop - 1]


_BINARY: Final = pa.binary()


def total_size(records: pa.RecordBatch) -> int:
    """Return the size of all keys and values. This takes constant time if no key and no value is null."""
    return sum(_bytes_of(records.column(name)) for name in ("key", "value"))


def _bytes_of(column: pa.Array) -> int:
    if column.type != _BINARY or column.null_count or not len(column) or (offsets := column.buffers()[1]) is None:
        # Sum the lengths of the values, because Arrow does not define how many bytes a null takes.
        return pc.sum(pc.binary_length(column)).as_py() or 0
    first = column.offset
    ends = memoryview(offsets).cast("B").cast("i")
    return ends[first + len(column)] - ends[first]


def running_sizes(records: pa.RecordBatch) -> Sequence[int]:
    """Return cumulative sums of the bytes of keys and values, one per record."""
    if not records.num_rows:
        return ()
    keys, values = (
        pc.fill_null(pc.binary_length(records.column(name)), 0).cast(pa.int64()) for name in ("key", "value")
    )
    sums = pc.cumulative_sum(pc.add(keys, values))
    return int64_values(pa.RecordBatch.from_arrays([sums], ["sizes"]), "sizes")


class GroupedFile(FileWriter):
    """A file of row groups. Row groups end at the same records, however the rows are divided into batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self._groups = RowGroups(schema)

    @abstractmethod
    def put(self, table: pa.Table) -> None:
        """Write a row group."""

    @abstractmethod
    def end(self) -> None:
        """Write the end of the file."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, and write each row group that is complete."""
        self.append(rows, rows if "value" in rows.schema.names else None)

    def append(self, rows: pa.RecordBatch, records: pa.RecordBatch | None) -> None:
        """Append rows that were decoded from ``records``. The size of ``records`` also decides where row groups end."""
        for group in self._groups.add(rows, records):
            self.put(group)

    def close(self) -> None:
        """Write the last row group and the end of the file."""
        if (rest := self._groups.rest()) is not None:
            self.put(rest)
        self.end()

    def abandon(self) -> None:
        """Write the end of the file without the last row group, because the caller discards the file."""
        self.end()


@dataclass(frozen=True, slots=True)
class JsonLines(BuiltIn):
    """One JSON object per line with the columns of ENVELOPE. Bytes are in base64, as Spark writes them."""

    codec: str = "none"
    name: ClassVar[str] = "json"
    suffix: ClassVar[str] = ".json"
    is_stream: ClassVar[bool] = True

    def faults(self, records: pa.RecordBatch) -> dict[int, str]:
        """Return the rows whose timestamp is not a date."""
        return find_undatable(records)

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  no sidecar
        """Return a writer of compressed lines."""
        return _JsonFile(file, self.codec, _plain)

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:  # noqa: ARG002  rows contain their schema
        """Return a writer of one JSON object per row, with the decoded columns."""
        return _JsonFile(file, self.codec, _plain_columns)


class _JsonFile(FileWriter):
    def __init__(self, file: BinaryIO, codec: str, plain: Callable[[dict[str, object]], object]) -> None:
        self._stream, self._end = compress_into(file, codec)
        self._plain = plain

    def write(self, rows: pa.RecordBatch) -> None:
        lines = [
            json.dumps(self._plain(row), ensure_ascii=False, separators=(",", ":"))
            for row in rows.to_pylist(maps_as_pydicts="strict")
        ]
        self._stream.write(("\n".join(lines) + "\n").encode("utf-8", "replace") if lines else b"")

    def close(self) -> None:
        self._end()


def _plain(row: dict[str, Any]) -> dict[str, object]:
    """Return a row with the columns of ENVELOPE as JSON values. Null fields are left out, as in Spark, but not the null
    value of a header."""
    fields = {name: _plain_columns(content) for name, content in row.items() if content is not None}
    if row["headers"] is not None:
        fields["headers"] = [{name: _plain_columns(part) for name, part in one.items()} for one in row["headers"]]
    return fields


def _plain_columns(content: object) -> object:
    """Return decoded columns as JSON values: bytes in base64, decimals as text, NaN and infinities by name."""
    match content:
        case dict():
            fields = cast("dict[str, object]", content)
            return {name: _plain_columns(one) for name, one in fields.items() if one is not None}
        case list():
            items = cast("list[object]", content)
            return [_plain_columns(item) for item in items]
        case bytes():
            return base64.b64encode(content).decode()
        case datetime():
            spec = "milliseconds" if content.microsecond % 1000 == 0 else "microseconds"
            return content.isoformat(timespec=spec).replace("+00:00", "Z")
        case float() if not math.isfinite(content):
            return str(content).replace("inf", "Infinity").replace("nan", "NaN")
        case Decimal() | date() | time():
            return str(content)
        case _:
            return content


def compress_into(file: BinaryIO, codec: str) -> tuple[BinaryIO, Callable[[], None]]:
    """Return a stream that compresses into ``file``, and a function that ends the stream but leaves ``file`` open. Gzip
    headers carry no time.
    """
    match codec:
        case "gzip":
            stream: Any = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0)
        case "zstd":
            stream = zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False)
        case _:
            return file, file.flush
    return stream, stream.close
