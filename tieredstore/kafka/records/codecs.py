"""The codecs of record batches. Each codec uses its fastest library. The limit on the output does not rely on declared
sizes.

No field gives a decompressed size that can be trusted. So every codec decompresses in steps. The steps grow with the
amount of output, up to the limit. Zstandard and snappy write into reused memory blocks (slabs).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from types import ModuleType
from typing import Any, Final, TypeAlias

import zstandard

from tieredstore.errors import BatchCorruptError
from tieredstore.installation import Extra
from tieredstore.kafka.batches import CompressionType
from tieredstore.kafka.records._slabs import SlabPool

Body: TypeAlias = bytes | memoryview

# A stream of snappy-java consists of this magic, two version numbers, and blocks, each preceded by its size.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER_SIZE: Final = 16
_ZSTD: Final = CompressionType.ZSTD
# Three bytes of a snappy block can encode a copy of 64 bytes, so decompression grows a block by at most this factor.
_SNAPPY_MAX_RATIO: Final = 22
# Bytes added to the first guess of a decompressed size, so that a small batch takes one step.
_LEAST_STEP: Final = 4096
_FIRST_WINDOW: Final = 4096
# A larger buffer is not kept for later batches. One huge batch must not occupy memory for ever.
_MOST_MEMORY: Final = 16 * 1024 * 1024

# Limits against bodies of many tiny streams or blocks. Each stream or block costs some microseconds. No client writes
# such a body, because clients write one stream, or a few joined streams, in blocks of kilobytes.
_FREE_STREAMS: Final = 64
_LEAST_BYTES_OF_A_STREAM: Final = 1024
_FREE_BLOCKS: Final = 4096
_LEAST_BYTES_OF_A_BLOCK: Final = 256

# Bits of an LZ4 frame's first flag byte: optional fields before the header checksum.
_LZ4_CONTENT_SIZE: Final = 8
_LZ4_DICTIONARY_ID: Final = 1
_LZ4_MAGIC_SIZE: Final = 4


class Decompressor:
    """Decompresses the records of batches, each to at most ``max_bytes``. Use one instance per thread.

    ``limit`` is the name that error messages give to the bound ``max_bytes``.
    """

    def __init__(self, pool: SlabPool, max_bytes: int, limit: str = "max_batch_bytes") -> None:
        self._pool = pool
        self._max_bytes = max_bytes
        self._limit = limit
        self._memory = memoryview(b"")

    @cached_property
    def _zstd(self) -> zstandard.ZstdDecompressor:
        # Make the decompressor only when a body needs it, because making it takes longer than decoding hundreds of
        # uncompressed records.
        return zstandard.ZstdDecompressor()

    def decompress(self, compression: CompressionType, magic: int, body: memoryview) -> Body:
        """Decompress the records of one batch. The result is valid until the next call.

        Raise BatchCorruptError if the stream is malformed, cut off or too large.
        """
        # Give back the memory of the last call. That call could not give the memory back, because its caller still had
        # to read the result.
        if len(self._memory) > _MOST_MEMORY:
            self._memory = memoryview(b"")
        if compression is _ZSTD:  # reading an attribute of an enumeration costs as much as a few records
            return self._decompress_zstd(body)
        match compression:
            case CompressionType.GZIP:
                return self._decompress_gzip(body)
            case CompressionType.SNAPPY:
                return self._decompress_snappy(body)
            case CompressionType.LZ4:
                return self._decompress_lz4(memoryview(_with_true_lz4_checksum(body)) if magic == 0 else body)
            case _:
                return body

    def _room(self, size: int) -> memoryview:
        """Return memory of ``size`` bytes or more."""
        if len(self._memory) < size:
            self._memory = memoryview(self._pool.slab(size))
        return self._memory

    def _too_large(self) -> BatchCorruptError:
        return BatchCorruptError(f"decompresses to more than the {self._max_bytes} bytes that {self._limit} allows")

    def _decompress_zstd(self, body: memoryview) -> memoryview:
        # The memory has room for one byte more than allowed. So the first call shows if a stream is too long.
        most, room = self._max_bytes + 1, self._room(min(8 * len(body) + _LEAST_STEP, self._max_bytes + 1))
        try:
            reader: Any = self._zstd.stream_reader(body, read_across_frames=True)
            filled = reader.readinto(room if len(room) <= most else room[:most])
            while filled == len(room) < most:
                done, room = room, self._room(2 * filled)
                room[:filled] = done
                filled += reader.readinto(room[filled:most])
        except zstandard.ZstdError as error:
            raise _make_malformed("zstd", error) from error
        if filled == most:
            raise self._too_large()
        return room[:filled]

    def _decompress_gzip(self, body: memoryview) -> bytes:
        # Use ISA-L: it is faster than zlib, and its output can also be limited.
        gzip = _library("isal.igzip_lib")
        make = partial(gzip.IgzipDecompressor, gzip.DECOMP_GZIP)
        try:
            return b"".join(self._pieces("gzip", make, body, 16 * len(body) + _LEAST_STEP))
        except (gzip.error, EOFError, ValueError) as error:
            raise _make_malformed("gzip", error) from error

    def _decompress_lz4(self, body: memoryview) -> bytes:
        make = _library("lz4.frame").LZ4FrameDecompressor
        try:
            return b"".join(self._pieces("lz4", make, body, 4 * len(body) + _LEAST_STEP))
        except (RuntimeError, EOFError, ValueError) as error:
            raise _make_malformed("lz4", error) from error

    def _pieces(self, codec: str, make: Callable[[], Any], body: memoryview, step: int) -> Iterator[bytes]:
        """Yield the output of one or more streams, in pieces that double from ``step`` on."""
        left, at, streams = self._max_bytes, 0, 0
        while at < len(body):
            streams += 1
            if streams > _FREE_STREAMS + (self._max_bytes - left) // _LEAST_BYTES_OF_A_STREAM:
                raise _make_malformed(codec, f"{streams} compressed streams hold only {self._max_bytes - left} bytes")
            stream = make()
            # A decompressor copies the input after the end of its stream. The first stream is usually the only one, and
            # gets all the input. Later streams get little more than they need. Otherwise, each of many small streams
            # would copy the rest of the body.
            window = len(body) if at == 0 else _FIRST_WINDOW
            while not stream.eof:
                # Give input only if the stream needs it, because a stream keeps its unused input.
                shown = body[at : at + window] if stream.needs_input else b""
                # The stream is truncated: it needs more input, and there is none.
                if stream.needs_input and not shown:
                    raise EOFError("it ends in the middle of a stream")
                piece = stream.decompress(shown, max_length=min(step, left + 1))
                if len(piece) > left:
                    raise self._too_large()
                yield piece
                left, step, at, window = left - len(piece), 2 * step, at + len(shown), 2 * window
            at -= len(stream.unused_data or b"")

    def _decompress_snappy(self, body: memoryview) -> memoryview:
        """Decompress blocks framed as by snappy-java, or the one block that other clients write."""
        snappy = _library("cramjam")
        # Go through the blocks twice instead of keeping a list. A hostile stream can have so many blocks that the list
        # would be larger than the stream.
        room, filled = self._room(self._snappy_total(body) + 1), 0
        for block in _snappy_blocks(body):
            size = _snappy_size(block)
            _decompress_block(snappy, block, room[filled : filled + size])
            filled += size
        return room[:filled]

    def _snappy_total(self, body: memoryview) -> int:
        """Return the sum of the sizes that all blocks declare."""
        total = 0
        for number, block in enumerate(_snappy_blocks(body), start=1):
            total += _snappy_size(block)
            if total > self._max_bytes:
                raise self._too_large()
            if number > _FREE_BLOCKS + total // _LEAST_BYTES_OF_A_BLOCK:
                raise _make_malformed("snappy", f"{number} blocks hold only {total} bytes")
        return total


@cache
def _library(name: str) -> ModuleType:
    with Extra("decompressing these records", "arrow"):
        return importlib.import_module(name)


def _make_malformed(codec: str, reason: object) -> BatchCorruptError:
    return BatchCorruptError(f"has malformed {codec} data: {reason}")


def _decompress_block(library: ModuleType, block: memoryview, room: memoryview) -> None:
    try:
        written = library.snappy.decompress_raw_into(block, room)
    except library.DecompressionError as error:
        raise _make_malformed("snappy", error) from error
    if written != len(room):
        raise _make_malformed("snappy", f"a block decompressed to {written} bytes, but states {len(room)}")


def _snappy_blocks(body: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of a body. The body is either one bare block, or a stream of snappy-java, with a size before
    each block.

    Streams may be joined, so a stream header may come in place of a block.
    """
    # Java producers frame their blocks. librdkafka and others write one bare block. A valid block cannot begin with
    # the magic, because the magic's first byte would then be the block's size, and a later byte of the magic would
    # copy from before the beginning of the output.
    if bytes(body[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield body
        return
    position = 0
    while position < len(body):
        if bytes(body[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += _XERIAL_HEADER_SIZE
            continue
        size = int.from_bytes(body[position : position + 4], "big")
        position += 4
        if not 0 < size <= len(body) - position:
            raise _make_malformed("snappy", f"a block states {size} bytes, but {len(body) - position} bytes are left")
        yield body[position : position + size]
        position += size


def _snappy_size(block: memoryview) -> int:
    """Return the decompressed size that a block declares, a varint of up to 32 bits. Raise an error for a size that a
    block of this length cannot reach.
    """
    size = 0
    for index, byte in enumerate(bytes(block[:5])):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if size > _SNAPPY_MAX_RATIO * len(block):
                break
            return size
    raise _make_malformed("snappy", f"a block of {len(block)} bytes states an impossible decompressed size")


def _with_true_lz4_checksum(body: memoryview) -> Body:
    """Return the frame with the header checksum that the lz4 specification asks for.

    Kafka before 0.10 computed the checksum over the magic number too, and batches of magic 0 still have that checksum.
    So ignore this frame's own checksum.
    """
    if len(body) <= _LZ4_MAGIC_SIZE + 2:
        return body
    flags = body[_LZ4_MAGIC_SIZE]
    end = _LZ4_MAGIC_SIZE + 2 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY_ID else 0)
    if len(body) <= end:
        return body
    # The header checksum is the second byte of the hash of the bytes between magic and checksum.
    checksum = _xxh32_of_few(bytes(body[_LZ4_MAGIC_SIZE:end])) >> 8 & 0xFF
    return bytes(body[:end]) + bytes([checksum]) + bytes(body[end + 1 :])


def _xxh32_of_few(data: bytes) -> int:
    """Compute XXH32, seed 0, of fewer than 16 bytes, by its specification."""
    mask = 0xFFFF_FFFF
    total = 0x165667B1 + len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        total = total + int.from_bytes(data[start : start + 4], "little") * 0xC2B2AE3D & mask
        total = (total << 17 | total >> 15) * 0x27D4EB2F & mask
    for byte in data[whole:]:
        total = total + byte * 0x165667B1 & mask
        total = (total << 11 | total >> 21) * 0x9E3779B1 & mask
    for shift, factor in ((15, 0x85EBCA77), (13, 0xC2B2AE3D)):
        total = (total ^ total >> shift) * factor & mask
    return total ^ total >> 16
