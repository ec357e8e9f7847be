"""Manifests and indexes: small, asked for again and again, cached, and loaded once however many wait for them."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import BinaryIO, Final, Generic, Protocol, TypeVar

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import (
    CorruptData,
    IndexesCorrupt,
    IndexNotRecorded,
    ManifestCorrupt,
    ObjectNotFound,
    RangeNotSatisfiable,
    SegmentNotFound,
    StoreUnavailable,
    UnknownKey,
)
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, IndexEntry, SegmentManifest
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.model import IndexType, RemoteLogSegmentMetadata
from tieredstore.remote.bounded_map import BoundedMap
from tieredstore.remote.layout import KeyLayout
from tieredstore.remote.statistics import FetchCounters
from tieredstore.transform.encryption import DataKey, SegmentCipher
from tieredstore.transform.keyring import KeyRing

Value = TypeVar("Value")


class BlobCache(Protocol):
    """Small values that outlive the process; a damaged one is None."""

    def get(self, key: str) -> bytes | None:
        """The value, or None."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Keep a value; never raises."""
        ...


class CachedLoads(Generic[Value]):
    """A cache that runs one load a key, whoever waits for it. Safe from several threads.

    A caller that gives up does not cancel the load; failures are not kept. ``timeout_ms`` is how long a caller waits.
    """

    def __init__(self, cache: BoundedMap[str, Value], pool: Executor, timeout_ms: int, what: str) -> None:
        self._cache = cache
        self._pool = pool
        self._timeout_s = timeout_ms / 1000
        self._what = what
        self._lock = threading.RLock()
        self._running: dict[str, Future[Value]] = {}

    def get(self, key: str, load: Callable[[], Value]) -> Value:
        """The cached value, or what ``load`` returns or raises; StoreUnavailable if that takes too long."""
        found = self._cache.get(key)
        if found is not None:
            return found
        future = self._started(key, load)
        try:
            return future.result(self._timeout_s)
        except FutureTimeoutError as error:
            if future.done():
                raise  # the load's own TimeoutError, not ours
            waited = f"{self._timeout_s:g} s"
            raise StoreUnavailable(f"{self._what} did not come within {waited}; it goes on loading") from error

    def discard(self, key: str) -> None:
        """Forget a value."""
        self._cache.discard(key)

    def _started(self, key: str, load: Callable[[], Value]) -> Future[Value]:
        with self._lock:
            if key in self._running:
                return self._running[key]
            # A load puts its value into the cache before it leaves `_running`: one that ended meanwhile is there.
            if (found := self._cache.get(key)) is not None:
                future: Future[Value] = Future()
                future.set_result(found)
                return future
            future = self._pool.submit(self._run, key, load)
            if not future.done():  # an executor may run the task before submit returns
                self._running[key] = future
            return future

    def _run(self, key: str, load: Callable[[], Value]) -> Value:
        try:
            loaded = load()
            self._cache.put(key, loaded)
            return loaded
        finally:
            with self._lock:
                self._running.pop(key, None)


@dataclass(frozen=True, slots=True)
class OpenManifest:
    """A manifest and what its data key opens. ``cipher`` raises if the key ring does not hold the pair."""

    manifest: SegmentManifest
    opened: SegmentCipher | UnknownKey | ManifestCorrupt | None

    @property
    def cipher(self) -> SegmentCipher | None:
        """What opens the segment's units; None for a segment that is not encrypted."""
        if isinstance(self.opened, UnknownKey | ManifestCorrupt):
            raise self.opened.with_traceback(None)
        return self.opened


def _read_manifest(store: ObjectStore, key: str) -> SegmentManifest:
    """The manifest under ``key``, by one request; ObjectNotFound or ManifestCorrupt. One too large is not read."""
    raw = store.get_small(key, MAX_MANIFEST_SIZE)
    if raw is None:
        raise ManifestCorrupt(f"it has more than {MAX_MANIFEST_SIZE} bytes, which no manifest has")
    return SegmentManifest.from_bytes(raw)


class Manifests:
    """The manifests of a store, cached by key: ``fetch.manifest.cache.*``. What is absent is asked for each time."""

    def __init__(
        self,
        store: ObjectStore,
        layout: KeyLayout,
        key_ring: KeyRing | None,
        *,
        loads: CachedLoads[OpenManifest],
        counters: FetchCounters,
    ) -> None:
        self._store = store
        self._layout = layout
        self._key_ring = key_ring
        self._loads = loads
        self._counters = counters

    def get(self, metadata: RemoteLogSegmentMetadata) -> OpenManifest:
        """The segment's manifest, by at most one request; SegmentNotFound without one."""
        key = self._layout.key(metadata, Suffix.MANIFEST)
        return self._loads.get(key, lambda: self._load(key, metadata))

    def forget(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Drop the segment's manifest from the cache."""
        self._loads.discard(self._layout.key(metadata, Suffix.MANIFEST))

    def why_missing(
        self,
        metadata: RemoteLogSegmentMetadata,
        key: str,
        error: ObjectNotFound | RangeNotSatisfiable,
        corrupt: type[CorruptData],
    ) -> CorruptData | SegmentNotFound:
        """Why an object that a manifest points to is missing or short: corruption, unless a delete went by."""
        self.forget(metadata)
        try:
            self._store.head(self._layout.key(metadata, Suffix.MANIFEST))
        except ObjectNotFound:
            return SegmentNotFound(f"{metadata} was deleted while it was read")
        what = "is missing" if isinstance(error, ObjectNotFound) else "is shorter than its manifest says"
        return corrupt(f"{self._layout.shown(key)} {what}, and its manifest exists: the segment is damaged")

    def _load(self, key: str, metadata: RemoteLogSegmentMetadata) -> OpenManifest:
        self._counters.add(manifest_requests=1)
        try:
            manifest = _read_manifest(self._store, key)
        except ObjectNotFound as error:
            raise SegmentNotFound(
                f"{metadata} is not in the store: {self._layout.shown(key)} does not exist"
            ) from error
        except ManifestCorrupt as error:
            raise ManifestCorrupt(f"{self._layout.shown(key)} is damaged: {error}") from error
        return OpenManifest(manifest, self._open(manifest))

    def _open(self, manifest: SegmentManifest) -> SegmentCipher | UnknownKey | ManifestCorrupt | None:
        wrapped = manifest.encryption
        if wrapped is None:
            return None
        if self._key_ring is None:
            return UnknownKey(
                f"the segment is encrypted (key pair {wrapped.key_id!r}) and no key ring is configured; set "
                "encryption.enabled, encryption.key.pair.id and encryption.key.pairs"
            )
        try:
            return SegmentCipher(DataKey(self._key_ring.unwrap(wrapped.key_id, wrapped.wrapped), wrapped.aad))
        except (UnknownKey, ManifestCorrupt) as error:
            return error  # who only looks at the manifest needs no key


class Indexes:
    """The indexes of a store's segments: all of a segment's come by one request and are cached as one entry.

    ``fetch.indexes.cache.*``; on disk too if ``blobs`` is given, as plaintext, or as stored if ``keep_stored``.
    """

    def __init__(
        self,
        store: ObjectStore,
        layout: KeyLayout,
        manifests: Manifests,
        *,
        loads: CachedLoads[dict[IndexType, bytes]],
        counters: FetchCounters,
        blobs: BlobCache | None = None,
        keep_stored: bool = False,
    ) -> None:
        self._store = store
        self._layout = layout
        self._manifests = manifests
        self._loads = loads
        self._counters = counters
        self._blobs = blobs
        self._keep_stored = keep_stored

    def get(self, metadata: RemoteLogSegmentMetadata, types: Iterable[IndexType]) -> dict[IndexType, BinaryIO]:
        """Those of the indexes asked for that were recorded, by at most one request beside the manifest's."""
        opened = self._manifests.get(metadata)
        entries = dict(opened.manifest.segment_indexes.recorded())
        wanted = [kind for kind in types if kind in entries]
        if not any(entries[kind].size for kind in wanted):
            return {kind: io.BytesIO() for kind in wanted}
        key = self._layout.data_key(metadata, Suffix.INDEXES)
        found = self._loads.get(key, lambda: self._load(key, metadata, opened))
        return {kind: io.BytesIO(found[kind]) for kind in wanted}

    def one(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> BinaryIO:
        """One index; IndexNotRecorded if the segment was copied without it."""
        found = self.get(metadata, [index_type])
        if index_type not in found:
            raise IndexNotRecorded(f"{metadata} was copied without a {index_type.value} index")
        return found[index_type]

    def forget(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Drop the segment's indexes from the cache in memory."""
        self._loads.discard(self._layout.data_key(metadata, Suffix.INDEXES))

    def _load(self, key: str, metadata: RemoteLogSegmentMetadata, opened: OpenManifest) -> dict[IndexType, bytes]:
        blob_key = self._blob_key(key, opened.manifest)
        found = self._from_blob(blob_key, metadata, opened)
        if found is None:
            stored = self._fetch(key, metadata, opened.manifest)
            found = _opened(stored, opened, metadata)
            if self._blobs is not None:
                self._blobs.put(blob_key, stored if self._keep_stored else b"".join(found.values()))
        return found

    def _fetch(self, key: str, metadata: RemoteLogSegmentMetadata, manifest: SegmentManifest) -> bytes:
        self._counters.add(index_requests=1)
        try:
            return self._store.get(key, 0, manifest.segment_indexes.total_size)
        except (ObjectNotFound, RangeNotSatisfiable) as error:
            raise self._manifests.why_missing(metadata, key, error, IndexesCorrupt) from error

    def _from_blob(
        self, blob_key: str, metadata: RemoteLogSegmentMetadata, opened: OpenManifest
    ) -> dict[IndexType, bytes] | None:
        """What the disk holds; None sends the caller to the store for the whole set."""
        blob = None if self._blobs is None else self._blobs.get(blob_key)
        if blob is None:
            return None
        if not self._keep_stored:
            return _split(blob, opened.manifest)
        if len(blob) != opened.manifest.segment_indexes.total_size:
            return None
        return _opened(blob, opened, metadata)

    def _blob_key(self, key: str, manifest: SegmentManifest) -> str:
        """Never the same for two segments, two stores, or two ways of keeping."""
        aad = b"" if manifest.encryption is None else manifest.encryption.aad
        parts = (self._store.identity, key, repr(manifest.segment_indexes), aad.hex(), str(self._keep_stored))
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def _opened(stored: bytes, opened: OpenManifest, metadata: RemoteLogSegmentMetadata) -> dict[IndexType, bytes]:
    """The plaintext of every recorded index."""
    return {
        kind: _opened_one(opened.cipher, stored, entry, f"{kind.value} index of {metadata}")
        for kind, entry in opened.manifest.segment_indexes.recorded()
    }


def _opened_one(cipher: SegmentCipher | None, stored: bytes, entry: IndexEntry, what: str) -> bytes:
    unit = stored[entry.position : entry.position + entry.size]
    if cipher is None or not unit:
        return unit
    try:
        return cipher.open(unit)
    except CorruptData as error:
        raise IndexesCorrupt(f"the {what} does not decrypt: {error}") from error


def _split(plain: bytes, manifest: SegmentManifest) -> dict[IndexType, bytes] | None:
    """The indexes out of their plaintexts in a row; None if that is not as long as they are together."""
    overhead = 0 if manifest.encryption is None else ENCRYPTION_OVERHEAD
    found: dict[IndexType, bytes] = {}
    position = 0
    for kind, entry in manifest.segment_indexes.recorded():
        size = entry.size - overhead if entry.size else 0
        found[kind] = plain[position : position + size]
        position += size
    return found if position == len(plain) else None


INDEX_ENTRY_COST: Final = 512
"""Bytes that an entry of the index cache takes beside its indexes, roughly."""


def weight_of_indexes(indexes: dict[IndexType, bytes]) -> int:
    """Bytes that a segment's indexes take in memory."""
    return INDEX_ENTRY_COST + sum(len(content) for content in indexes.values())
