"""The disk cache against a model, through every possible event: the right bytes, or a miss."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.stores.disk_cache_access import CHUNKS, change_table, got, let_pass, own_folder, value_files
from tieredstore.remote.diskcache.cache import DiskChunkCache
from tieredstore.remote.fetch.chunk_cache import ChunkKey

pytestmark = pytest.mark.slow

KEYS = st.sampled_from(CHUNKS[:6])
NUMBERS = st.integers(0, 1_000_000)
LIMIT = 400


class DiskCacheMachine(RuleBasedStateMachine):
    """Two caches over one folder, as in two processes. ``last_put`` holds the right bytes of each chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.caches: list[DiskChunkCache] = []
        self.last_put: dict[ChunkKey, bytes] = {}
        self.is_intact = True  # True while only the caches have changed the folder

    @initialize(encrypted=st.booleans())
    def start(self, encrypted: bool) -> None:
        self.encrypted = encrypted
        self.caches = [self.opened(), self.opened()]

    def opened(self) -> DiskChunkCache:
        return DiskChunkCache(self.path, LIMIT, retention_ms=60_000, encrypted=self.encrypted)

    def teardown(self) -> None:
        for cache in self.caches:
            cache.close()
        self.folder.cleanup()

    @rule(key=KEYS, who=st.integers(0, 1), size=st.integers(1, 150), fill=st.binary(min_size=1, max_size=3))
    def put(self, key: ChunkKey, who: int, size: int, fill: bytes) -> None:
        data = (fill * size)[:size]
        self.caches[who].put(key, data)
        self.last_put[key] = data
        if self.is_intact:  # no put is lost, and each is readable at once
            assert got(self.caches[1 - who], key, size) == data

    @rule(key=KEYS, who=st.integers(0, 1), off=st.sampled_from([0, 0, 0, -1, 1]))
    def get(self, key: ChunkKey, who: int, off: int) -> None:
        right = self.last_put.get(key)
        size = 10 if right is None else max(0, len(right) + off)
        chunk = got(self.caches[who], key, size)
        assert chunk is None or chunk == right

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.caches[who].close()
        self.caches[who] = self.opened()

    @rule(seconds=st.sampled_from([1, 30, 61]))
    def wait(self, seconds: int) -> None:
        self.reopen()
        let_pass(self.path, seconds)

    @precondition(lambda self: bool(value_files(self.path)))
    @rule(which=NUMBERS, place=NUMBERS, kind=st.sampled_from(["flip", "cut", "grow", "remove", "swap"]))
    def damage_a_file(self, which: int, place: int, kind: str) -> None:
        self.is_intact = False
        files = value_files(self.path)
        file, other = files[which % len(files)], files[place % len(files)]
        raw = bytearray(file.read_bytes())
        if kind == "remove":
            file.unlink()
        elif kind == "swap":
            file.write_bytes(other.read_bytes())
            other.write_bytes(raw)
        elif kind == "grow":
            file.write_bytes(raw + b"x")
        elif kind == "cut":
            os.truncate(file, place % (len(raw) + 1))
        elif raw:
            raw[place % len(raw)] ^= 1 << which % 8
            file.write_bytes(raw)

    @rule(
        statement=st.sampled_from(
            [
                "DELETE FROM Cache WHERE rowid % 2 = 0",
                "UPDATE Cache SET key = 'x' || key WHERE rowid % 2 = 0",
                "UPDATE Cache SET mode = 4, value = x'80' WHERE rowid % 2 = 0",
                "UPDATE Cache SET filename = '../../x' WHERE rowid % 2 = 0",
                "UPDATE Cache SET filename = NULL WHERE rowid % 2 = 0",
                "UPDATE Cache SET filename = (SELECT filename FROM Cache LIMIT 1)",
                "UPDATE Cache SET access_time = 'never', size = 'large' WHERE rowid % 2 = 0",
                "UPDATE Cache SET access_time = NULL, size = NULL WHERE rowid % 2 = 0",
            ]
        )
    )
    def damage_the_table(self, statement: str) -> None:
        self.is_intact = False
        self.reopen()
        change_table(self.path, statement)

    def reopen(self) -> None:
        """Let the table be replaced: the first use finds it damaged and removes it, the next creates a new one."""
        for _ in range(2):
            assert self.caches[0].stats.entries >= 0

    @rule(kind=st.sampled_from(["remove", "garbage"]))
    def damage_the_database(self, kind: str) -> None:
        self.is_intact = False
        for cache in self.caches:
            cache.close()
        for file in own_folder(self.path).glob("cache.db*"):
            file.unlink() if kind == "remove" else file.write_bytes(b"garbage" * 1000)
        self.caches = [self.opened(), self.opened()]
        self.caches[0].put(CHUNKS[7], b"so that the database is there")

    @invariant()
    def bounded(self) -> None:
        if self.is_intact and self.caches:
            sizes = [file.stat().st_size - 52 for file in value_files(self.path)]
            assert sum(sizes) == self.caches[0].stats.bytes <= LIMIT
            assert len(sizes) == self.caches[1].stats.entries
            assert all(cache.stats.failures == cache.stats.damaged == 0 for cache in self.caches)


TestDiskCacheMachine = DiskCacheMachine.TestCase
TestDiskCacheMachine.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
