"""The list of stored chunk sizes: binary form and zstd frame."""

from __future__ import annotations

import base64
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.support.work import least_traced_peak
from tieredstore.errors import ManifestCorruptError, SegmentTooLargeError
from tieredstore.format.chunk_index import (
    MAX_BINARY_SIZE,
    decode_chunk_sizes,
    encode_chunk_sizes,
    pack_chunk_sizes,
    unpack_chunk_sizes,
)

BINARY = [
    ([], "00000000"),
    ([213], "00000001 000000d5"),
    ([2147483647], "00000001 7fffffff"),
    ([10, 20, 30], "00000003 0000000a 01 00 0a 0000001e"),
    ([1000000, 1000010, 1000020], "00000003 000f4240 01 00 0a 000f4254"),
    ([0, 1000, 2, 44002, 369], "00000005 00000000 02 0000 03e8 0002 abe2 00000171"),
    ([0, 255, 5], "00000003 00000000 01 00 ff 00000005"),
    ([0, 256, 5], "00000003 00000000 02 0000 0100 00000005"),
    ([1, 65545, 65555, 65565, 2147483647], "00000005 00000001 03 000000 010008 010012 01001c 7fffffff"),
    ([1, 16777225, 16777235, 2147483647], "00000004 00000001 04 00000000 01000008 01000012 7fffffff"),
    ([7, 7, 7, 3], "00000004 00000007 01 00 00 00 00000003"),
]
TEXT = [
    ([213], "KLUv/SAIQQAAAAAAAQAAANU="),
    ([2147483647], "KLUv/SAIQQAAAAAAAX////8="),
    ([10, 20, 30], "KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe"),
    ([1000000, 1000010, 1000020], "KLUv/SAPeQAAAAAAAwAPQkABAAoAD0JU"),
    ([0, 1000, 2, 44002, 369], "KLUv/SAVqQAAAAAABQAAAAACAAAD6AACq+IAAAFx"),
    ([0, 255, 5], "KLUv/SAPeQAAAAAAAwAAAAABAP8AAAAF"),
    ([0, 256, 5], "KLUv/SARiQAAAAAAAwAAAAACAAABAAAAAAU="),
    ([1, 65545, 65555, 65565, 2147483647], "KLUv/SAZyQAAAAAABQAAAAEDAAAAAQAIAQASAQAcf////w=="),
    ([1, 16777225, 16777235, 2147483647], "KLUv/SAZyQAAAAAABAAAAAEEAAAAAAEAAAgBAAASf////w=="),
    ([7, 7, 7, 3], "KLUv/SAQgQAAAAAABAAAAAcBAAAAAAAAAw=="),
    ([9026, 9016, 9018, 9000, 18190, 65574, 24624], "KLUv/SAZyQAAAAAABwAAIygCABoAEAASAAAj5tz+AABgMA=="),
]

sizes_of_all_widths = st.sampled_from([0xFF, 0xFFFF, 0xFFFFFF, 2**31 - 1]).flatmap(
    lambda top: st.lists(st.integers(0, top), max_size=60)
)


@pytest.mark.parametrize(("sizes", "binary"), BINARY, ids=str)
def test_the_binary_form_is_the_plugins(sizes: list[int], binary: str) -> None:
    raw = bytes.fromhex(binary)
    assert encode_chunk_sizes(sizes) == raw
    assert list(decode_chunk_sizes(raw)) == sizes
    assert list(decode_chunk_sizes(memoryview(raw))) == sizes


@pytest.mark.parametrize(("sizes", "text"), TEXT, ids=str)
def test_the_frame_is_the_plugins(sizes: list[int], text: str) -> None:
    frame = base64.b64decode(text)
    assert pack_chunk_sizes(sizes) == frame
    assert list(unpack_chunk_sizes(frame)) == sizes


@given(sizes_of_all_widths)
def test_any_list_comes_back(sizes: list[int]) -> None:
    assert list(unpack_chunk_sizes(pack_chunk_sizes(sizes))) == sizes


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_width_grows_exactly_where_a_difference_needs_it(width: int, beyond: int) -> None:
    difference = min(2 ** (8 * width) - 1 + beyond, 2**31 - 1)
    raw = encode_chunk_sizes([0, difference, 0])
    assert raw[8] == min(width + beyond, 4)


@given(sizes_of_all_widths.filter(lambda sizes: len(sizes) > 1))
def test_the_last_size_takes_no_part_in_base_and_width(sizes: list[int]) -> None:
    assert encode_chunk_sizes(sizes)[:-4] == encode_chunk_sizes([*sizes[:-1], sizes[0]])[:-4]


@pytest.mark.parametrize("sizes", [[-1], [2**31], [1, -1, 1], [1, 2**31, 1], [1, 1, -1], [1, 1, 2**31]])
def test_sizes_that_the_format_cannot_hold_are_refused(sizes: list[int]) -> None:
    with pytest.raises(SegmentTooLargeError, match=r"not within 0\.\.2147483647"):
        encode_chunk_sizes(sizes)


@pytest.mark.slow
def test_a_list_over_ten_mebibytes_is_refused_before_it_is_written() -> None:
    fits = [0] * ((MAX_BINARY_SIZE - 13) // 3) + [0]
    fits[0] = 2**24 - 1  # three bytes per size
    assert len(encode_chunk_sizes(fits)) == MAX_BINARY_SIZE
    assert len(unpack_chunk_sizes(pack_chunk_sizes(fits))) == len(fits)
    with pytest.raises(SegmentTooLargeError, match=r"use a larger chunk\.size"):
        pack_chunk_sizes([*fits, 0])


@pytest.mark.parametrize(
    ("binary", "reason"),
    [
        ("", "in the middle of a number"),
        ("000000", "in the middle of a number"),
        ("00000000 00", "5 bytes, but its header states so many sizes that it must have 4"),
        ("00000001", "4 bytes, but its header states so many sizes that it must have 8"),
        ("00000001 000000", "7 bytes, but its header states so many sizes that it must have 8"),
        ("00000001 00000001 00", "9 bytes, but its header states so many sizes that it must have 8"),
        ("00000001 ffffffff", "holds the negative number -1"),
        ("ffffffff 00000000 01 00000000", "negative"),
        ("00000002", "in the middle of its header"),
        ("00000002 00000000", "in the middle of its header"),
        ("00000002 00000000 00 00000000", "with 0 bytes for each"),
        ("00000002 00000000 05 0000000000 00000000", "with 5 bytes for each"),
        ("00000002 00000000 ff 00 00000000", "with -1 bytes for each"),
        ("00000002 ffffffff 01 00 00000000", "with the minimum -1"),
        ("00000002 00000000 01 00", "must have 14"),
        ("00000002 00000000 01 00 00000000 00", "15 bytes, but its header states so many sizes that it must have 14"),
        ("7fffffff 00000000 04 00000000 00000000", "must have 8589934597"),
        ("00000002 7fffffff 01 01 00000000", "above 2147483647"),
        ("00000002 00000000 04 80000000 00000000", "above 2147483647"),
        ("00000002 7fffffff 04 ffffffff 00000000", "above 2147483647"),
        ("00000002 00000000 01 00 80000000", "holds the negative number -2147483648"),
    ],
)
def test_a_damaged_binary_form_is_refused(binary: str, reason: str) -> None:
    with pytest.raises(ManifestCorruptError, match=f"^transformedChunks: the list of chunk sizes .*{reason}"):
        decode_chunk_sizes(bytes.fromhex(binary))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_list_or_corrupt(raw: bytes) -> None:
    try:
        sizes = decode_chunk_sizes(raw)
    except ManifestCorruptError:
        return
    assert all(0 <= size <= 2**31 - 1 for size in sizes)
    assert len(raw) >= len(sizes)


def _frame(raw: bytes, *, level: int = 3, content_size: bool = True, checksum: bool = False) -> bytes:
    compressor = zstandard.ZstdCompressor(level=level, write_content_size=content_size, write_checksum=checksum)
    return compressor.compress(raw)


@pytest.mark.parametrize("level", [1, 9, 19])
@pytest.mark.parametrize("checksum", [False, True])
def test_a_frame_of_any_level_and_with_a_checksum_is_read(level: int, checksum: bool) -> None:
    frame = _frame(encode_chunk_sizes([5, 6, 7]), level=level, checksum=checksum)
    assert list(unpack_chunk_sizes(frame)) == [5, 6, 7]


GOOD = _frame(encode_chunk_sizes([10, 20, 30]))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "zstd frame"),
        (b"not zstd at all", "zstd frame"),
        (_frame(bytes(4), content_size=False), "states no size"),
        (_frame(bytes(MAX_BINARY_SIZE + 1)), "states no size, or more than"),
        (GOOD[:-1], "zstd frame"),
        (GOOD + b"\0", "zstd frame"),
        (GOOD + GOOD, "zstd frame"),
        (bytes.fromhex("502a4d1800000000") + GOOD, "in the middle of a number"),
        (GOOD[:5] + b"\x0e" + GOOD[6:], "zstd frame"),
        (_frame(b""), "in the middle of a number"),
    ],
    ids=["empty", "junk", "no size", "too large", "short", "tail", "two", "skippable first", "size off", "no bytes"],
)
def test_a_damaged_frame_is_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(ManifestCorruptError, match=f"^transformedChunks: the list of chunk sizes .*{reason}"):
        unpack_chunk_sizes(frame)


@pytest.mark.parametrize("claimed", [MAX_BINARY_SIZE + 1, 2**31, 2**63, 2**64 - 2])
def test_a_frame_that_claims_too_much_allocates_nothing(claimed: int) -> None:
    frame = bytes.fromhex("28b52ffd e0") + struct.pack("<Q", claimed) + GOOD[6:]

    def unpack() -> None:
        with pytest.raises(ManifestCorruptError):
            unpack_chunk_sizes(frame)

    assert least_traced_peak(unpack) < 1_000_000


def test_every_single_bit_flip_of_a_frame_is_a_list_or_corrupt() -> None:
    frame = pack_chunk_sizes(list(range(250_000, 250_400)))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            sizes = unpack_chunk_sizes(bytes(damaged))
        except ManifestCorruptError:
            continue
        assert len(sizes) <= MAX_BINARY_SIZE
