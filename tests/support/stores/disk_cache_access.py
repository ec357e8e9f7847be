"""Direct access to the disk cache's folder, bypassing the cache."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from tieredstore.remote.diskcache.cache import DiskChunkCache
from tieredstore.remote.fetch.chunk_cache import ChunkCache, ChunkKey

KEY = ChunkKey("s3://bucket", "topic-x/0/00000000000000000000-y.log", 0, b"L" * 16)
CHUNKS = [replace(KEY, chunk=number) for number in range(16)]
MORE_CHUNKS = [replace(KEY, chunk=number) for number in range(100, 400)]


def own_folder(path: Path) -> Path:
    return path / "tieredstore-v1"


def value_files(path: Path) -> list[Path]:
    return sorted(own_folder(path).glob("??/*"))


@contextmanager
def opened(
    path: Path,
    size_bytes: int = -1,
    *,
    retention_ms: int = -1,
    encrypted: bool = False,
    lock_timeout_s: float = 1.0,
) -> Generator[DiskChunkCache]:
    cache = DiskChunkCache(
        path,
        size_bytes,
        retention_ms=retention_ms,
        encrypted=encrypted,
        lock_timeout_s=lock_timeout_s,
    )
    try:
        yield cache
    finally:
        cache.close()


def got(cache: ChunkCache, key: ChunkKey, size: int) -> bytes | None:
    """Return the chunk, or None for a miss."""
    buffer = bytearray(b"\xaa" * size)
    return bytes(buffer) if cache.get_into(key, memoryview(buffer)) else None


def change_table(path: Path, statement: str, *parameters: object) -> int:
    """Run a statement on the cache's table; return the number of changed rows."""
    with closing(sqlite3.connect(own_folder(path) / "cache.db", isolation_level=None)) as connection:
        return connection.execute(statement, parameters).rowcount


def rows(path: Path, columns: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(own_folder(path) / "cache.db")) as connection:
        return connection.execute(f"SELECT {columns} FROM Cache ORDER BY rowid").fetchall()


def let_pass(path: Path, seconds: float) -> None:
    """Move the times of all cached data this many seconds into the past."""
    change_table(path, "UPDATE Cache SET access_time = access_time - ?1, expire_time = expire_time - ?1", seconds)
    for file in value_files(path):
        status = file.stat()
        os.utime(file, (status.st_atime, status.st_mtime - seconds))
