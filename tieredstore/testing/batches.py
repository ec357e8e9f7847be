"""Record batches of magic 2, built from records for tests, examples and benchmarks.

This module is separate from ``segments``, because tests of many packages build batches, but need no log directory.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import crc32c
import zstandard

from tieredstore.kafka.batches import FRAME_SIZE, HEADER_SIZE, CompressionType
from tieredstore.kafka.end_markers import format_end_marker

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_START: Final = 21
_OFFSET: Final = struct.Struct(">q")
_TIMES: Final = struct.Struct(">qq")
_INT32: Final = struct.Struct(">i")
_LOG_APPEND_TIME: Final = 8
_TRANSACTIONAL: Final = 16

# LZ4 frame header for independent blocks of 64 KiB without checksums. Its last byte is the checksum of the header.
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_STORED: Final = 0x8000_0000
_LZ4_BLOCK: Final = 64 * 1024
# The stream header of snappy-java: the magic, version 1, and compatible version 1.
_SNAPPY_HEADER: Final = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class Record:
    """One record. Its index in the batch determines its offset. ``headers`` may repeat a name."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer of a batch, by default without idempotence. ``sequence`` is the sequence number of the first
    record."""

    id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False


ANONYMOUS: Final = Producer()


def build_batch(
    records: Sequence[Record],
    base_offset: int = 0,
    *,
    compression: CompressionType = CompressionType.NONE,
    producer: Producer = ANONYMOUS,
    leader_epoch: int = 0,
    log_append_time_ms: int | None = None,
) -> bytes:
    """Return one batch of consecutive offsets.

    SNAPPY and LZ4 batches are valid, but store the bytes uncompressed.
    """
    base_timestamp = records[0].timestamp_ms if records else -1
    body = b"".join(_encode_record(record, i, base_timestamp) for i, record in enumerate(records))
    max_timestamp = max((record.timestamp_ms for record in records), default=-1)
    attributes = compression.value | producer.transactional * _TRANSACTIONAL
    if log_append_time_ms is not None:
        attributes, max_timestamp = attributes | _LOG_APPEND_TIME, log_append_time_ms
    body = _COMPRESSORS[compression](body)
    batch = bytearray(HEADER_SIZE) + body
    _HEADER.pack_into(
        batch, 0, base_offset, len(batch) - FRAME_SIZE, leader_epoch, 2, 0, attributes, max(len(records) - 1, 0),
        base_timestamp, max_timestamp, producer.id, producer.epoch, producer.sequence, len(records),
    )  # fmt: skip
    seal_batch(batch)
    return bytes(batch)


def build_end_marker(
    base_offset: int, producer: Producer, *, commit: bool, timestamp_ms: int = 0, coordinator_epoch: int = 0
) -> bytes:
    """Return the control batch that ends a transaction of ``producer``."""
    return format_end_marker(
        base_offset, producer.id, producer.epoch, commit=commit, timestamp_ms=timestamp_ms,
        coordinator_epoch=coordinator_epoch,
    )  # fmt: skip


def seal_batch(batch: bytearray) -> None:
    """Write the CRC-32C of the batch's current bytes into the batch."""
    with memoryview(batch) as view, view[_CRC_START:] as covered:
        crc = crc32c.crc32c(covered)
    batch[_CRC_START - 4 : _CRC_START] = crc.to_bytes(4, "big")


def move_batch(batch: bytearray, offset: int, time_shift_ms: int, sequence: int) -> None:
    """Move the batch to another first offset and sequence, and make all its timestamps ``time_shift_ms`` later."""
    base_timestamp, max_timestamp = _TIMES.unpack_from(batch, 27)
    _OFFSET.pack_into(batch, 0, offset)
    _TIMES.pack_into(batch, 27, base_timestamp + time_shift_ms, max_timestamp + time_shift_ms)
    _INT32.pack_into(batch, 53, sequence)
    seal_batch(batch)


def _encode_record(record: Record, offset_delta: int, base_timestamp: int) -> bytes:
    body = b"".join(
        (
            b"\0",  # attributes: Kafka defines none
            _varint(record.timestamp_ms - base_timestamp),
            _varint(offset_delta),
            _with_size(record.key),
            _with_size(record.value),
            _varint(len(record.headers)),
            *(_with_size(name.encode()) + _with_size(value) for name, value in record.headers),
        )
    )
    return _varint(len(body)) + body


def _with_size(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Encode a number by zig-zag, then with seven bits in each byte, the low bits first."""
    return _uvarint(number << 1 if number >= 0 else ~(number << 1))


def _uvarint(left: int) -> bytes:
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _blocks(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def _store_lz4(body: bytes) -> bytes:
    blocks = (struct.pack("<I", _LZ4_STORED | len(block)) + block for block in _blocks(body, _LZ4_BLOCK))
    return _LZ4_HEADER + b"".join(blocks) + bytes(4)


def _store_snappy(body: bytes) -> bytes:
    blocks = (_snappy_literal(block) for block in _blocks(body, _SNAPPY_BLOCK))
    return _SNAPPY_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _snappy_literal(block: bytes) -> bytes:
    """Return a raw snappy block of one literal: after the tag 61, two little-endian bytes hold the length minus 1."""
    return _uvarint(len(block)) + bytes([61 << 2]) + struct.pack("<H", len(block) - 1) + block


_COMPRESSORS: Final[dict[CompressionType, Callable[[bytes], bytes]]] = {
    CompressionType.NONE: bytes,
    CompressionType.GZIP: lambda body: gzip.compress(body, 6, mtime=0),
    CompressionType.SNAPPY: _store_snappy,
    CompressionType.LZ4: _store_lz4,
    CompressionType.ZSTD: lambda body: zstandard.ZstdCompressor().compress(body),
}
