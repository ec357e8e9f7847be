"""SequenceFiles of Hadoop's: a header, then records, or blocks of records, parted by a marker of 16 bytes.

    header   "SEQ" version(1) keyClass valueClass compressed(1) blocks(1) [codecClass] metadata sync(16)
    record   length(4) keyLength(4) key value             the value compressed if the file is, and has no blocks
    block    -1(4) sync(16) count keyLengths keys valueLengths values      each of the four: its size, then compressed
    marker   -1(4) sync(16)                               before a record, each 2,000 bytes or so

Names of classes, counts and sizes of blocks are Hadoop's variable integers, all other numbers big endian. Source:
``org.apache.hadoop.io.SequenceFile`` and ``WritableUtils``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

from tieredstore.pipelines.files.hadoop_codecs import CODEC_CLASSES, compress, decompress

MAGIC: Final = b"SEQ"
LONG: Final = "org.apache.hadoop.io.LongWritable"
BYTES: Final = "org.apache.hadoop.io.BytesWritable"
_VERSION: Final = 6
_SYNC_BYTES: Final = 16
_SYNC_EACH: Final = 2_000
_BLOCK_BYTES: Final = 1_000_000
_MOST_BYTES: Final = 256 << 20
"""Of a record, a block, or one of its parts unpacked: more is damage."""
_MOST_NAME: Final = 1_000

_INT: Final = struct.Struct(">i")
_ESCAPE: Final = _INT.pack(-1)


def vint(number: int) -> bytes:
    """A variable integer of Hadoop's: one byte for -112 to 127; otherwise one for sign and length, then its bytes."""
    if -112 <= number <= 127:
        return struct.pack("b", number)
    base, number = (-120, ~number) if number < 0 else (-112, number)
    size = (number.bit_length() + 7) // 8
    return struct.pack("b", base - size) + number.to_bytes(size, "big")


class SequenceFileWriter:
    """Writes one; keys and values are serialized already. The same records are the same bytes.

    With a codec they go into blocks, as Secor has them. The file stays open at ``close``.
    """

    def __init__(self, file: BinaryIO, key_class: str, codec: str, seed: bytes) -> None:
        self._file, self._codec = file, codec
        # A marker that depends on what is written: the same each time, and nobody's message happens to have it.
        self._sync = hashlib.sha256(b"tieredstore" + seed).digest()[:_SYNC_BYTES]
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._pending = self._since_sync = 0
        is_compressed = codec != "none"
        file.write(MAGIC + bytes([_VERSION]) + _text(key_class) + _text(BYTES) + bytes([is_compressed, is_compressed]))
        file.write((_text(CODEC_CLASSES[codec]) if is_compressed else b"") + _INT.pack(0) + self._sync)

    def append(self, key: bytes, value: bytes) -> None:
        """A record."""
        if self._codec == "none":
            self._append_plain(key, value)
            return
        self._keys.append(key)
        self._values.append(value)
        self._pending += len(key) + len(value)
        if self._pending >= _BLOCK_BYTES:
            self._end_block()

    def close(self) -> None:
        """End the last block."""
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
    """The records of one: pairs of serialized key and value. ValueError for what is damaged, or of other codecs."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        if self._take(3) != MAGIC or self._take(1)[0] not in (5, 6):
            raise ValueError("no SequenceFile of version 5 or 6")
        is_six = self._at_version() == 6
        self.key_class, self.value_class = self._name(), self._name()
        self._is_compressed, self._has_blocks = self._take(1) != b"\0", self._take(1) != b"\0"
        self._codec = self._named_codec(self._name()) if self._is_compressed else "none"
        if is_six:
            for _ in range(2 * self._int(0, 10_000)):
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
            key_length = self._int(0, length)
            key, value = self._take(key_length), self._take(length - key_length)
            yield key, decompress(self._codec, value, _MOST_BYTES) if self._is_compressed else value

    def _blocks(self) -> Iterator[tuple[bytes, bytes]]:
        while head := self._file.read(4):
            if self._number(head) != -1:
                raise ValueError("a block does not begin with the file's marker")
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
            raise ValueError("a block tells more records than it has")
        pieces: list[bytes] = []
        at = start = 0
        for _ in range(count):
            length, at = _read_vint(lengths, at)
            if not 0 <= length <= len(content) - start:
                raise ValueError("a record of a block reaches beyond it")
            pieces.append(content[start : start + length])
            start += length
        if (at, start) != (len(lengths), len(content)):
            raise ValueError("a block has more than its records")
        return pieces

    def _at_version(self) -> int:
        self._file.seek(3)
        return self._take(1)[0]

    def _check_sync(self) -> None:
        if self._take(_SYNC_BYTES) != self._sync:
            raise ValueError("a marker is not that of the file")

    def _named_codec(self, name: str) -> str:
        for short, known in CODEC_CLASSES.items():
            if known == name:
                return short
        raise ValueError(f"compressed by {name!r:.120}, which is not known here")

    def _name(self) -> str:
        return self._take(self._bounded(self._vint(), _MOST_NAME)).decode()

    def _vint(self) -> int:
        first = self._take(1)
        return _read_vint(first + self._file.read(_more_bytes(first[0])), 0)[0]

    def _int(self, least: int, most: int) -> int:
        number: int = _INT.unpack(self._take(4))[0]
        if not least <= number <= most:
            raise ValueError("a number is out of its range")
        return number

    def _number(self, head: bytes) -> int:
        if len(head) < 4:
            raise ValueError("the file breaks off")
        number: int = _INT.unpack(head)[0]
        return number if number == -1 else self._bounded(number, _MOST_BYTES)

    @staticmethod
    def _bounded(number: int, most: int) -> int:
        if not 0 <= number <= most:
            raise ValueError("a number is out of its range")
        return number

    def _take(self, count: int) -> bytes:
        piece = self._file.read(self._bounded(count, _MOST_BYTES))
        if len(piece) < count:
            raise ValueError("the file breaks off")
        return piece


def bytes_writable(data: bytes) -> bytes:
    """As a ``BytesWritable`` is serialized."""
    return _INT.pack(len(data)) + data


def of_bytes_writable(data: bytes) -> bytes:
    """What one holds; ValueError for what is none."""
    if len(data) < 4 or _INT.unpack_from(data)[0] != len(data) - 4:
        raise ValueError("a value is no BytesWritable")
    return data[4:]


def _text(name: str) -> bytes:
    encoded = name.encode()
    return vint(len(encoded)) + encoded


def _more_bytes(first: int) -> int:
    """How many bytes of a variable integer follow its first."""
    signed = first - 256 if first > 127 else first
    if signed >= -112:
        return 0
    return -signed - (120 if signed < -120 else 112)


def _read_vint(data: bytes, at: int) -> tuple[int, int]:
    if at >= len(data):
        raise ValueError("a number breaks off")
    first, more = data[at], _more_bytes(data[at])
    if not more:
        return first - 256 if first > 127 else first, at + 1
    stop = at + 1 + more
    if stop > len(data):
        raise ValueError("a number breaks off")
    number = int.from_bytes(data[at + 1 : stop], "big")
    return (~number if first < 136 else number), stop
