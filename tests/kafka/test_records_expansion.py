"""Bodies that the scanner itself decompresses, without the codecs' libraries."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.damage.compressed_bodies import COMPRESSORS, by_library, check_body, damaged_bodies, plain_text
from tests.support.records.record_batches import (
    CODECS,
    compressed_batch,
    lz4_library,
    message,
    message_set,
    rows,
    rows_of,
    with_field,
    zstd_streamed,
)
from tieredstore.errors import BatchCorruptError
from tieredstore.kafka.batches import CompressionType
from tieredstore.kafka.records import RecordDecoder
from tieredstore.kafka.records._checks import expand
from tieredstore.kafka.records._slabs import shared_pool
from tieredstore.kafka.records.codecs import Decompressor
from tieredstore.testing.batches import Record

SNAPPY, LZ4, ZSTD = CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD
MOST = 16 << 20
RECORDS = [Record(b"value %d " % i * 40, b"key") for i in range(50)]


def lz4_frame(*blocks: bytes, flags: int = 0x60) -> bytes:
    head = bytes([flags, 0x40])
    # Compress several blocks, because the library marks no frame of one block as linked.
    check = lz4_library.compress(bytes(100_000), store_size=False, block_linked=not flags & 32)[6]
    return b"\x04\x22\x4d\x18" + head + bytes([check]) + b"".join(
        struct.pack("<I", len(block)) + block for block in blocks
    ) + bytes(4)  # fmt: skip


@pytest.mark.parametrize(("codec", "compress"), COMPRESSORS)
def test_what_clients_write_is_left_to_no_library(codec: CompressionType, compress: Any) -> None:
    for seed in range(60):
        plain = plain_text(random.Random(seed))
        assert expand(codec.value, compress(plain), MOST) == plain


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8), st.integers(1, 3_000))
def test_any_bytes_come_back(parts: list[bytes], size: int) -> None:
    source = random.Random(size)
    plain = b"".join(source.choice(parts) for _ in range(size // len(parts) + 1))
    for codec, compress in COMPRESSORS:
        assert expand(codec.value, compress(plain), MOST) == plain


def snappy_block(literal: bytes, copy: bytes, size: int) -> bytes:
    return bytes([size & 127 | 128, size >> 7]) + bytes([60 << 2, len(literal) - 1]) + literal + copy


@pytest.mark.parametrize("distance", [*range(1, 36), 63, 64, 65, 150])
def test_copies_of_snappy_at_every_distance(distance: int) -> None:
    literal = random.Random(distance).randbytes(150)
    for length in range(1, 65):
        expected = literal + (literal[-distance:] * length)[:length]
        copies = [
            bytes([(length - 1) << 2 | 2]) + distance.to_bytes(2, "little"),
            bytes([(length - 1) << 2 | 3]) + distance.to_bytes(4, "little"),
        ]
        if 4 <= length <= 11:
            copies.append(bytes([(length - 4) << 2 | 1, distance]))
        for copy in copies:
            assert expand(SNAPPY.value, snappy_block(literal, copy, 150 + length), MOST) == expected


@pytest.mark.parametrize("distance", [*range(1, 36), 63, 64, 65, 150])
def test_matches_of_lz4_at_every_distance(distance: int) -> None:
    literal = random.Random(distance).randbytes(150)
    for length in (*range(4, 70), 273, 274, 275, 529, 1_000):
        expected = literal + (literal[-distance:] * length)[:length] + b"the end of it"
        bits, more = min(length - 4, 15), length - 4 - 15
        lengths = b"" if more < 0 else b"\xff" * (more // 255) + bytes([more % 255])
        block = bytes([0xF0 | bits, 150 - 15]) + literal + distance.to_bytes(2, "little") + lengths
        assert expand(LZ4.value, lz4_frame(block + b"\xd0the end of it"), MOST) == expected


def test_a_damaged_body_is_nothing_else_than_to_its_library() -> None:
    read = sum(check_body(body) for body in damaged_bodies(1, 3_000))
    assert 100 < read < 2_500


@pytest.mark.parametrize(
    ("codec", "body"),
    [
        (LZ4, bytes(lz4_library.compress(b"text " * 50, content_checksum=True))),
        (LZ4, bytes(lz4_library.compress(b"text " * 50, block_checksum=True))),
        (LZ4, lz4_frame(b"\x50there") * 2),
        (LZ4, lz4_frame(b"\x50there") + b"\0"),
        (LZ4, lz4_frame(b"\x1aa\x01\0\x40last")),
        (LZ4, lz4_frame(b"\x1aa\0\0\x60behind")),
        (LZ4, lz4_frame(b"\x1aa\x02\0\x60behind")),
        (LZ4, lz4_frame(b"\x50there", b"\x0a\x05\0\x60behind")),
        (LZ4, lz4_frame(b"\xf0" + b"\xff" * 30)),
        (SNAPPY, b"\x05\x08abc"),
        (SNAPPY, b"\x03\x0cabcd"),
        (SNAPPY, b"\x07\x08abc\x01\0"),
        (SNAPPY, b"\x07\x08abc\x01\x04"),
        (SNAPPY, b"\x83\x00\x08abc"),
        (SNAPPY, b"\x00"),
        (ZSTD, zstd_streamed(b"one") + zstd_streamed(b"two")),
        (CompressionType.GZIP, b"\x1f\x8b"),
        (CompressionType.NONE, b"plain"),
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_the_library(codec: CompressionType, body: bytes) -> None:
    assert expand(codec.value, body, MOST) is None


def test_blocks_that_are_linked_may_refer_to_the_one_before() -> None:
    body = lz4_frame(b"\x50there", b"\x0a\x05\0\x60behind", flags=0x40)
    assert expand(LZ4.value, body, MOST) == by_library(LZ4, body) == b"there" + b"theretherether"[:14] + b"behind"


@pytest.mark.parametrize(("codec", "compress"), COMPRESSORS)
def test_a_body_is_expanded_up_to_the_limit_and_no_further(codec: CompressionType, compress: Any) -> None:
    for size in (1, 1_000, 300_000):
        body = compress(bytes(size))
        assert expand(codec.value, body, size) == bytes(size)
        assert expand(codec.value, body, size - 1) is None


def test_zstd_may_refer_to_a_window_of_any_size() -> None:
    plain = random.Random(1).randbytes(3_000)
    narrow = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=10, write_content_size=False)
    ).compressobj()
    assert by_library(ZSTD, narrow.compress(plain) + narrow.flush()) == plain


@pytest.mark.parametrize("size", [1, 4_096, 36_863, 36_864, 36_865, 300_000, 1 << 20])
def test_zstd_that_comes_to_any_size_is_whole_and_bounded(size: int) -> None:
    body = memoryview(zstd_streamed(bytes(size)))
    assert Decompressor(shared_pool(), size).decompress(ZSTD, 2, body) == bytes(size)
    with pytest.raises(BatchCorruptError, match=f"decompresses to more than the {size - 1} bytes"):
        Decompressor(shared_pool(), size - 1).decompress(ZSTD, 2, body)
    several = memoryview(bytes(body) * 3)
    assert Decompressor(shared_pool(), 3 * size).decompress(ZSTD, 2, several) == bytes(3 * size)


@pytest.mark.parametrize("codec", [SNAPPY, LZ4])
def test_usual_batches_need_no_library(codec: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise AssertionError("a library was asked")

    inner = b"".join(message(1, i, b"old %d" % i) for i in range(5))
    log = compressed_batch(RECORDS, 0, codec), compressed_batch(RECORDS, 50, codec)
    expected = rows(b"".join(compressed_batch(RECORDS, at, CompressionType.NONE) for at in (0, 50)))
    monkeypatch.setattr(Decompressor, "decompress", refuse)
    assert rows(b"".join(log)) == expected
    # Records delivered in slices stay valid, whatever happens to the next batch.
    assert rows(b"".join(log), target_bytes=500) == expected
    assert [row["value"] for row in rows(message_set(1, 4, inner, codec))] == [b"old %d" % i for i in range(5)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_batch_among_those_of_one_walk_is_named_and_left_out(codec: CompressionType) -> None:
    batches = [compressed_batch(RECORDS, 50 * at, codec) for at in range(5)]
    # The checksum is right, so only the records show the damage.
    batches[3] = with_field(batches[3], 57, ">i", 49)
    place = sum(map(len, batches[:3]))
    with pytest.raises(BatchCorruptError, match=rf"record batch at byte {place} \(offset 150\) has \d+ bytes left"):
        rows(b"".join(batches))
    decoder = RecordDecoder(on_corrupt="skip")
    decoded = rows_of(decoder.decode([b"".join(batches)]))
    assert [row["offset"] for row in decoded] == [*range(150), *range(200, 250)]
    assert [skipped.base_offset for skipped in decoder.skipped] == [150]


def test_codecs_may_change_from_batch_to_batch() -> None:
    sizes = itertools.cycle((3, 4_000, 60_000))
    records = [Record(bytes(next(sizes)), b"key %d" % i) for i in range(30)]
    plain = [compressed_batch([record], at, CompressionType.NONE) for at, record in enumerate(records)]
    mixed = [compressed_batch([record], at, CODECS[at % len(CODECS)]) for at, record in enumerate(records)]
    assert rows(b"".join(mixed)) == rows(b"".join(plain))
