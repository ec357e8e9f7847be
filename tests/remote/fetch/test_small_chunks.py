"""Chunks of one byte: reading one of them needs requests and memory only for it, and a long read has bounded steps."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
from tests.support.stores.doubles import CountingStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.fetch.chunk_cache import ChunkKey, MemoryChunkCache
from tieredstore.remote.fetch.chunk_loads import MAX_CHUNKS_OF_A_RUN, MAX_CHUNKS_ON_THEIR_WAY

pytestmark = pytest.mark.slow

LOG = bytes(range(256)) * 28  # 7,168 chunks, whose bytes are few enough for one request

Copied = tuple[CountingStore, RemoteStorageManager, RemoteLogSegmentMetadata]


@pytest.fixture(params=["none", "enc"])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Copied]:
    store, metadata = CountingStore(MemoryObjectStore()), new_metadata(len(LOG))
    settings = memory_settings(1, mode=MODES[request.param])
    with RemoteStorageManager(settings, store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG))
        store.reset()
        yield store, manager, metadata


def requests(store: CountingStore) -> int:
    return sum(key.endswith(".log") for operation in store.operations for key in operation.keys)


def test_a_byte_costs_one_request_of_a_byte(copied: Copied) -> None:
    store, manager, metadata = copied
    with manager.fetch_log_segment(metadata, 700, 700) as stream:
        assert stream.read() == LOG[700:701]
    assert requests(store) == 1
    assert manager.fetch_stats.bytes_fetched <= 29


def test_a_byte_of_an_open_log_brings_a_bounded_number_of_chunks(copied: Copied) -> None:
    store, manager, metadata = copied
    with manager.open(metadata) as stream:
        tracemalloc.start()
        try:
            assert stream.read(1) == LOG[:1]
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()
    most = MAX_CHUNKS_ON_THEIR_WAY + MAX_CHUNKS_OF_A_RUN
    assert requests(store) <= most // MAX_CHUNKS_OF_A_RUN
    assert manager.fetch_stats.bytes_fetched <= 29 * most < 29 * len(LOG)


def test_the_whole_log_comes_by_runs_of_a_bounded_number_of_chunks(copied: Copied) -> None:
    store, manager, metadata = copied
    with manager.open(metadata) as stream:
        assert stream.read() == LOG
    assert requests(store) == len(LOG) // MAX_CHUNKS_OF_A_RUN


@pytest.mark.parametrize("chunk_size", [1, 100, 4096])
def test_a_cache_in_memory_takes_as_much_as_it_may_however_small_its_chunks(chunk_size: int) -> None:
    # Give each chunk another object key, to which only the cache refers, as with many small segments. This case takes
    # the most memory.
    limit, chunks = 1 << 20, 2 * (1 << 20) // (chunk_size + 300)
    tracemalloc.start()
    try:
        cache = MemoryChunkCache(limit)
        for number in range(chunks):
            key = ChunkKey("memory:", f"topic/0/{number:020d}.log", number, number.to_bytes(16, "big"))
            cache.put(key, bytes([number % 256]) * chunk_size)
        # Exclude allocations of threads left by other tests.
        ours = [tracemalloc.Filter(True, pattern) for pattern in (__file__, "*/tieredstore/*")]
        traces = tracemalloc.take_snapshot().filter_traces(ours).traces
        held = sum(trace.size for trace in traces)
        assert 0.4 * limit < held < 1.25 * limit
    finally:
        tracemalloc.stop()
    assert 0.4 * limit < cache.stats.entries * (chunk_size + 512) < 1.1 * limit
