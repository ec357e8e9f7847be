"""A segment's manifest as an object: what commits the segment, is read first and is deleted first."""

from __future__ import annotations

from collections.abc import Iterable

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ManifestCorrupt
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest


def read_manifest(store: ObjectStore, key: str, shown: str) -> SegmentManifest:
    """The manifest under ``key``, by one request; ObjectNotFound, or ManifestCorrupt naming it as ``shown``.

    An object with more bytes than any manifest is not read.
    """
    raw = store.get_small(key, MAX_MANIFEST_SIZE)
    if raw is None:
        raise ManifestCorrupt(f"{shown} is damaged: it has more than {MAX_MANIFEST_SIZE} bytes, which no manifest has")
    try:
        return SegmentManifest.from_bytes(raw)
    except ManifestCorrupt as error:
        raise ManifestCorrupt(f"{shown} is damaged: {error}") from error


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
