"""Frames that the plugin's reader accepts, and nothing else accepted by ours."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from tieredstore.errors import CorruptData
from tieredstore.transform.zstd import compress, decompress_into


def decompressed(frame: bytes, size: int) -> bytes:
    out = bytearray(size)
    decompress_into(frame, memoryview(out))
    return bytes(out)


@pytest.mark.parametrize(
    ("size", "header"),
    [(5, "28b52ffd2005"), (300, "28b52ffd602c00"), (70000, "28b52ffda070110100"), (4 << 20, "28b52ffd805800004000")],
)
def test_frame_headers_are_those_of_the_plugin(size: int, header: str) -> None:
    assert compress(b"a" * size).hex().startswith(header)


@given(st.binary(max_size=5000), st.integers(1, 19))
def test_a_frame_declares_its_size_and_comes_back_at_every_level(data: bytes, level: int) -> None:
    frame = compress(data, level)
    assert zstandard.get_frame_parameters(frame).content_size == len(data)
    assert zstandard.get_frame_parameters(frame).has_checksum is False
    assert decompressed(frame, len(data)) == data


@given(st.binary(max_size=300), st.integers(0, 303))
def test_another_size_than_expected_is_corrupt_before_anything_is_decompressed(data: bytes, expected: int) -> None:
    assume(expected != len(data))
    with pytest.raises(CorruptData, match=f"declares {len(data)} bytes"):
        decompressed(compress(data), expected)


def test_a_frame_without_content_size_is_refused_as_in_the_plugin() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100)
    with pytest.raises(CorruptData, match="no content size"):
        decompressed(frame, 100)


def test_a_skippable_frame_in_front_is_refused_as_in_the_plugin() -> None:
    with pytest.raises(CorruptData):
        decompressed(b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + compress(b"x" * 100), 100)


def test_checksums_levels_and_long_windows_are_read() -> None:
    data = bytes(range(256)) * 400
    long = zstandard.ZstdCompressionParameters.from_level(19, window_log=27, write_checksum=True)
    assert decompressed(zstandard.ZstdCompressor(compression_params=long).compress(data), len(data)) == data


def test_a_bomb_costs_nothing_when_it_declares_more_than_expected() -> None:
    bomb = compress(bytes(64 << 20))
    with pytest.raises(CorruptData, match="declares 67108864 bytes"):
        decompressed(bomb, 10)


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_a_truncated_frame_is_corrupt(data: bytes, draw: st.DataObject) -> None:
    frame = compress(data)
    cut = draw.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(CorruptData):
        decompressed(frame[:cut], len(data))


@given(st.binary(max_size=200), st.integers(1, 200))
def test_random_bytes_are_corrupt_or_decode_to_the_asked_size(junk: bytes, size: int) -> None:
    with pytest.raises(CorruptData):
        decompressed(junk, size)


def test_the_beginning_of_a_frame_is_all_that_is_decompressed() -> None:
    content = bytes(range(256)) * 2_000
    frame = compress(content)
    for size in (1, 1_000, 131_072, 300_000, len(content)):
        out = bytearray(size)
        decompress_into(frame, memoryview(out), len(content))
        assert out == content[:size]
    with pytest.raises(CorruptData, match="declares 512000 bytes, not the 512001 bytes expected"):
        decompress_into(frame, memoryview(bytearray(10)), len(content) + 1)
    with pytest.raises(CorruptData, match="ends after"):
        decompress_into(frame[:100], memoryview(bytearray(300_000)), len(content))
