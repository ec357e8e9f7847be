"""The manifests of a store: read, checked, their data keys opened, and cached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tieredstore.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    RangeNotSatisfiableError,
    SegmentNotFoundError,
    UnknownKeyError,
    WrongKeyError,
    excerpt,
)
from tieredstore.format.chunk_index import VariableChunkIndex
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest_rules import DEFAULT_RULES, KnownSegment, ManifestRules
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.remote.manifest_object import read_manifest
from tieredstore.remote.statistics import FetchCounters
from tieredstore.transform.encryption import DataKey, SegmentCipher

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.format.manifest import SegmentManifest
    from tieredstore.remote.fetch.cached_loads import CachedLoads
    from tieredstore.remote.layout import KeyLayout
    from tieredstore.transform.keyring import KeyRing


_MANIFEST_COST: Final = 64 << 10
"""Bytes in the cache that count as one manifest; one of 20,000 chunks takes as many."""

_EPOCH_COST: Final = 128
"""Bytes that a leader epoch takes in memory, roughly."""


@dataclass(frozen=True, slots=True)
class OpenManifest:
    """A manifest and its opened data key. ``cipher`` raises if the key ring lacks the pair."""

    manifest: SegmentManifest
    opened: SegmentCipher | UnknownKeyError | WrongKeyError | None

    @property
    def cipher(self) -> SegmentCipher | None:
        """The cipher of the segment's units; None for an unencrypted segment."""
        if isinstance(self.opened, UnknownKeyError | WrongKeyError):
            raise self.opened.with_traceback(None)
        return self.opened


def weight_of_manifest(opened: OpenManifest) -> int:
    """Return the memory in ordinary manifests: 1, except for hostile ones, which may take a thousand times more."""
    manifest = opened.manifest
    held = 0
    if isinstance(manifest.chunk_index, VariableChunkIndex):
        held += len(manifest.chunk_index.packed_sizes)
    if manifest.encryption is not None:
        held += len(manifest.encryption.wrapped) + len(manifest.encryption.aad) + 4 * len(manifest.encryption.key_id)
    if manifest.metadata is not None:
        held += _EPOCH_COST * len(manifest.metadata.segment_leader_epochs)
    return 1 + held // _MANIFEST_COST


class Manifests:
    """The manifests of a store, cached by key: ``fetch.manifest.cache.*``. Absence is not cached.

    Indexes and logs are found through them: in the same ``store``, by the same ``layout``, and counted beside them.
    """

    def __init__(
        self,
        store: ObjectStore,
        layout: KeyLayout,
        key_ring: KeyRing | None,
        *,
        loads: CachedLoads[OpenManifest],
        rules: ManifestRules = DEFAULT_RULES,
    ) -> None:
        self.store = store
        self.layout = layout
        self._key_ring = key_ring
        self._loads = loads
        self.counters: FetchCounters = FetchCounters()
        self._rules = rules

    def get(self, metadata: RemoteLogSegmentMetadata) -> OpenManifest:
        """Return the segment's manifest, by at most one request.

        Raise SegmentNotFoundError without one, SegmentCorruptError for another segment's.
        """
        key = self.layout.key(metadata, Suffix.MANIFEST)
        opened = self._loads.get(key, lambda: self._load(key, metadata))
        if isinstance(opened.opened, UnknownKeyError | WrongKeyError):
            # Not cached: its data key may soon be wrapped by another pair that is on the ring.
            self._loads.discard(key)
        return opened

    def close(self) -> None:
        """Empty the cache."""
        self._loads.close()

    def forget(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Drop the segment's manifest from the cache."""
        self._loads.discard(self.layout.key(metadata, Suffix.MANIFEST))

    def why_missing(
        self,
        metadata: RemoteLogSegmentMetadata,
        key: str,
        error: ObjectNotFoundError | RangeNotSatisfiableError,
        corrupt: type[CorruptDataError],
    ) -> CorruptDataError | SegmentNotFoundError:
        """Return the reason why a manifest's object is missing or short: corruption, unless the segment was deleted."""
        # The cached manifest may be that of a deleted segment.
        self.forget(metadata)
        try:
            self.store.head(self.layout.key(metadata, Suffix.MANIFEST))
        except ObjectNotFoundError:
            return SegmentNotFoundError(f"{metadata} was deleted while it was read")
        what = "is missing" if isinstance(error, ObjectNotFoundError) else "is shorter than its manifest says"
        return corrupt(f"{self.layout.show(key)} {what}, and its manifest exists: the segment is damaged")

    def _load(self, key: str, metadata: RemoteLogSegmentMetadata) -> OpenManifest:
        self.counters.add(manifest_requests=1)
        shown = self.layout.show(key)
        known = KnownSegment(metadata.remote_log_segment_id, metadata.start_offset)
        try:
            manifest = read_manifest(self.store, key, shown, known, self._rules)
        except ObjectNotFoundError as error:
            raise SegmentNotFoundError(f"{metadata} is not in the store: {shown} does not exist") from error
        # Unwrapped once for all reads of the segment: RSA takes longer than decrypting a chunk.
        return OpenManifest(manifest, self._open(manifest))

    def _open(self, manifest: SegmentManifest) -> SegmentCipher | UnknownKeyError | WrongKeyError | None:
        wrapped = manifest.encryption
        if wrapped is None:
            return None
        if self._key_ring is None:
            return UnknownKeyError(
                f"the segment is encrypted (key pair {excerpt(wrapped.key_id)!r}) and no key ring is configured; set "
                "encryption.enabled, encryption.key.pair.id and encryption.key.pairs"
            )
        try:
            return SegmentCipher(DataKey(self._key_ring.unwrap(wrapped.key_id, wrapped.wrapped), wrapped.aad))
        except (UnknownKeyError, WrongKeyError) as error:
            return error  # a reader of the manifest alone needs no key
