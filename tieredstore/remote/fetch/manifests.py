"""Manifests of a store: reads, checks and caches them, and opens their data keys."""

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
from tieredstore.format.manifest import DEFAULT_RULES, KnownSegment, ManifestRules
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.remote.manifest_object import parse_manifest, read_manifest_text
from tieredstore.remote.statistics import Counters, FetchStats
from tieredstore.transform.encryption import DataKey, SegmentCipher

if TYPE_CHECKING:
    from tieredstore.backends.base import ObjectStore
    from tieredstore.format.manifest import SegmentManifest
    from tieredstore.remote.fetch.cached_loads import CachedLoads
    from tieredstore.remote.layout import KeyLayout
    from tieredstore.transform.keyring import KeyRing


_MANIFEST_COST: Final = 64 << 10
"""Bytes per unit of cache weight. An ordinary manifest weighs 1. Every 20,000 chunk sizes add one unit."""

_EPOCH_COST: Final = 128
"""Approximate memory of a leader epoch in bytes."""


@dataclass(frozen=True, slots=True)
class OpenManifest:
    """A manifest and its unwrapped data key. ``cipher`` raises an error if the key ring lacks the key pair."""

    manifest: SegmentManifest
    opened: SegmentCipher | UnknownKeyError | WrongKeyError | None

    @property
    def cipher(self) -> SegmentCipher | None:
        """The cipher of the segment's chunks and indexes, or None for an unencrypted segment."""
        if isinstance(self.opened, UnknownKeyError | WrongKeyError):
            raise self.opened.with_traceback(None)
        return self.opened


def weight_of_manifest(opened: OpenManifest) -> int:
    """Return the manifest's weight in the cache: usually 1, but up to a thousand for a manifest that an attacker made
    large.
    """
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
    """Manifests of a store, cached by key as ``fetch.manifest.cache.*`` says. Absence is not cached.

    The readers of indexes and logs share ``store``, ``layout`` and ``counters`` with this object.
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
        self.counters: Counters[FetchStats] = Counters(FetchStats)
        self._rules = rules

    def get(self, metadata: RemoteLogSegmentMetadata) -> OpenManifest:
        """Return the segment's manifest, by at most one request.

        Raise SegmentNotFoundError if the manifest is absent, and SegmentCorruptError if it belongs to another segment.
        """
        key = self.layout.key(metadata, Suffix.MANIFEST)
        opened = self._loads.get(key, lambda: self._load(key, metadata))
        if isinstance(opened.opened, UnknownKeyError | WrongKeyError):
            # Do not cache this failure. A key rotation may soon wrap the data key with a key pair of this key ring.
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
        """Return the error for a missing or truncated object of a segment. It is ``corrupt`` if the manifest still
        exists, else SegmentNotFoundError.
        """
        # Drop the cached manifest, because the segment may have been deleted.
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
            manifest = parse_manifest(read_manifest_text(self.store, key, shown), shown, known, self._rules)
        except ObjectNotFoundError as error:
            raise SegmentNotFoundError(f"{metadata} is not in the store: {shown} does not exist") from error
        # Unwrap the data key once for all reads of the segment, because by RSA, this takes longer than decrypting a
        # chunk.
        return OpenManifest(manifest, self._open(manifest))

    def _open(self, manifest: SegmentManifest) -> SegmentCipher | UnknownKeyError | WrongKeyError | None:
        wrapped = manifest.encryption
        if wrapped is None:
            return None
        if self._key_ring is None:
            return UnknownKeyError(
                f"the segment is encrypted (key pair {excerpt(wrapped.key_id)!r}) but the settings have no key "
                "pairs; set encryption.enabled, encryption.key.pair.id and encryption.key.pairs"
            )
        try:
            return SegmentCipher(DataKey(self._key_ring.unwrap(wrapped.key_id, wrapped.wrapped), wrapped.aad))
        except (UnknownKeyError, WrongKeyError) as error:
            return error  # raised later by ``cipher``, because some readers need the manifest but no key
