"""An unusable database never disables the cache: the first user that notices replaces it, once."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.disk_cache_access import CHUNKS, KEY, got, opened, own_folder
from tieredstore.remote.diskcache.cache import DiskChunkCache

pytestmark = pytest.mark.slow

CHUNK = bytes(range(200))
DATABASE = "cache.db"


def is_of_use(cache: DiskChunkCache) -> bool:
    """Return True if the cache, after a few tries, keeps entries, gives only right bytes, and respects its limit."""
    for _ in range(3):
        for key in CHUNKS:
            assert got(cache, key, len(CHUNK)) in {None, CHUNK}
            cache.put(key, CHUNK)
    held = cache.stats
    return got(cache, CHUNKS[15], len(CHUNK)) == CHUNK and held.entries == 5 and held.bytes == 5 * len(CHUNK)


def filled(path: Path) -> Path:
    """Return the database of a closed cache, after everything has been written into it."""
    with opened(path, 1000) as cache:
        for key in CHUNKS:
            cache.put(key, CHUNK)
    database = own_folder(path) / DATABASE
    assert not database.with_name(DATABASE + "-wal").exists()
    return database


def in_header(place: int, mask: int) -> Callable[[Path], None]:
    def change(database: Path) -> None:
        raw = bytearray(database.read_bytes())
        raw[place] ^= mask
        database.write_bytes(raw)

    return change


def sweep(tmp_path: Path, places: Iterable[int], masks: tuple[int, ...]) -> None:
    honest = filled(tmp_path).read_bytes()
    for place in places:
        for mask in masks:
            database = own_folder(tmp_path) / DATABASE
            for file in own_folder(tmp_path).glob("*.db*"):
                file.unlink()
            database.write_bytes(honest)
            in_header(place, mask)(database)
            with opened(tmp_path, 1000) as cache:
                assert is_of_use(cache), f"byte {place} ^ {mask}"


def test_bytes_of_the_header_may_be_wrong(tmp_path: Path) -> None:
    sweep(tmp_path, (*range(0, 100, 6), 18, 19, 47, 59), (0xFF,))


@pytest.mark.soak
def test_any_bit_of_the_header_may_be_wrong(tmp_path: Path) -> None:
    sweep(tmp_path, range(100), (0xFF, *(1 << bit for bit in range(8))))


def cut(size: int) -> Callable[[Path], None]:
    return lambda database: os.truncate(database, size)


def schema(*statements: str) -> Callable[[Path], None]:
    def change(database: Path) -> None:
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(";".join(statements))

    return change


def beside(ending: str, content: bytes) -> Callable[[Path], None]:
    def change(database: Path) -> None:
        database.with_name(DATABASE + ending).write_bytes(content)

    return change


def link(database: Path) -> None:
    database.unlink()
    database.symlink_to(database.with_name("nowhere") / "x")


NOISE = random.Random(3).randbytes(40_960)
DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": cut(0),
    "half a header": cut(50),
    "a page": cut(4096),
    "half": cut(20_000),
    "garbage": beside("", NOISE),
    "link to nowhere": link,
    "other columns": schema("DROP TABLE Cache", "CREATE TABLE Cache (rowid INTEGER PRIMARY KEY, key)"),
    "fewer columns": schema("ALTER TABLE Cache DROP COLUMN tag"),
    "a view": schema("DROP TABLE Cache", "CREATE VIEW Cache AS SELECT * FROM Settings"),
    "no totals": schema(
        "DELETE FROM Settings WHERE key IN ('count', 'size')",
        "DROP TABLE Settings",
        "CREATE TABLE Settings (key TEXT NOT NULL UNIQUE, value)",
        "CREATE TRIGGER Gone AFTER INSERT ON Settings BEGIN DELETE FROM Settings; END",
    ),
    "garbage as log": beside("-wal", NOISE),
    "garbage as index of the log": beside("-shm", NOISE),
    "garbage as journal": beside("-journal", NOISE),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_database_that_cannot_be_used_is_made_anew(tmp_path: Path, damage: str) -> None:
    DAMAGES[damage](filled(tmp_path))
    with opened(tmp_path, 1000) as cache:
        assert is_of_use(cache)


def test_a_database_that_only_takes_no_writes_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database can only be read, like a file of another user. The test opens it read-only, because permissions do
    not stop root.
    """
    database = filled(tmp_path)
    refused, honest = database.stat().st_ino, sqlite3.connect

    def connect(path: Path, **options: Any) -> sqlite3.Connection:
        if not Path(path).exists() or Path(path).stat().st_ino != refused:
            opened_honestly: sqlite3.Connection = honest(path, **options)
            return opened_honestly
        read_only = f"file:{path}?mode=ro"
        return sqlite3.Connection(read_only, uri=True, isolation_level=None, check_same_thread=False)

    monkeypatch.setattr(sqlite3, "connect", connect)
    with opened(tmp_path, 1000) as cache:
        assert is_of_use(cache)


@pytest.mark.parametrize("place", [18, 19, 47])
def test_a_header_that_is_damaged_while_it_is_used_is_made_anew(tmp_path: Path, place: int) -> None:
    database = filled(tmp_path)
    with opened(tmp_path, 1000) as cache, opened(tmp_path, 1000) as other:
        cache.put(KEY, CHUNK)
        in_header(place, 0xFF)(database)
        assert is_of_use(other)
        assert is_of_use(cache)


USES = 700


def spoil_and_use(path: Path, seed: int) -> int:
    """Use the cache and occasionally spoil its database. Return how many puts were found right after."""
    rand = random.Random(seed)
    kept = 0
    with opened(path, 100_000) as cache:
        for _ in range(USES):
            key = rand.choice(CHUNKS)
            chunk = bytes([key.chunk]) * 200
            cache.put(key, chunk)
            cached = got(cache, key, 200)
            assert cached in {None, chunk}
            kept += cached is not None
            if rand.random() < 0.003:
                with suppress(OSError), (own_folder(path) / DATABASE).open("r+b") as file:
                    file.seek(rand.choice([0, 18, 47]))
                    file.write(b"\xff")
    return kept


@pytest.mark.slow
def test_processes_whose_database_is_spoiled_again_and_again_go_on_with_one_another(tmp_path: Path) -> None:
    with get_context("spawn").Pool(3) as pool:
        kept = pool.starmap(spoil_and_use, [(tmp_path, seed) for seed in range(3)])
        pool.close()
        pool.join()
    assert sum(kept) > len(kept) * USES / 2
    with opened(tmp_path, 1000) as cache:
        for key in CHUNKS:
            cache.put(key, CHUNK)
        assert is_of_use(cache)
