"""Cost of reading: number of requests, and waiting time on a simulated clock."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
from tests.support.simulated_time import SimulatedClock, simulated_pools
from tests.support.stores.disk_cache_access import value_files
from tests.support.stores.doubles import CountingStore, LatencyStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import Settings
from tieredstore.errors import SegmentCorruptError
from tieredstore.format.keys import Suffix
from tieredstore.model import IndexType, RemoteLogSegmentMetadata
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.fetch import buffers

pytestmark = pytest.mark.slow

MIB = 1 << 20
# Chunks of 4 KiB represent 4 MiB: all sizes are divided by 1024, so that plans and counts are those of real segments.
KIB = 1 << 10
LOG = random.Random(5).randbytes(64 * KIB)
CACHES = {
    "memory": {"fetch.chunk.cache.class": "memory", "fetch.chunk.cache.size": "-1"},
    "disk": {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "-1"},
}


def fetch_settings(values: Mapping[str, object] | None = None) -> dict[str, str]:
    scaled: dict[str, object] = {"fetch.coalesce.max.bytes": 16 * KIB, "fetch.chunk.cache.prefetch.max.size": 16 * KIB}
    return {name: str(value) for name, value in (scaled | dict(values or {})).items()}


def settings_for(
    tmp_path: Path, mode: str = "none", cache: str | None = None, fetch: Mapping[str, object] | None = None
) -> Settings:
    chosen = {} if cache is None else dict(CACHES[cache])
    if cache == "disk":
        chosen["fetch.chunk.cache.path"] = str(tmp_path)
    return memory_settings(4 * KIB, mode=MODES[mode], fetch=fetch_settings(fetch), cache=chosen)


class Copied:
    """A segment of 16 chunks in a counted store."""

    def __init__(self, settings: Settings, folder: Path, log: bytes = LOG, *, at_once: bool = False) -> None:
        """With ``at_once``, request read-ahead before a read returns, so that it can be counted."""
        self.store = CountingStore(MemoryObjectStore())
        self.metadata = new_metadata(len(log))
        folder.mkdir(exist_ok=True)
        with RemoteStorageManager(settings, store=self.store) as manager:
            manager.copy_log_segment_data(self.metadata, write_segment(folder, log))
            self.log_key = manager.layout.key(self.metadata, Suffix.LOG)
        pools = simulated_pools(SimulatedClock()) if at_once else None
        self.manager = RemoteStorageManager(settings, store=self.store, pools=pools)
        self.store.reset()

    def gets(self) -> tuple[int, int, int]:
        """Return the number of requests for manifests, logs and indexes."""
        keys = [key for operation in self.store.operations for key in operation.keys]
        suffixes = ("rsm-manifest", "log", "indexes")
        return tuple(sum(key.endswith(f".{suffix}") for key in keys) for suffix in suffixes)  # type: ignore[return-value]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("piece", [64 * KIB, 1 * KIB, 4 * KIB, 5000, 16 * KIB])
def test_a_whole_segment_costs_its_manifest_and_the_greedy_plan(tmp_path: Path, mode: str, piece: int) -> None:
    copied = Copied(settings_for(tmp_path, mode), tmp_path / "s")
    with copied.manager as manager, manager.fetch_log_segment(copied.metadata, 0) as stream:
        assert b"".join(iter(lambda: stream.read(piece), b"")) == LOG
    assert copied.gets() == (1, 4, 0)


@pytest.mark.parametrize("open_it", ["fetch", "open"])
def test_without_reading_ahead_the_plan_of_one_large_read_is_the_same(tmp_path: Path, open_it: str) -> None:
    settings = settings_for(tmp_path, "zstd+enc", fetch={"fetch.chunk.cache.prefetch.max.size": 0})
    copied = Copied(settings, tmp_path / "s")
    with copied.manager as manager:
        stream = manager.open(copied.metadata) if open_it == "open" else manager.fetch_log_segment(copied.metadata, 0)
        assert stream.read() == LOG
        stream.close()
    assert copied.gets() == (1, 4, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache", CACHES)
def test_a_second_read_costs_nothing(tmp_path: Path, mode: str, cache: str) -> None:
    copied = Copied(settings_for(tmp_path, mode, cache), tmp_path / "s")
    with copied.manager as manager:
        assert manager.fetch_log_segment(copied.metadata, 0).read() == LOG
        assert copied.gets() == (1, 4, 0)
        assert manager.fetch_log_segment(copied.metadata, 0).read() == LOG
        assert manager.fetch_log_segment(copied.metadata, 1, 60_000).read() == LOG[1:60_001]
        assert copied.gets() == (1, 4, 0)
        assert manager.fetch_stats.chunk_hits >= 16


@pytest.mark.parametrize("cache", CACHES)
def test_ten_threads_that_read_the_same_cold_range_cost_what_one_costs(tmp_path: Path, cache: str) -> None:
    copied = Copied(settings_for(tmp_path, "zstd+enc", cache), tmp_path / "s")
    together = Barrier(10)

    def read(_: int) -> bytes:
        together.wait()
        with copied.manager.fetch_log_segment(copied.metadata, 5, 50_000) as stream:
            return b"".join(iter(lambda: stream.read(3000), b""))

    with copied.manager, ThreadPoolExecutor(10) as pool:
        assert set(pool.map(read, range(10))) == {LOG[5:50_001]}
        assert copied.gets() == (1, 4, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_small_random_read_costs_one_chunk(tmp_path: Path, mode: str) -> None:
    copied = Copied(settings_for(tmp_path, mode), tmp_path / "s", at_once=True)
    with copied.manager as manager:
        assert manager.fetch_log_segment(copied.metadata, 41_000, 41_999).read() == LOG[41_000:42_000]
        assert copied.gets() == (1, 1, 0)
        with manager.open(copied.metadata) as file:
            for count, position in enumerate((50_000, 9_000, 30_000), start=2):
                file.seek(position)
                assert file.read(1000) == LOG[position : position + 1000]
                assert copied.gets() == (1, count, 0)
        chunks = {"none": 4096, "enc": 4096 + 28}
        if mode in chunks:
            assert copied.store.bytes_down == manager.fetch_stats.bytes_fetched + manifest_size(copied)
            assert manager.fetch_stats.bytes_fetched == 4 * chunks[mode]


def manifest_size(copied: Copied) -> int:
    return copied.store.head(copied.log_key.removesuffix("log") + "rsm-manifest").size


def test_all_indexes_cost_one_request_beside_the_cached_manifest(tmp_path: Path) -> None:
    copied = Copied(settings_for(tmp_path, "zstd+enc"), tmp_path / "s")
    with copied.manager as manager:
        manager.fetch_manifest(copied.metadata)
        copied.store.reset()
        first = {kind: stream.read() for kind, stream in manager.fetch_all_indexes(copied.metadata).items()}
        assert copied.gets() == (0, 0, 1)
        for kind in IndexType:
            assert manager.fetch_index(copied.metadata, kind).read() == first[kind]
        assert copied.gets() == (0, 0, 1)


def test_each_of_a_hundred_segments_costs_one_index_request(tmp_path: Path) -> None:
    store = CountingStore(MemoryObjectStore())
    files = write_segment(tmp_path, b"x" * 1600)
    segments = [new_metadata(1600, start=1600 * number) for number in range(100)]
    with RemoteStorageManager(memory_settings(400), store=store) as manager:
        for metadata in segments:
            manager.copy_log_segment_data(metadata, files)
        store.reset()
        for metadata in segments:
            for kind in IndexType:
                manager.fetch_index(metadata, kind)
            assert len(manager.fetch_all_indexes(metadata)) == 5
    assert sum(key.endswith(".indexes") for key in store.keys_of("get")) == 100
    assert sum(key.endswith(".rsm-manifest") for key in store.keys_of("get")) == 100


@pytest.mark.parametrize("encrypted", ["true", "false"])
@pytest.mark.parametrize("mode", MODES)
def test_a_disk_cache_survives_a_restart_with_its_indexes(tmp_path: Path, mode: str, encrypted: str) -> None:
    settings = settings_for(tmp_path, mode, "disk", {"fetch.chunk.cache.encrypted": encrypted})
    copied = Copied(settings, tmp_path / "s")
    with copied.manager as manager:
        assert manager.fetch_log_segment(copied.metadata, 0).read() == LOG
        indexes = {kind: stream.read() for kind, stream in manager.fetch_all_indexes(copied.metadata).items()}
    copied.store.reset()
    with RemoteStorageManager(settings, store=copied.store) as manager:
        assert manager.fetch_log_segment(copied.metadata, 0).read() == LOG
        again = {kind: stream.read() for kind, stream in manager.fetch_all_indexes(copied.metadata).items()}
    assert again == indexes
    assert copied.gets() == (1, 0, 0)
    on_disk = b"".join(path.read_bytes() for path in tmp_path.glob("**/*") if path.is_file() and "s/" not in str(path))
    assert (LOG[100:200] in on_disk) is (encrypted == "false" or "enc" not in mode)
    for file in value_files(tmp_path):
        raw = file.read_bytes()
        file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with RemoteStorageManager(settings, store=copied.store) as manager:
        again = {kind: stream.read() for kind, stream in manager.fetch_all_indexes(copied.metadata).items()}
    assert again == indexes
    assert copied.gets() == (2, 0, 1)  # a damaged entry is fetched again


def test_the_same_key_in_two_stores_is_two_chunks(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "none", "disk")
    first, other = Copied(settings, tmp_path / "s"), bytes(reversed(LOG))
    with first.manager as manager:
        assert manager.fetch_log_segment(first.metadata, 0).read() == LOG
    second = MemoryObjectStore()
    with RemoteStorageManager(settings, store=second) as manager:
        manager.copy_log_segment_data(first.metadata, write_segment(tmp_path / "s", other))
        assert manager.fetch_log_segment(first.metadata, 0).read() == other


def test_a_key_uploaded_again_at_another_chunk_size_is_read_anew(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    metadata, files = new_metadata(len(LOG)), write_segment(tmp_path, LOG)
    cache = CACHES["disk"] | {"fetch.chunk.cache.path": str(tmp_path)}
    for chunk_size in (4096, 1000, 4096 * 2, 4096):
        with RemoteStorageManager(memory_settings(chunk_size, cache=cache), store=store) as manager:
            manager.copy_log_segment_data(metadata, files)
            assert manager.fetch_log_segment(metadata, 0).read() == LOG
            manager.delete_log_segment_data(metadata)


def test_statistics_say_what_reading_cost(tmp_path: Path) -> None:
    copied = Copied(settings_for(tmp_path, "enc"), tmp_path / "s")
    with copied.manager as manager:
        manager.fetch_log_segment(copied.metadata, 0).read()
        stats = manager.fetch_stats
    assert (stats.requests, stats.manifest_requests, stats.index_requests) == (4, 1, 0)
    assert stats.bytes_asked == len(LOG)
    assert stats.bytes_fetched == len(LOG) + 16 * 28
    assert (stats.chunk_misses, stats.chunk_loads, stats.chunk_hits) == (16, 16, 0)
    assert stats.wait_seconds > 0


def test_closing_early_stops_reading_ahead(tmp_path: Path) -> None:
    copied = Copied(settings_for(tmp_path), tmp_path / "s", at_once=True)
    with copied.manager as manager:
        stream = manager.fetch_log_segment(copied.metadata, 0)
        stream.read(1)
        assert copied.gets() == (1, 2, 0)  # the reader requests the window, and no more
        stream.close()
        with pytest.raises(ValueError, match="closed"):
            stream.read(1)
    assert copied.gets() == (1, 2, 0)


def test_a_seek_stops_reading_ahead_and_a_second_read_in_a_row_starts_it_again(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, fetch={"fetch.coalesce.max.bytes": 1})
    copied = Copied(settings, tmp_path / "s", at_once=True)
    with copied.manager as manager, manager.open(copied.metadata) as file:
        for count, position in enumerate((20_480, 4_096, 40_960), start=1):
            file.seek(position)
            assert file.read(4096) == LOG[position : position + 4096]
            assert copied.gets() == (1, count, 0)
        assert file.read(4096) == LOG[45_056:49_152]
        assert copied.gets() == (1, 3 + 5, 0)  # the chunk itself, and 16 KiB beyond it


def read_by_chunk(stream: io.RawIOBase, clock: SimulatedClock, size: int) -> Iterator[bytes]:
    while data := stream.read(size):
        clock.sleep(0.005)
        yield data


class Slow:
    """64 chunks of 1 KiB at 30 ms per request; the reader works 5 ms on each chunk."""

    def __init__(self, folder: Path, read_ahead: int) -> None:
        self.clock = SimulatedClock()
        inner = MemoryObjectStore()
        fetch = fetch_settings({"fetch.coalesce.max.bytes": 1, "fetch.chunk.cache.prefetch.max.size": read_ahead})
        settings = memory_settings(KIB, fetch=fetch)
        self.segments = [new_metadata(len(LOG), start=at) for at in (0, 1000)]
        files = write_segment(folder, LOG)
        with RemoteStorageManager(settings, store=inner) as manager:
            for metadata in self.segments:
                manager.copy_log_segment_data(metadata, files)
        self.store = CountingStore(LatencyStore(inner, request_s=0.030, sleep=self.clock.sleep))
        pools = simulated_pools(self.clock)
        self.manager = RemoteStorageManager(settings, store=self.store, pools=pools)

    def waited(self) -> float:
        """Return the seconds so far in which the reader waited instead of working."""
        return self.clock.now - 0.005 * self.manager.fetch_stats.bytes_asked / KIB


def test_reading_ahead_hides_all_waiting_but_the_first(tmp_path: Path) -> None:
    slow = Slow(tmp_path, 16 * KIB)
    with slow.manager as manager:
        stream = manager.fetch_log_segment(slow.segments[0], 0)
        assert b"".join(read_by_chunk(stream, slow.clock, KIB)) == LOG
        assert slow.waited() <= 0.060 + 1e-9
    assert len(slow.store.operations) == 65


def test_without_reading_ahead_every_chunk_is_waited_for(tmp_path: Path) -> None:
    slow = Slow(tmp_path, 0)
    with slow.manager as manager:
        stream = manager.fetch_log_segment(slow.segments[0], 0)
        assert b"".join(read_by_chunk(stream, slow.clock, KIB)) == LOG
        assert slow.waited() >= 64 * 0.030
    assert len(slow.store.operations) == 65


def test_reading_ahead_crosses_into_the_next_segment(tmp_path: Path) -> None:
    slow = Slow(tmp_path, 16 * KIB)
    asked: list[int] = []

    def following() -> RemoteLogSegmentMetadata | None:
        asked.append(1)
        return slow.segments[1]

    with slow.manager as manager:
        with manager.fetch_log_segment(slow.segments[0], 0, next_segment=following) as stream:
            assert b"".join(read_by_chunk(stream, slow.clock, KIB)) == LOG
        with manager.fetch_log_segment(slow.segments[1], 0, next_segment=lambda: None) as stream:
            assert b"".join(read_by_chunk(stream, slow.clock, KIB)) == LOG
        assert slow.waited() <= 0.060 + 1e-9
    assert asked == [1]
    assert len(slow.store.operations) == 130


def test_a_prepared_segment_that_is_not_wanted_is_dropped(tmp_path: Path) -> None:
    slow = Slow(tmp_path, 16 * KIB)
    with slow.manager as manager:
        stream = manager.fetch_log_segment(slow.segments[0], 60 * KIB, next_segment=lambda: slow.segments[1])
        stream.read(KIB)
        stream.close()  # closed early, so no reader continues with the next segment
        with manager.fetch_log_segment(slow.segments[1], 3 * KIB, 4 * KIB) as other:
            assert other.read() == LOG[3 * KIB : 4 * KIB + 1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1000, 10_000, 20_000, 30_000, 64 * KIB])
def test_a_log_that_ends_early_gives_what_is_good_into_any_buffer(tmp_path: Path, mode: str, size: int) -> None:
    copied = Copied(settings_for(tmp_path, mode), tmp_path / "s")
    stored = copied.store.get(copied.log_key)
    copied.store.put(copied.log_key, stored[:-1])  # the last chunk is short, and so is the request that brings it
    buffer, read = bytearray(size), 0
    with copied.manager as manager, manager.fetch_log_segment(copied.metadata, 0) as stream:
        while read + size <= 15 * 4 * KIB:
            assert stream.readinto(buffer) == size
            assert buffer == LOG[read : read + size]
            read += size
        with pytest.raises(SegmentCorruptError, match="shorter than its manifest says"):
            stream.read()


def test_a_failed_read_leaves_no_thread_in_the_callers_buffer(tmp_path: Path) -> None:
    copied = Copied(settings_for(tmp_path, "zstd"), tmp_path / "s")
    stored = bytearray(copied.store.get(copied.log_key))
    stored[6000] ^= 0xFF
    copied.store.put(copied.log_key, stored)
    buffer = bytearray(len(LOG))
    with copied.manager as manager, manager.fetch_log_segment(copied.metadata, 0) as stream:
        for _ in range(20):
            with contextlib.suppress(SegmentCorruptError):
                stream.readinto(buffer)
            buffer[:] = bytes(len(LOG))
            assert not any(buffer)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asks_for_more", [True, False])
def test_ranges_that_end_within_a_chunk_leave_their_memory_to_the_next(
    tmp_path: Path, mode: str, asks_for_more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Copied(settings_for(tmp_path, mode), tmp_path / "segment", at_once=True)
    fresh: list[int] = []

    def counted(size: int) -> memoryview:
        fresh.append(size)
        return memoryview(bytearray(size))

    monkeypatch.setattr(buffers, "fresh_memory", counted)

    def read() -> None:
        with copied.manager.fetch_log_segment(copied.metadata, 100, 40 * KIB + 7) as stream:
            data, chunks = b"", stream.chunks()
            # Readers of batches know where their part of a log ends, and request nothing after it.
            while len(data) < len(wanted) or asks_for_more:
                chunk = next(chunks, None)
                if chunk is None:
                    break
                data += chunk
            assert data == wanted

    wanted = LOG[100 : 40 * KIB + 8]
    read()
    used = len(fresh)
    assert used
    for _ in range(5):
        read()
    copied.manager.close()
    assert len(fresh) == used
