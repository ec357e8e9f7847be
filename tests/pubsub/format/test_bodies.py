"""Bodies of Messages as other compressors write them, and Messages that have none."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

import pytest
import zstandard

from tests.support.pubsub.memq_batches import REQUEST, message_of, row_of, rows_of
from tieredstore.pubsub.format.batches import build_batch
from tieredstore.pubsub.format.messages import Compression, MessageHeader, RecordFields

RECORD: Final[RecordFields] = (b"v", b"k", None, b"\0\0\0\0\0\0\0\7", 1_700_000_000_000)
RECORD_BYTES: Final = 31
zstd: Any = zstandard


def flushed(body: bytes, compressor: Any, mode: int) -> bytes:
    """As MemQ's writers do it: the compressor is flushed at each record."""
    parts: list[bytes] = []
    for at in range(0, len(body), RECORD_BYTES):
        parts += (compressor.compress(body[at : at + RECORD_BYTES]), compressor.flush(mode))
    return b"".join([*parts, compressor.flush()])


def zstd_flushed(body: bytes) -> bytes:
    return flushed(body, zstd.ZstdCompressor().compressobj(), zstd.COMPRESSOBJ_FLUSH_BLOCK)


def zstd_behind_what_is_skipped(body: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18\4\0\0\0skip" + zstandard.ZstdCompressor().compress(body)


def zstd_of_a_large_window(body: bytes) -> bytes:
    """128 MiB, the most that Java's reader takes."""
    whole: bytes = zstd.ZstdCompressor(
        compression_params=zstd.ZstdCompressionParameters.from_level(3, window_log=27)
    ).compress(body)
    return whole


def gzip_flushed(body: bytes) -> bytes:
    return flushed(body, zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS), zlib.Z_SYNC_FLUSH)


def gzip_in_members(body: bytes) -> bytes:
    return gzip.compress(body[:20]) + gzip.compress(body[20:])


def gzip_with_a_name(body: bytes) -> bytes:
    return b"\x1f\x8b\x08\x08" + bytes(6) + b"name\0" + gzip.compress(body)[10:]


@pytest.mark.parametrize(
    "compress",
    [
        zstd_flushed, zstd_behind_what_is_skipped, zstd_of_a_large_window, gzip_flushed, gzip_in_members,
        gzip_with_a_name,
    ],
)  # fmt: skip
def test_bodies_of_other_compressors(compress: Callable[[bytes], bytes]) -> None:
    compression = Compression.ZSTD if "zstd" in compress.__name__ else Compression.GZIP
    stored = compress(message_of([RECORD] * 3)[40:])
    header = MessageHeader(REQUEST, crc32(stored), compression, 3, len(stored))
    batch = build_batch([header.to_bytes() + stored])
    assert rows_of(batch) == [row_of(RECORD, 0, number) for number in range(3)]


@pytest.mark.parametrize("compression", Compression)
def test_a_message_without_records_and_without_a_body_is_read(compression: Compression) -> None:
    """MemQ's producer sends some of 40 bytes, with and without compression."""
    empty = MessageHeader(REQUEST, 0, compression, 0, 0).to_bytes()
    assert len(empty) == 40
    batch = build_batch([message_of([RECORD]), empty, message_of([RECORD])])
    assert [row["message"] for row in rows_of(batch)] == [0, 2]
