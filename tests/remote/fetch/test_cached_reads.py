"""Parallel reads of several chunks from the disk cache, correct even if entries have disappeared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
from tests.support.stores.disk_cache_access import value_files
from tests.support.stores.doubles import CountingStore
from tests.support.waiting import is_within, wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import AlreadyClosedError
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.diskcache.cache import DiskChunkCache
from tieredstore.remote.fetch import chunk_loader
from tieredstore.remote.fetch.buffers import Destination
from tieredstore.remote.fetch.chunk_cache import ChunkKey
from tieredstore.remote.manager import Pools

CHUNK = 1_000
LOG = b"".join(b"%09d\n" % number for number in range(1_550))
CHUNKS = 16
HELPERS = 3
KEPT = {"as it was": "none false", "encrypted": "enc true", "compressed and encrypted": "zstd+enc true"}

GetInto = Callable[[DiskChunkCache, ChunkKey, memoryview], bool]


class Warm:
    """A segment whose chunks are all in the cache."""

    def __init__(self, manager: RemoteStorageManager, store: CountingStore, metadata: RemoteLogSegmentMetadata) -> None:
        self.manager = manager
        self.store = store
        self.metadata = metadata

    def read(self, start: int = 0, stop: int = len(LOG)) -> bytes:
        with self.manager.fetch_log_segment(self.metadata, start, stop - 1) as stream:
            buffer = bytearray(stop - start)
            assert stream.readinto(buffer) == len(buffer)
        return bytes(buffer)


@contextmanager
def warm(
    folder: Path, kept: str = KEPT["as it was"], *, cache: str = "disk", pools: Pools | None = None
) -> Generator[Warm]:
    mode, is_encrypted = kept.split()
    chosen = {"fetch.chunk.cache.class": cache, "fetch.chunk.cache.size": "-1"}
    if cache == "disk":
        chosen |= {"fetch.chunk.cache.path": str(folder), "fetch.chunk.cache.encrypted": is_encrypted}
    store = CountingStore(MemoryObjectStore())
    metadata = new_metadata(len(LOG))
    (folder / "log").mkdir()
    config = memory_settings(CHUNK, mode=MODES[mode], cache=chosen)
    with RemoteStorageManager(config, store=store, pools=pools) as manager:
        manager.copy_log_segment_data(metadata, write_segment(folder / "log", LOG))
        segment = Warm(manager, store, metadata)
        assert segment.read() == LOG
        store.reset()
        yield segment


@pytest.fixture
def _helped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow more helper threads than the machine has processors, and use them even for these small chunks."""
    monkeypatch.setattr(chunk_loader, "WORTH_A_THREAD", CHUNK)
    monkeypatch.setattr(chunk_loader, "MAX_HELPERS", HELPERS)


def beside(monkeypatch: pytest.MonkeyPatch, get_into: Callable[[GetInto], GetInto]) -> None:
    """Replace the cache's method by a wrapper: ``get_into`` takes the original method, and returns the wrapper."""
    monkeypatch.setattr(DiskChunkCache, "get_into", get_into(DiskChunkCache.get_into))


class Submissions:
    """Counts the tasks submitted to the threads of managers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        submit = ThreadPool.submit

        def counting(pool: ThreadPool, *args: Any, **kwargs: Any) -> object:
            self.count += "DiskChunkCache" not in args[0].__qualname__
            return submit(pool, *args, **kwargs)

        monkeypatch.setattr(ThreadPool, "submit", counting)


@pytest.mark.usefixtures("_helped")
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_chunks_of_one_read_are_read_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    begun, threads = threading.Barrier(2), list[int]()

    def met(usual: GetInto) -> GetInto:
        def get_into(cache: DiskChunkCache, key: ChunkKey, buffer: memoryview) -> bool:
            threads.append(threading.get_ident())
            if key.chunk < 2:
                begun.wait(60)  # each of the first two reads waits until both have begun
            return usual(cache, key, buffer)

        return get_into

    with warm(tmp_path, kept) as segment:
        beside(monkeypatch, met)
        assert segment.read() == LOG
        assert segment.store.requests["get_into"] == 0
    assert len(threads) == CHUNKS
    assert 2 <= len(set(threads)) <= 1 + HELPERS


@pytest.mark.usefixtures("_helped")
def test_no_more_is_handed_over_than_there_are_processors_or_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warm(tmp_path) as segment:
        submissions = Submissions(monkeypatch)
        for stop, expected in ((CHUNK, 0), (CHUNK + 1, 1), (2 * CHUNK, 1), (3 * CHUNK, 2), (len(LOG), HELPERS)):
            submissions.count = 0
            assert segment.read(0, stop) == LOG[:stop]
            assert submissions.count == expected, stop


@pytest.mark.parametrize(("cache", "worth"), [("disk", CHUNK + 1), ("memory", CHUNK)])
def test_small_chunks_and_a_copy_within_memory_wake_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, worth: int
) -> None:
    monkeypatch.setattr(chunk_loader, "WORTH_A_THREAD", worth)
    monkeypatch.setattr(chunk_loader, "MAX_HELPERS", HELPERS)
    with warm(tmp_path, cache=cache) as segment:
        submissions = Submissions(monkeypatch)
        assert segment.read() == LOG
        assert submissions.count == 0


@pytest.mark.usefixtures("_helped")
def test_a_reader_does_not_wait_for_threads_that_are_busy(tmp_path: Path) -> None:
    go_on = threading.Event()
    with ThreadPool(1, "busy") as busy, ThreadPool(4, "others") as others:
        pools = Pools(transform=busy, fetch=others, lookup=others)
        with warm(tmp_path, pools=pools) as segment:
            held = busy.submit(lambda: go_on.wait(60))
            assert segment.read() == LOG
            assert not held.done()
            go_on.set()


@pytest.mark.usefixtures("_helped")
def test_whole_chunks_come_straight_into_the_readers_buffer_and_others_into_memory_that_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = dict[int, object]()

    def noted(usual: GetInto) -> GetInto:
        def get_into(cache: DiskChunkCache, key: ChunkKey, buffer: memoryview) -> bool:
            places[key.chunk] = buffer.obj
            return usual(cache, key, buffer)

        return get_into

    with warm(tmp_path) as segment:
        beside(monkeypatch, noted)
        buffer, again = bytearray(4 * CHUNK), bytearray(CHUNK)
        with segment.manager.fetch_log_segment(segment.metadata, 500) as stream:
            stream.readinto(buffer)
        assert buffer == LOG[500 : 500 + 4 * CHUNK]
        own = [chunk for chunk in range(5) if places[chunk] is buffer]
        assert own == [1, 2, 3]
        others = {id(places[0]), id(places[4])}
        with segment.manager.fetch_log_segment(segment.metadata, 9_500) as stream:
            stream.readinto(again)
        assert again == LOG[9_500:10_500]
        assert {id(places[9]), id(places[10])} == others


@pytest.mark.usefixtures("_helped")
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("missing", [slice(0, 1), slice(5, 6), slice(15, 16), slice(2, 9, 3), slice(0, 16)])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_is_no_longer_there_is_fetched(tmp_path: Path, missing: slice, is_damaged: bool, kept: str) -> None:
    with warm(tmp_path, kept) as segment:
        lost = value_files(tmp_path)[missing]
        for path in lost:
            if is_damaged:
                stored = path.read_bytes()
                path.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
            else:
                path.unlink()
        before = segment.manager.fetch_stats.chunk_hits
        assert segment.read() == LOG
        assert segment.manager.fetch_stats.chunk_hits - before == CHUNKS - len(lost)
        assert 1 <= segment.store.requests["get_into"] <= len(lost)


@pytest.mark.usefixtures("_helped")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    moves=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(0, len(LOG))), st.integers(0, 4_500)), min_size=1, max_size=12
    )
)
def test_any_reads_and_seeks_give_the_logs_bytes(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int | None, int]]
) -> None:
    with warm(tmp_path_factory.mktemp("cache")) as segment, segment.manager.open(segment.metadata) as stream:
        for seek, size in moves:
            if seek is not None:
                stream.seek(seek)
            at, buffer = stream.tell(), bytearray(size)
            assert stream.readinto(buffer) == len(LOG[at : at + size])
            assert buffer[: stream.tell() - at] == LOG[at : at + size]
        assert segment.store.requests["get_into"] == 0


class TroubleError(Exception):
    """An unexpected error."""


@pytest.mark.slow
@pytest.mark.usefixtures("_helped")
@pytest.mark.parametrize("who_fails", ["the reader", "the helper"])
def test_after_an_error_nobody_writes_into_the_readers_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who_fails: str
) -> None:
    reader = threading.current_thread()
    helping, failed, has_returned, written = (threading.Event() for _ in range(4))

    def failing(usual: GetInto) -> GetInto:
        def get_into(cache: DiskChunkCache, key: ChunkKey, buffer: memoryview) -> bool:
            fails = (threading.current_thread() is reader) == (who_fails == "the reader")
            if fails:
                assert who_fails == "the helper" or helping.wait(60)
                failed.set()
                raise TroubleError
            helping.set()
            assert failed.wait(60)
            # Write when the failed reader waits for this helper. If it returns without waiting, write after that.
            wait_until(
                lambda: who_fails == "the helper" or has_returned.is_set() or is_within(reader, Destination.take_back)
            )
            try:
                return usual(cache, key, buffer)
            finally:
                written.set()

        return get_into

    with warm(tmp_path) as segment, segment.manager.open(segment.metadata) as stream:
        with monkeypatch.context() as patched:
            patched.setattr(chunk_loader, "MAX_HELPERS", 1)
            beside(patched, failing)
            buffer = bytearray(len(LOG))
            with pytest.raises(TroubleError):
                stream.readinto(buffer)
            left = bytes(buffer)
            has_returned.set()
            assert written.wait(60)
        assert stream.tell() == 0
        assert stream.read() == LOG
        assert buffer == left


@pytest.mark.usefixtures("_helped")
def test_a_read_ends_when_the_manager_is_closed_and_so_do_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, helping = threading.get_ident(), threading.Event()
    threads = set[threading.Thread]()

    def closing(usual: GetInto) -> GetInto:
        def get_into(cache: DiskChunkCache, key: ChunkKey, buffer: memoryview) -> bool:
            if threading.get_ident() == reader:
                assert helping.wait(60)
                closer.start()
            else:
                threads.add(threading.current_thread())
                helping.set()
            wait_until(is_closed)
            return usual(cache, key, buffer)

        return get_into

    def is_closed() -> bool:
        try:
            segment.manager.check_open()
        except AlreadyClosedError:
            return True
        return False

    with warm(tmp_path) as segment, segment.manager.open(segment.metadata) as stream:
        closer = threading.Thread(target=segment.manager.close)
        beside(monkeypatch, closing)
        with pytest.raises(AlreadyClosedError, match="remote storage manager was closed"):
            stream.readinto(bytearray(len(LOG)))
        closer.join(60)
    assert threads
    for thread in {closer, *threads}:
        thread.join(60)
        assert not thread.is_alive()
