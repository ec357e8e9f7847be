"""Tests of ranges of a log: which reads they take, and which bytes they return."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.records.disk_segments import manager_of, write_segments
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.committed import CommittedSegments
from tieredstore.catalog.listing import list_segments
from tieredstore.catalog.stored import StoredSegment, load_segment
from tieredstore.model import ByteRange
from tieredstore.ops.copies.shipping import Shipper
from tieredstore.ops.log_ranges import range_of_slice, read_range, read_sizes
from tieredstore.remote import RemoteStorageManager


@pytest.fixture(scope="module")
def manager() -> Iterator[RemoteStorageManager]:
    with manager_of(MemoryObjectStore()) as manager:
        yield manager


@pytest.fixture(scope="module")
def segment(manager: RemoteStorageManager, tmp_path_factory: pytest.TempPathFactory) -> StoredSegment:
    """Store a log of several chunks of 64 bytes."""
    (on_disk,) = write_segments(tmp_path_factory.mktemp("ranges"), 1)
    Shipper(CommittedSegments(manager.store), manager).ship(on_disk)
    (objects,) = list_segments(manager.store)
    return load_segment(manager.store, objects)


@pytest.fixture(scope="module")
def whole(manager: RemoteStorageManager, segment: StoredSegment) -> bytes:
    """Return the whole log."""
    with manager.open(segment.metadata) as log:
        return log.read()


BOUND = st.none() | st.integers(-300, 300)


@given(start=BOUND, stop=BOUND)
def test_a_range_gives_what_the_slice_takes_of_the_log(
    start: int | None, stop: int | None, manager: RemoteStorageManager, segment: StoredSegment, whole: bytes
) -> None:
    inside = range_of_slice(slice(start, stop), len(whole))
    assert b"".join(map(bytes, read_range(manager, segment, inside))) == whole[start:stop]


def test_a_range_that_is_left_early_closes_its_stream(manager: RemoteStorageManager, segment: StoredSegment) -> None:
    size = segment.metadata.segment_size_in_bytes
    for _ in range(20):
        with contextlib.closing(read_range(manager, segment, ByteRange(0, size))) as pieces:
            next(pieces)


@given(start=st.integers(0, 2000), size=st.integers(0, 2000), chunk=st.integers(1, 300))
def test_reads_tile_the_range_and_end_at_chunk_borders(start: int, size: int, chunk: int) -> None:
    sizes = list(read_sizes(ByteRange(start, start + size), chunk))
    assert sum(sizes) == size
    assert all(0 < read_size <= max(8 * chunk, 1 << 20) for read_size in sizes)
    ends = [start + sum(sizes[: n + 1]) for n in range(len(sizes))]
    assert all(end % chunk == 0 for end in ends[:-1])


def test_reads_of_large_chunks_are_bounded() -> None:
    assert max(read_sizes(ByteRange(0, 1 << 31), 4 << 20)) == 32 << 20
    assert max(read_sizes(ByteRange(0, 1 << 31), 60 << 20)) == 60 << 20
    assert max(read_sizes(ByteRange(0, 1 << 31), 1 << 30)) == 1 << 30
