"""The disk cache when its database is damaged, or the disk refuses: a miss or a lost entry, never an error."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.disk_cache_access import CHUNKS, KEY, change_table, got, opened, own_folder, value_files
from tieredstore.remote import disk_rows
from tieredstore.remote.disk_cache import DiskChunkCache

pytestmark = pytest.mark.slow

CHUNK = bytes(range(200))


def test_planted_settings_of_the_library_change_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
    for name, value in (
        ("disk_evil", "x"),
        ("disk_pickle_protocol", "x"),
        ("eviction_policy", "none"),
        ("sqlite_x", 1),
    ):
        change_table(tmp_path, "INSERT OR REPLACE INTO Settings VALUES (?, ?)", name, value)
    with opened(tmp_path, 1000) as cache:
        for key in CHUNKS:
            cache.put(key, CHUNK)
        assert cache.stats.entries == 5
        assert got(cache, CHUNKS[15], len(CHUNK)) == CHUNK


@pytest.mark.parametrize("while_open", [False, True])
@pytest.mark.parametrize("damage", ["garbage", "empty", "gone", "header", "no tables", "all gone"])
def test_a_damaged_database_is_made_anew(tmp_path: Path, damage: str, while_open: bool) -> None:
    cache = DiskChunkCache(tmp_path, -1)
    try:
        cache.put(KEY, CHUNK)
        if not while_open:
            cache.close()
            cache = DiskChunkCache(tmp_path, -1)
        damage_database(own_folder(tmp_path), damage)
        assert got(cache, KEY, len(CHUNK)) in {None, CHUNK}
        for _ in range(3):
            cache.put(KEY, CHUNK)
        assert got(cache, KEY, len(CHUNK)) == CHUNK
    finally:
        cache.close()


def damage_database(folder: Path, damage: str) -> None:
    database = folder / "cache.db"
    if damage == "garbage":
        database.write_bytes(os.urandom(40960))
        (folder / "cache.db-wal").unlink(missing_ok=True)
    elif damage == "empty":
        database.unlink()
        database.touch()
    elif damage == "gone":
        database.unlink()
    elif damage == "header":
        with database.open("r+b") as file:
            file.write(b"\0" * 100)
    elif damage == "no tables":
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript("DROP TABLE Cache; DROP TABLE Settings")
    else:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


@pytest.mark.parametrize("damage", ["gone", "all gone"])
def test_all_go_on_with_one_new_database(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as other:
        one.put(CHUNKS[0], CHUNK)
        other.put(CHUNKS[1], CHUNK)
        damage_database(own_folder(tmp_path), damage)
        one.put(CHUNKS[2], CHUNK)
        assert got(other, CHUNKS[2], len(CHUNK)) == CHUNK
        other.put(CHUNKS[3], CHUNK)
        assert got(one, CHUNKS[3], len(CHUNK)) == CHUNK
        with opened(tmp_path) as third:
            assert [key in third for key in CHUNKS[:4]] == [False, False, True, True]


def test_a_database_that_another_process_made_anew_is_not_removed_again(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        cache._entries._set_aside((0, 0))  # another one was damaged
        assert got(cache, KEY, len(CHUNK)) == CHUNK


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_flipped_bit_in_the_database_is_never_a_wrong_byte(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("database")
    with opened(path) as cache:
        for key in CHUNKS:
            cache.put(key, bytes([key.chunk]) * 10)
    database = own_folder(path) / "cache.db"
    raw = bytearray(database.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=20)):
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    database.write_bytes(raw)
    with opened(path, 10_000, retention_ms=100_000) as cache:
        for key in CHUNKS:
            assert got(cache, key, 10) in {None, bytes([key.chunk]) * 10}
            cache.put(key, bytes([key.chunk]) * 10)
            assert got(cache, key, 10) in {None, bytes([key.chunk]) * 10}


def test_a_full_disk_loses_the_entry_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(fd: int, buffers: list[memoryview]) -> int:
        os.write(fd, buffers[0][:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], CHUNK)
        with monkeypatch.context() as patched:
            patched.setattr(os, "writev", full)
            for key in CHUNKS[:5]:
                cache.put(key, b"other")
        assert len(value_files(tmp_path)) == 1
        assert got(cache, CHUNKS[0], len(CHUNK)) == CHUNK
        assert got(cache, CHUNKS[1], 5) is None
        assert cache.stats.failures == 5
        cache.put(CHUNKS[1], b"other")
        assert got(cache, CHUNKS[1], 5) == b"other"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left" in caplog.text


def test_writes_cut_short_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: honest(fd, [buffers[0][:7]]))
    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        assert got(cache, KEY, len(CHUNK)) == CHUNK


def test_a_full_database_loses_the_entry_and_its_file(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], CHUNK)
        # the limit is of one connection, here the only one: reached as if the file system were full
        cache._entries._rows._sql("PRAGMA max_page_count = 1")  # type: ignore[union-attr]
        for number in range(300):
            cache.blobs.put(f"{number}", b"x")
        assert cache.stats.failures > 0
        assert len(value_files(tmp_path)) == cache.stats.entries < 300
        assert got(cache, CHUNKS[0], len(CHUNK)) == CHUNK


def test_a_locked_database_costs_hits_nothing_and_puts_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_rows, "_LOCK_TIMEOUT", 120.0)
    names = [str(number) for number in range(70)]  # more than enough to have their uses written
    with opened(tmp_path) as cache:
        for name in names:
            cache.blobs.put(name, CHUNK)
        with closing(sqlite3.connect(own_folder(tmp_path) / "cache.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            begun = time.monotonic()
            assert [cache.blobs.get(name) for name in names] == [CHUNK] * 70
            assert time.monotonic() - begun < 60, "a hit waited for the lock"
            assert cache.stats.failures == 0
            cache._entries._rows._sql("PRAGMA busy_timeout = 1000")  # type: ignore[union-attr]
            cache.put(CHUNKS[1], CHUNK)
            assert len(value_files(tmp_path)) == 70
            other.execute("ROLLBACK")
        assert cache.stats.failures == 1
        cache.put(CHUNKS[1], CHUNK)
        assert got(cache, CHUNKS[1], len(CHUNK)) == CHUNK


def test_a_transaction_left_open_by_an_error_is_left(tmp_path: Path) -> None:
    """As a COMMIT leaves it that fails: this thread could not write any more, and no other process either."""
    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], CHUNK)
        cache._entries._rows._sql("BEGIN IMMEDIATE")  # type: ignore[union-attr]
        cache.put(CHUNKS[1], CHUNK)
        assert cache.stats.failures == 1
        cache.put(CHUNKS[1], CHUNK)
        with opened(tmp_path) as other:
            other.put(CHUNKS[2], CHUNK)
            assert [key in other for key in CHUNKS[:3]] == [True, True, True]
        assert cache.stats.failures == 1


@pytest.mark.parametrize("at", ["open", "later"])
def test_a_read_only_folder_is_a_cache_that_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """What a file system that was mounted read only answers; permissions alone do not stop root."""
    honest_open, honest_connect = os.open, sqlite3.connect

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return honest_open(path, flags, mode)

    def connect(database: Path, **options: object) -> sqlite3.Connection:
        return honest_connect(f"file:{database}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)

    with opened(tmp_path) as cache:
        if at == "later":
            cache.put(CHUNKS[0], CHUNK)
        monkeypatch.setattr(os, "open", read_only)
        monkeypatch.setattr(sqlite3, "connect", connect)
        cache.put(CHUNKS[1], CHUNK)
        assert got(cache, CHUNKS[0], len(CHUNK)) == (CHUNK if at == "later" else None)
        assert got(cache, CHUNKS[1], len(CHUNK)) is None
        assert cache.stats.failures > 0
        monkeypatch.undo()


def test_a_disk_that_cannot_be_read_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> os.stat_result:
        raise OSError(errno.EIO, "Input/output error")

    with opened(tmp_path) as cache:
        cache.put(KEY, CHUNK)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", broken)
            assert got(cache, KEY, len(CHUNK)) is None
        assert (cache.stats.failures, cache.stats.damaged) == (1, 0)
        assert got(cache, KEY, len(CHUNK)) == CHUNK
