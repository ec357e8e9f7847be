"""The formats Apache Parquet, ORC, Avro and text, and the Parquet sidecar of formats that hold only values."""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc

from tieredstore.installation import Extra
from tieredstore.pipelines.writers import ENVELOPE, KAFKA, BuiltIn, FileWriter, GroupedFile, compress_into
from tieredstore.values.avro import avro_schema_of

_ORC_CODECS: Final[Mapping[str, str]] = {
    "none": "uncompressed",
    "deflate": "zlib",
    "gzip": "zlib",
    "zstd": "zstd",
    "snappy": "snappy",
    "lz4": "lz4",
}
"""ORC codecs by tieredstore's names. As in Secor, ``gzip`` becomes ORC's zlib."""

_AVRO_CODECS: Final[Mapping[str, str]] = {
    "none": "null",
    "deflate": "deflate",
    "gzip": "deflate",
    "snappy": "snappy",
    "bzip2": "bzip2",
}
_OPTIONAL_BYTES: Final = ["null", "bytes"]
AVRO_SCHEMA: Final[Mapping[str, object]] = {
    "type": "record",
    "name": "Record",
    "namespace": "tieredstore.kafka",
    "fields": [
        {"name": "key", "type": _OPTIONAL_BYTES},
        {"name": "value", "type": _OPTIONAL_BYTES},
        {"name": "topic", "type": "string"},
        {"name": "partition", "type": "int"},
        {"name": "offset", "type": "long"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "timestampType", "type": "int"},
        {
            "name": "headers",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Header",
                        "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": _OPTIONAL_BYTES}],
                    },
                },
            ],
        },
    ],
}
"""An Avro schema with the columns of ENVELOPE."""


@dataclass(frozen=True, slots=True)
class Orc(BuiltIn):
    """Apache ORC."""

    codec: str = "zstd"
    name: ClassVar[str] = "orc"
    suffix: ClassVar[str] = ".orc"

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:
        """Return a writer of ORC. Stripes end at the same records, however the rows are divided into batches."""
        return _OrcFile(file, schema, _ORC_CODECS[self.codec])


class _OrcFile(GroupedFile):
    def __init__(self, file: BinaryIO, schema: pa.Schema, codec: str) -> None:
        super().__init__(schema)

        self._writer = orc.ORCWriter(file, compression=codec)

    def put(self, table: pa.Table) -> None:
        # ORC's writer divides rows by a count that restarts at each chunk of the table. Combine the chunks, so that the
        # file's bytes do not depend on the chunks.
        self._writer.write(table.combine_chunks())

    def end(self) -> None:
        self._writer.close()


@dataclass(frozen=True, slots=True)
class AvroContainer(BuiltIn):
    """An Apache Avro container file."""

    codec: str = "gzip"
    name: ClassVar[str] = "avro"
    suffix: ClassVar[str] = ".avro"

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  no sidecar
        """Return a writer of Avro. Blocks end by size, however the rows are divided into batches."""
        return _AvroRecordsFile(file, _AVRO_CODECS[self.codec], AVRO_SCHEMA)

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:
        """Return a writer of columns, with the Avro equivalent of ``schema``."""
        return _AvroFile(file, _AVRO_CODECS[self.codec], avro_schema_of(schema))


class _AvroFile(FileWriter):
    """Writer of columns. It derives the file's sync marker from the first row, so that the same rows give the same
    bytes.
    """

    def __init__(self, file: BinaryIO, codec: str, schema: str | Mapping[str, object]) -> None:
        self._file, self._codec, self._schema = file, codec, schema
        self._writer: Any = None

    def write(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            if self._writer is None:
                marker = hashlib.sha256(b"tieredstore" + self._seed(row)).digest()[:16]
                writing = fastavro_module("fastavro.write")
                self._writer = writing.Writer(self._file, self._schema, codec=self._codec, sync_marker=marker)
            self._writer.write(row)

    def _seed(self, row: Mapping[str, Any]) -> bytes:
        kafka = row[KAFKA]
        return b"%d %b %b" % (kafka["offset"], str(kafka["timestamp"]).encode(), kafka["key"] or b"")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.flush()


class _AvroRecordsFile(_AvroFile):
    def write(self, rows: pa.RecordBatch) -> None:
        place = rows.schema.get_field_index("timestamp")
        super().write(rows.set_column(place, "timestamp", rows.column(place).cast(pa.int64())))

    def _seed(self, row: Mapping[str, Any]) -> bytes:
        return b"%d %d %b %b" % (row["offset"], row["timestamp"], row["key"] or b"", row["value"] or b"")


def fastavro_module(name: str) -> Any:
    """Return a module of fastavro, or raise a ConfigError that names the extra to install."""
    with Extra("an Avro file", "avro"):
        return importlib.import_module(name)


_BESIDE_TEXT: Final = ("offset", "timestamp", "key", "headers", "is_null")
_COLUMNS_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Parquet(BuiltIn):
    """Apache Parquet."""

    codec: str = "zstd"
    name: ClassVar[str] = "parquet"
    suffix: ClassVar[str] = ".parquet"

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:
        """Return a writer of Parquet. Row groups end at the same records, however the rows are divided into batches."""
        return ParquetFile(file, schema, self.codec)


class ParquetFile(GroupedFile):
    """Writer of a Parquet file. With decoded columns, Kafka's metadata are in the struct column ``kafka``.

    Columns are dictionary-encoded, which saves space if values repeat. Offsets are written plain, because they never
    repeat. Timestamps are dictionary-encoded only if they repeat often enough.
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema, codec: str = "zstd") -> None:
        super().__init__(schema)
        self._file, self._schema, self._codec = file, schema, codec
        self._writer: pq.ParquetWriter | None = None

    def put(self, table: pa.Table) -> None:
        """Write a row group. The first group decides whether timestamps are dictionary-encoded."""
        if self._writer is None:
            self._writer = self._open(repeats=_repeats(self._column(table, "timestamp")))
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def end(self) -> None:
        """Write the footer."""
        if self._writer is None:
            self._writer = self._open(repeats=True)
        self._writer.close()

    def _open(self, *, repeats: bool) -> pq.ParquetWriter:
        plain = {self._path("offset")} if repeats else {self._path("offset"), self._path("timestamp")}
        encoded = [name for name in _columns_of(self._schema) if name not in plain]
        return pq.ParquetWriter(self._file, self._schema, compression=self._codec, use_dictionary=encoded)

    def _column(self, table: pa.Table, name: str) -> pa.ChunkedArray:
        if KAFKA not in self._schema.names:
            return table.column(name)
        return pc.struct_field(table.column(KAFKA), name)

    def _path(self, name: str) -> str:
        return f"{KAFKA}.{name}" if KAFKA in self._schema.names else name


def _repeats(times: pa.ChunkedArray) -> bool:
    """Return True if a dictionary of the timestamps with two-byte indices is smaller than plain eight-byte
    timestamps."""
    count: int = pc.count_distinct(times).as_py()
    return 4 * count < 3 * len(times)


@functools.lru_cache(maxsize=_COLUMNS_KEPT)
def _columns_of(schema: pa.Schema) -> tuple[str, ...]:
    """Return the Parquet column paths of a schema, from the footer of an empty file."""

    file = io.BytesIO()
    pq.write_metadata(schema, file)
    columns = pq.ParquetFile(file).schema
    return tuple(columns.column(number).path for number in range(len(columns)))


class Sidecar:
    """A sidecar: a Parquet file beside a data file that holds only values. For each value it has a row with the
    record's other fields.
    """

    _SCHEMA: Final = pa.schema([*(ENVELOPE.field(name) for name in _BESIDE_TEXT[:-1]), pa.field("is_null", pa.bool_())])

    def __init__(self, file: BinaryIO, *, has_lengths: bool = False) -> None:
        """``has_lengths`` adds a column with the length of each value, for files without a delimiter."""
        length = [pa.field("length", pa.int32())] if has_lengths else []
        self._schema = pa.schema([*self._SCHEMA, *length])
        self._file = ParquetFile(file, self._schema)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append the fields of records, given as rows with the columns of ENVELOPE."""
        values = rows.column("value")
        arrays = [*(rows.column(name) for name in _BESIDE_TEXT[:-1]), values.is_null()]
        if len(self._schema) > len(arrays):
            arrays.append(pc.fill_null(pc.binary_length(values), 0))
        self._file.write(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Write the Parquet footer, but leave the file object open."""
        self._file.close()


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
