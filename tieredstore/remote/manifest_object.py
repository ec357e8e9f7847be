"""The object with a segment's manifest. The manifest commits the segment: readers read it first, and a deletion removes
it first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ManifestCorruptError, SegmentCorruptError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, KnownSegment, ManifestRules, SegmentManifest

if TYPE_CHECKING:
    from tieredstore.config import Settings


def rules_of(settings: Settings) -> ManifestRules:
    """Return the settings' limits on manifests. The limits always accept the chunk size in these settings."""
    encryption = settings.encryption
    return ManifestRules(
        min(settings.fetch.min_chunk_size, settings.chunk_size), encryption is not None and encryption.required
    )


def read_manifest_text(store: ObjectStore, key: str, shown: str) -> bytes:
    """Read the stored manifest, with one request. Messages show the key as ``shown``.

    Raise ObjectNotFoundError if the manifest is absent. If the object is larger than any manifest, raise
    ManifestCorruptError without reading it.
    """
    return manifest_text(store.get_small(key, MAX_MANIFEST_SIZE), shown)


def manifest_text(raw: bytes | None, shown: str) -> bytes:
    """Return ``raw``, the result of ``get_small``. Raise ManifestCorruptError if ``raw`` is None, because then the
    object was too large.
    """
    if raw is None:
        raise ManifestCorruptError(
            f"{shown} is damaged: it has more than {MAX_MANIFEST_SIZE} bytes, which no manifest has"
        )
    return raw


def parse_manifest(raw: bytes, shown: str, known: KnownSegment, rules: ManifestRules) -> SegmentManifest:
    """Parse the text of a manifest. Messages show the key as ``shown``.

    Raise ManifestCorruptError if the text is damaged. Raise SegmentCorruptError if the manifest does not belong to the
    ``known`` segment or breaks the ``rules``.
    """
    try:
        return SegmentManifest.from_bytes(raw, known, rules)
    except ManifestCorruptError as error:
        raise ManifestCorruptError(f"{shown} is damaged: {error}") from error
    except SegmentCorruptError as error:
        raise SegmentCorruptError(f"{shown} is refused: {error}") from error


def delete_manifest_first(store: ObjectStore, keys: Iterable[str]) -> None:
    """Delete these objects of one segment, manifest first, by at most two requests. Absent objects are no error.

    A manifest must not exist without its objects. If the manifest cannot be deleted, delete no other object.
    """
    ending = f".{Suffix.MANIFEST.value}"
    every = list(keys)
    for batch in ([key for key in every if key.endswith(ending)], [key for key in every if not key.endswith(ending)]):
        if batch:
            store.delete(batch)
