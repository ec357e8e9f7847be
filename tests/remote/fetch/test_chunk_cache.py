"""Guarantees of every chunk cache, in memory and on disk; and the identity of chunks."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tieredstore.format.chunk_index import FixedChunkIndex, VariableChunkIndex
from tieredstore.format.manifest import IndexEntry, SegmentIndexes, SegmentManifest, WrappedDataKey
from tieredstore.remote.diskcache.cache import DiskChunkCache
from tieredstore.remote.fetch.chunk_cache import CacheStats, ChunkCache, ChunkKey, MemoryChunkCache, layout_digest

KEY = ChunkKey("s3://bucket", "topic-x/0/00000000000000000000-y.log", 0, b"L" * 16)
CHUNKS = [replace(KEY, chunk=number) for number in range(8)]


@pytest.fixture(params=["memory", "disk"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


class Caches:
    """Creates caches of one kind, and closes them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self.made: list[ChunkCache] = []

    def __call__(self, size_bytes: int = -1, retention_ms: int = -1, encrypted: bool = False) -> ChunkCache:
        if self._kind == "memory":
            self.made.append(MemoryChunkCache(size_bytes, retention_ms=retention_ms, encrypted=encrypted))
        else:
            disk = DiskChunkCache(self._folder, size_bytes, retention_ms=retention_ms, encrypted=encrypted)
            self.made.append(disk)
        return self.made[-1]


@pytest.fixture
def make(kind: str, tmp_path: Path) -> Iterator[Caches]:
    caches = Caches(kind, tmp_path / "cache")
    yield caches
    for cache in caches.made:
        cache.close()


def got(cache: ChunkCache, key: ChunkKey, size: int) -> bytes | None:
    buffer = bytearray(b"\xaa" * size)
    return bytes(buffer) if cache.get_into(key, memoryview(buffer)) else None


def test_a_chunk_comes_back_as_it_was_put(make: Caches) -> None:
    cache = make()
    for data in (b"a", bytes(range(256)) * 5000):
        cache.put(KEY, data)
        assert got(cache, KEY, len(data)) == data


def test_an_absent_chunk_is_a_miss(make: Caches) -> None:
    assert got(make(), KEY, 5) is None


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_the_caller_may_reuse_its_buffer(make: Caches, wrap: type[bytes | bytearray | memoryview]) -> None:
    cache, source = make(), bytearray(b"chunk")
    given_buffer = wrap(source)
    cache.put(KEY, given_buffer)
    source[:] = b"other"
    if isinstance(given_buffer, bytearray):
        given_buffer[:] = b"third"
    assert got(cache, KEY, 5) == b"chunk"


def test_a_hit_fills_the_middle_of_a_larger_buffer_and_nothing_else(make: Caches) -> None:
    cache, whole = make(), bytearray(b"....." * 3)
    cache.put(KEY, b"chunk")
    assert cache.get_into(KEY, memoryview(whole)[5:10])
    assert bytes(whole) == b".....chunk....."


@pytest.mark.parametrize("size", [0, 1, 4, 6, 4096])
def test_a_chunk_of_another_length_is_a_miss_and_stays(make: Caches, size: int) -> None:
    cache = make()
    cache.put(KEY, b"chunk")
    assert got(cache, KEY, size) is None
    assert got(cache, KEY, 5) == b"chunk"
    assert (cache.stats.hits, cache.stats.misses, cache.stats.damaged) == (1, 1, 0)


def test_an_empty_chunk_is_not_kept(make: Caches) -> None:
    cache = make()
    cache.put(KEY, b"")
    assert KEY not in cache
    assert got(cache, KEY, 0) is None
    assert cache.stats.entries == 0


def test_the_last_put_counts(make: Caches) -> None:
    cache = make()
    cache.put(KEY, b"first")
    cache.put(KEY, b"second")
    assert got(cache, KEY, 5) is None
    assert got(cache, KEY, 6) == b"second"
    assert (cache.stats.entries, cache.stats.bytes) == (1, 6)


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, store="s3://other"),
        replace(KEY, object_key=KEY.object_key + "x"),
        replace(KEY, chunk=1),
        replace(KEY, layout=b"M" * 16),
    ],
    ids=["store", "object", "chunk", "layout"],
)
def test_each_part_of_the_key_tells_chunks_apart(make: Caches, other: ChunkKey) -> None:
    cache = make()
    cache.put(KEY, b"chunk")
    assert other not in cache
    assert got(cache, other, 5) is None
    cache.put(other, b"other")
    assert (got(cache, KEY, 5), got(cache, other, 5)) == (b"chunk", b"other")


@settings(deadline=None)
@given(store=st.text(), key=st.text(), cut=st.integers(0, 12))
def test_no_two_splits_of_one_text_are_one_key(
    tmp_path_factory: pytest.TempPathFactory, store: str, key: str, cut: int
) -> None:
    whole = store + key
    first, second = ChunkKey(store, key, 0, b""), ChunkKey(whole[:cut], whole[cut:], 0, b"")
    cache = DiskChunkCache(tmp_path_factory.getbasetemp() / "splits", -1)
    try:
        cache.put(first, b"first")
        cache.put(second, b"second")
        assert got(cache, first, 5) == (None if first == second else b"first")
        assert got(cache, second, 6) == b"second"
    finally:
        cache.close()


def test_the_least_recently_used_goes_first(make: Caches) -> None:
    cache = make(size_bytes=30)
    for key in CHUNKS[:3]:
        cache.put(key, b"0123456789")
    assert got(cache, CHUNKS[0], 10)
    cache.put(CHUNKS[3], b"0123456789")
    assert [key in cache for key in CHUNKS[:4]] == [True, False, True, True]
    assert (cache.stats.entries, cache.stats.bytes) == (3, 30)
    assert (cache.stats.evictions, cache.stats.evicted_bytes) == (1, 10)


def test_a_large_chunk_pushes_out_as_many_small_ones_as_it_takes(make: Caches) -> None:
    cache = make(size_bytes=100)
    for key in (small := [replace(KEY, chunk=100 + number) for number in range(100)]):
        cache.put(key, b"1")
    cache.put(KEY, bytes(60))
    assert cache.stats.bytes == 100
    assert [key in cache for key in small] == [False] * 60 + [True] * 40


def test_a_chunk_over_the_limit_is_not_kept_and_pushes_nothing_out(make: Caches) -> None:
    cache = make(size_bytes=10)
    cache.put(CHUNKS[1], b"12345")
    cache.put(KEY, b"01234567890")
    assert KEY not in cache
    assert got(cache, CHUNKS[1], 5) == b"12345"


def test_exactly_the_limit_fits(make: Caches) -> None:
    cache = make(size_bytes=10)
    cache.put(KEY, b"0123456789")
    assert got(cache, KEY, 10) == b"0123456789"


def test_a_limit_of_nothing_keeps_nothing(make: Caches) -> None:
    cache = make(size_bytes=0)
    cache.put(KEY, b"1")
    assert got(cache, KEY, 1) is None


def test_a_retention_of_nothing_keeps_nothing(make: Caches) -> None:
    cache = make(retention_ms=0)
    cache.put(KEY, b"1")
    assert KEY not in cache
    assert got(cache, KEY, 1) is None


def test_hits_and_misses_are_counted(make: Caches) -> None:
    cache = make()
    got(cache, KEY, 5)
    cache.put(KEY, b"chunk")
    got(cache, KEY, 5)
    got(cache, KEY, 5)
    assert cache.stats == CacheStats(hits=2, misses=1, entries=1, bytes=5)


def test_a_closed_cache_misses(make: Caches) -> None:
    cache = make()
    cache.put(KEY, b"chunk")
    cache.close()
    cache.close()
    assert got(cache, KEY, 5) is None


@pytest.mark.parametrize("encrypted", [False, True])
def test_it_says_what_it_holds(make: Caches, encrypted: bool) -> None:
    assert make(encrypted=encrypted).encrypted is encrypted


def test_memory_counts_the_retention_from_the_last_use() -> None:
    now = [0.0]
    cache = MemoryChunkCache(-1, retention_ms=1000, clock=lambda: now[0])
    cache.put(KEY, b"chunk")
    for _ in range(3):
        now[0] += 0.9
        assert got(cache, KEY, 5) == b"chunk"
    now[0] += 1
    assert KEY not in cache
    assert got(cache, KEY, 5) is None
    assert (cache.stats.evictions, cache.stats.evicted_bytes) == (1, 5)


ENTRY = IndexEntry(0, 0)
INDEXES = SegmentIndexes(ENTRY, ENTRY, ENTRY, ENTRY, None)
PLAIN = SegmentManifest(FixedChunkIndex(100, 250, 100, 50), INDEXES, compression=False)
SEALED = replace(
    PLAIN, chunk_index=FixedChunkIndex(100, 250, 128, 78), encryption=WrappedDataKey("k", b"wrapped", b"aad")
)
ZSTD = replace(PLAIN, chunk_index=VariableChunkIndex.from_sizes(100, 250, [90, 80, 40]), compression=True)
STORED = replace(PLAIN, chunk_index=VariableChunkIndex.from_sizes(100, 250, [100, 100, 50]))
LAYOUTS = {
    "plain": PLAIN,
    "sealed": SEALED,
    "zstd": ZSTD,
    "stored one by one": STORED,
    "the same, said to be compressed": replace(STORED, compression=True),
    "another chunk size": replace(PLAIN, chunk_index=FixedChunkIndex(50, 250, 50, 50)),
    "another file size": replace(PLAIN, chunk_index=FixedChunkIndex(100, 251, 100, 51)),
    "other stored sizes": replace(ZSTD, chunk_index=VariableChunkIndex.from_sizes(100, 250, [90, 80, 41])),
    "another aad": replace(SEALED, encryption=WrappedDataKey("k", b"wrapped", b"AAD")),
    "an empty aad": replace(SEALED, encryption=WrappedDataKey("k", b"wrapped", b"")),
}


def test_all_layouts_have_digests_of_their_own() -> None:
    digests = {name: layout_digest(manifest) for name, manifest in LAYOUTS.items()}
    assert len(set(digests.values())) == len(LAYOUTS)
    assert {len(digest) for digest in digests.values()} == {16}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_manifest_read_back_has_the_same_layout(name: str) -> None:
    manifest = LAYOUTS[name]
    assert layout_digest(SegmentManifest.from_bytes(manifest.to_bytes())) == layout_digest(manifest)


def test_a_new_wrapping_of_the_data_key_leaves_the_layout() -> None:
    rotated = replace(SEALED, encryption=WrappedDataKey("new", b"wrapped anew", b"aad"))
    assert layout_digest(rotated) == layout_digest(SEALED)


def test_where_the_indexes_lie_is_not_in_the_layout() -> None:
    moved = SegmentIndexes(IndexEntry(0, 5), IndexEntry(5, 0), IndexEntry(5, 0), IndexEntry(5, 0), IndexEntry(5, 7))
    assert layout_digest(replace(PLAIN, segment_indexes=moved)) == layout_digest(PLAIN)


def test_the_digest_does_not_change_between_versions() -> None:
    """The digests must not change, because a cache on disk outlives the process and finds its entries by them."""
    digests = {name: base64.b64encode(layout_digest(LAYOUTS[name])).decode() for name in ("plain", "sealed")}
    assert digests == {"plain": "xQ9aD6pFZyK8RbBX4xcymg==", "sealed": "Gesl9UYzAc7DaSh8tpu15g=="}


def test_stats_are_all_counts() -> None:
    assert {type(getattr(CacheStats(), field.name)) for field in fields(CacheStats)} == {int}
