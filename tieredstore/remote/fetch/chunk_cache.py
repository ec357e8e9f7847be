"""The interface of caches of fetched chunks, and the cache in memory."""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Final

from tieredstore.backends.base import Buffer
from tieredstore.format.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from tieredstore.format.manifest import SegmentManifest
from tieredstore.process.forks import begin_again_after_fork
from tieredstore.remote.fetch.bounded_map import BoundedMap

LAYOUT_DIGEST_SIZE: Final = 16
"""The size of :func:`layout_digest`, in bytes."""

_ENTRY_COST: Final = 512
"""Bytes that a chunk in memory takes besides its own: key, entry and their places in the map, measured and rounded
up. Negligible for usual chunks, hundreds of times the size of a chunk of one byte.
"""

_FREE_ENTRIES: Final = 64
"""Chunks whose cost is not counted: 32 KiB."""


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """The identity of a chunk: its store, object and layout.

    ``store`` is the store's ``identity``, ``object_key`` the full key with its prefix, and ``layout`` the
    :func:`layout_digest` of the segment's manifest, so that an object rewritten in another way has other keys.
    """

    store: str
    object_key: str
    chunk: int
    layout: bytes


def layout_digest(manifest: SegmentManifest) -> bytes:
    """Return a digest (BLAKE2b, 16 bytes) of everything that decodes the object: chunk index, compression and AAD.

    It excludes the data key: wrapping that again leaves the chunks unchanged.
    """
    hashed = hashlib.blake2b(digest_size=LAYOUT_DIGEST_SIZE, person=b"chunk layout")
    aad = b"" if manifest.encryption is None else b"aad" + manifest.encryption.aad
    for part in (*_index_parts(manifest.chunk_index), str(manifest.compression).encode(), aad):
        hashed.update(len(part).to_bytes(8, "big"))  # so that different lists of parts differ
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
    """The present content of a cache, and the history of this object since it was made.

    ``evictions`` and ``evicted_bytes`` count entries removed for space or age, ``damaged`` those dropped because their
    content had changed, ``failures`` calls that the disk or its database refused. ``entries`` and ``bytes`` (of
    payload) are of the whole cache, including other writers'.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    damaged: int = 0
    failures: int = 0
    entries: int = 0
    bytes: int = 0


class Counters:
    """The counters of :class:`CacheStats`. Safe from several threads."""

    def __init__(self) -> None:
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Reset to zero: for a forked child."""
        self._lock = threading.Lock()
        self._counted = dict.fromkeys((field.name for field in fields(CacheStats)), 0)

    def add(self, **counted: int) -> None:
        """Add to the fields of these names."""
        with self._lock:
            for name, count in counted.items():
                self._counted[name] += count

    @property
    def stats(self) -> CacheStats:
        """A snapshot; ``entries`` and ``bytes`` are 0."""
        with self._lock:
            return CacheStats(**self._counted)


class ChunkCache(ABC):
    """Chunks by :class:`ChunkKey`. Returns exactly the bytes put, or nothing. Safe from several threads.

    No call raises for the cache's own trouble (a full disk, a locked database, damage): a ``put`` is then lost and a
    ``get_into`` is a miss.
    """

    encrypted: bool
    """True: entries are chunks as stored, and the caller decodes them. False: entries are the chunks' original
    bytes.
    """

    is_worth_threads: bool = False
    """True if several threads get several chunks sooner than one. A copy within memory keeps the interpreter's lock."""

    @abstractmethod
    def get_into(self, key: ChunkKey, buffer: memoryview) -> bool:
        """Fill all of ``buffer`` with the chunk, on the caller's thread, and return True.

        False is a miss: absent, expired, damaged (then dropped), or of another length than ``buffer``, whose content is
        then undefined. An empty buffer is always a miss.
        """

    @abstractmethod
    def put(self, key: ChunkKey, data: Buffer) -> None:
        """Keep a chunk; ``data`` may be reused as soon as this returns. Empty data are not kept."""

    @abstractmethod
    def __contains__(self, key: ChunkKey) -> bool:
        """Return True if ``get_into`` would probably hit: cheap, reads and checks nothing, and does not count as a
        use.
        """

    @abstractmethod
    def close(self) -> None:
        """Release memory, files and connections; idempotent. Data on disk stay."""

    @property
    @abstractmethod
    def stats(self) -> CacheStats:
        """A snapshot."""


class MemoryChunkCache(ChunkCache):
    """Chunks in this process's memory; the least recently used are evicted first.

    ``size_bytes`` bounds the sum of their sizes, -1 without limit; from the 64th chunk on it includes the cache's own
    cost of half a KiB each. ``retention_ms`` counts from the last use, -1 is for ever. ``clock`` returns seconds.
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
        self._counters = Counters()
        self._is_closed = False

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
        """See the base class; ``bytes`` are kept without a copy, anything else is copied."""
        if len(data) and not self._is_closed:
            self._chunks.put(key, bytes(data))

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def close(self) -> None:
        """See the base class; later puts of running loads are not kept."""
        self._is_closed = True
        self._chunks.clear()

    @property
    def stats(self) -> CacheStats:
        """See the base class."""
        held = self._chunks.stats
        return replace(
            self._counters.stats,
            evictions=held.evictions,
            evicted_bytes=held.evicted_weight,
            entries=held.entries,
            bytes=held.weight,
        )
