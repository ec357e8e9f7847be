"""Readers that turn output files of each format back into records."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import struct
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pyarrow import orc

from tieredstore.errors import ConfigError
from tieredstore.pipelines.files.formats import fastavro_module
from tieredstore.pipelines.files.sequencefile import SequenceFileReader, sequence_rows
from tieredstore.pipelines.writers import ENVELOPE, KAFKA
from tieredstore.values.avro import check_bounded

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore

_BATCH: Final = 4096
_PIECE: Final = 1 << 20
_MOST_BYTES: Final = 64 << 20
"""Maximum size of a text value. If a value is longer, the file is not a text file."""

RECORDS: Final = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("timestampType", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", ENVELOPE.field("headers").type),
    ]
)
"""Schema of records read from files; fields that the file lacks are null."""

Row = dict[str, Any]
_NOTHING: Final[Mapping[str, Any]] = {}


def sequence_records(file: BinaryIO, sidecar: BinaryIO | None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a SequenceFile."""
    rows = sequence_rows(SequenceFileReader(file))
    if sidecar is None:
        yield from _batches(_row(row["value"], row) for row in rows)
    else:
        yield from _beside((row["value"] for row in rows), sidecar)


def text_records(file: BinaryIO, sidecar: BinaryIO | None, delimiter: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the records of a text or JSON lines file, compressed or not."""
    start = file.read(4)
    file.seek(0)
    stream = _decompress(file, start)
    if sidecar is not None:
        yield from _beside(pieces_of(stream, delimiter) if delimiter else _by_lengths(stream, sidecar), sidecar)
    elif not delimiter:
        yield from _batches(_row(value) for value in _whole(stream))
    else:
        yield from _batches(_lines(stream, delimiter))


def _decompress(file: BinaryIO, magic: bytes) -> BinaryIO:
    if magic.startswith(b"\x1f\x8b"):
        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if magic == b"\x28\xb5\x2f\xfd":
        return cast("BinaryIO", zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    return file


def parquet_records(file: BinaryIO, _: BinaryIO | None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a Parquet file."""
    for batch in pq.ParquetFile(file).iter_batches(_BATCH):
        yield as_records(batch)


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert a file's batch to records. If the file has decoded columns, each row becomes a JSON value."""
    if not {"key", "value", "offset"} <= set(batch.schema.names):
        return _records([_of_columns(row) for row in _with_plain(batch, KAFKA).to_pylist(maps_as_pydicts="lossy")])
    columns = [
        _plain(batch.column(name)).cast(RECORDS.field(name).type)
        if name in batch.schema.names
        else pa.nulls(batch.num_rows, RECORDS.field(name).type)
        for name in RECORDS.names
    ]
    records: pa.RecordBatch = pa.RecordBatch.from_arrays(columns, schema=RECORDS)
    return records


def _plain(column: pa.Array) -> pa.Array:
    """Return timestamps, also in a struct, as integers in ms, whatever their unit; return other columns unchanged."""
    if pa.types.is_timestamp(kind := column.type):
        return column.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
    if isinstance(column, pa.StructArray):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays([_plain(one) for one in column.flatten()], names, mask=column.is_null())
    return column


def _with_plain(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return the batch with integers in place of the column's timestamps, because not all of them are dates."""
    place: int = batch.schema.get_field_index(name)
    return batch if place < 0 else batch.set_column(place, name, _plain(batch.column(place)))


def orc_records(file: BinaryIO, _: BinaryIO | None) -> Iterator[pa.RecordBatch]:
    """Yield the records of an ORC file."""
    reader = orc.ORCFile(file)
    for number in range(reader.nstripes):
        yield as_records(reader.read_stripe(number))


def avro_records(file: BinaryIO, _: BinaryIO | None) -> Iterator[pa.RecordBatch]:
    """Yield the records of an Avro container file."""
    return _batches(_avro_rows(file))


def _avro_rows(file: BinaryIO) -> Iterator[Row]:
    for row in _avro_objects(file):
        content = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
        if {"key", "value", "offset", "timestamp"} <= content.keys():
            yield _row(content["value"], content)
        else:
            yield _of_columns(content or row)


def _of_columns(row: Any) -> Row:
    """Convert a row with decoded columns to a record. The decoded columns become a JSON value. The struct ``kafka``
    gives the record's other fields.
    """
    value: Any = row
    kafka: Row = value.pop("kafka") if isinstance(row, dict) and isinstance(value.get("kafka"), dict) else {}
    return _row(json.dumps(value, default=str).encode(), kafka)


def _avro_objects(file: BinaryIO) -> Iterator[Any]:
    try:
        objects = fastavro_module("fastavro").reader(file)
        check_bounded(objects.writer_schema)
        yield from objects
    except (
        ConfigError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, RecursionError, struct.error,
    ) as error:  # fmt: skip
        # fastavro checks little of its input, so a corrupt file can raise any of these errors.
        raise ValueError("damaged Avro") from error


def _lines(stream: BinaryIO, delimiter: bytes) -> Iterator[Row]:
    """Yield rows of a JSON lines file or a text file."""
    for value in pieces_of(stream, delimiter):
        envelope = _of_json(value)
        yield _row(value) if envelope is None else envelope


def pieces_of(stream: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """Yield the values of a stream. Each value, including the last, must end with a delimiter."""
    rest = b""
    while piece := stream.read(_PIECE):
        *whole, rest = (rest + piece).split(delimiter)
        yield from whole
        if len(rest) > _MOST_BYTES:
            raise ValueError("a text value is too long")
    if rest:
        raise ValueError("the last text value has no delimiter")


def _by_lengths(stream: BinaryIO, sidecar: BinaryIO) -> Iterator[bytes]:
    """Yield the values of a file without delimiters. Its sidecar holds the length of each value."""
    for batch in pq.ParquetFile(sidecar).iter_batches(_BATCH, columns=["length"]):
        for length in batch.column(0).to_pylist():
            value = stream.read(length)
            if len(value) < length:
                raise ValueError("there are fewer values than the sidecar lists")
            yield value
    if stream.read(1):
        raise ValueError("there are more values than the sidecar lists")


def _whole(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the whole stream as one value."""
    value = stream.read(_MOST_BYTES + 1)
    if len(value) > _MOST_BYTES:
        raise ValueError("the text value is too long")
    if value:
        yield value


def _of_json(line: bytes) -> Row | None:
    """Parse a line of the format ``json``. Return None for a line in another format."""
    if not line.startswith(b"{"):
        return None
    try:
        row: Any = json.loads(line)
        if not {"topic", "partition", "offset", "timestamp"} <= row.keys():
            return None
        moment = pa.scalar(row["timestamp"]).cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).as_py()
        return {
            **_row(_bytes(row.get("value"))),
            "key": _bytes(row.get("key")),
            "offset": row["offset"],
            "timestamp": moment,
            "timestampType": row.get("timestampType"),
            "headers": None
            if row.get("headers") is None
            else [{"key": one["key"], "value": _bytes(one["value"])} for one in row["headers"]],
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error, pa.ArrowInvalid):
        return None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _beside(values: Iterator[bytes], sidecar: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Join values with their metadata from the sidecar."""
    for batch in pq.ParquetFile(sidecar).iter_batches(_BATCH):
        rows: list[Row] = []
        for beside in _with_plain(batch, "timestamp").to_pylist():
            value = next(values, None)
            if value is None:
                raise ValueError("there are fewer values than the sidecar lists")
            fields = {name: beside[name] for name in ("offset", "timestamp", "key", "headers")}
            rows.append(_row(None if beside["is_null"] else value, fields))
        yield _records(rows)
    if next(values, None) is not None:
        raise ValueError("there are more values than the sidecar lists")


def _row(value: bytes | None, beside: Mapping[str, Any] = _NOTHING) -> Row:
    """Return a record of a value and of the other fields that ``beside`` has."""
    row = {name: beside.get(name) for name in RECORDS.names} | {"value": value}
    if isinstance(moment := row["timestamp"], datetime):
        row["timestamp"] = round(moment.timestamp() * 1000)
    return row


def _batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    pending: list[Row] = []
    for row in rows:
        pending.append(row)
        if len(pending) == _BATCH:
            yield _records(pending)
            pending = []
    if pending:
        yield _records(pending)


def _records(rows: list[Row]) -> pa.RecordBatch:
    records: pa.RecordBatch = pa.RecordBatch.from_pylist(rows, schema=RECORDS)
    return records


_DOWNLOAD_BYTES: Final = 8 << 20


@contextmanager
def download(store: ObjectStore, key: str) -> Generator[BinaryIO]:
    """Download an object into a temporary file."""
    size = store.head(key).size
    with tempfile.TemporaryFile() as file:
        for start in range(0, size, _DOWNLOAD_BYTES):
            file.write(store.get(key, start, min(start + _DOWNLOAD_BYTES, size)))
        file.seek(0)
        yield file
