"""Settings of the caches of a reader: ``fetch.*``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from tieredstore.config.reader import Part, SettingsReader, broken_rule
from tieredstore.config.values import PATH, integer, java_class, long

_JAVA_PACKAGE: Final = "io.aiven.kafka.tieredstorage.fetch.cache."
_CHUNK_CACHES: Final = {
    f"{_JAVA_PACKAGE}MemoryChunkCache": "memory",
    f"{_JAVA_PACKAGE}DiskChunkCache": "disk",
    "memory": "memory",
    "disk": "disk",
}
_CHUNK_CACHE_CLASS: Final = "fetch.chunk.cache.class"


def _chunk_cache(text: str) -> str:
    try:
        return _CHUNK_CACHES[text]
    except KeyError:
        raise ValueError from None


class ManifestCacheSettings(Part):
    """The cache of manifests, in memory."""

    size: Annotated[int, long(-1)] = Field(
        default=1000, alias="fetch.manifest.cache.size", description="Entries at most; -1 without limit."
    )
    retention_ms: Annotated[int, long(-1)] = Field(
        default=3600000,
        alias="fetch.manifest.cache.retention.ms",
        description="Kept so long after the last use; -1 for ever.",
    )
    get_timeout_ms: Annotated[int, long(1)] = Field(
        default=10000, alias="fetch.manifest.cache.get.timeout.ms", description="A caller waits so long for a load."
    )
    thread_pool_size: Annotated[int, integer(0, 1024)] = Field(
        default=0,
        alias="fetch.manifest.cache.thread.pool.size",
        description="Threads that load; 0: as many as processors.",
    )


class IndexCacheSettings(Part):
    """The cache of index files, in memory."""

    size: Annotated[int, long(-1)] = Field(
        default=10485760, alias="fetch.indexes.cache.size", description="Bytes at most; -1 without limit."
    )
    retention_ms: Annotated[int, long(-1)] = Field(
        default=600000,
        alias="fetch.indexes.cache.retention.ms",
        description="Kept so long after the last use; -1 for ever.",
    )
    get_timeout_ms: Annotated[int, long(1)] = Field(
        default=10000, alias="fetch.indexes.cache.get.timeout.ms", description="A caller waits so long for a load."
    )
    thread_pool_size: Annotated[int, integer(0, 1024)] = Field(
        default=0,
        alias="fetch.indexes.cache.thread.pool.size",
        description="Threads that load; 0: as many as processors.",
    )


class ChunkCacheSettings(Part):
    """The cache of opened chunks. Chunks are kept as plaintext, on disk too, whether or not the store is encrypted."""

    kind: Annotated[Literal["memory", "disk"], java_class("memory, disk or the plugin's Java class", _chunk_cache)] = (
        Field(alias=_CHUNK_CACHE_CLASS, description="Where chunks are cached; left out: no cache and no prefetch.")
    )
    size: Annotated[int, long(-1)] = Field(
        alias="fetch.chunk.cache.size",
        description="Bytes of plaintext chunks at most; -1 without limit; required once a cache is set.",
    )
    retention_ms: Annotated[int, long(-1)] = Field(
        default=600000,
        alias="fetch.chunk.cache.retention.ms",
        description="Kept so long after the last use; -1 for ever.",
    )
    prefetch_max_size: Annotated[int, integer(0)] = Field(
        default=0, alias="fetch.chunk.cache.prefetch.max.size", description="Bytes to load ahead of a reader; 0: none."
    )
    get_timeout_ms: Annotated[int, long(1)] = Field(
        default=10000, alias="fetch.chunk.cache.get.timeout.ms", description="A caller waits so long for a load."
    )
    thread_pool_size: Annotated[int, integer(0, 1024)] = Field(
        default=0,
        alias="fetch.chunk.cache.thread.pool.size",
        description="Threads that load; 0: as many as processors.",
    )
    path: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="fetch.chunk.cache.path",
        description="Folder of the disk cache, which needs one. The JVM plugin empties it when it starts.",
    )

    @model_validator(mode="after")
    def _disk_has_a_path(self) -> ChunkCacheSettings:
        if self.kind == "disk" and self.path is None:
            raise broken_rule("fetch.chunk.cache.path", "is missing; the disk cache needs a folder")
        return self


class FetchSettings(Part):
    """The caches of a reader; ``chunk_cache`` is None when none is set."""

    manifest_cache: ManifestCacheSettings = ManifestCacheSettings()
    index_cache: IndexCacheSettings = IndexCacheSettings()
    chunk_cache: ChunkCacheSettings | None = None


def read_fetch(reader: SettingsReader) -> FetchSettings | None:
    """The caches, or None after noting what is wrong."""
    manifest_cache, index_cache = reader.read(ManifestCacheSettings), reader.read(IndexCacheSettings)
    # without a class the plugin does not look at the cache's other properties
    chunk_cache = reader.read(ChunkCacheSettings) if _CHUNK_CACHE_CLASS in reader.values else None
    if manifest_cache is None or index_cache is None:
        return None
    return FetchSettings(manifest_cache=manifest_cache, index_cache=index_cache, chunk_cache=chunk_cache)
