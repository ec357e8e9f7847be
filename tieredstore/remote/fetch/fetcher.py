"""The reading part of a remote storage manager, assembled from the settings."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tieredstore.config.fetch import ChunkCacheSettings, FetchSettings
from tieredstore.installation import Extra
from tieredstore.metrics import counting
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.process.lifetime import Lifetime
from tieredstore.remote.fetch.cached_loads import CachedLoads
from tieredstore.remote.fetch.chunk_cache import ChunkCache, MemoryChunkCache
from tieredstore.remote.fetch.chunk_loader import ChunkLoader
from tieredstore.remote.fetch.indexes import Indexes, weight_of_indexes
from tieredstore.remote.fetch.manifests import Manifests
from tieredstore.remote.fetch.segment_logs import SegmentLogs
from tieredstore.remote.fetch.stream import ReadAhead
from tieredstore.remote.statistics import Counters, FetchStats

if TYPE_CHECKING:
    from tieredstore.remote.diskcache.cache import DiskChunkCache
    from tieredstore.remote.manager import Pools


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Readers of manifests, indexes and chunks, and their counters."""

    manifests: Manifests
    indexes: Indexes
    logs: SegmentLogs
    counters: Counters[FetchStats]
    chunk_cache: ChunkCache | None

    @classmethod
    def of_settings(
        cls, settings: FetchSettings, manifests: Manifests, pools: Pools, life: Lifetime, *, shares_read_ahead: bool
    ) -> Fetcher:
        """Make the readers of the manifests' store by the settings ``fetch.*``. They and their ``pools`` end with
        ``life``.
        """
        cache, disk = (None, None) if settings.chunk_cache is None else _chunk_cache(settings.chunk_cache)
        plain = CachedLoads(
            settings.index_cache, weight_of_indexes, "the segment's indexes", pool=pools.lookup, life=life
        )
        indexes = Indexes(manifests, loads=plain, disk=disk)
        # Take the timeout of reads from the chunk cache's settings. Without these settings, a read waits as long as the
        # store does.
        timeout_s = None if settings.chunk_cache is None else settings.chunk_cache.get_timeout_ms / 1000
        read_ahead = ReadAhead(settings.read_ahead_bytes, is_shared=shares_read_ahead)
        loader = ChunkLoader(
            manifests, pools=pools, cache=cache, coalesce_max_bytes=settings.coalesce_max_bytes, read_ahead=read_ahead,
            timeout_s=timeout_s, life=life,
        )  # fmt: skip
        return cls(manifests, indexes, SegmentLogs(manifests, loader, pools.fetch), manifests.counters, cache)

    def forget(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Drop a segment from the caches in memory, before its deletion."""
        self.manifests.forget(metadata)
        self.indexes.forget(metadata)

    def export(self, stack: ExitStack) -> None:
        """Add the counters to the process's metrics until ``stack`` is closed."""
        stack.callback(counting.FETCH.add(lambda: asdict(self.counters.snapshot())))
        cache = self.chunk_cache
        if cache is not None:
            stack.callback(counting.CHUNK_CACHE.add(lambda: asdict(cache.stats)))

    def close(self) -> None:
        """Close prepared segments and the caches."""
        self.logs.close()
        self.manifests.close()
        self.indexes.close()
        if self.chunk_cache is not None:
            self.chunk_cache.close()


def _chunk_cache(settings: ChunkCacheSettings) -> tuple[ChunkCache, DiskChunkCache | None]:
    if settings.kind == "memory":
        memory = MemoryChunkCache(settings.size, retention_ms=settings.retention_ms, encrypted=settings.encrypted)
        return memory, None
    # Import diskcache and its database only if they are configured.
    with Extra("the disk cache", "cache"):
        from tieredstore.remote.diskcache.cache import DiskChunkCache  # noqa: PLC0415

    assert settings.path is not None  # the settings require a path
    disk = DiskChunkCache(
        settings.path, settings.size, retention_ms=settings.retention_ms, encrypted=settings.encrypted
    )
    return disk, disk
