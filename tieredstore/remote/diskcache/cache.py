"""Cache on disk, in a folder that survives a restart. Each entry is a chunk, or all indexes of a segment.

``<path>/tieredstore-v1`` holds a table (SQLite, by ``diskcache``) and one file per entry. The file of an entry is
complete before the table lists it. Each version of this format has its own folder. Several processes may share the
folder, which must be on a local disk.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import replace
from pathlib import Path

from tieredstore.backends.base import Buffer
from tieredstore.errors import ConfigError
from tieredstore.remote.diskcache.table import DiskTable
from tieredstore.remote.fetch.chunk_cache import CacheStats, ChunkCache, ChunkKey
from tieredstore.versions import DISK_CACHE


class DiskChunkCache(ChunkCache):
    """Cache of chunks in a private folder within ``path``. It evicts the least recently used chunks first.

    ``size_bytes`` limits the total size of chunks and other entries; -1 is no limit. The cache does not keep an entry
    above the limit. ``retention_ms`` counts from the last use; -1 keeps entries forever.

    ``lock_timeout_s`` limits how long a put waits for transactions of other processes. Each transaction takes about a
    millisecond. A read never waits for transactions.

    The cache removes only its own files. Plaintext and ``encrypted`` chunks may share a folder, because their keys
    differ. Raise ConfigError if the folder cannot be made. Safe after fork, because each process opens the folder for
    itself.
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
        self._table = DiskTable(_make_private_folder(path), size_bytes, retention_ms, lock_timeout_s)

    def get_into(self, key: ChunkKey, buffer: memoryview) -> bool:
        """See the base class. Opens one file, and reads the bytes once to check them."""
        is_hit = self.read(key, buffer)
        self._table.counters.add(hits=int(is_hit), misses=int(not is_hit))
        return is_hit

    def read(self, key: ChunkKey, buffer: memoryview) -> bool:
        """Fill ``buffer`` as ``get_into`` does, without counting a hit or a miss, for an entry that is not a chunk."""
        return bool(len(buffer)) and self._table.read(self._digest(key), buffer)

    def put(self, key: ChunkKey, data: Buffer) -> None:
        """See the base class. Writes ``data`` to a file without a copy, and without a sync to disk."""
        if len(data):
            self._table.keep(self._digest(key), data)

    def __contains__(self, key: ChunkKey) -> bool:
        return self._table.holds(self._digest(key))

    def close(self) -> None:
        """See the base class."""
        self._table.close()

    @property
    def stats(self) -> CacheStats:
        """See the base class. Hits and misses count chunks alone. All other numbers include indexes."""
        entries, size = self._table.measure()
        return replace(self._table.counters.snapshot(), entries=entries, bytes=size)

    def _digest(self, key: ChunkKey) -> bytes:
        """Return the key of an entry, a digest that differs for different chunks."""
        kind = "stored chunk" if self.encrypted else "chunk"
        hashed = hashlib.blake2b(digest_size=32, person=b"disk cache key")
        for part in (kind, key.store, key.object_key, str(key.chunk), key.layout.hex()):
            raw = part.encode("utf-8", "surrogatepass")
            hashed.update(len(raw).to_bytes(8, "big"))
            hashed.update(raw)
        return hashed.digest()


def _make_private_folder(path: Path) -> Path:
    """Make the cache's own folder within ``path``, accessible only to its owner.

    Make ``path`` too if it is absent. Do not change an existing ``path``, because it may hold other files. Raise
    ConfigError if the folder cannot be made.
    """
    folder = path / f"tieredstore-v{DISK_CACHE.version}"
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
