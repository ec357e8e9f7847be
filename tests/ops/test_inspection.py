"""Tests of the objects of a segment as values."""

from __future__ import annotations

from array import array

import pytest

from tests.support.stores.catalog_stores import MadeSegment, partition_of
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import StoredSegment, load_segment
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.keys import Suffix
from tieredstore.ops.inspection import StoredChunkSizes, inspect_objects

SEGMENT = MadeSegment(partition_of(), 0, 9)
EXPECTED = {Suffix.LOG: 1000, Suffix.INDEXES: len(SEGMENT.index), Suffix.MANIFEST: None}


@pytest.fixture
def store() -> MemoryObjectStore:
    store = MemoryObjectStore()
    SEGMENT.put(store)
    return store


def loaded(store: MemoryObjectStore) -> StoredSegment:
    (objects,) = list_segments(store)
    return load_segment(store, objects)


def test_a_whole_segment_has_three_objects_of_the_expected_sizes(store: MemoryObjectStore) -> None:
    objects = inspect_objects(loaded(store))
    assert {inspected.suffix: inspected.expected_size for inspected in objects} == EXPECTED
    assert not any(inspected.is_damaged for inspected in objects)
    assert [inspected.info and inspected.info.key for inspected in objects] == [
        SEGMENT.key(suffix) for suffix in Suffix
    ]


@pytest.mark.parametrize("suffix", [Suffix.LOG, Suffix.INDEXES])
def test_a_lost_object_is_missing(store: MemoryObjectStore, suffix: Suffix) -> None:
    store.delete([SEGMENT.key(suffix)])
    damage = {inspected.suffix: inspected.is_damaged for inspected in inspect_objects(loaded(store))}
    assert damage == dict.fromkeys(Suffix, False) | {suffix: True}


@pytest.mark.parametrize("suffix", [Suffix.LOG, Suffix.INDEXES])
@pytest.mark.parametrize("change", [-1, 1])
def test_an_object_of_another_size_is_told_with_both(store: MemoryObjectStore, suffix: Suffix, change: int) -> None:
    size = (EXPECTED[suffix] or 0) + change
    store.put(SEGMENT.key(suffix), bytes(size))
    (damaged,) = (inspected for inspected in inspect_objects(loaded(store)) if inspected.is_damaged)
    assert damaged.suffix is suffix
    assert damaged.info is not None
    assert (damaged.info.size, damaged.expected_size) == (size, size - change)


@pytest.mark.parametrize(
    ("index", "sizes"),
    [
        (FixedChunkIndex(100, 0, 100, 0), None),
        (FixedChunkIndex(100, 70, 100, 70), StoredChunkSizes(70, 70, 70)),
        (FixedChunkIndex(100, 250, 128, 78), StoredChunkSizes(78, 111, 128)),
        (VariableChunkIndex.from_sizes(100, 250, array("i", [30, 90, 20])), StoredChunkSizes(20, 46, 90)),
    ],
)
def test_the_sizes_of_stored_chunks(index: ChunkIndex, sizes: StoredChunkSizes | None) -> None:
    assert StoredChunkSizes.of(index) == sizes
