"""With a damaged database or a disk that refuses writes, the disk cache misses or loses entries, but never fails."""

from __future__ import annotations

import errno
import io
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from diskcache import Cache
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stores.disk_cache_access import (
    CHUNKS,
    KEY,
    MORE_CHUNKS,
    change_table,
    got,
    opened,
    own_folder,
    value_files,
)
from tieredstore.remote.diskcache.cache import DiskChunkCache

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
            assert [key in third for key in CHUNKS[2:4]] == [True, True]


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
    def full(fd: int, mode: str) -> io.BufferedWriter:
        os.close(fd)
        return io.BufferedWriter(io.FileIO("/dev/full", mode))

    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], CHUNK)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdopen", full)
            for key in CHUNKS[:5]:
                cache.put(key, b"other")
        assert len(value_files(tmp_path)) == 1
        assert list(own_folder(tmp_path).glob("*.new")) == []
        assert got(cache, CHUNKS[0], len(CHUNK)) == CHUNK
        assert got(cache, CHUNKS[1], 5) is None
        assert cache.stats.failures == 5
        cache.put(CHUNKS[1], b"other")
        assert got(cache, CHUNKS[1], 5) == b"other"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left" in caplog.text


def test_a_process_without_free_descriptors_removes_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> sqlite3.Connection:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], CHUNK)
    with opened(tmp_path) as cache:
        with monkeypatch.context() as patched:
            patched.setattr(sqlite3, "connect", refuse)
            cache.put(CHUNKS[1], CHUNK)
        assert got(cache, CHUNKS[0], len(CHUNK)) == CHUNK
        cache.put(CHUNKS[2], CHUNK)
        assert (cache.stats.entries, cache.stats.failures) == (2, 1)


def on_the_tables_thread(cache: DiskChunkCache, use: Callable[[Cache], object]) -> None:
    cache._run(use)  # pyright: ignore[reportPrivateUsage]  the table lives on its thread


def test_a_full_database_loses_the_entry_and_its_file(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], CHUNK)
        # a limit on the connection's pages has the effect of a full file system
        on_the_tables_thread(cache, lambda table: table.reset("sqlite_max_page_count", 1, update=False))
        for key in MORE_CHUNKS:
            cache.put(key, b"x")
            if cache.stats.failures:
                break
        assert cache.stats.failures == 1
        assert len(value_files(tmp_path)) == cache.stats.entries < 300
        assert list(own_folder(tmp_path).glob("*.new")) == []
        assert got(cache, CHUNKS[0], len(CHUNK)) == CHUNK


def test_a_locked_database_costs_hits_nothing_and_puts_their_time_out(tmp_path: Path) -> None:
    keys = MORE_CHUNKS[:70]  # enough uses that the cache would write them to the database
    # Two caches share a folder. The first one's record of uses waits until the lock is free.
    with opened(tmp_path, lock_timeout_s=60.0) as cache, opened(tmp_path, lock_timeout_s=0.2) as hasty:
        # First, because the other cache's puts may have the lock for longer than this one waits.
        hasty.put(CHUNKS[1], CHUNK)
        for key in keys:
            cache.put(key, CHUNK)
        with closing(sqlite3.connect(own_folder(tmp_path) / "cache.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert [got(cache, key, len(CHUNK)) for key in keys] == [CHUNK] * 70
            # Do not call `cache.stats`, which would write the recorded uses first.
            counted = cache._counters.snapshot()  # pyright: ignore[reportPrivateUsage]
            assert counted.failures == 0, "a hit waited for the lock"
            hasty.put(CHUNKS[2], CHUNK)
            assert CHUNKS[2] not in hasty
            assert len(value_files(tmp_path)) == 71
            other.execute("ROLLBACK")
        cache.put(CHUNKS[2], CHUNK)
        assert [got(cache, key, len(CHUNK)) for key in CHUNKS[1:3]] == [CHUNK, CHUNK]


class FailingCommits(sqlite3.Connection):
    """Refuses to commit while the disk is full."""

    is_full = False

    def execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
        if statement == "COMMIT" and FailingCommits.is_full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(statement, *parameters)  # type: ignore[arg-type]


def test_a_transaction_left_open_by_a_failed_commit_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the transaction stayed open, no process could write to the database again."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: connect(*args, factory=FailingCommits, **named))
    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], CHUNK)
        with monkeypatch.context() as patched:
            patched.setattr(FailingCommits, "is_full", True)
            cache.put(CHUNKS[1], CHUNK)
            assert cache.stats.failures == 1
        cache.put(CHUNKS[1], CHUNK)
        with opened(tmp_path) as other:
            other.put(CHUNKS[2], CHUNK)
            assert [key in other for key in CHUNKS[:3]] == [True, True, True]
        assert cache.stats.failures == 1


@pytest.mark.parametrize("at", ["open", "later"])
def test_a_read_only_folder_is_a_cache_that_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The errors of a file system mounted read-only; permissions alone do not stop root."""
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


def test_a_read_that_ends_after_the_cache_was_closed_opens_nothing_again(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # threads of earlier tests may still be ending
    with opened(tmp_path) as cache:
        cache.put(CHUNKS[0], CHUNK)

        class Buffer(bytearray):
            def __len__(self) -> int:
                calls.append(1)
                if len(calls) == 2:  # the entry's file is open by now
                    cache.close()
                return len(CHUNK)

        calls: list[int] = []
        buffer: Any = Buffer(len(CHUNK))
        assert cache.get_into(CHUNKS[0], buffer)
        left = set(threading.enumerate()) - before
        assert [thread.name for thread in left if thread.name.startswith("disk-cache")] == []
