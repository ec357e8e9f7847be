"""Chunks that were fetched once: the contract of their caches, and the cache in memory."""

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
"""Bytes that a chunk in memory takes besides its own: key, entry and their places in the map, measured and rounded up.
Nothing beside chunks as they are written, and hundreds of times their size for chunks of a byte."""

_FREE_ENTRIES: Final = 64
"""Chunks whose cost is not counted: 32 KiB."""


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Which chunk: of which object of which store, and under which layout.

    ``store`` is the store's ``identity``, ``object_key`` the full key with its prefix, and ``layout`` the
    :func:`layout_digest` of the segment's manifest, so that an object written anew in another way has other keys.
    """

    store: str
    object_key: str
    chunk: int
    layout: bytes


def layout_digest(manifest: SegmentManifest) -> bytes:
    """A digest (BLAKE2b, 16 bytes) of what turns the stored object into chunks: chunk index, compression and AAD.

    The data key is not in it: a wrapping by another key pair leaves the chunks as they are.
    """
    hashed = hashlib.blake2b(digest_size=LAYOUT_DIGEST_SIZE, person=b"chunk layout")
    aad = b"" if manifest.encryption is None else b"aad" + manifest.encryption.aad
    for part in (*_index_parts(manifest.chunk_index), str(manifest.compression).encode(), aad):
        hashed.update(len(part).to_bytes(8, "big"))  # so that no two lists of parts read alike
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
    """What a cache holds now, and what happened through this object since it was made.

    ``evictions`` and ``evicted_bytes`` count entries that went for room or age, ``damaged`` those that were dropped
    because they were not what was put, ``failures`` calls that the disk or its database refused. ``entries`` and
    ``bytes`` (of payload) are of the whole cache, whoever put them.
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
    """The counting half of :class:`CacheStats`. Safe from several threads."""

    def __init__(self) -> None:
        self.begin_again()
        begin_again_after_fork(self)

    def begin_again(self) -> None:
        """Nothing counted: for a forked child."""
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
    """Chunks by :class:`ChunkKey`. It gives back exactly what was put, or nothing. Safe from several threads.

    No call raises for trouble of the cache's own (a full disk, a locked database, damage): a ``put`` is then lost and
    a ``get_into`` is a miss.
    """

    encrypted: bool
    """True: what is put are the chunks as stored, and who gets one decodes it. False: the chunks' own bytes."""

    is_worth_threads: bool = False
    """Whether several threads get several chunks sooner than one: a copy within memory keeps the interpreter's lock."""

    @abstractmethod
    def get_into(self, key: ChunkKey, buffer: memoryview) -> bool:
        """Fill all of ``buffer`` with the chunk, on the caller's thread, and say True.

        False is a miss: absent, expired, damaged (then dropped), or of another length than ``buffer``, whose content is
        undefined then. An empty buffer is always a miss.
        """

    @abstractmethod
    def put(self, key: ChunkKey, data: Buffer) -> None:
        """Keep a chunk; ``data`` may be reused as soon as this returns. Empty data are not kept."""

    @abstractmethod
    def __contains__(self, key: ChunkKey) -> bool:
        """Whether ``get_into`` would probably hit: cheap, nothing is read or checked, and no use of the chunk."""

    @abstractmethod
    def close(self) -> None:
        """Let go of memory, files and connections; idempotent. What is on disk stays."""

    @property
    @abstractmethod
    def stats(self) -> CacheStats:
        """A snapshot."""


class MemoryChunkCache(ChunkCache):
    """Chunks in this process's memory, the least recently used out first.

    ``size_bytes`` bounds the sum of their sizes, -1 without limit, and from the 64th chunk on what the cache needs to
    know each of them, half a KiB. ``retention_ms`` counts from the last use, -1 is for ever. ``clock`` tells seconds.
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
        """See the base class; ``bytes`` are kept as they are, anything else is copied."""
        if len(data) and not self._is_closed:
            self._chunks.put(key, bytes(data))

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def close(self) -> None:
        """See the base class; what a load that was under way puts afterwards is not kept."""
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
