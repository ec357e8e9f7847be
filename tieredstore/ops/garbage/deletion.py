"""A segment out of a store."""

from __future__ import annotations

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.remote.manifest_object import delete_manifest_first


def delete_objects(store: ObjectStore, objects: SegmentObjects) -> None:
    """Delete what was listed of a segment, the manifest first, so that a half deleted segment is never visible."""
    delete_manifest_first(store, [info.key for _, info in objects.objects])
