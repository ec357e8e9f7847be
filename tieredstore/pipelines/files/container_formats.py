"""Apache ORC and Avro: the whole envelope, as Parquet has it."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Final, cast

import pyarrow as pa
from pyarrow import orc

from tieredstore.errors import ConfigError
from tieredstore.installation import install_command
from tieredstore.pipelines.writers import ENVELOPE, FileWriter, Format, GroupedFile
from tieredstore.values.arrow_to_avro import avro_schema_of

_ORC_CODECS: Final[Mapping[str, str]] = {
    "none": "uncompressed",
    "deflate": "zlib",
    "gzip": "zlib",
    "zstd": "zstd",
    "snappy": "snappy",
    "lz4": "lz4",
}
"""As Secor has it: what Hadoop calls gzip is ORC's zlib."""

_AVRO_CODECS: Final[Mapping[str, str]] = {
    "none": "null",
    "deflate": "deflate",
    "gzip": "deflate",
    "snappy": "snappy",
    "bzip2": "bzip2",
}
_OPTIONAL_BYTES: Final = ["null", "bytes"]
AVRO_SCHEMA: Final[Mapping[str, Any]] = {
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
"""Of the envelope."""


@dataclass(frozen=True, slots=True)
class Orc(Format):
    """Apache ORC."""

    codec: str = "zstd"
    name: ClassVar[str] = "orc"

    @property
    def ending(self) -> str:
        """Whatever it is compressed by: that is said inside."""
        return ".orc"

    @property
    def writes_forward(self) -> bool:
        """They do."""
        return True

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  it needs none
        """What is handed over at once ends at the same records, however these come."""
        return _OrcFile(file, ENVELOPE, _ORC_CODECS[self.codec])

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:
        """As of the envelope."""
        return _OrcFile(file, schema, _ORC_CODECS[self.codec])


class _OrcFile(GroupedFile):
    def __init__(self, file: BinaryIO, schema: Any, codec: str) -> None:
        super().__init__(schema)

        self._writer = orc.ORCWriter(file, compression=codec)

    def put(self, table: pa.Table) -> None:
        # It cuts rows by its own count, which begins anew with each piece.
        self._writer.write(cast("Any", table).combine_chunks())

    def end(self) -> None:
        self._writer.close()


@dataclass(frozen=True, slots=True)
class AvroContainer(Format):
    """A container file of Apache Avro."""

    codec: str = "gzip"
    name: ClassVar[str] = "avro"

    @property
    def ending(self) -> str:
        """Whatever it is compressed by: that is said inside."""
        return ".avro"

    @property
    def writes_forward(self) -> bool:
        """They do."""
        return True

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  it needs none
        """Its blocks end by bytes, however records come."""
        return _AvroFile(file, _AVRO_CODECS[self.codec])

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:
        """By the schema of Avro that the columns have."""
        return _AvroColumnsFile(file, _AVRO_CODECS[self.codec], avro_schema_of(schema))


class _AvroFile(FileWriter):
    def __init__(self, file: BinaryIO, codec: str) -> None:
        self._writer = _AvroWriter(file, codec, AVRO_SCHEMA)

    def write(self, rows: pa.RecordBatch) -> None:
        untyped: Any = rows
        place = untyped.schema.get_field_index("timestamp")
        plain = untyped.set_column(place, "timestamp", untyped.column(place).cast("int64"))
        for row in plain.to_pylist():
            seed = b"%d %d %b %b" % (row["offset"], row["timestamp"], row["key"] or b"", row["value"] or b"")
            self._writer.write(row, seed)

    def close(self) -> None:
        self._writer.close()


class _AvroWriter:
    """It begins with the first row, of which its marker is made: the same each time."""

    def __init__(self, file: BinaryIO, codec: str, schema: Any) -> None:
        self._file, self._codec, self._schema = file, codec, schema
        self._writer: Any = None

    def write(self, row: Mapping[str, Any], seed: bytes) -> None:
        if self._writer is None:
            marker = hashlib.sha256(b"tieredstore" + seed).digest()[:16]
            writing = fastavro_module("fastavro.write")
            self._writer = writing.Writer(self._file, self._schema, codec=self._codec, sync_marker=marker)
        self._writer.write(row)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.flush()


class _AvroColumnsFile(FileWriter):
    def __init__(self, file: BinaryIO, codec: str, schema: Any) -> None:
        self._writer = _AvroWriter(file, codec, schema)

    def write(self, rows: pa.RecordBatch) -> None:
        untyped: Any = rows
        for row in untyped.to_pylist(maps_as_pydicts="strict"):
            kafka = row["kafka"]
            seed = b"%d %b %b" % (kafka["offset"], str(kafka["timestamp"]).encode(), kafka["key"] or b"")
            self._writer.write(row, seed)

    def close(self) -> None:
        self._writer.close()


def fastavro_module(name: str) -> Any:
    """A module of fastavro; ConfigError names the extra."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"files of Avro need {error.name}: {install_command('avro')}") from error
