"""The disk cache as its users see it: restarts, limits, retention, and its folder."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stores.disk_cache_access import (
    CHUNKS,
    KEY,
    MORE_CHUNKS,
    change_table,
    got,
    let_pass,
    opened,
    own_folder,
    rows,
    value_files,
)
from tieredstore.errors import ConfigError
from tieredstore.remote.diskcache.cache import DiskChunkCache
from tieredstore.remote.diskcache.values import HEADER_SIZE

DATA = bytes(range(256)) * 300


def test_chunks_and_indexes_survive_a_restart_and_chunks_alone_count_as_hits(tmp_path: Path) -> None:
    indexes = replace(KEY, object_key="topic-x/0/00000000000000000000-y.indexes")
    with opened(tmp_path) as cache:
        cache.put(KEY, DATA)
        cache.put(indexes, b"all of them")
    with opened(tmp_path) as cache:
        assert got(cache, KEY, len(DATA)) == DATA
        buffer = bytearray(11)
        assert cache.read(indexes, memoryview(buffer))
        assert buffer == b"all of them"
        assert not cache.read(CHUNKS[1], memoryview(buffer))
        assert (cache.stats.entries, cache.stats.bytes) == (2, len(DATA) + 11)
        assert (cache.stats.hits, cache.stats.misses) == (1, 0)


def test_a_restart_with_less_room_makes_room_at_the_next_put(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        for key in CHUNKS[:10]:
            cache.put(key, bytes(1000))
    with opened(tmp_path, 3000) as cache:
        cache.put(CHUNKS[10], bytes(1000))
        assert [key in cache for key in CHUNKS[7:11]] == [False, True, True, True]
        assert cache.stats.bytes == 3000
    assert len(value_files(tmp_path)) == 3


def test_a_use_before_the_restart_still_counts_after_it(tmp_path: Path) -> None:
    with opened(tmp_path, 3000) as cache:
        for key in CHUNKS[:3]:
            cache.put(key, bytes(1000))
        got(cache, CHUNKS[0], 1000)
    with opened(tmp_path, 3000) as cache:
        cache.put(CHUNKS[3], bytes(1000))
        assert [key in cache for key in CHUNKS[:4]] == [True, False, True, True]


def test_evicted_and_replaced_entries_leave_no_files(tmp_path: Path) -> None:
    with opened(tmp_path, 5000) as cache:
        for step in range(40):
            cache.put(CHUNKS[step % 16], bytes(900 + step % 7))
        assert cache.stats.bytes <= 5000
        assert sum(path.stat().st_size - HEADER_SIZE for path in value_files(tmp_path)) == cache.stats.bytes
        assert len(value_files(tmp_path)) == cache.stats.entries


def test_small_entries_are_no_way_around_the_limit(tmp_path: Path) -> None:
    with opened(tmp_path, 1000) as cache:
        for key in MORE_CHUNKS[:150]:
            cache.put(key, bytes(10))
        assert cache.stats.bytes == 1000
        cache.put(KEY, bytes(995))
        assert (cache.stats.entries, cache.stats.bytes) == (1, 995)


def test_nothing_is_kept_in_the_table_itself(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, b"x")
        assert [row[:2] for row in rows(tmp_path, "mode, value, filename")] == [(2, None)]


def test_retention_counts_from_the_last_use(tmp_path: Path) -> None:
    with opened(tmp_path, retention_ms=600_000) as cache:
        for key in CHUNKS[:2]:
            cache.put(key, b"chunk")
    for _ in range(3):
        let_pass(tmp_path, 360)
        with opened(tmp_path, retention_ms=600_000) as cache:
            assert got(cache, CHUNKS[0], 5) == b"chunk"
    with opened(tmp_path, retention_ms=600_000) as cache:
        assert CHUNKS[1] not in cache
        assert got(cache, CHUNKS[1], 5) is None


def test_a_put_removes_what_expired(tmp_path: Path) -> None:
    with opened(tmp_path, retention_ms=600_000) as cache:
        for key in CHUNKS[:5]:
            cache.put(key, b"chunk")
        let_pass(tmp_path, 601)
        cache.put(CHUNKS[5], b"other")
        assert (cache.stats.entries, cache.stats.evictions, cache.stats.evicted_bytes) == (1, 5, 25)
    assert len(value_files(tmp_path)) == 1


def test_plaintext_and_stored_bytes_may_share_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as plain, opened(tmp_path, encrypted=True) as stored:
        plain.put(KEY, b"plain")
        assert got(stored, KEY, 5) is None
        stored.put(KEY, b"seal!")
        assert (got(plain, KEY, 5), got(stored, KEY, 5)) == (b"plain", b"seal!")


def test_a_key_uploaded_anew_at_another_chunk_size_has_other_chunks(tmp_path: Path) -> None:
    anew = replace(KEY, layout=b"M" * 16)
    with opened(tmp_path) as cache:
        cache.put(KEY, b"0123456789")
        cache.put(anew, b"01234")
        assert (got(cache, KEY, 10), got(cache, anew, 5), got(cache, KEY, 5)) == (b"0123456789", b"01234", None)


def test_the_folder_and_all_in_it_are_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with opened(tmp_path / "deep" / "cache") as cache:
            cache.put(KEY, b"chunk")
            assert (tmp_path / "deep/cache").stat().st_mode & 0o777 == 0o700
            assert own_folder(tmp_path / "deep/cache").stat().st_mode & 0o777 == 0o700
            assert [path.stat().st_mode & 0o777 for path in value_files(tmp_path / "deep/cache")] == [0o600]
    finally:
        os.umask(before)


def test_an_own_folder_that_is_too_open_is_closed_and_the_one_above_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    own_folder(tmp_path).mkdir()
    own_folder(tmp_path).chmod(0o777)
    with opened(tmp_path):
        assert own_folder(tmp_path).stat().st_mode & 0o777 == 0o700
        assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_file_or_a_link_in_the_folders_place_is_an_error_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").mkdir()
    own_folder(tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "taken").mkdir()
    own_folder(tmp_path / "taken").write_bytes(b"")
    for name in ("file", "link", "taken", "file/below"):
        with pytest.raises(ConfigError, match=r"fetch\.chunk\.cache\.path: .*; name another folder"):
            DiskChunkCache(tmp_path / name, -1)


def test_another_users_folder_is_an_error_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_folder(tmp_path).mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: own_folder(tmp_path).stat().st_uid + 1)
    with pytest.raises(ConfigError, match="another user's"):
        DiskChunkCache(tmp_path, -1)


def test_files_of_others_stay(tmp_path: Path) -> None:
    foreign = [tmp_path / "notes.txt", own_folder(tmp_path) / "notes.txt", own_folder(tmp_path) / "ab" / "c.val"]
    foreign += [own_folder(tmp_path) / "ab" / ("0" * 62 + ".val.bak"), own_folder(tmp_path) / ("0" * 62 + ".val")]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
        os.utime(path, (0, 0))
    with opened(tmp_path, 100) as cache:
        for key in CHUNKS:
            cache.put(key, bytes(60))
    with opened(tmp_path, 100) as cache:
        got(cache, KEY, 60)
    assert [path.read_bytes() for path in foreign] == [b"mine"] * len(foreign)


def leave_orphans(path: Path) -> list[Path]:
    """Leave an old and a new file that no row lists, like a process killed after writing a file."""
    orphans = [own_folder(path) / "ab" / f"{name * 62}.val" for name in "12"]
    for orphan in orphans:
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"unlisted")
    os.utime(orphans[0], (0, time.time() - 3600))
    return orphans


def test_files_of_a_killed_process_are_removed_after_a_while(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, b"chunk")
    os.utime(value_files(tmp_path)[0], (0, 0))
    os.utime(own_folder(tmp_path) / "swept", (0, time.time() - 3601))
    old, new = leave_orphans(tmp_path)
    change_table(tmp_path, "UPDATE Settings SET value = 12345 WHERE key IN ('size', 'count')")
    with opened(tmp_path) as cache:
        assert got(cache, KEY, 5) == b"chunk"
        assert (cache.stats.entries, cache.stats.bytes) == (1, 5)
    assert (old.exists(), new.exists()) == (False, True)


def test_the_sweep_runs_once_an_hour_at_most(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        cache.put(KEY, b"chunk")
    orphans = leave_orphans(tmp_path)
    with opened(tmp_path) as cache:
        assert got(cache, KEY, 5) == b"chunk"
    assert [path.exists() for path in orphans] == [True, True]


def open_databases(path: Path) -> int:
    open_files = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return open_files.count(str(own_folder(path).resolve() / "cache.db"))


@pytest.mark.slow
def test_threads_share_a_cache_and_leave_no_connection_behind(tmp_path: Path) -> None:
    def work(cache: DiskChunkCache, seed: int) -> None:
        for step in range(60):
            key = CHUNKS[(seed + step) % 16]
            cache.put(key, bytes([key.chunk]) * 3000)
            assert got(cache, CHUNKS[step % 16], 3000) in {None, bytes([step % 16]) * 3000}

    with opened(tmp_path, 30_000, lock_timeout_s=60.0) as cache:  # the lock's holder may pause for a second
        for _ in range(3):
            threads = [threading.Thread(target=work, args=(cache, seed)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        stats = cache.stats
        # one connection opens three files; SQLite closes files of other connections late if locks are held
        assert 1 <= open_databases(tmp_path) < 10
    assert open_databases(tmp_path) == 0
    assert (stats.failures, stats.damaged) == (0, 0)
    assert stats.hits + stats.misses == 3 * 4 * 60
    assert stats.bytes <= 30_000


def test_a_good_cache_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tieredstore")
    with opened(tmp_path, 10) as cache:
        for key in CHUNKS:
            cache.put(key, b"12345")
            got(cache, key, 5)
    # Exclude messages from threads of other tests.
    assert [one.message for one in caplog.records if one.name.startswith("tieredstore.remote.diskcache")] == []
