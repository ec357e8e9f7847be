"""Writers: records into files of Parquet, JSON lines or text; the same records always into the same bytes."""

from __future__ import annotations

import base64
import gzip
import importlib
import json
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, BinaryIO, ClassVar, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from tieredstore.errors import ConfigError
from tieredstore.pipelines.sizes import running_sizes

_arrow: Final[Any] = pa
_compute: Final[Any] = pc

GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 64 << 20
"""A row group ends at the record that reaches one of these: so it does not matter how records came in batches."""

_HEADER: Final = _arrow.struct([_arrow.field("key", _arrow.string()), _arrow.field("value", _arrow.binary())])
ENVELOPE: Final[Any] = _arrow.schema(
    [
        _arrow.field("key", _arrow.binary()),
        _arrow.field("value", _arrow.binary()),
        _arrow.field("topic", _arrow.string()),
        _arrow.field("partition", _arrow.int32()),
        _arrow.field("offset", _arrow.int64()),
        _arrow.field("timestamp", _arrow.timestamp("ms", "UTC")),
        _arrow.field("timestampType", _arrow.int32()),
        _arrow.field("headers", _arrow.list_(_HEADER)),
    ]
)
"""All columns of Spark's Kafka source, under its names."""

DECODED: Final = "decoded"
"""The column of rows under way that has the values, where they are decoded; none of a file."""

_BESIDE_TEXT: Final = ("offset", "timestamp", "key", "headers", "is_null")


def envelope(records: Any, topic: str, partition: int) -> pa.RecordBatch:
    """Records as they came, with all that Kafka tells of them."""
    rows = records.num_rows
    columns = {
        "topic": _arrow.repeat(topic, rows),
        "partition": _arrow.repeat(_arrow.scalar(partition, _arrow.int32()), rows),
        "timestamp": records.column("timestamp").cast(_arrow.timestamp("ms")).cast(_arrow.timestamp("ms", "UTC")),
        "timestampType": records.column("timestampType").cast(_arrow.int32()),
    }
    arrays = [columns[name] if name in columns else records.column(name) for name in ENVELOPE.names]
    batch: pa.RecordBatch = _arrow.RecordBatch.from_arrays(arrays, schema=ENVELOPE)
    return batch


@dataclass(frozen=True, slots=True)
class Codec:
    """How a file is compressed, by a short name."""

    name: str
    ending: str


CODECS: Final = {
    "none": Codec("none", ""),
    "gzip": Codec("gzip", ".gz"),
    "zstd": Codec("zstd", ".zst"),
    "snappy": Codec("snappy", ".snappy"),
}


class FileWriter(ABC):
    """Writes one file, and perhaps one beside it for what the format cannot say."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows of the envelope."""

    @abstractmethod
    def close(self) -> None:
        """End the file, which stays open for reading."""

    def abandon(self) -> None:
        """Let go of what is held, of a file that nobody will read."""
        self.close()


class Format(ABC):
    """A kind of files. Frozen and picklable."""

    name: ClassVar[str]
    has_sidecar: ClassVar[bool] = False

    @property
    @abstractmethod
    def ending(self) -> str:
        """What the names of its files end with."""

    @abstractmethod
    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:
        """A writer into ``file``, and into ``sidecar`` where the format has one."""

    def faults(self, records: pa.RecordBatch) -> dict[int, str]:  # noqa: ARG002  most formats hold anything
        """Why rows cannot be written, by their numbers."""
        return {}

    def for_window(self, topic: str) -> Format:  # noqa: ARG002  for those that know schemas of topics
        """The one for a window of a topic; ConfigError where the settings do not say what its values are."""
        return self

    def decoded(self, records: pa.RecordBatch) -> tuple[Any, dict[int, str]]:
        """What rows have beside the envelope, None for nothing, and the faults."""
        return None, self.faults(records)

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:  # noqa: ARG002  not all can
        """A writer of rows of another schema than the envelope; ConfigError from a format that has none."""
        raise ConfigError(f"files of {self.name} do not hold columns: give parquet, orc, avro or json")


@dataclass(frozen=True, slots=True)
class Parquet(Format):
    """Apache Parquet."""

    codec: str = "zstd"
    name: ClassVar[str] = "parquet"

    @property
    def ending(self) -> str:
        """Whatever it is compressed by: that is said inside."""
        return ".parquet"

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  it needs none
        """Its row groups end at the same records, however these come."""
        return ParquetFile(file, ENVELOPE, self.codec)

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:
        """As of the envelope."""
        return ParquetFile(file, schema, self.codec)


class GroupedFile(FileWriter):
    """A file whose groups of rows end at the same records, in whatever batches these come."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._pending: list[Any] = []
        self._rows: int = 0
        self._bytes: int = 0

    @abstractmethod
    def put(self, table: pa.Table) -> None:
        """Write a group."""

    @abstractmethod
    def end(self) -> None:
        """Write what ends the file."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Append, group by group."""
        untyped: Any = rows
        nothing: Sequence[int] = [0] * int(untyped.num_rows)
        self.append(untyped, running_sizes(untyped) if "value" in untyped.schema.names else nothing)

    def append(self, rows: pa.RecordBatch, running: Sequence[int]) -> None:
        """The same of rows whose running sizes are told."""
        untyped: Any = rows
        start, before, count = 0, 0, int(untyped.num_rows)
        while start < count:
            full = bisect_left(running, before + GROUP_BYTES - self._bytes, start) + 1
            stop = min(count, start + GROUP_ROWS - self._rows, full)
            self._pending.append(untyped.slice(start, stop - start))
            self._rows += stop - start
            self._bytes += running[stop - 1] - before
            if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
                self._flush()
            start, before = stop, running[stop - 1]

    def close(self) -> None:
        """The last group, and the file's end."""
        self._flush()
        self.end()

    def _flush(self) -> None:
        if self._pending:
            self.put(_arrow.Table.from_batches(self._pending, self._schema).combine_chunks())
        self._pending = []
        self._rows = self._bytes = 0


class ParquetFile(GroupedFile):
    """A file of Parquet under way."""

    def __init__(self, file: BinaryIO, schema: Any, codec: str = "zstd") -> None:
        super().__init__(schema)
        parquet: Any = importlib.import_module("pyarrow.parquet")
        self._writer = parquet.ParquetWriter(file, schema, compression=codec)

    def put(self, table: pa.Table) -> None:
        """A row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def end(self) -> None:
        """The footer."""
        self._writer.close()


@dataclass(frozen=True, slots=True)
class JsonLines(Format):
    """An object of JSON a line: the envelope, bytes in base64 as Spark writes them."""

    codec: str = "none"
    name: ClassVar[str] = "json"

    @property
    def ending(self) -> str:
        """With the codec's."""
        return f".json{CODECS[self.codec].ending}"

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:  # noqa: ARG002  it needs none
        """Lines into a compressed stream."""
        return _JsonFile(compressed(file, self.codec), _plain)

    def open_columns(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:  # noqa: ARG002  the rows tell it
        """An object of the columns a line."""
        return _JsonFile(compressed(file, self.codec), _plain_columns)


class _JsonFile(FileWriter):
    def __init__(self, stream: BinaryIO, plain: Callable[[dict[str, Any]], Any]) -> None:
        self._stream, self._plain = stream, plain

    def write(self, rows: pa.RecordBatch) -> None:
        lines = [
            json.dumps(self._plain(row), ensure_ascii=False, separators=(",", ":"))
            for row in cast("Any", rows).to_pylist(maps_as_pydicts="strict")
        ]
        self._stream.write(("\n".join(lines) + "\n").encode("utf-8", "replace") if lines else b"")

    def close(self) -> None:
        self._stream.close()


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the envelope as JSON has it; fields that are null are left out, as Spark does."""
    row["timestamp"] = row["timestamp"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for name in ("key", "value"):
        if row[name] is not None:
            row[name] = base64.b64encode(row[name]).decode()
    if row["headers"] is not None:
        row["headers"] = [
            {
                "key": header["key"],
                "value": None if header["value"] is None else base64.b64encode(header["value"]).decode(),
            }
            for header in row["headers"]
        ]
    return {name: content for name, content in row.items() if content is not None}


def _plain_columns(content: Any) -> Any:
    """Columns as JSON has them: bytes in base64, decimals as text, and a number that JSON has not as its name."""
    match content:
        case dict():
            fields = cast("dict[str, Any]", content)
            return {name: _plain_columns(one) for name, one in fields.items() if one is not None}
        case list():
            items = cast("Any", content)
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


@dataclass(frozen=True, slots=True)
class Text(Format):
    """The values alone, each ended by the delimiter; beside it a file of Parquet for all else."""

    codec: str = "none"
    delimiter: bytes = b"\n"
    name: ClassVar[str] = "text"
    has_sidecar: ClassVar[bool] = True

    @property
    def ending(self) -> str:
        """With the codec's."""
        return f".txt{CODECS[self.codec].ending}"

    def faults(self, records: pa.RecordBatch) -> dict[int, str]:
        """A value with the delimiter inside would be two."""
        if not self.delimiter:
            return {}
        values = cast("Any", records).column("value")
        inside = _compute.fill_null(_compute.match_substring(values, self.delimiter), False)
        rows = cast("Sequence[int]", _compute.indices_nonzero(inside).to_pylist())
        return dict.fromkeys(rows, "its value has the delimiter of text inside")

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:
        """Values into one, the rest into the other."""
        if sidecar is None:
            raise ConfigError("text needs a file beside it for offsets, keys and headers")
        return _TextFile(compressed(file, self.codec), self.delimiter, sidecar)


class _TextFile(FileWriter):
    def __init__(self, stream: BinaryIO, delimiter: bytes, sidecar: BinaryIO) -> None:
        self._stream, self._delimiter = stream, delimiter
        self._beside = Sidecar(sidecar)

    def write(self, rows: pa.RecordBatch) -> None:
        for value in cast("Any", rows).column("value").to_pylist():
            self._stream.write((value or b"") + self._delimiter)
        self._beside.write(rows)

    def close(self) -> None:
        self._stream.close()
        self._beside.close()


class Sidecar:
    """The file beside one that has values alone: a row for each, with all else that Kafka tells."""

    _SCHEMA: Final = _arrow.schema(
        [*(ENVELOPE.field(name) for name in _BESIDE_TEXT[:-1]), _arrow.field("is_null", _arrow.bool_())]
    )

    def __init__(self, file: BinaryIO) -> None:
        self._file = ParquetFile(file, self._SCHEMA)

    def write(self, rows: pa.RecordBatch) -> None:
        """Of rows of the envelope."""
        untyped: Any = rows
        arrays = [*(untyped.column(name) for name in _BESIDE_TEXT[:-1]), untyped.column("value").is_null()]
        self._file.write(_arrow.RecordBatch.from_arrays(arrays, schema=self._SCHEMA))

    def close(self) -> None:
        """End it; it stays open for reading."""
        self._file.close()


class _Kept:
    """A file that a stream which compresses may close, and that stays open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.flush()


def compressed(file: BinaryIO, codec: str) -> BinaryIO:
    """A stream into ``file``, which stays open when the stream is closed; no time goes into it."""
    kept: Any = _Kept(file)
    match codec:
        case "gzip":
            return cast("BinaryIO", _Gzip(kept))
        case "zstd":
            return cast("BinaryIO", zstandard.ZstdCompressor(level=3).stream_writer(kept, closefd=False))
        case _:
            return cast("BinaryIO", kept)


class _Gzip(gzip.GzipFile):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0)
