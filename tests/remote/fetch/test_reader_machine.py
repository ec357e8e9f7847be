"""Readers, seeks, evictions, restarts, damaged cache files and failing loads, in any order: right bytes or an error."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.records.small_segments import MODES, memory_settings, new_metadata, write_segment
from tests.support.stores.doubles import FaultyStore, Operation, ScriptedStore
from tests.support.waiting import wait_until
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.config import Settings
from tieredstore.errors import ConfigError, SegmentCorruptError, StoreUnavailableError
from tieredstore.format.keys import Suffix
from tieredstore.model import IndexType
from tieredstore.remote import RemoteStorageManager
from tieredstore.remote.fetch import chunk_loader
from tieredstore.remote.fetch.chunk_cache import ChunkKey, MemoryChunkCache
from tieredstore.remote.fetch.stream import SegmentStream

CHUNK = 100
LOG = bytes(range(251)) * 8  # 2008 bytes: 21 chunks
CACHES = [None, "memory", "disk", "disk encrypted"]


def reader_settings(mode: str, cache: str | None, size: int, folder: Path) -> Settings:
    texts = {"fetch.coalesce.max.bytes": "350", "fetch.chunk.cache.prefetch.max.size": "500", "fetch.parallelism": "3"}
    if cache is not None:
        texts |= {"fetch.chunk.cache.class": cache.split()[0], "fetch.chunk.cache.size": str(size)}
        texts["fetch.chunk.cache.encrypted"] = str(cache.endswith("encrypted")).lower()
    if cache is not None and cache.startswith("disk"):
        texts["fetch.chunk.cache.path"] = str(folder)
    return memory_settings(CHUNK, mode=MODES[mode], fetch=texts)


class Readers(RuleBasedStateMachine):
    """Several files open at once, over two managers that share a cache folder like two processes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "segment").mkdir()
        self.store = MemoryObjectStore()
        self.managers: list[RemoteStorageManager] = []
        self.files: list[SegmentStream] = []
        self.failing: set[int] = set()
        self.asked = 0
        self.patched = pytest.MonkeyPatch()

    def _file(self, number: int) -> SegmentStream | None:
        """Return an open file. Hypothesis draws its number, because threads decide which files are open."""
        return self.files[number % len(self.files)] if self.files else None

    def _fails(self, _: Operation) -> bool:
        self.asked += 1
        return self.asked in self.failing

    @precondition(lambda self: not self.managers)
    @rule(
        mode=st.sampled_from(list(MODES)),
        cache=st.sampled_from(CACHES),
        size=st.sampled_from([0, 250, 900, -1]),
        helpers=st.sampled_from([2, 0]),
    )
    def start(self, mode: str, cache: str | None, size: int, helpers: int) -> None:
        self.patched.setattr(chunk_loader, "MAX_HELPERS", helpers)
        self.patched.setattr(chunk_loader, "WORTH_A_THREAD", CHUNK)
        self.settings = reader_settings(mode, cache, size, self.folder)
        self.metadata = new_metadata(len(LOG))
        with RemoteStorageManager(self.settings, store=self.store) as manager:
            manager.copy_log_segment_data(self.metadata, write_segment(self.folder / "segment", LOG))
        self.managers = [self._manager(), self._manager()]

    def _manager(self) -> RemoteStorageManager:
        return RemoteStorageManager(self.settings, store=FaultyStore(self.store, self._fails))

    @precondition(lambda self: self.managers)
    @rule(which=st.integers(0, 1), start=st.integers(0, len(LOG) - 1))
    def open(self, which: int, start: int) -> None:
        if len(self.files) == 4:
            return
        try:
            file = self.managers[which].open(self.metadata)
        except StoreUnavailableError:
            return
        file.seek(start)
        self.files.append(file)

    @rule(number=st.integers(0, 3), size=st.sampled_from([1, 30, 100, 250, 1000, 5000]))
    def read(self, number: int, size: int) -> None:
        if (file := self._file(number)) is None:
            return
        position = file.tell()
        try:
            content = file.read(size)
        except StoreUnavailableError:
            assert file.tell() == position
            return
        assert content == LOG[position : position + size]

    @rule(number=st.integers(0, 3), decode_ahead=st.booleans())
    def read_by_chunks(self, number: int, decode_ahead: bool) -> None:
        if (file := self._file(number)) is None:
            return
        position, content = file.tell(), b""
        try:
            for piece in file.chunks(decode_ahead=decode_ahead):
                content += bytes(piece)
        except StoreUnavailableError:
            assert content == LOG[position : file.tell()]
            return
        assert content == LOG[position:]

    @rule(number=st.integers(0, 3), position=st.integers(0, len(LOG) + 100))
    def seek(self, number: int, position: int) -> None:
        if (file := self._file(number)) is not None:
            assert file.seek(position) == position

    @rule(number=st.integers(0, 3))
    def close(self, number: int) -> None:
        if (file := self._file(number)) is None:
            return
        file.close()
        self.files.remove(file)

    @precondition(lambda self: self.managers)
    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        for file in self.files:
            file.close()
        self.files.clear()
        self.managers[which].close()
        self.managers[which] = self._manager()

    @precondition(lambda self: self.managers)
    @rule(which=st.integers(0, 1))
    def read_indexes(self, which: int) -> None:
        try:
            indexes = self.managers[which].fetch_all_indexes(self.metadata)
        except StoreUnavailableError:
            return
        assert indexes[IndexType.OFFSET].read() == b"i" * 16
        assert indexes[IndexType.TRANSACTION].read() == b"t" * 34
        assert indexes[IndexType.LEADER_EPOCH].read() == b"0\n2\n0 1234\n5 1284\n"

    @rule(soon=st.sets(st.integers(1, 6), max_size=3))
    def fail_soon(self, soon: set[int]) -> None:
        self.failing |= {self.asked + number for number in soon}

    @rule(which=st.integers(0, 1 << 16), place=st.integers(0, 1 << 16), bit=st.integers(0, 7))
    def damage_a_cache_file(self, which: int, place: int, bit: int) -> None:
        # Damage only files of values, because the cache's own tests cover a damaged database. The cache may evict a
        # file before it is opened.
        with suppress(FileNotFoundError):
            files = sorted(path for path in self.folder.glob("**/*.val") if path.stat().st_size)
            if files:
                with files[which % len(files)].open("r+b") as file:
                    content = file.read()
                    if content:
                        at = place % len(content)
                        file.seek(at)
                        file.write(bytes([content[at] ^ 1 << bit]))

    @invariant()
    def the_store_is_untouched(self) -> None:
        if self.managers:
            assert len(list(self.store.list())) == 3

    def teardown(self) -> None:
        for file in self.files:
            file.close()
        for manager in self.managers:
            manager.close()
        self.patched.undo()
        shutil.rmtree(self.folder)


TestReaders = Readers.TestCase
_UNHURRIED: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}
TestReaders.settings = settings(max_examples=examples(60), stateful_step_count=25, **_UNHURRIED)


def test_a_caller_that_gives_up_does_not_cancel_the_load(tmp_path: Path) -> None:
    opened, metadata = Event(), new_metadata(50)
    store = ScriptedStore(MemoryObjectStore()).on("get_into", do=lambda _: opened.wait(120))
    fetch = {
        "fetch.chunk.cache.class": "memory",
        "fetch.chunk.cache.size": "-1",
        "fetch.chunk.cache.get.timeout.ms": "50",
    }
    with RemoteStorageManager(memory_settings(CHUNK, fetch=fetch), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG[:50]))
        stream = manager.fetch_log_segment(metadata, 0)
        for _ in range(3):
            with pytest.raises(StoreUnavailableError, match=r"was not loaded within 0\.05 s .*loading continues"):
                stream.read()
        opened.set()

        def is_read() -> bool:
            """Return True if the read succeeds. On a busy machine, loading may still take longer than 0.05 s."""
            with suppress(StoreUnavailableError):
                return stream.read() == LOG[:50]
            return False

        wait_until(is_read)
    assert store.requests["get_into"] == 1


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_failed_load_is_not_cached(tmp_path: Path, cache: str) -> None:
    inner, metadata = MemoryObjectStore(), new_metadata(len(LOG))
    settings = reader_settings("zstd+enc", cache, -1, tmp_path)
    with RemoteStorageManager(settings, store=inner) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG))
        key = manager.layout.key(metadata, Suffix.LOG)
        good = inner.get(key)
        damaged = bytearray(good)
        damaged[40] ^= 1
        inner.put(key, damaged)
        with pytest.raises(SegmentCorruptError, match="chunk 0 of a-topic"):
            manager.fetch_log_segment(metadata, 0, 10).read()
        inner.put(key, good)
        assert manager.fetch_log_segment(metadata, 0).read() == LOG


def test_a_disk_cache_without_its_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("diskcache", "tieredstore.remote.diskcache"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "diskcache", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[cache\]"):
        RemoteStorageManager(reader_settings("none", "disk", -1, tmp_path), store=MemoryObjectStore())


class Collecting(MemoryChunkCache):
    """Drops the last reference to a stream while another is scheduled, which the garbage collector may do too."""

    def __init__(self, streams: list[SegmentStream]) -> None:
        super().__init__(-1)
        self.streams = streams

    def __contains__(self, key: ChunkKey) -> bool:
        self.streams.clear()
        return super().__contains__(key)


def test_a_stream_that_is_collected_while_another_is_scheduled_does_not_lock_up(tmp_path: Path) -> None:
    store, metadata = MemoryObjectStore(), new_metadata(len(LOG))
    with RemoteStorageManager(reader_settings("none", "memory", -1, tmp_path), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, LOG))
        streams = [manager.fetch_log_segment(metadata, 0, next_segment=lambda: metadata)]
        manager._fetcher.logs._loader.cache = Collecting(streams)  # pyright: ignore[reportPrivateUsage]
        reading = Thread(target=lambda: manager.fetch_log_segment(metadata, 0).read(), daemon=True)
        reading.start()
        reading.join(120)
        assert not reading.is_alive()
        assert not streams
