"""A segment's manifest as an object: what commits the segment, is read first and is deleted first."""

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
    """What the settings demand of manifests; chunks as small as these settings would write are always read."""
    encryption = settings.encryption
    return ManifestRules(
        min(settings.fetch.min_chunk_size, settings.chunk_size), encryption is not None and encryption.required
    )


def read_manifest(
    store: ObjectStore, key: str, shown: str, known: KnownSegment, rules: ManifestRules
) -> SegmentManifest:
    """The manifest under ``key``, by one request: the errors are those of the two functions below.

    All who read one come through here, or take its text in between.
    """
    return parse_manifest(read_manifest_text(store, key, shown), shown, known, rules)


def read_manifest_text(store: ObjectStore, key: str, shown: str) -> bytes:
    """The manifest as it is stored, by one request. ObjectNotFoundError; ManifestCorruptError, naming it as ``shown``,
    for an object with more bytes than any manifest, which is not read."""
    return manifest_text(store.get_small(key, MAX_MANIFEST_SIZE), shown)


def manifest_text(raw: bytes | None, shown: str) -> bytes:
    """What a small read gave, unless that is None for an object with more bytes than any manifest:
    ManifestCorruptError."""
    if raw is None:
        raise ManifestCorruptError(
            f"{shown} is damaged: it has more than {MAX_MANIFEST_SIZE} bytes, which no manifest has"
        )
    return raw


def parse_manifest(raw: bytes, shown: str, known: KnownSegment, rules: ManifestRules) -> SegmentManifest:
    """What the text says. ManifestCorruptError, naming it as ``shown``; SegmentCorruptError if it is not that of the
    ``known`` segment, or breaks the ``rules``."""
    try:
        return SegmentManifest.from_bytes(raw, known, rules)
    except ManifestCorruptError as error:
        raise ManifestCorruptError(f"{shown} is damaged: {error}") from error
    except SegmentCorruptError as error:
        raise SegmentCorruptError(f"{shown} is refused: {error}") from error


def delete_manifest_first(store: ObjectStore, keys: Iterable[str]) -> None:
    """Delete these objects of one segment: the manifest, then the rest, two requests at most.

    While a manifest stands, what it points to must: so a half deleted segment is never seen. If the manifest cannot be
    deleted, nothing is. Deleting what is not there succeeds.
    """
    ending = f".{Suffix.MANIFEST.value}"
    every = list(keys)
    for batch in ([key for key in every if key.endswith(ending)], [key for key in every if not key.endswith(ending)]):
        if batch:
            store.delete(batch)
