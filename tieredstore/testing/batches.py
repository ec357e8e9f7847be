"""Record batches of magic 2, built from records for tests, examples and benchmarks.

This module is separate from ``segments``, because tests of many packages build batches, but need no log directory.
"""

from __future__ import annotations

import gzip
import importlib
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
    """Return one batch of consecutive offsets."""
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
    left = number << 1 if number >= 0 else ~(number << 1)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


_COMPRESSORS: Final[dict[CompressionType, Callable[[bytes], bytes]]] = {
    CompressionType.NONE: bytes,
    CompressionType.GZIP: lambda body: gzip.compress(body, 6, mtime=0),
    CompressionType.SNAPPY: lambda body: bytes(importlib.import_module("cramjam").snappy.compress_raw(body)),
    CompressionType.LZ4: lambda body: importlib.import_module("lz4.frame").compress(
        body, store_size=False, block_linked=False
    ),
    CompressionType.ZSTD: lambda body: zstandard.ZstdCompressor().compress(body),
}
