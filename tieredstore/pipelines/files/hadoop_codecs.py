"""Hadoop's codecs over whole buffers: what is in blocks of SequenceFiles.

Snappy and LZ4 come as Hadoop frames them: the size of a piece, then its compressed chunks, each behind its size, until
the piece is whole; all sizes four bytes, big endian. Source: ``BlockCompressorStream``.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import zstandard

_PREFIX: Final = "org.apache.hadoop.io.compress."
CODEC_CLASSES: Final[Mapping[str, str]] = {
    "deflate": f"{_PREFIX}DefaultCodec",
    "gzip": f"{_PREFIX}GzipCodec",
    "zstd": f"{_PREFIX}ZStandardCodec",
    "snappy": f"{_PREFIX}SnappyCodec",
    "lz4": f"{_PREFIX}Lz4Codec",
    "bzip2": f"{_PREFIX}BZip2Codec",
}
"""Short names, and the classes that stand in files."""

_PIECE: Final = 128 << 10
"""Of Snappy and LZ4: below the 256 KiB that Hadoop's own buffers have."""
_SIZE: Final = struct.Struct(">I")


def compress(codec: str, data: bytes) -> bytes:
    """The same bytes each time."""
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
            return _framed(_cramjam_block(codec)[0], data)


def decompress(codec: str, data: bytes, most: int) -> bytes:
    """What was compressed; ValueError for what is damaged, or unpacks to more than ``most`` bytes."""
    if codec in {"snappy", "lz4"}:
        return _unframed(_cramjam_block(codec)[1], data, most)
    opened: Mapping[str, Callable[[Any], Any]] = {
        "deflate": _Inflated,
        "gzip": lambda file: gzip.GzipFile(fileobj=file),
        "zstd": lambda file: zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True),
        "bzip2": bz2.BZ2File,
    }
    if codec == "none":
        return data
    try:
        whole: bytes = opened[codec](io.BytesIO(data)).read(most + 1)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"what {codec} has compressed is damaged") from error
    if len(whole) > most:
        raise ValueError("a compressed part unpacks to more than any has")
    return whole


class _Inflated:
    def __init__(self, file: io.BytesIO) -> None:
        self._file = file

    def read(self, most: int) -> bytes:
        inflating = zlib.decompressobj()
        whole = inflating.decompress(self._file.read(), most)
        if not inflating.eof and len(whole) < most:
            raise EOFError
        return whole


def _cramjam_block(codec: str) -> tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]:
    """Compresses and unpacks one chunk without any frame."""
    cramjam: Any = importlib.import_module("cramjam")
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
    # A chunk tells its own size first, which is not trusted with memory.
    if snappy.decompress_raw_len(data) > size:
        raise ValueError("a compressed chunk has another size than it tells")
    return bytes(snappy.decompress_raw(data))


def _lz4(lz4: Any, data: bytes, size: int) -> bytes:
    # Into a buffer, since what it returns by itself is filled up with zeros to the size: a piece has several chunks.
    whole = bytearray(size)
    count: int = lz4.decompress_block_into(data, whole)
    return bytes(memoryview(whole)[:count])


def _framed(chunk: Callable[[bytes], bytes], data: bytes) -> bytes:
    pieces: list[bytes] = []
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        packed = chunk(piece)
        pieces += [_SIZE.pack(len(piece)), _SIZE.pack(len(packed)), packed]
    return b"".join(pieces)


def _unframed(chunk: Callable[[bytes, int], bytes], data: bytes, most: int) -> bytes:
    whole, at = bytearray(), 0
    while at < len(data):
        size, at = _size_at(data, at)
        if size > most - len(whole):
            raise ValueError("a compressed part unpacks to more than any has")
        stop = len(whole) + size
        while len(whole) < stop:
            length, at = _size_at(data, at)
            if length > len(data) - at:
                raise ValueError("a compressed chunk breaks off")
            whole += _unpacked(chunk, data[at : at + length], stop - len(whole))
            at += length
        if len(whole) != stop:
            raise ValueError("a compressed chunk has another size than it tells")
    return bytes(whole)


def _unpacked(chunk: Callable[[bytes, int], bytes], data: bytes, size: int) -> bytes:
    if not data:
        raise ValueError("a compressed chunk is empty")
    try:
        piece = chunk(data, size)
    except Exception as error:
        raise ValueError("what is compressed is damaged") from error
    if not piece:
        raise ValueError("a compressed chunk holds nothing")
    return piece


def _size_at(data: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(data):
        raise ValueError("a compressed part breaks off")
    size: int = _SIZE.unpack_from(data, at)[0]
    return size, at + 4
