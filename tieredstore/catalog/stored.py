"""Segments with their manifests, read one by one or many at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.errors import CorruptData, ManifestCorrupt, ObjectNotFound, SegmentNotFound
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest
from tieredstore.format.manifest_rules import DEFAULT_RULES, KnownSegment, ManifestRules
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.process.parallel import in_parallel
from tieredstore.remote.manifest_object import read_manifest

MAX_MANIFESTS_IN_FLIGHT: Final = MAX_MANIFEST_SIZE
"""Bytes of manifests that are read at once: as many as one may have, and a real one has a few KB."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A whole segment of a store, its manifest read."""

    objects: SegmentObjects
    manifest: SegmentManifest

    @property
    def manifest_object(self) -> ObjectInfo:
        """The manifest's object as it was listed."""
        return manifest_info(self.objects)

    @property
    def metadata(self) -> RemoteLogSegmentMetadata:
        """What the key and the manifest tell; -1 and () where the manifest carries no segment metadata."""
        recorded = self.manifest.metadata
        if recorded is None:
            size = self.manifest.chunk_index.original_file_size
            return RemoteLogSegmentMetadata(self.objects.segment_id, self.objects.start_offset, -1, size)
        if recorded.remote_log_segment_id is self.objects.segment_id:
            return recorded
        # The listing's value, equal to the recorded one, which all segments of a partition share.
        return dataclasses.replace(recorded, remote_log_segment_id=self.objects.segment_id)


def load_segment(store: ObjectStore, objects: SegmentObjects, rules: ManifestRules = DEFAULT_RULES) -> StoredSegment:
    """The segment with its manifest, by one request.

    SegmentNotFound; ManifestCorrupt for a damaged manifest, SegmentCorrupt for that of another segment and one that
    breaks the ``rules``, naming its path. A manifest that is listed with more bytes than one can have is not fetched.
    """
    info = manifest_info(objects)
    # The path without the prefix, which may have to stay out of messages.
    name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
    # The listing has the size: what cannot be a manifest costs no request.
    if info.size > MAX_MANIFEST_SIZE:
        raise ManifestCorrupt(f"{name} is damaged: it has {info.size} bytes, more than any manifest")
    try:
        # Bounded again: what was listed may have been replaced since.
        return StoredSegment(objects, read_manifest(store, info.key, name, known_segment(objects), rules))
    except ObjectNotFound as error:
        raise SegmentNotFound(f"{name} was deleted while it was listed") from error


def load_segments(
    store: ObjectStore,
    listed: Iterable[SegmentObjects],
    pool: Executor,
    *,
    rules: ManifestRules = DEFAULT_RULES,
    at_once: int = 64,
) -> Iterator[StoredSegment | SegmentNotFound | CorruptData]:
    """Many manifests, read in parallel, in the order listed; what is in flight is bounded by ``at_once`` and by bytes.

    A segment that cannot be loaded takes its place as the error, for the caller to report.
    """

    def load(objects: SegmentObjects) -> StoredSegment | SegmentNotFound | CorruptData:
        try:
            return load_segment(store, objects, rules)
        except (SegmentNotFound, CorruptData) as error:
            return error

    return in_parallel(pool, load, listed, at_once=at_once, weigh=manifest_size, max_weight=MAX_MANIFESTS_IN_FLIGHT)


def known_segment(objects: SegmentObjects) -> KnownSegment:
    """What the listing tells of a segment before its manifest is read."""
    log = objects.find(Suffix.LOG)
    return KnownSegment(objects.segment_id, objects.start_offset, None if log is None else log.size)


def manifest_size(objects: SegmentObjects) -> int:
    """The listed size of the manifest, which bounds what reading it takes; 0 where there is none."""
    info = objects.find(Suffix.MANIFEST)
    return 0 if info is None else info.size


def manifest_info(objects: SegmentObjects) -> ObjectInfo:
    """The manifest's object as it was listed; SegmentNotFound where there is none."""
    info = objects.find(Suffix.MANIFEST)
    if info is None:
        raise SegmentNotFound(f"segment {objects.segment_id.id} at offset {objects.start_offset} has no manifest")
    return info
