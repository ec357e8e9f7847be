"""The cache on disk: chunks, and one entry with all indexes of a segment, in one folder that survives a restart.

``<path>/tieredstore-v1`` holds a table (SQLite, by ``diskcache``) and one file for each entry. An entry is written to a
file of its own and listed afterwards, so it is there wholly or not at all. Several processes may share the folder; it
must be on a local disk.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from tieredstore.backends.base import Buffer
from tieredstore.remote.chunk_cache import CacheStats, ChunkCache, ChunkKey
from tieredstore.remote.disk_entries import DiskEntries
from tieredstore.remote.disk_seal import KEY_SIZE

MAX_BLOB_SIZE: Final = 256 * 1024 * 1024
"""The longest entry that is not a chunk, in bytes: all indexes of a segment, each 10 MiB at most by Kafka's default."""


class DiskChunkCache(ChunkCache):
    """Chunks in a folder within ``path``, which only this user can read. The least recently used go first.

    ``size_bytes`` bounds the sum of the sizes of chunks and blobs, -1 without limit; an entry over it is not kept.
    ``retention_ms`` counts from the last use, -1 is for ever. Nothing is removed that the cache did not write.
    Plaintext and ``encrypted`` chunks may lie in one folder: they have different keys. Safe after fork and picklable:
    each process opens the folder for itself. ConfigError if there cannot be such a folder.
    """

    is_worth_threads = True

    def __init__(self, path: Path, size_bytes: int, *, retention_ms: int = -1, encrypted: bool = False) -> None:
        self.encrypted = encrypted
        self._entries = DiskEntries(path, size_bytes, retention_ms)
        self.blobs = BlobCache(self._entries)

    def get_into(self, key: ChunkKey, buffer: memoryview) -> bool:
        """See the base class; one look into the table, and one pass over the bytes for their checksum."""
        is_hit = bool(len(buffer)) and self._entries.read_into(self._digest(key), buffer)
        self._entries.counters.add(hits=int(is_hit), misses=int(not is_hit))
        return is_hit

    def put(self, key: ChunkKey, data: Buffer) -> None:
        """See the base class; written from where they are, without a copy, and not forced to the disk."""
        if len(data):
            self._entries.keep(self._digest(key), data)

    def __contains__(self, key: ChunkKey) -> bool:
        return self._entries.holds(self._digest(key))

    def close(self) -> None:
        """See the base class; closes the blobs too."""
        self._entries.close()

    @property
    def stats(self) -> CacheStats:
        """See the base class; hits and misses are the chunks', all else is of chunks and blobs together."""
        return self._entries.stats

    def _digest(self, key: ChunkKey) -> bytes:
        kind = "stored chunk" if self.encrypted else "chunk"
        return _digest(kind, key.store, key.object_key, str(key.chunk), key.layout.hex())


class BlobCache:
    """Small entries beside the chunks, by names of the user's own: atomic, checked, bounded and forgotten like them."""

    def __init__(self, entries: DiskEntries) -> None:
        self._entries = entries

    def get(self, key: str) -> bytes | None:
        """What was put; None if it is absent, expired or damaged (then dropped). Never raises for trouble."""
        return self._entries.read(_digest("blob", key), MAX_BLOB_SIZE)

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` in place of an older entry; more than 256 MiB are not kept. Never raises for trouble."""
        if len(data) <= MAX_BLOB_SIZE:
            self._entries.keep(_digest("blob", key), data)


def _digest(*parts: str) -> bytes:
    """The key under which an entry lies: no two lists of parts have the same."""
    hashed = hashlib.blake2b(digest_size=KEY_SIZE, person=b"disk cache key")
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8, "big"))
        hashed.update(raw)
    return hashed.digest()
