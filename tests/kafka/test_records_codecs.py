"""Streams of the codecs as clients write them, and streams that no client would write."""

# The methods of ``Stream`` call their own object ``stream``, because they also use the outer object ``self``.
# pyright: reportPrivateUsage=false, reportSelfClsParameterName=false

from __future__ import annotations

import gzip
import importlib
import random
import struct
import tracemalloc
import zlib
from typing import Any

import cramjam
import crc32c
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records.record_batches import (
    CODECS,
    COMPRESS,
    compressed_batch,
    lz4_library,
    message,
    rows,
    rows_of,
    snappy_framed,
    with_body,
    zstd_streamed,
)
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import HEADER_SIZE, CompressionType
from tieredstore.kafka.records import RecordDecoder
from tieredstore.kafka.records._checks import checksum
from tieredstore.kafka.records.codecs import _xxh32_of_few
from tieredstore.testing.batches import Record, build_batch

isal_library: Any = importlib.import_module("isal.igzip_lib")

RECORDS = [Record(b"value %d " % i * 40, b"key") for i in range(50)]
PLAIN = build_batch(RECORDS)
BODY = PLAIN[HEADER_SIZE:]
HALF = len(BODY) // 2
COMPRESSED = CODECS[1:]


def lz4_frame(body: bytes, **more: object) -> bytes:
    return bytes(lz4_library.compress(body, **more))


STREAMS = [
    (CompressionType.GZIP, gzip.compress(BODY, 1)),
    (CompressionType.GZIP, gzip.compress(BODY[:HALF]) + gzip.compress(BODY[HALF:])),
    (CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(BODY))),
    (CompressionType.SNAPPY, snappy_framed(BODY, 32 * 1024)),
    (CompressionType.SNAPPY, snappy_framed(BODY[:HALF], 7) + snappy_framed(BODY[HALF:])),
    (CompressionType.LZ4, lz4_frame(BODY, content_checksum=True, block_checksum=True)),
    (CompressionType.LZ4, lz4_frame(BODY, block_linked=True, store_size=True)),
    (CompressionType.LZ4, lz4_frame(BODY[:HALF]) + lz4_frame(BODY[HALF:])),
    (CompressionType.ZSTD, zstandard.ZstdCompressor(write_checksum=True).compress(BODY)),
    (CompressionType.ZSTD, zstd_streamed(BODY[:HALF]) + zstd_streamed(BODY[HALF:])),
    (CompressionType.ZSTD, zstandard.ZstdCompressor(level=19, write_content_size=False).compress(BODY)),
]


@pytest.mark.parametrize(("codec", "stream"), STREAMS)
def test_streams_of_all_kinds_of_clients(codec: CompressionType, stream: bytes) -> None:
    assert rows(with_body(PLAIN, stream, codec)) == rows(PLAIN)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [1, 5_000, 100_000, 3_000_000])
def test_bodies_larger_than_any_first_guess(codec: CompressionType, size: int) -> None:
    decoded = rows(compressed_batch([Record(bytes(size), b"k")] * 3, 0, codec))
    assert [len(row["value"]) for row in decoded] == [size] * 3


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_stream_that_is_cut_off_anywhere_is_refused(codec: CompressionType) -> None:
    stream = COMPRESS[codec](BODY)
    for size in {0, 1, 3, 5, 10, 20, len(stream) // 2, len(stream) - 9}:
        with pytest.raises(BatchCorruptError, match=r"record batch at byte 0 \(offset 0\)"):
            rows(with_body(PLAIN, stream[:size], codec))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_noise_in_place_of_a_stream_is_refused(codec: CompressionType) -> None:
    for seed in range(20):
        noise = random.Random(seed).randbytes(300)
        with pytest.raises(BatchCorruptError):
            rows(with_body(PLAIN, noise, codec))
        with pytest.raises(BatchCorruptError):
            rows(with_body(PLAIN, COMPRESS[codec](BODY) + noise, codec))


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("limit", [len(BODY) - 1, 1])
def test_a_body_over_the_limit_is_refused(codec: CompressionType, limit: int) -> None:
    packed = with_body(PLAIN, COMPRESS[codec](BODY), codec)
    decoder = RecordDecoder(max_batch_bytes=max(limit, len(packed)))
    if len(packed) > limit:
        body = COMPRESS[codec](bytes(100_000))
        packed, decoder = with_body(PLAIN, body, codec), RecordDecoder(max_batch_bytes=20_000)
    with pytest.raises(BatchCorruptError, match=r"more than the|max_batch_bytes allows"):
        rows_of(decoder.decode([packed]))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_body_of_exactly_the_limit_is_read(codec: CompressionType) -> None:
    packed = with_body(PLAIN, COMPRESS[codec](BODY), codec)
    assert rows(packed, max_batch_bytes=len(BODY)) == rows(PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_costs_no_more_than_the_limit(codec: CompressionType) -> None:
    bomb = with_body(PLAIN, COMPRESS[codec](bytes(64 << 20)), codec)
    tracemalloc.start()
    try:
        with pytest.raises(BatchCorruptError):
            rows(bomb, max_batch_bytes=8 << 20)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack(">ii", 1, 1).join((b"\x82SNAPPY\0", struct.pack(">i", 2**31 - 1))),
        struct.pack(">ii", 1, 1).join((b"\x82SNAPPY\0", struct.pack(">i", 0))),
        b"\xff\xff\xff\xff\x0f" + bytes(20),
        b"\xff\xff\xff\xff\xff\xff",
        b"\x82SNAPPY\0",
        b"",
    ],
)
def test_sizes_in_snappy_streams_are_not_believed(stream: bytes) -> None:
    with pytest.raises(BatchCorruptError):
        rows(with_body(PLAIN, stream, CompressionType.SNAPPY))


@pytest.mark.parametrize("options", [{}, {"store_size": True}, {"content_checksum": True}])
def test_the_wrong_header_checksum_of_old_lz4_is_understood(options: dict[str, bool]) -> None:
    frame = bytearray(lz4_frame(message(0, 3, b"old " * 100), **options))
    at = 6 + 8 * bool(frame[4] & 8)
    right, frame[at] = frame[at], frame[at] ^ 0x5A
    assert right == _xxh32_of_few(bytes(frame[4:at])) >> 8 & 0xFF
    assert [row["value"] for row in rows(message(0, 3, bytes(frame), attributes=3))] == [b"old " * 100]
    # Clients of magic 1 wrote the right checksum, so a wrong one is damage.
    with pytest.raises(BatchCorruptError, match="lz4"):
        rows(message(1, 3, bytes(frame), attributes=3))


@pytest.mark.parametrize("size", range(12))
def test_an_lz4_stream_shorter_than_its_header_is_refused(size: int) -> None:
    with pytest.raises(BatchCorruptError):
        rows(message(0, 3, lz4_frame(message(0, 3, b"v"))[:size], attributes=3))


def test_xxh32_of_few_bytes_is_that_of_its_specification() -> None:
    assert _xxh32_of_few(b"") == 0x02CC5D05
    assert _xxh32_of_few(b"a") == 0x550D7456
    assert _xxh32_of_few(b"abc") == 0x32D153FF


@given(st.binary(max_size=300), st.integers(0, 20_000))
def test_checksums_are_those_of_other_libraries(head: bytes, more: int) -> None:
    data = head + random.Random(more).randbytes(more)
    assert checksum("ieee", data) == zlib.crc32(data)
    assert checksum("castagnoli", data) == crc32c.crc32c(data)
    assert checksum("castagnoli by instruction", data) == crc32c.crc32c(data)
    assert checksum("portable castagnoli", data) == crc32c.crc32c(data)


def test_folded_checksums_are_those_of_tables_at_every_size_and_place() -> None:
    data = memoryview(random.Random(3).randbytes(1200))
    for size in (*range(250, 330), *range(500, 530), *range(760, 800), 1024, 1088, 1100):
        for place in (0, 1, 7, 16, 63):
            piece = data[place : place + size]
            assert checksum("castagnoli", piece) == checksum("portable castagnoli", piece), (place, size)
    # Each byte must change the checksum, also the first and the last byte of a step.
    for changed in (0, 255, 256, 511, 1055, 1071, 1087):
        other = bytearray(data[:1088])
        other[changed] ^= 1
        assert checksum("castagnoli", other) == checksum("portable castagnoli", other)
        assert checksum("castagnoli", other) != checksum("castagnoli", data[:1088])


class _Counted:
    """Counts a codec's streams, and the bytes given to each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, library: Any, name: str) -> None:
        self.streams = 0
        self.given = 0
        make = getattr(library, name)

        class Stream:
            def __init__(stream, *options: Any) -> None:  # noqa: N805 - `self` is the outer object
                self.streams += 1
                stream.inner = make(*options)

            def __getattr__(stream, attribute: str) -> Any:  # noqa: N805
                return getattr(stream.inner, attribute)

            def decompress(stream, data: Any, max_length: int) -> bytes:  # noqa: N805
                self.given += len(data)
                return bytes(stream.inner.decompress(data, max_length=max_length))

        monkeypatch.setattr(library, name, Stream)


JOINED = [
    (CompressionType.GZIP, isal_library, "IgzipDecompressor"),
    (CompressionType.LZ4, lz4_library, "LZ4FrameDecompressor"),
]


@pytest.mark.parametrize(("codec", "library", "name"), JOINED)
def test_a_body_of_many_empty_streams_is_refused_after_few_of_them(
    codec: CompressionType, library: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = COMPRESS[codec](BODY) + COMPRESS[codec](b"") * 20_000
    counted = _Counted(monkeypatch, library, name)
    with pytest.raises(
        BatchCorruptError, match=rf"{codec.name.lower()} data: \d+ compressed streams hold only {len(BODY)} bytes"
    ):
        rows(with_body(PLAIN, stream, codec))
    assert 0 < counted.streams < 64 + len(BODY) // 1024 + 1


@pytest.mark.parametrize(("codec", "library", "name"), JOINED)
def test_many_joined_streams_cost_what_their_bytes_do(
    codec: CompressionType, library: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = build_batch([Record(random.Random(1).randbytes(1_500))] * 400)[HEADER_SIZE:]
    plain = build_batch([Record(random.Random(1).randbytes(1_500))] * 400)
    stream = b"".join(COMPRESS[codec](body[at : at + 2_000]) for at in range(0, len(body), 2_000))
    counted = _Counted(monkeypatch, library, name)
    assert rows(with_body(plain, stream, codec)) == rows(plain)
    # The first stream is given all bytes; each later stream is given little more than it consumes.
    assert len(stream) <= counted.given < 5 * len(stream)


@pytest.mark.parametrize("block", [b"\0", b"\1\0a"])
def test_a_snappy_body_in_crumbs_is_refused_before_it_costs_memory(block: bytes) -> None:
    stream = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * 1_000_000
    packed = with_body(PLAIN, stream, CompressionType.SNAPPY)
    tracemalloc.start()
    try:
        with pytest.raises(BatchCorruptError, match=r"snappy data: \d+ blocks hold only \d+ bytes"):
            rows(packed)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(packed)
    finally:
        tracemalloc.stop()
