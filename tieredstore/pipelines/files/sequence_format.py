"""SequenceFiles of Hadoop's as Secor writes them: values, under keys that tell offsets."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Final

import pyarrow as pa

from tieredstore.errors import ConfigError
from tieredstore.pipelines.files.parquet_format import Sidecar
from tieredstore.pipelines.files.sequencefile import (
    BYTES,
    LONG,
    SequenceFileReader,
    SequenceFileWriter,
    bytes_writable,
    of_bytes_writable,
)
from tieredstore.pipelines.filing.messagepack import packed, packed_bytes, unpacked
from tieredstore.pipelines.writers import FileWriter, Format

_LONG: Final = struct.Struct(">q")
_OFFSET: Final = 1
_KEY: Final = 2
_TIMESTAMP: Final = 3
_MAP: Final = 0x80


@dataclass(frozen=True, slots=True)
class SequenceFile(Format):
    """Keys are ``LongWritable`` offsets, or with ``messagepack`` maps of offset (1), key (2) and timestamp (3).

    Values are ``BytesWritable``. Beside it a file of Parquet for all else, null values too.
    """

    codec: str = "none"
    messagepack: bool = False
    name: ClassVar[str] = "sequencefile"
    has_sidecar: ClassVar[bool] = True

    @property
    def ending(self) -> str:
        """Whatever it is compressed by: that is said inside."""
        return ".seq"

    @property
    def writes_forward(self) -> bool:
        """They do."""
        return True

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:
        """Records into one, the rest into the other."""
        if sidecar is None:
            raise ConfigError("a SequenceFile needs a file beside it for headers and null values")
        return _SequenceFile(file, self, Sidecar(sidecar))


class _SequenceFile(FileWriter):
    def __init__(self, file: BinaryIO, how: SequenceFile, beside: Sidecar) -> None:
        self._file, self._how, self._beside = file, how, beside
        self._writer: SequenceFileWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        untyped: Any = rows
        times = untyped.column("timestamp").cast("int64").to_pylist()
        columns = (untyped.column(name).to_pylist() for name in ("offset", "key", "value"))
        for time, offset, key, value in zip(times, *columns, strict=True):
            if self._writer is None:
                # It begins with the first record, of which its marker is made.
                seed = b"%d %d %b %b" % (offset, time, key or b"", value or b"")
                key_class = BYTES if self._how.messagepack else LONG
                self._writer = SequenceFileWriter(self._file, key_class, self._how.codec, seed)
            head = _messagepack_key(offset, key, time) if self._how.messagepack else _LONG.pack(offset)
            self._writer.append(head, bytes_writable(value or b""))
        self._beside.write(rows)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._beside.close()


def _messagepack_key(offset: int, key: bytes | None, time: int) -> bytes:
    """As Secor's ``MessagePackSequenceFileReaderWriterFactory`` has it: what there is not is left out."""
    fields = [packed(_OFFSET) + packed(offset)]
    if key is not None:
        fields.append(packed(_KEY) + packed_bytes(key))
    if time >= 0:
        fields.append(packed(_TIMESTAMP) + packed(time))
    return bytes_writable(bytes([_MAP | len(fields)]) + b"".join(fields))


def sequence_rows(reader: SequenceFileReader) -> Any:
    """Offset, key, timestamp and value of each record; what the file does not tell is None. ValueError for others'."""
    if reader.value_class != BYTES or reader.key_class not in {LONG, BYTES}:
        raise ValueError(f"a SequenceFile of {reader.key_class!r:.80} and {reader.value_class!r:.80}, not of Secor's")
    for key, value in reader:
        payload = of_bytes_writable(value)
        if reader.key_class == LONG:
            yield {"offset": _offset_of(key), "value": payload}
        else:
            yield {**_of_messagepack(of_bytes_writable(key)), "value": payload}


def _offset_of(key: bytes) -> int:
    if len(key) != _LONG.size:
        raise ValueError("a key is no LongWritable")
    offset: int = _LONG.unpack(key)[0]
    return offset


def _of_messagepack(key: bytes) -> dict[str, Any]:
    content = unpacked(key)
    if not isinstance(content, dict) or not isinstance(content.get(_OFFSET), int):
        raise ValueError("a key has no offset")  # noqa: TRY004  one error for all that is damaged
    message_key, time = content.get(_KEY), content.get(_TIMESTAMP)
    return {
        "offset": content[_OFFSET],
        "key": message_key if isinstance(message_key, bytes) else None,
        "timestamp": time if isinstance(time, int) else None,
    }
