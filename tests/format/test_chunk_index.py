"""Positions of chunks: arithmetic, contradictions, memory."""

from __future__ import annotations

import pickle
import random
import sys
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.errors import InvalidRangeError, ManifestCorruptError
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex, pack_chunk_sizes
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.model import ByteRange

MIB = 2**20


def original_sizes(chunk_size: int, file_size: int) -> list[int]:
    whole, rest = divmod(file_size, chunk_size)
    return [chunk_size] * whole + ([rest] if rest else [])


def fixed(chunk_size: int, file_size: int, overhead: int = 0) -> FixedChunkIndex:
    last = original_sizes(chunk_size, file_size)[-1:]
    return FixedChunkIndex(chunk_size, file_size, chunk_size + overhead, last[0] + overhead if last else 0)


def spread(chunk_size: int, file_size: int, seed: int) -> VariableChunkIndex:
    """Return an index with random stored sizes."""
    rng = random.Random(seed)
    sizes = [rng.randint(29, 2 * size + 1024) for size in original_sizes(chunk_size, file_size)]
    return VariableChunkIndex.from_sizes(chunk_size, file_size, sizes)


small_fixed = st.builds(fixed, st.integers(1, 60), st.integers(0, 400), st.sampled_from([0, ENCRYPTION_OVERHEAD]))
small_variable = st.builds(spread, st.integers(1, 60), st.integers(1, 400), st.integers())
small_indexes = st.one_of(small_fixed, small_variable)


@given(small_indexes)
def test_chunks_tile_the_original_and_the_stored_file(index: ChunkIndex) -> None:
    sizes = original_sizes(index.original_chunk_size, index.original_file_size)
    assert index.chunk_count == len(sizes)
    assert [index.original_size(chunk) for chunk in range(len(sizes))] == sizes
    ends = [index.original_range(chunk).stop for chunk in range(len(sizes))]
    assert [index.original_range(chunk).start for chunk in range(len(sizes))] == [0, *ends][: len(sizes)]
    positions = index.positions()
    assert len(positions) == len(sizes) + 1
    assert positions[0] == 0
    assert positions[-1] == index.stored_size
    assert all(positions[i] < positions[i + 1] for i in range(len(sizes)))


@given(st.integers(1, 60), st.integers(0, 400), st.sampled_from([0, ENCRYPTION_OVERHEAD]))
def test_fixed_positions_are_the_prefix_sums(chunk_size: int, file_size: int, overhead: int) -> None:
    expected = [0]
    for size in original_sizes(chunk_size, file_size):
        expected.append(expected[-1] + size + overhead)
    positions = fixed(chunk_size, file_size, overhead).positions()
    assert list(positions) == expected
    assert positions[1:-1] == expected[1:-1]
    assert positions[::-2] == expected[::-2]
    assert [positions[-1 - i] for i in range(len(expected))] == expected[::-1]
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            positions[outside]


@given(st.integers(1, 60), st.integers(1, 400), st.data())
def test_variable_positions_are_the_prefix_sums(chunk_size: int, file_size: int, data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 2 * size + 1024)) for size in original_sizes(chunk_size, file_size)]
    index = VariableChunkIndex.from_sizes(chunk_size, file_size, sizes)
    assert list(index.positions()) == [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    assert list(index.stored_sizes()) == sizes
    assert VariableChunkIndex.from_text(chunk_size, file_size, index.text) == index


@given(small_indexes, st.data())
def test_a_range_needs_exactly_the_chunks_that_overlap_it(index: ChunkIndex, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, index.original_file_size))
    stop = data.draw(st.integers(start, index.original_file_size))
    chunk_size = index.original_chunk_size
    overlapping = sorted({position // chunk_size for position in range(start, stop)})
    assert list(index.chunks_of(ByteRange(start, stop))) == overlapping
    assert [index.chunk_at(position) for position in range(start, stop)] == [
        position // chunk_size for position in range(start, stop)
    ]


@given(small_indexes, st.integers(1, 1000))
def test_positions_outside_the_file_are_refused(index: ChunkIndex, beyond: int) -> None:
    size, count = index.original_file_size, index.chunk_count
    for position in (-beyond, size + beyond - 1):
        with pytest.raises(InvalidRangeError):
            index.chunk_at(position)
    for chunk_id in (-beyond, count + beyond - 1):
        with pytest.raises(InvalidRangeError):
            index.original_range(chunk_id)
        with pytest.raises(InvalidRangeError):
            index.original_size(chunk_id)
    for start in (0, size, size + beyond):
        with pytest.raises(InvalidRangeError):
            index.chunks_of(ByteRange(start, size + beyond))


@pytest.mark.parametrize("overhead", [0, ENCRYPTION_OVERHEAD])
def test_an_empty_file_has_no_chunks(overhead: int) -> None:
    index = FixedChunkIndex(4 * MIB, 0, 4 * MIB + overhead, 0)
    assert index.chunk_count == 0
    assert index.stored_size == 0
    assert list(index.positions()) == [0]
    assert list(index.chunks_of(ByteRange(0, 0))) == []


def test_the_tail_of_the_largest_file_is_found_where_32_bits_overflow() -> None:
    index = fixed(4 * MIB, 2**31 - 1, ENCRYPTION_OVERHEAD)
    assert index.chunk_at(2**31 - 2) == 511
    assert index.original_range(511) == ByteRange(511 * 4 * MIB, 2**31 - 1)
    assert index.stored_size == 2**31 - 1 + 512 * ENCRYPTION_OVERHEAD


def test_stored_positions_of_a_variable_index_pass_32_bits() -> None:
    index = VariableChunkIndex.from_sizes(2**30, 2**31 - 1, [2**31 - 1, 2**31 - 1])
    assert list(index.positions()) == [0, 2**31 - 1, 2**32 - 2]


@pytest.mark.parametrize(
    ("chunk_size", "file_size", "transformed", "final"),
    [
        (0, 0, 0, 0),
        (-1, 0, -1, 0),
        (2**31, 10, 2**31, 10),
        (10, -1, 10, 0),
        (10, 2**31, 10, 8),
        (10, 25, 9, 5),
        (10, 25, 11, 6),
        (10, 25, 37, 32),
        (10, 25, 10, 4),
        (10, 25, 10, 10),
        (10, 25, 10, 33),
        (10, 25, 38, 5),
        (10, 20, 10, 0),
        (10, 20, 10, 20),
        (10, 0, 10, 10),
        (10, 0, 38, 28),
    ],
)
def test_a_fixed_index_that_contradicts_itself_is_refused(
    chunk_size: int, file_size: int, transformed: int, final: int
) -> None:
    with pytest.raises(ManifestCorruptError):
        FixedChunkIndex(chunk_size, file_size, transformed, final)


@pytest.mark.parametrize(
    ("chunk_size", "file_size", "sizes"),
    [
        (0, 10, [5]),
        (2**31, 10, [5]),
        (10, -1, [5]),
        (10, 2**31, [5]),
        (10, 0, []),
        (10, 0, [5]),
        (10, 10, []),
        (10, 10, [5, 5]),
        (10, 11, [5]),
        (10, 25, [5, 5]),
        (10, 25, [5, 5, 5, 5]),
        (10, 25, [0, 5, 5]),
        (10, 25, [5, 5, 0]),
        (10, 25, [5, 1045, 5]),
        (10, 25, [5, 5, 1035]),
        (10, 5, [1035]),
        (65536, 65537, [2**31 - 1, 5]),
    ],
)
def test_a_variable_index_that_contradicts_itself_is_refused(chunk_size: int, file_size: int, sizes: list[int]) -> None:
    with pytest.raises(ManifestCorruptError):
        VariableChunkIndex(chunk_size, file_size, pack_chunk_sizes(sizes))


def test_the_largest_possible_stored_sizes_are_accepted() -> None:
    index = VariableChunkIndex.from_sizes(10, 25, [1044, 1044, 1034])
    assert index.stored_size == 3122


@pytest.mark.parametrize("text", ["", "A", "AAAA", "KLUv_SAIQQAAAAAAAQAAANU=", "KLUv/SAIQQAAAAAAAQAAANU\n", "é"])
def test_text_that_is_not_a_list_of_sizes_is_refused(text: str) -> None:
    assert VariableChunkIndex.from_text(1000, 700, "KLUv/SAIQQAAAAAAAQAAANU=").stored_size == 213
    with pytest.raises(ManifestCorruptError):
        VariableChunkIndex.from_text(1000, 700, text)


def deep_size(value: object) -> int:
    """Return the memory of ``value`` and everything it holds."""
    held = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    return sys.getsizeof(value) + sum(deep_size(item) for item in held)


@pytest.mark.parametrize("seed", range(5))
def test_the_index_of_2000_chunks_takes_at_most_4_kilobytes(seed: int) -> None:
    # Neighbouring chunks of one topic compress alike, so the sizes are about 300 KB and differ by about 1 KB.
    rng = random.Random(seed)
    sizes = [round(rng.gauss(300_000, 1_000)) for _ in range(2_000)]
    index = VariableChunkIndex.from_sizes(MIB, 2_000 * MIB - 5, sizes)
    assert list(index.stored_sizes()) == sizes
    assert deep_size(index) <= 4_096
    assert not hasattr(index, "__dict__")


@given(small_indexes)
def test_an_index_is_a_value(index: ChunkIndex) -> None:
    assert pickle.loads(pickle.dumps(index)) == index
    assert hash(index) == hash(pickle.loads(pickle.dumps(index)))
