"""Interface of caches for fetched chunks, and the cache in memory."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tieredstore.backends.base import Buffer
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.manifest import SegmentManifest
from tieredstore.process.bounded_map import BoundedMap
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.remote.statistics import Counters

LAYOUT_DIGEST_SIZE: Final = 16
"""Size in bytes of :func:`layout_digest`."""

_ENTRY_COST: Final = 512
"""Memory overhead per chunk in bytes (key, entry, and their places in the map), measured and rounded up. The overhead
is negligible for chunks of the usual size, but hundreds of times the size of a one-byte chunk.
"""

_FREE_ENTRIES: Final = 64
"""Number of chunks whose overhead is not counted. Their overhead is 32 KiB in total."""


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Identity of a chunk.

    ``store`` is the store's ``identity``, ``object_key`` the full key with its prefix. ``layout`` is the
    :func:`layout_digest` of the segment's manifest, so that a rewritten object has other chunk keys.
    """

    store: str
    object_key: str
    chunk: int
    layout: bytes


def layout_digest(manifest: SegmentManifest) -> bytes:
    """Return a digest (BLAKE2b, 16 bytes) of all values that decoding the object depends on: chunk index, compression
    and AAD.

    The digest excludes the wrapped data key, because wrapping the key again leaves the chunks unchanged.
    """
    hashed = hashlib.blake2b(digest_size=LAYOUT_DIGEST_SIZE, person=b"chunk layout")
    aad = b"" if manifest.encryption is None else b"aad" + manifest.encryption.aad
    for part in (*_index_parts(manifest.chunk_index), str(manifest.compression).encode(), aad):
        # Prefix the length, so that different lists of parts have different digests.
        hashed.update(len(part).to_bytes(8, "big"))
        hashed.update(part)
    return hashed.digest()


def _index_parts(index: ChunkIndex) -> tuple[bytes, ...]:
    sizes = (b"%d" % index.original_chunk_size, b"%d" % index.original_file_size)
    if isinstance(index, VariableChunkIndex):
        return (b"variable", *sizes, index.packed_sizes)
    if isinstance(index, FixedChunkIndex):
        return (b"fixed", *sizes, b"%d" % index.transformed_chunk_size, b"%d" % index.final_transformed_chunk_size)
    raise TypeError(f"{type(index).__name__} has no layout")


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Current content of a cache, and counters since this object was made.

    ``evictions`` and ``evicted_bytes`` count entries that were removed for space or age. ``damaged`` counts entries
    that were dropped after a failed check. ``failures`` counts failed calls to the disk or its database. ``entries``
    and ``bytes`` (of payload) cover the whole cache, including entries of other processes.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    damaged: int = 0
    failures: int = 0
    entries: int = 0
    bytes: int = 0


class ChunkCache(ABC):
    """Cache of chunks by :class:`ChunkKey`. It returns exactly the bytes that were put, or nothing. Safe from several
    threads.

    Failures of the cache itself, such as a full disk, a locked database or damage, raise no error. Instead, ``put``
    keeps nothing, and ``get_into`` reports a miss.
    """

    encrypted: bool
    """True if entries are stored chunks, which the caller decodes. False if entries are original bytes."""

    is_worth_threads: bool = False
    """True if several threads read chunks faster than one thread. Several threads are not faster if a read only copies
    memory, because the copy holds the interpreter's lock.
    """

    @abstractmethod
    def get_into(self, key: ChunkKey, buffer: memoryview) -> bool:
        """Fill ``buffer`` with the chunk, on the caller's thread. Return False on a miss.

        A miss is a chunk that is absent, expired, damaged (then dropped), or not of the buffer's length. The buffer's
        content is then undefined. An empty buffer is always a miss.
        """

    @abstractmethod
    def put(self, key: ChunkKey, data: Buffer) -> None:
        """Keep a chunk, unless it is empty. The caller may reuse ``data`` afterwards."""

    @abstractmethod
    def __contains__(self, key: ChunkKey) -> bool:
        """Return True if ``get_into`` would probably hit. The call is cheap, because it does not read or check the
        chunk, or count a use.
        """

    @abstractmethod
    def close(self) -> None:
        """Release memory, files and connections, but keep data on disk. Idempotent."""

    @property
    @abstractmethod
    def stats(self) -> CacheStats:
        """Return a snapshot of the cache's content and counters."""


class MemoryChunkCache(ChunkCache):
    """Cache of chunks in this process's memory. It evicts the least recently used chunks first.

    ``size_bytes`` limits the sum of the chunks' sizes; -1 is no limit. From the 65th chunk on, each chunk counts half a
    KiB more for the cache's overhead. ``retention_ms`` counts from the last use; -1 is forever. ``clock`` returns
    seconds.
    """

    def __init__(
        self,
        size_bytes: int,
        *,
        retention_ms: int = -1,
        encrypted: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.encrypted = encrypted
        self._chunks = BoundedMap[ChunkKey, bytes](
            size_bytes,
            weigh=len,
            entry_cost=_ENTRY_COST,
            free_entries=_FREE_ENTRIES,
            retention_ms=retention_ms,
            clock=clock,
        )
        self._is_closed = False
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Count from zero in a forked child, whose map is empty."""
        self._counters = Counters(CacheStats)

    def get_into(self, key: ChunkKey, buffer: memoryview) -> bool:
        """See the base class."""
        cached = self._chunks.get(key) if len(buffer) else None
        if cached is None or len(cached) != len(buffer):
            self._counters.add(misses=1)
            return False
        buffer[:] = cached
        self._counters.add(hits=1)
        return True

    def put(self, key: ChunkKey, data: Buffer) -> None:
        """See the base class. Keeps ``bytes`` without a copy, and copies anything else."""
        if len(data) and not self._is_closed:
            self._chunks.put(key, bytes(data))

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def close(self) -> None:
        """See the base class. Loads that are still running put no more chunks into the cache."""
        self._is_closed = True
        self._chunks.clear()

    @property
    def stats(self) -> CacheStats:
        """See the base class."""
        held = self._chunks.stats
        return replace(
            self._counters.snapshot(),
            evictions=held.evictions,
            evicted_bytes=held.evicted_weight,
            entries=held.entries,
            bytes=held.weight,
        )
