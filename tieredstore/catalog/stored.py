"""Segments with their manifests, read one by one or many at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.errors import ManifestCorrupt, ObjectNotFound, SegmentNotFound
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.process.parallel import in_parallel
from tieredstore.remote.manifest_object import read_manifest


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A whole segment of a store, its manifest read."""

    objects: SegmentObjects
    manifest: SegmentManifest

    @property
    def manifest_object(self) -> ObjectInfo:
        """The manifest's object as it was listed."""
        return _manifest_of(self.objects)

    @property
    def metadata(self) -> RemoteLogSegmentMetadata:
        """What the key and the manifest tell; -1 and () where the manifest carries no segment metadata.

        The key decides where the two differ: objects are found by it, and the manifest is informational there.
        """
        recorded = self.manifest.metadata
        size = self.manifest.chunk_index.original_file_size
        if recorded is None:
            return RemoteLogSegmentMetadata(self.objects.segment_id, self.objects.start_offset, -1, size)
        return dataclasses.replace(
            recorded,
            remote_log_segment_id=self.objects.segment_id,
            start_offset=self.objects.start_offset,
            segment_size_in_bytes=size,
        )


def load_segment(store: ObjectStore, objects: SegmentObjects) -> StoredSegment:
    """The segment with its manifest, by one request; SegmentNotFound or ManifestCorrupt, naming its path.

    A manifest that is listed with more bytes than one can have is not fetched.
    """
    info = _manifest_of(objects)
    # The path without the prefix, which may have to stay out of messages.
    name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
    # The listing has the size: what cannot be a manifest costs no request.
    if info.size > MAX_MANIFEST_SIZE:
        raise ManifestCorrupt(f"{name} is damaged: it has {info.size} bytes, more than any manifest")
    try:
        # Bounded again: what was listed may have been replaced since.
        return StoredSegment(objects, read_manifest(store, info.key, name))
    except ObjectNotFound as error:
        raise SegmentNotFound(f"{name} was deleted while it was listed") from error


def load_segments(
    store: ObjectStore, listed: Iterable[SegmentObjects], pool: Executor, *, at_once: int = 64
) -> Iterator[StoredSegment | SegmentNotFound | ManifestCorrupt]:
    """Many manifests, read in parallel, in the order listed; ``at_once`` bounds what is in flight.

    A segment that cannot be loaded takes its place as the error, for the caller to report.
    """

    def load(objects: SegmentObjects) -> StoredSegment | SegmentNotFound | ManifestCorrupt:
        try:
            return load_segment(store, objects)
        except (SegmentNotFound, ManifestCorrupt) as error:
            return error

    return in_parallel(pool, load, listed, at_once=at_once)


def _manifest_of(objects: SegmentObjects) -> ObjectInfo:
    info = objects.find(Suffix.MANIFEST)
    if info is None:
        raise SegmentNotFound(f"segment {objects.segment_id.id} at offset {objects.start_offset} has no manifest")
    return info
