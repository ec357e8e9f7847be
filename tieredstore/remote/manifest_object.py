"""A segment's manifest as an object: it commits the segment, is read first and deleted first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ManifestCorruptError, SegmentCorruptError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest
from tieredstore.format.manifest_rules import KnownSegment, ManifestRules

if TYPE_CHECKING:
    from tieredstore.config import Settings


def rules_of(settings: Settings) -> ManifestRules:
    """Return the settings' demands on manifests; chunks as small as these settings would write are always read."""
    encryption = settings.encryption
    return ManifestRules(
        min(settings.fetch.min_chunk_size, settings.chunk_size), encryption is not None and encryption.required
    )


def read_manifest(
    store: ObjectStore, key: str, shown: str, known: KnownSegment, rules: ManifestRules
) -> SegmentManifest:
    """Read the manifest under ``key``, by one request; errors as in the two functions below.

    Every reader of a manifest uses this function, or the two below.
    """
    return parse_manifest(read_manifest_text(store, key, shown), shown, known, rules)


def read_manifest_text(store: ObjectStore, key: str, shown: str) -> bytes:
    """Read the stored manifest by one request.

    Raise ObjectNotFoundError; ManifestCorruptError, naming it as ``shown``, for an object larger than any manifest,
    which is not read.
    """
    return manifest_text(store.get_small(key, MAX_MANIFEST_SIZE), shown)


def manifest_text(raw: bytes | None, shown: str) -> bytes:
    """Return the result of a small read; raise ManifestCorruptError if it is None, for an object larger than any
    manifest.
    """
    if raw is None:
        raise ManifestCorruptError(
            f"{shown} is damaged: it has more than {MAX_MANIFEST_SIZE} bytes, which no manifest has"
        )
    return raw


def parse_manifest(raw: bytes, shown: str, known: KnownSegment, rules: ManifestRules) -> SegmentManifest:
    """Parse the text. Raise ManifestCorruptError, naming it as ``shown``; SegmentCorruptError if it is not the
    ``known`` segment's, or breaks the ``rules``.
    """
    try:
        return SegmentManifest.from_bytes(raw, known, rules)
    except ManifestCorruptError as error:
        raise ManifestCorruptError(f"{shown} is damaged: {error}") from error
    except SegmentCorruptError as error:
        raise SegmentCorruptError(f"{shown} is refused: {error}") from error


def delete_manifest_first(store: ObjectStore, keys: Iterable[str]) -> None:
    """Delete these objects of one segment: the manifest, then the rest, by at most two requests.

    While a manifest exists, its objects must: so a half deleted segment is never visible. If the manifest cannot be
    deleted, nothing is. Deleting absent objects succeeds.
    """
    ending = f".{Suffix.MANIFEST.value}"
    every = list(keys)
    for batch in ([key for key in every if key.endswith(ending)], [key for key in every if not key.endswith(ending)]):
        if batch:
            store.delete(batch)
