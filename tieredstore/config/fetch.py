"""Settings of a reader and its caches: ``fetch.*``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, model_validator

from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.values import BOOLEAN, PATH, integer, java_class, long

if TYPE_CHECKING:
    from tieredstore.config.source import SettingsReader

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


def _retention(name: str, what: str, default: int) -> int:
    kept = f"Time for which the cache keeps {what} after its last use. -1: forever."
    return Field(default=default, alias=name, description=kept)


def _get_timeout(name: str, what: str) -> int:
    return Field(default=10000, alias=name, description=f"Time that a reader waits for {what} to load.")


def _threads(name: str, what: str) -> int:
    return Field(default=0, alias=name, description=f"Number of threads that load {what}. 0: one per processor.")


class ManifestCacheSettings(SettingsGroup):
    """The cache of manifests, in memory."""

    size: Annotated[int, long(-1)] = Field(
        default=1000,
        alias="fetch.manifest.cache.size",
        description="Maximum number of manifests in the cache. -1: no limit.",
    )
    retention_ms: Annotated[int, long(-1)] = _retention("fetch.manifest.cache.retention.ms", "a manifest", 3600000)
    get_timeout_ms: Annotated[int, long(1)] = _get_timeout("fetch.manifest.cache.get.timeout.ms", "a manifest")
    thread_pool_size: Annotated[int, integer(0, 1024)] = _threads("fetch.manifest.cache.thread.pool.size", "manifests")


class IndexCacheSettings(SettingsGroup):
    """The cache of index files, in memory."""

    size: Annotated[int, long(-1)] = Field(
        default=10485760,
        alias="fetch.indexes.cache.size",
        description="Maximum number of bytes in the cache of index files. -1: no limit.",
    )
    retention_ms: Annotated[int, long(-1)] = _retention("fetch.indexes.cache.retention.ms", "an index file", 600000)
    get_timeout_ms: Annotated[int, long(1)] = _get_timeout("fetch.indexes.cache.get.timeout.ms", "an index file")
    thread_pool_size: Annotated[int, integer(0, 1024)] = _threads("fetch.indexes.cache.thread.pool.size", "index files")


class ChunkCacheSettings(SettingsGroup):
    """The cache of chunks, in memory or on disk."""

    kind: Annotated[Literal["memory", "disk"], java_class("memory, disk or the plugin's Java class", _chunk_cache)] = (
        Field(alias=_CHUNK_CACHE_CLASS, description="Kind of the cache of chunks. If unset, chunks are not cached.")
    )
    size: Annotated[int, long(-1)] = Field(
        alias="fetch.chunk.cache.size",
        description=(
            "Maximum number of bytes of cached chunks. -1: no limit. The limit of a disk cache includes index files."
        ),
    )
    retention_ms: Annotated[int, long(-1)] = _retention("fetch.chunk.cache.retention.ms", "a chunk", 600000)
    get_timeout_ms: Annotated[int, long(1)] = _get_timeout("fetch.chunk.cache.get.timeout.ms", "a chunk")
    thread_pool_size: Annotated[int, integer(0, 1024)] = _threads("fetch.chunk.cache.thread.pool.size", "chunks")
    path: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="fetch.chunk.cache.path",
        description=(
            "Folder of the disk cache, which survives restarts. Do not use the JVM plugin's folder: the plugin "
            "empties its folder when it starts."
        ),
    )
    encrypted: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="fetch.chunk.cache.encrypted",
        description=(
            "true: the cache holds the chunks of encrypted segments encrypted. false: it holds them as plaintext, "
            "also on disk. The plugin lacks this property."
        ),
    )

    @model_validator(mode="after")
    def _disk_has_a_path(self) -> ChunkCacheSettings:
        if self.kind == "disk" and self.path is None:
            raise broken_rule("fetch.chunk.cache.path", "is missing: set the folder of the disk cache")
        return self


class FetchSettings(SettingsGroup):
    """Settings of fetches and their caches; ``chunk_cache`` is None unless configured."""

    coalesce_max_bytes: Annotated[int, integer(1)] = Field(
        default=16777216,
        alias="fetch.coalesce.max.bytes",
        description=(
            "Adjacent chunks are fetched in one request, up to this number of log bytes. A larger chunk is "
            "fetched alone. The plugin lacks this property."
        ),
    )
    parallelism: Annotated[int, integer(1, 1024)] = Field(
        default=8,
        alias="fetch.parallelism",
        description="Number of requests that one reader sends in parallel. The plugin lacks this property.",
    )
    read_ahead_bytes: Annotated[int, integer(0)] = Field(
        default=16777216,
        alias="fetch.chunk.cache.prefetch.max.size",
        description="Number of bytes to read ahead for a sequential reader. 0 (the plugin's default): no read-ahead.",
    )
    min_chunk_size: Annotated[int, integer(1)] = Field(
        default=1024,
        alias="fetch.chunk.min.size",
        description=(
            "Refuse a segment with over 65,536 chunks if its chunks are smaller than this and than chunk.size. "
            "A forged manifest could list millions of tiny chunks. The plugin lacks this property."
        ),
    )
    rate_limit: Annotated[int | None, integer(1048576, 1000000000)] = Field(
        default=None,
        alias="fetch.rate.limit.bytes.per.second",
        description=(
            "Limit for the sum of all downloads of the process. If unset, there is no limit. The plugin lacks "
            "this property."
        ),
    )
    manifest_cache: ManifestCacheSettings = ManifestCacheSettings()
    index_cache: IndexCacheSettings = IndexCacheSettings()
    chunk_cache: ChunkCacheSettings | None = None


def read_fetch(reader: SettingsReader) -> FetchSettings | None:
    """Return the settings of ``fetch.*``; None if the reader has recorded problems."""
    # Without ``fetch.chunk.cache.class`` there is no chunk cache. The plugin then ignores the other properties of the
    # chunk cache, and so does this package.
    cached = _CHUNK_CACHE_CLASS in reader.values
    caches = {
        "manifest_cache": reader.read(ManifestCacheSettings),
        "index_cache": reader.read(IndexCacheSettings),
        "chunk_cache": reader.read(ChunkCacheSettings) if cached else None,
    }
    return reader.read(FetchSettings, fields={name: cache for name, cache in caches.items() if cache is not None})
