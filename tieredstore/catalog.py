"""Which segments a store holds, by listing alone: no broker, no metadata topic."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.errors import ManifestCorrupt, ObjectNotFound, SegmentNotFound
from tieredstore.format.keys import ObjectKey, Suffix, listing_prefix, parse_key
from tieredstore.format.manifest import SegmentManifest
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, Uuid


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """The objects found under one main path; up to three."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    objects: tuple[tuple[Suffix, ObjectInfo], ...]

    def find(self, suffix: Suffix) -> ObjectInfo | None:
        """The object with this suffix, if it is there."""
        return next((info for found, info in self.objects if found is suffix), None)

    @property
    def missing(self) -> tuple[Suffix, ...]:
        """The suffixes of the objects that are not there: () for a whole segment."""
        return tuple(suffix for suffix in Suffix if self.find(suffix) is None)

    @property
    def stored_size(self) -> int:
        """Bytes of all objects found."""
        return sum(info.size for _, info in self.objects)


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A whole segment of a store, its manifest read."""

    objects: SegmentObjects
    manifest: SegmentManifest

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


def list_segments(
    store: ObjectStore,
    prefix: str = "",
    *,
    topic: str | None = None,
    topic_id: Uuid | None = None,
    partition: int | None = None,
) -> Iterator[SegmentObjects]:
    """The segments under ``key.prefix``, in key order, incomplete ones too; objects that are not ours are passed over.

    One listing, consumed page by page.
    """
    listed = store.list(listing_prefix(prefix, topic, topic_id, partition))
    ours = ((key, info) for info in listed if (key := parse_key(prefix, info.key)) is not None)
    wanted = (found for found in ours if _matches(found[0], topic, topic_id, partition))
    # The three keys of a segment differ in their suffixes only, so that a sorted listing has them side by side.
    for _, group in itertools.groupby(wanted, key=lambda found: found[0].main_path):
        objects = list(group)
        first = objects[0][0]
        yield SegmentObjects(first.segment_id, first.start_offset, tuple((key.suffix, info) for key, info in objects))


def load_segment(store: ObjectStore, objects: SegmentObjects) -> StoredSegment:
    """The segment with its manifest, by one request; SegmentNotFound or ManifestCorrupt, naming the key."""
    info = objects.find(Suffix.MANIFEST)
    if info is None:
        raise SegmentNotFound(f"segment {objects.segment_id.id} at offset {objects.start_offset} has no manifest")
    try:
        return StoredSegment(objects, SegmentManifest.from_bytes(store.get(info.key)))
    except ObjectNotFound as error:
        raise SegmentNotFound(f"{info.key} was deleted while it was listed") from error
    except ManifestCorrupt as error:
        raise ManifestCorrupt(f"{info.key} is damaged: {error}") from error


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

    remaining = iter(listed)
    while page := list(itertools.islice(remaining, at_once)):
        yield from pool.map(load, page)


def _matches(key: ObjectKey, topic: str | None, topic_id: Uuid | None, partition: int | None) -> bool:
    where = key.segment_id.topic_id_partition
    return (
        (topic is None or where.topic == topic)
        and (topic_id is None or where.topic_id == topic_id)
        and (partition is None or where.partition == partition)
    )
