"""Hadoop SequenceFiles as Secor writes them, with offsets as keys: reader, writer and codecs."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import importlib
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Final

import pyarrow as pa
import zstandard

from tieredstore.installation import Extra
from tieredstore.pipelines.files.formats import Sidecar
from tieredstore.pipelines.filing.messagepack import pack_bytes, pack_number, unpack
from tieredstore.pipelines.writers import BuiltIn, FileWriter

MAGIC: Final = b"SEQ"
LONG: Final = "org.apache.hadoop.io.LongWritable"
BYTES: Final = "org.apache.hadoop.io.BytesWritable"
_VERSION: Final = 6
_SYNC_BYTES: Final = 16
_SYNC_EACH: Final = 2_000
_BLOCK_BYTES: Final = 1_000_000
_MOST_BYTES: Final = 256 << 20
"""Maximum bytes of a record, a block or a decompressed part. A larger size means corrupt data."""
_MOST_NAME: Final = 1_000

_INT: Final = struct.Struct(">i")
_ESCAPE: Final = _INT.pack(-1)


def vint(number: int) -> bytes:
    """Encode Hadoop's variable-length integer.

    A number from -112 to 127 takes one byte. For another number, the first byte gives sign and length, and the number's
    bytes follow.
    """
    if -112 <= number <= 127:
        return struct.pack("b", number)
    base, number = (-120, ~number) if number < 0 else (-112, number)
    size = (number.bit_length() + 7) // 8
    return struct.pack("b", base - size) + number.to_bytes(size, "big")


class SequenceFileWriter:
    """Writer of a SequenceFile of serialized keys and values. The same records give the same bytes.

    If a codec is set, the file is block-compressed, like Secor's files. ``close`` leaves the file object open.
    """

    def __init__(self, file: BinaryIO, key_class: str, codec: str, seed: bytes) -> None:
        self._file, self._codec = file, codec
        # Derive the sync marker from the contents by a hash, so that the same contents give the same file. A hash is
        # unlikely to occur in a message by chance.
        self._sync = hashlib.sha256(b"tieredstore" + seed).digest()[:_SYNC_BYTES]
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._pending = self._since_sync = 0
        is_compressed = codec != "none"
        file.write(MAGIC + bytes([_VERSION]) + _text(key_class) + _text(BYTES) + bytes([is_compressed, is_compressed]))
        file.write((_text(CODEC_CLASSES[codec]) if is_compressed else b"") + _INT.pack(0) + self._sync)

    def append(self, key: bytes, value: bytes) -> None:
        """Append a record."""
        if self._codec == "none":
            self._append_plain(key, value)
            return
        self._keys.append(key)
        self._values.append(value)
        self._pending += len(key) + len(value)
        if self._pending >= _BLOCK_BYTES:
            self._end_block()

    def close(self) -> None:
        """Write the last block."""
        self._end_block()
        self._file.flush()

    def _append_plain(self, key: bytes, value: bytes) -> None:
        if self._since_sync >= _SYNC_EACH:
            self._file.write(_ESCAPE + self._sync)
            self._since_sync = 0
        self._file.write(_INT.pack(len(key) + len(value)) + _INT.pack(len(key)) + key + value)
        self._since_sync += 8 + len(key) + len(value)

    def _end_block(self) -> None:
        if not self._keys:
            return
        self._file.write(_ESCAPE + self._sync + vint(len(self._keys)))
        for parts in (self._keys, self._values):
            for part in (b"".join(vint(len(one)) for one in parts), b"".join(parts)):
                packed = compress(self._codec, part)
                self._file.write(vint(len(packed)) + packed)
        self._keys, self._values, self._pending = [], [], 0


class SequenceFileReader:
    """Reader that yields pairs of serialized key and value. It raises ValueError for corrupt data or an unknown
    codec."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        if self._take(3) != MAGIC or (version := self._take(1)[0]) not in (5, 6):
            raise ValueError("not a SequenceFile of version 5 or 6")
        self.key_class, self.value_class = self._name(), self._name()
        self._is_compressed, self._has_blocks = self._take(1) != b"\0", self._take(1) != b"\0"
        self._codec = self._read_codec(self._name()) if self._is_compressed else "none"
        if version == 6:
            for _ in range(2 * self._int(10_000)):
                self._name()
        self._sync = self._take(_SYNC_BYTES)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._blocks() if self._has_blocks else self._records()

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        while head := self._file.read(4):
            length = self._number(head)
            if length == -1:
                self._check_sync()
                continue
            key_length = self._int(length)
            key, value = self._take(key_length), self._take(length - key_length)
            yield key, decompress(self._codec, value, _MOST_BYTES) if self._is_compressed else value

    def _blocks(self) -> Iterator[tuple[bytes, bytes]]:
        while head := self._file.read(4):
            if self._number(head) != -1:
                raise ValueError("a block does not begin with the sync marker")
            self._check_sync()
            count = self._vint()
            keys = self._split(self._part(), self._part(), count)
            values = self._split(self._part(), self._part(), count)
            yield from zip(keys, values, strict=True)

    def _part(self) -> bytes:
        return decompress(self._codec, self._take(self._vint()), _MOST_BYTES)

    @staticmethod
    def _split(lengths: bytes, content: bytes, count: int) -> list[bytes]:
        if not 0 <= count <= len(lengths):
            raise ValueError("a block declares more records than it has")
        pieces: list[bytes] = []
        at = start = 0
        for _ in range(count):
            length, at = _read_vint(lengths, at)
            if not 0 <= length <= len(content) - start:
                raise ValueError("a record reaches beyond its block")
            pieces.append(content[start : start + length])
            start += length
        if (at, start) != (len(lengths), len(content)):
            raise ValueError("a block has bytes after its records")
        return pieces

    def _check_sync(self) -> None:
        if self._take(_SYNC_BYTES) != self._sync:
            raise ValueError("a sync marker differs from the file's")

    def _read_codec(self, name: str) -> str:
        for short, known in CODEC_CLASSES.items():
            if known == name:
                return short
        raise ValueError(f"unknown codec {name!r:.120}")

    def _name(self) -> str:
        return self._take(self._check_bounds(self._vint(), _MOST_NAME)).decode()

    def _vint(self) -> int:
        first = self._take(1)
        return _read_vint(first + self._file.read(_more_bytes(first[0])), 0)[0]

    def _int(self, most: int) -> int:
        return self._check_bounds(_INT.unpack(self._take(4))[0], most)

    def _number(self, head: bytes) -> int:
        if len(head) < 4:
            raise ValueError("the file ends too early")
        number: int = _INT.unpack(head)[0]
        return number if number == -1 else self._check_bounds(number, _MOST_BYTES)

    @staticmethod
    def _check_bounds(number: int, most: int) -> int:
        if not 0 <= number <= most:
            raise ValueError("a number is out of its range")
        return number

    def _take(self, count: int) -> bytes:
        piece = self._file.read(self._check_bounds(count, _MOST_BYTES))
        if len(piece) < count:
            raise ValueError("the file ends too early")
        return piece


def bytes_writable(data: bytes) -> bytes:
    """Serialize bytes as a ``BytesWritable``."""
    return _INT.pack(len(data)) + data


def of_bytes_writable(data: bytes) -> bytes:
    """Return the contents of a serialized ``BytesWritable``; raise ValueError for other data."""
    if len(data) < 4 or _INT.unpack_from(data)[0] != len(data) - 4:
        raise ValueError("a value is not a BytesWritable")
    return data[4:]


def _text(name: str) -> bytes:
    encoded = name.encode()
    return vint(len(encoded)) + encoded


def _more_bytes(first: int) -> int:
    """Return the number of bytes that follow the first byte of a variable-length integer."""
    signed = first - 256 if first > 127 else first
    if signed >= -112:
        return 0
    return -signed - (120 if signed < -120 else 112)


def _read_vint(data: bytes, at: int) -> tuple[int, int]:
    if at >= len(data):
        raise ValueError("the file ends within a number")
    first, more = data[at], _more_bytes(data[at])
    if not more:
        return first - 256 if first > 127 else first, at + 1
    stop = at + 1 + more
    if stop > len(data):
        raise ValueError("the file ends within a number")
    number = int.from_bytes(data[at + 1 : stop], "big")
    return (~number if first < 136 else number), stop


_PREFIX: Final = "org.apache.hadoop.io.compress."
CODEC_CLASSES: Final[Mapping[str, str]] = {
    "deflate": f"{_PREFIX}DefaultCodec",
    "gzip": f"{_PREFIX}GzipCodec",
    "zstd": f"{_PREFIX}ZStandardCodec",
    "snappy": f"{_PREFIX}SnappyCodec",
    "lz4": f"{_PREFIX}Lz4Codec",
    "bzip2": f"{_PREFIX}BZip2Codec",
}
"""Codecs by tieredstore's names, each with the Java class name that files contain."""

_PIECE: Final = 128 << 10
"""Bytes per chunk of Snappy and LZ4; must fit into Hadoop's buffers of 256 KiB."""
_SIZE: Final = struct.Struct(">I")


def compress(codec: str, data: bytes) -> bytes:
    """Compress data; the same input gives the same bytes."""
    match codec:
        case "none":
            return data
        case "deflate":
            return zlib.compress(data, 6)
        case "gzip":
            return gzip.compress(data, 6, mtime=0)
        case "zstd":
            return zstandard.ZstdCompressor(level=3).compress(data)
        case "bzip2":
            return bz2.compress(data)
        case _:
            return _frame(_cramjam_block(codec)[0], data)


def decompress(codec: str, data: bytes, most: int) -> bytes:
    """Decompress data; raise ValueError if it is corrupt or decompresses to more than ``most`` bytes."""
    if codec in {"snappy", "lz4"}:
        return _unframe(_cramjam_block(codec)[1], data, most)
    if codec == "none":
        return data
    file = io.BytesIO(data)
    try:
        match codec:
            case "deflate":
                whole = _inflate(data, most + 1)
            case "gzip":
                whole = gzip.GzipFile(fileobj=file).read(most + 1)
            case "zstd":
                whole = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read(most + 1)
            case _:
                whole = bz2.BZ2File(file).read(most + 1)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"{codec} data is corrupt") from error
    if len(whole) > most:
        raise ValueError(f"a compressed part decompresses to more than {most} bytes")
    return whole


def _inflate(data: bytes, most: int) -> bytes:
    inflating = zlib.decompressobj()
    whole = inflating.decompress(data, most)
    if not inflating.eof and len(whole) < most:
        raise EOFError
    return whole


def _cramjam_block(codec: str) -> tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]:
    """Return a function that compresses one chunk without a frame, and a function that decompresses it."""
    with Extra(f"the codec {codec}", "arrow"):
        cramjam = importlib.import_module("cramjam")
    if codec == "snappy":
        return (
            lambda data: bytes(cramjam.snappy.compress_raw(data)),
            lambda data, size: _snappy(cramjam.snappy, data, size),
        )
    return (
        lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
        lambda data, size: _lz4(cramjam.lz4, data, size),
    )


def _snappy(snappy: Any, data: bytes, size: int) -> bytes:
    # Check the size that the chunk declares before cramjam allocates memory for it.
    if snappy.decompress_raw_len(data) > size:
        raise ValueError("a compressed chunk has another size than declared")
    return bytes(snappy.decompress_raw(data))


def _lz4(lz4: Any, data: bytes, size: int) -> bytes:
    # Decompress into a separate buffer. A chunk may be shorter than ``size``, and cramjam would pad it with zeros.
    whole = bytearray(size)
    count: int = lz4.decompress_block_into(data, whole)
    return bytes(memoryview(whole)[:count])


def _frame(chunk: Callable[[bytes], bytes], data: bytes) -> bytes:
    pieces: list[bytes] = []
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        packed = chunk(piece)
        pieces += [_SIZE.pack(len(piece)), _SIZE.pack(len(packed)), packed]
    return b"".join(pieces)


def _unframe(chunk: Callable[[bytes, int], bytes], data: bytes, most: int) -> bytes:
    whole, at = bytearray(), 0
    while at < len(data):
        size, at = _size_at(data, at)
        if size > most - len(whole):
            raise ValueError(f"a compressed part decompresses to more than {most} bytes")
        stop = len(whole) + size
        while len(whole) < stop:
            length, at = _size_at(data, at)
            if length > len(data) - at:
                raise ValueError("a compressed chunk ends too early")
            whole += _unpack(chunk, data[at : at + length], stop - len(whole))
            at += length
        if len(whole) != stop:
            raise ValueError("a compressed chunk has another size than declared")
    return bytes(whole)


def _unpack(chunk: Callable[[bytes, int], bytes], data: bytes, size: int) -> bytes:
    if not data:
        raise ValueError("a compressed chunk is empty")
    try:
        piece = chunk(data, size)
    except Exception as error:
        raise ValueError("compressed data is corrupt") from error
    if not piece:
        raise ValueError("a compressed chunk decompresses to nothing")
    return piece


def _size_at(data: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(data):
        raise ValueError("a compressed part ends too early")
    size: int = _SIZE.unpack_from(data, at)[0]
    return size, at + 4


_LONG: Final = struct.Struct(">q")
_OFFSET: Final = 1
_KEY: Final = 2
_TIMESTAMP: Final = 3
_MAP: Final = 0x80


@dataclass(frozen=True, slots=True)
class SequenceFile(BuiltIn):
    """Hadoop SequenceFiles. Keys are offsets (``LongWritable``). With ``messagepack``, keys are maps of offset, key and
    timestamp.

    Values are ``BytesWritable``. A Parquet sidecar holds the other fields, and marks null values.
    """

    codec: str = "none"
    messagepack: bool = False
    name: ClassVar[str] = "sequencefile"
    suffix: ClassVar[str] = ".seq"
    has_sidecar: ClassVar[bool] = True

    def open(self, file: BinaryIO, sidecar: BinaryIO | None) -> FileWriter:
        """Return a writer that writes values to ``file`` and the other fields to the sidecar."""
        assert sidecar is not None, "the caller opens a sidecar, because the format has one"
        return _SequenceFile(file, self, Sidecar(sidecar))


class _SequenceFile(FileWriter):
    def __init__(self, file: BinaryIO, how: SequenceFile, beside: Sidecar) -> None:
        self._file, self._how, self._beside = file, how, beside
        self._writer: SequenceFileWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        times = rows.column("timestamp").cast(pa.int64()).to_pylist()
        columns = (rows.column(name).to_pylist() for name in ("offset", "key", "value"))
        for time, offset, key, value in zip(times, *columns, strict=True):
            if self._writer is None:
                # Begin the file only now, because its sync marker is derived from the first record.
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
    """Encode a key as Secor's ``MessagePackSequenceFileReaderWriterFactory`` does. Leave out absent fields."""
    fields = [pack_number(_OFFSET) + pack_number(offset)]
    if key is not None:
        fields.append(pack_number(_KEY) + pack_bytes(key))
    if time >= 0:
        fields.append(pack_number(_TIMESTAMP) + pack_number(time))
    return bytes_writable(bytes([_MAP | len(fields)]) + b"".join(fields))


def sequence_rows(reader: SequenceFileReader) -> Any:
    """Yield offset, key, timestamp and value of each record, without the fields that the file lacks.

    Raises ValueError if the file does not have the form of Secor's files.
    """
    if reader.value_class != BYTES or reader.key_class not in {LONG, BYTES}:
        raise ValueError(
            f"a SequenceFile of {reader.key_class!r:.80} and {reader.value_class!r:.80} was not written by Secor"
        )
    for key, value in reader:
        payload = of_bytes_writable(value)
        if reader.key_class == LONG:
            yield {"offset": _offset_of(key), "value": payload}
        else:
            yield {**_of_messagepack(of_bytes_writable(key)), "value": payload}


def _offset_of(key: bytes) -> int:
    if len(key) != _LONG.size:
        raise ValueError("a key is not a LongWritable")
    offset: int = _LONG.unpack(key)[0]
    return offset


def _of_messagepack(key: bytes) -> dict[str, Any]:
    content = unpack(key)
    if not isinstance(content, dict) or not isinstance(content.get(_OFFSET), int):
        raise ValueError("a key has no offset")  # noqa: TRY004  ValueError for all damaged data
    message_key, time = content.get(_KEY), content.get(_TIMESTAMP)
    return {
        "offset": content[_OFFSET],
        "key": message_key if isinstance(message_key, bytes) else None,
        "timestamp": time if isinstance(time, int) else None,
    }
