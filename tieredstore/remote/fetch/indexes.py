"""Indexes of a store's segments, cached in memory, and in the disk cache if there is one."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO, Final

from tieredstore.errors import (
    CorruptDataError,
    IndexesCorruptError,
    IndexNotRecordedError,
    ObjectNotFoundError,
    RangeNotSatisfiableError,
)
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import IndexEntry, SegmentManifest
from tieredstore.model import IndexType, RemoteLogSegmentMetadata
from tieredstore.remote.fetch.chunk_cache import LAYOUT_DIGEST_SIZE, ChunkKey
from tieredstore.transform.chunks import fresh_memory

if TYPE_CHECKING:
    from tieredstore.remote.diskcache.cache import DiskChunkCache
    from tieredstore.remote.fetch.cached_loads import CachedLoads
    from tieredstore.remote.fetch.manifests import Manifests, OpenManifest
    from tieredstore.transform.encryption import SegmentCipher

INDEX_ENTRY_COST: Final = 512
"""Approximate overhead in bytes of an entry in the index cache."""


class Indexes:
    """Indexes of a store's segments. One request fetches all indexes of a segment, and one cache entry holds them.

    ``fetch.indexes.cache.*`` configures the cache in memory. A ``disk`` cache keeps indexes too, in the stored form.
    """

    def __init__(
        self, manifests: Manifests, *, loads: CachedLoads[dict[IndexType, bytes]], disk: DiskChunkCache | None
    ) -> None:
        self._manifests = manifests
        self._loads = loads
        self._disk = disk

    def get(self, metadata: RemoteLogSegmentMetadata, types: Iterable[IndexType]) -> dict[IndexType, BinaryIO]:
        """Return the requested indexes that the segment has, by at most one request for the manifest and one for the
        indexes.
        """
        opened = self._manifests.get(metadata)
        entries = dict(opened.manifest.segment_indexes.entries())
        recorded = [kind for kind in types if kind in entries]
        # Empty indexes need no request, because they take no bytes in the store, even in encrypted segments.
        if not any(entries[kind].size for kind in recorded):
            return {kind: io.BytesIO() for kind in recorded}
        key = self._manifests.layout.data_key(metadata, Suffix.INDEXES)
        indexes = self._loads.get(key, lambda: self._load(key, metadata, opened))
        return {kind: io.BytesIO(indexes[kind]) for kind in recorded}

    def one(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> BinaryIO:
        """Return one index. Raise IndexNotRecordedError if the segment was copied without this index."""
        recorded = self.get(metadata, [index_type])
        if index_type not in recorded:
            raise IndexNotRecordedError(f"{metadata} was copied without a {index_type.value} index")
        return recorded[index_type]

    def close(self) -> None:
        """Empty the cache."""
        self._loads.close()

    def forget(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Drop the segment's indexes from the cache in memory."""
        self._loads.discard(self._manifests.layout.data_key(metadata, Suffix.INDEXES))

    def _load(self, key: str, metadata: RemoteLogSegmentMetadata, opened: OpenManifest) -> dict[IndexType, bytes]:
        disk, manifest = self._disk, opened.manifest
        if disk is None:
            return _open_indexes(self._fetch(key, metadata, manifest), opened, metadata)
        entry = self._entry_key(key, manifest)
        # Allocate memory only for an existing entry, because a damaged manifest may state any size.
        held = fresh_memory(manifest.segment_indexes.total_size) if entry in disk else None
        if held is not None and disk.read(entry, held):
            return _open_indexes(bytes(held), opened, metadata)
        # One object holds all indexes of the segment, so fetch them with one request.
        stored = self._fetch(key, metadata, manifest)
        indexes = _open_indexes(stored, opened, metadata)
        disk.put(entry, stored)
        return indexes

    def _fetch(self, key: str, metadata: RemoteLogSegmentMetadata, manifest: SegmentManifest) -> bytes:
        self._manifests.counters.add(index_requests=1)
        try:
            return self._manifests.store.get(key, 0, manifest.segment_indexes.total_size)
        except (ObjectNotFoundError, RangeNotSatisfiableError) as error:
            raise self._manifests.why_missing(metadata, key, error, IndexesCorruptError) from error

    def _entry_key(self, key: str, manifest: SegmentManifest) -> ChunkKey:
        """Return the key of a segment's indexes in the disk cache."""
        aad = b"" if manifest.encryption is None else manifest.encryption.aad
        layout = f"{manifest.segment_indexes!r} {aad.hex()}".encode()
        digest = hashlib.blake2b(layout, digest_size=LAYOUT_DIGEST_SIZE).digest()
        return ChunkKey(self._manifests.store.identity, key, 0, digest)


def _open_indexes(stored: bytes, opened: OpenManifest, metadata: RemoteLogSegmentMetadata) -> dict[IndexType, bytes]:
    """Decrypt every recorded index."""
    return {
        kind: _open_index(opened.cipher, stored, entry, f"{kind.value} index of {metadata}")
        for kind, entry in opened.manifest.segment_indexes.entries()
    }


def _open_index(cipher: SegmentCipher | None, stored: bytes, entry: IndexEntry, what: str) -> bytes:
    unit = stored[entry.position : entry.position + entry.size]
    if cipher is None or not unit:
        return unit
    try:
        return cipher.open(unit)
    except CorruptDataError as error:
        raise IndexesCorruptError(f"the {what} cannot be decrypted: {error}") from error


def weight_of_indexes(indexes: dict[IndexType, bytes]) -> int:
    """Return the memory in bytes that a segment's indexes take."""
    return INDEX_ENTRY_COST + sum(len(content) for content in indexes.values())
