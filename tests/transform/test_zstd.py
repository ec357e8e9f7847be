"""Frames that the plugin's reader accepts. Our reader must accept no others."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zstandard
from hypothesis import assume, given
from hypothesis import strategies as st

from tieredstore.errors import CorruptDataError
from tieredstore.transform.chunks import compress, decompress_into


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
    with pytest.raises(CorruptDataError, match=f"declares {len(data)} bytes"):
        decompressed(compress(data), expected)


def test_a_frame_without_content_size_is_refused_as_in_the_plugin() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100)
    with pytest.raises(CorruptDataError, match="no content size"):
        decompressed(frame, 100)


def test_a_skippable_frame_in_front_is_refused_as_in_the_plugin() -> None:
    with pytest.raises(CorruptDataError):
        decompressed(b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + compress(b"x" * 100), 100)


def test_checksums_levels_and_long_windows_are_read() -> None:
    data = bytes(range(256)) * 400
    parameters: Any = zstandard.ZstdCompressionParameters
    long = parameters.from_level(19, window_log=27, write_checksum=True)
    assert decompressed(zstandard.ZstdCompressor(compression_params=long).compress(data), len(data)) == data


def test_a_bomb_costs_nothing_when_it_declares_more_than_expected() -> None:
    bomb = compress(bytes(64 << 20))
    with pytest.raises(CorruptDataError, match="declares 67108864 bytes"):
        decompressed(bomb, 10)


@given(st.binary(min_size=1, max_size=2000), st.data())
def test_a_truncated_frame_is_corrupt(data: bytes, draw: st.DataObject) -> None:
    frame = compress(data)
    cut = draw.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(CorruptDataError):
        decompressed(frame[:cut], len(data))


@given(st.binary(max_size=200), st.integers(1, 200))
def test_random_bytes_are_corrupt_or_decode_to_the_asked_size(junk: bytes, size: int) -> None:
    with pytest.raises(CorruptDataError):
        decompressed(junk, size)


CONTENT = bytes(range(256)) * 2_000


def beginning(frame: bytes, size: int, wanted: int) -> bytes:
    out = memoryview(bytearray(size))
    decompress_into(frame, out, wanted)
    return bytes(out[:wanted])


def test_the_beginning_of_a_frame_is_all_that_is_decompressed() -> None:
    frame, size = compress(CONTENT), len(CONTENT)
    for wanted in (0, 1, 1_000, 131_072, 131_073, 300_000, size):
        assert beginning(frame, size, wanted) == CONTENT[:wanted]
    with pytest.raises(CorruptDataError, match="declares 512000 bytes, not the 512001 bytes expected"):
        beginning(frame, size + 1, 10)
    with pytest.raises(CorruptDataError, match="ends after"):
        beginning(frame[:100], size, 300_000)


texts = st.lists(st.tuples(st.binary(max_size=20), st.integers(1, 20_000))).map(
    lambda runs: b"".join(piece * count for piece, count in runs)[:400_000]
)


@given(texts, st.integers(1, 19), st.data())
def test_any_beginning_of_any_frame_is_that_of_its_content(content: bytes, level: int, draw: st.DataObject) -> None:
    wanted = draw.draw(st.integers(0, len(content)))
    assert beginning(compress(content, level), len(content), wanted) == content[:wanted]


def test_what_lies_behind_the_beginning_is_not_looked_at() -> None:
    content = random.Random(0).randbytes(1 << 20)
    frame = compress(content)
    # The content is incompressible, so the first half of the frame holds about half of it.
    assert beginning(frame[: len(frame) // 2], len(content), 300_000) == content[:300_000]


def test_a_checksum_that_does_not_hold_is_corrupt() -> None:
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(CONTENT))
    assert decompressed(bytes(frame), len(CONTENT)) == CONTENT
    frame[-1] ^= 1
    with pytest.raises(CorruptDataError):
        decompressed(bytes(frame), len(CONTENT))


def test_threads_do_not_share_what_they_work_with() -> None:
    contents = [random.Random(number).randbytes(1000) * 400 for number in range(8)]
    frames = [compress(content) for content in contents]

    def read(number: int) -> bool:
        wanted = 100_000 + number
        return beginning(frames[number % 8], 400_000, wanted) == contents[number % 8][:wanted]

    with ThreadPoolExecutor(24) as pool:
        assert all(pool.map(read, range(200)))
