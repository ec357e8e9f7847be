"""The cache on disk: chunks, and one entry with all indexes of a segment, in one folder that survives a restart.

``<path>/tieredstore-v1`` holds a table (SQLite, by ``diskcache``) and one file for each entry. An entry is written to
its file first and listed afterwards, so it is complete or absent. Several processes may share the folder; it must be on
a local disk.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tieredstore.backends.base import Buffer
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.remote.diskcache.table import DiskTable
from tieredstore.remote.fetch.chunk_cache import CacheStats, ChunkCache, ChunkKey

MAX_BLOB_SIZE: Final = 256 * 1024 * 1024
"""The largest entry except chunks, in bytes: all indexes of a segment, each at most 10 MiB by Kafka's default."""


class DiskChunkCache(ChunkCache):
    """Chunks in a private folder within ``path``. The least recently used are evicted first.

    ``size_bytes`` bounds the sum of the sizes of chunks and blobs, -1 without limit; a larger entry is not kept.
    ``retention_ms`` counts from the last use, -1 is for ever. Transactions of other processes take a millisecond: a put
    waits for them at most ``lock_timeout_s``, a hit never. Only files of the cache are removed. Plaintext and
    ``encrypted`` chunks may share a folder: their keys differ. Raise ConfigError if the folder cannot be made. Safe
    after fork and picklable: each process opens the folder for itself.
    """

    is_worth_threads = True

    def __init__(
        self,
        path: Path,
        size_bytes: int,
        *,
        retention_ms: int = -1,
        encrypted: bool = False,
        lock_timeout_s: float = 1.0,
    ) -> None:
        self.encrypted = encrypted
        self._copy = functools.partial(
            DiskChunkCache,
            path,
            size_bytes,
            retention_ms=retention_ms,
            encrypted=encrypted,
            lock_timeout_s=lock_timeout_s,
        )
        self._table = DiskTable(_make_private_folder(path), size_bytes, retention_ms, lock_timeout_s)
        self.blobs: BlobCache = BlobCache(self._table)

    def __reduce__(self) -> tuple[Callable[[], DiskChunkCache], tuple[()]]:
        return self._copy, ()

    def get_into(self, key: ChunkKey, buffer: memoryview) -> bool:
        """See the base class; opens one file, and reads the bytes once for their checksum."""

        def buffer_for(size: int) -> memoryview | None:
            return buffer if size == len(buffer) else None

        is_hit = bool(len(buffer)) and self._table.read(self._digest(key), buffer_for) is not None
        self._table.counters.add(hits=int(is_hit), misses=int(not is_hit))
        return is_hit

    def put(self, key: ChunkKey, data: Buffer) -> None:
        """See the base class; written straight from ``data``, without a copy, and not forced to the disk."""
        if len(data):
            self._table.keep(self._digest(key), data)

    def __contains__(self, key: ChunkKey) -> bool:
        return self._table.holds(self._digest(key))

    def close(self) -> None:
        """See the base class; closes the blobs too."""
        self._table.close()

    @property
    def stats(self) -> CacheStats:
        """See the base class; hits and misses are the chunks', all other counts are of chunks and blobs together."""
        entries, size = self._table.measure()
        return replace(self._table.counters.stats, entries=entries, bytes=size)

    def _digest(self, key: ChunkKey) -> bytes:
        kind = "stored chunk" if self.encrypted else "chunk"
        return _digest(kind, key.store, key.object_key, str(key.chunk), key.layout.hex())


class BlobCache:
    """Small entries beside the chunks, under the caller's names: atomic, checked, bounded and evicted like them."""

    def __init__(self, table: DiskTable) -> None:
        self._table = table

    def get(self, key: str) -> bytes | None:
        """Return the entry; None if it is absent, expired or damaged (then dropped). Never raises."""
        payload = self._table.read(_digest("blob", key), _blob_buffer)
        return None if payload is None else bytes(payload)

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` in place of an older entry; more than 256 MiB are not kept. Never raises."""
        if len(data) <= MAX_BLOB_SIZE:
            self._table.keep(_digest("blob", key), data)


def _blob_buffer(size: int) -> memoryview:
    if size > MAX_BLOB_SIZE:
        raise CorruptDataError(
            f"a cached value says that it has {size} bytes: more than {MAX_BLOB_SIZE} are never kept"
        )
    return memoryview(bytearray(size))


def _digest(*parts: str) -> bytes:
    """Return the key of an entry: different lists of parts have different keys."""
    hashed = hashlib.blake2b(digest_size=32, person=b"disk cache key")
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8, "big"))
        hashed.update(raw)
    return hashed.digest()


def _make_private_folder(path: Path) -> Path:
    """Make the cache's own folder within ``path``, accessible to its owner only.

    ``path`` is made too if absent; an existing one stays unchanged, because it may hold other files. Raise ConfigError
    if the folder cannot be made.
    """
    folder = path / "tieredstore-v1"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise ConfigError(f"fetch.chunk.cache.path: {folder} is a link or another user's; name another folder")
        if stat.S_IMODE(status.st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"fetch.chunk.cache.path: {folder} cannot be made or used ({error.strerror}); name another folder"
        ) from error
    return folder
