"""Batches for tests of decoders: real streams of all codecs, message sets of magic 0 and 1, and damaged ones."""

from __future__ import annotations

import gzip
import importlib
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import cramjam
import pyarrow as pa
import zstandard

from tieredstore.kafka.batches import FRAME_SIZE, HEADER_SIZE, CompressionType
from tieredstore.kafka.records import RecordDecoder
from tieredstore.testing.batches import Producer, Record, build_batch, build_end_marker, seal_batch

Row = dict[str, Any]

# libraries without types
lz4_library: Any = importlib.import_module("lz4.frame")

CODECS = tuple(CompressionType)


def snappy_framed(body: bytes, block: int = 1000) -> bytes:
    """Compress like snappy-java, in blocks of ``block`` bytes."""
    out = bytearray(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1))
    for at in range(0, len(body), block):
        packed = bytes(cramjam.snappy.compress_raw(body[at : at + block]))
        out += struct.pack(">i", len(packed)) + packed
    return bytes(out)


def zstd_streamed(body: bytes) -> bytes:
    """Compress like Kafka's producer: the frame does not state its content size."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(body) + stream.flush()


COMPRESS: dict[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.NONE: bytes,
    CompressionType.GZIP: lambda body: gzip.compress(body, mtime=0),
    CompressionType.SNAPPY: snappy_framed,
    CompressionType.LZ4: lambda body: lz4_library.compress(body, store_size=False, block_linked=False),
    CompressionType.ZSTD: zstd_streamed,
}


def with_body(batch: bytes, body: bytes, compression: CompressionType) -> bytes:
    """Return the batch with another records body, and a matching CRC."""
    changed = bytearray(batch[:HEADER_SIZE]) + body
    changed[8:12] = struct.pack(">i", len(changed) - FRAME_SIZE)
    changed[22] = changed[22] & ~7 | compression.value
    seal_batch(changed)
    return bytes(changed)


def compressed_batch(records: Sequence[Record], offset: int, compression: CompressionType, **more: Any) -> bytes:
    """Return a batch of these records, compressed with this codec."""
    plain = build_batch(records, offset, **more)
    return with_body(plain, COMPRESS[compression](plain[HEADER_SIZE:]), compression)


def with_field(batch: bytes, at: int, form: str, value: int, *, seal: bool = True) -> bytes:
    """Return the batch with one header field changed, and a matching CRC unless ``seal`` is False."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    if seal:
        seal_batch(changed)
    return bytes(changed)


def message(
    magic: int, offset: int, value: bytes | None, key: bytes | None = None, timestamp: int = 0, attributes: int = 0
) -> bytes:
    """Return one message of magic 0 or 1."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def message_set(
    magic: int, offset: int, inner: bytes, compression: CompressionType, timestamp: int = 0, attributes: int = 0
) -> bytes:
    """Return a compressed message set with the offset of its last message."""
    packed = COMPRESS[compression](inner)
    return message(magic, offset, packed, None, timestamp, attributes | compression.value)


def rows(log: bytes | Sequence[bytes], **more: Any) -> list[Row]:
    """Return all records of a log or its pieces; ``more`` are options of the decoder or of decode()."""
    reading = {
        name: more.pop(name)
        for name in ("start_offset", "stop_offset", "end_offset", "aborted", "position")
        if name in more
    }
    decoder = RecordDecoder(**more)
    return rows_of(decoder.decode([log] if isinstance(log, bytes) else log, **reading))


def rows_of(batches: Any) -> list[Row]:
    decoded: list[Row] = []
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        assert batch.num_rows
        batch.validate(full=True)
        decoded += batch.to_pylist()
    return decoded


def random_records(source: random.Random, count: int) -> list[Record]:
    """Return records with null, empty, large and small values, and timestamps in any order."""

    def data() -> bytes | None:
        size = source.choice((None, 0, 1, 5, 17, 40, 130, 400))
        return None if size is None else source.randbytes(size)

    def pairs() -> tuple[tuple[str, bytes | None], ...]:
        return tuple((source.choice(("", "a", "dup", "ключ-✓")), data()) for _ in range(source.choice((0, 0, 1, 3))))

    return [
        Record(data(), data(), 1_700_000_000_000 + source.randrange(-(10**9), 10**9), pairs()) for _ in range(count)
    ]


def random_log(source: random.Random, batches: int) -> list[bytes]:
    """Return consecutive batches of all kinds, with holes between the offsets."""
    log, offset = [], source.randrange(1000)
    for _ in range(batches):
        producer = Producer(source.randrange(3), 0, 0, transactional=source.random() < 0.3)
        if source.random() < 0.1:
            log.append(build_end_marker(offset, producer, commit=True))
            offset += 1
            continue
        records = random_records(source, source.choice((1, 2, 7, 30)))
        log.append(
            compressed_batch(
                records,
                offset,
                source.choice(CODECS),
                producer=producer,
                leader_epoch=source.randrange(4),
                log_append_time_ms=source.choice((None, None, 1_800_000_000_000)),
            )
        )
        offset += len(records) + source.choice((0, 0, 5))
    return log
