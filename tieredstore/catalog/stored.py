"""Loading of segments with their manifests, one by one or many in parallel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.errors import (
    CorruptDataError,
    InvalidKeyError,
    ObjectNotFoundError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.format.keys import Suffix, object_key
from tieredstore.format.manifest import DEFAULT_RULES, MAX_MANIFEST_SIZE, KnownSegment, ManifestRules, SegmentManifest
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.remote.manifest_object import manifest_text, parse_manifest

MAX_MANIFESTS_IN_FLIGHT: Final = MAX_MANIFEST_SIZE
"""The maximum total size of manifests that are read at once. It equals the maximum size of one manifest. Real manifests
have a few KB."""

_MAX_BATCH: Final = 1 << 20
"""Maximum bytes of manifests read in one batch."""

_FIRST_BATCH: Final = 32
"""The number of segments in each of the first batches. These are smaller than later ones, so that every reader soon
gets a batch."""

_AHEAD: Final = 4
"""The maximum number of requests per reader: one is running, the others are done or queued. If the store reads batches,
one request per reader is enough.
"""

_Result = TypeVar("_Result")
_Manifest: TypeAlias = bytes | TieredStoreError | None


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A whole segment of a store with its manifest."""

    objects: SegmentObjects
    manifest: SegmentManifest

    @property
    def metadata(self) -> RemoteLogSegmentMetadata:
        """Metadata from key and manifest. If the manifest has no segment metadata, some fields are -1 or ()."""
        recorded = self.manifest.metadata
        if recorded is None:
            size = self.manifest.chunk_index.original_file_size
            return RemoteLogSegmentMetadata(self.objects.segment_id, self.objects.start_offset, -1, size)
        return recorded

    @property
    def sizes(self) -> dict[Suffix, int]:
        """The sizes of the ``.log`` and ``.indexes`` objects according to the manifest."""
        manifest = self.manifest
        return {Suffix.LOG: manifest.chunk_index.stored_size, Suffix.INDEXES: manifest.segment_indexes.total_size}

    @property
    def last_offset(self) -> int | None:
        """End offset (inclusive); None if the manifest lacks it."""
        return None if self.metadata.end_offset < 0 else self.metadata.end_offset


def load_segment(store: ObjectStore, objects: SegmentObjects, rules: ManifestRules = DEFAULT_RULES) -> StoredSegment:
    """Load the segment with its manifest, with one request.

    Raise SegmentNotFoundError if the manifest is absent, and ManifestCorruptError if it is damaged. Raise
    SegmentCorruptError if the manifest belongs to another segment or breaks the ``rules``. Errors name the manifest's
    path. A manifest listed with more than the maximum size is not fetched.
    """
    (loaded,) = load_batch(store, [objects], rules)
    if isinstance(loaded, TieredStoreError):
        raise loaded
    return loaded


def load_batch(
    store: ObjectStore, batch: Iterable[SegmentObjects], rules: ManifestRules = DEFAULT_RULES
) -> list[StoredSegment | TieredStoreError]:
    """Load several segments as :func:`load_segment` does. An error takes the place of its segment."""
    segments = list(batch)
    return list(map(partial(_load, rules=rules), segments, _manifests(store, segments)))


def _manifests(store: ObjectStore, segments: Iterable[SegmentObjects]) -> Iterator[_Manifest]:
    """Yield the text of each manifest; None for a manifest that is too large, an error for an absent manifest."""
    read = [objects.find(Suffix.MANIFEST) for objects in segments]
    # Skip manifests that are too large according to the listing, to save their requests.
    keys = [info.key for info in read if info is not None and info.size <= MAX_MANIFEST_SIZE]
    # Limit the size again, because the object may have been replaced since it was listed.
    answers = iter(store.get_small_batch(keys, MAX_MANIFEST_SIZE))
    for objects, info in zip(segments, read, strict=True):
        if info is None:
            yield SegmentNotFoundError(
                f"segment {objects.segment_id.id} at offset {objects.start_offset} has no manifest"
            )
        else:
            yield next(answers) if info.size <= MAX_MANIFEST_SIZE else None


def _load(objects: SegmentObjects, read: _Manifest, rules: ManifestRules) -> StoredSegment | TieredStoreError:
    # Name the manifest without its prefix, because the prefix may be confidential.
    name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
    if isinstance(read, ObjectNotFoundError):
        return SegmentNotFoundError(f"{name} was deleted while it was listed")
    if isinstance(read, TieredStoreError):
        return read
    try:
        manifest = parse_manifest(manifest_text(read, name), name, known_segment(objects), rules)
    except CorruptDataError as error:
        return error
    return StoredSegment(objects, manifest)


def load_each(
    store: ObjectStore,
    listed: Iterable[SegmentObjects],
    rules: ManifestRules,
    pool: Executor,
    job: Callable[[SegmentObjects, StoredSegment | TieredStoreError], _Result],
    *,
    at_once: int,
) -> Iterator[_Result]:
    """Load each segment, and call ``job`` with the segment and the result. Yield the results of ``job`` in the order
    listed.

    While the listing continues, up to ``at_once`` requests run in the pool. A request may be for a batch of objects, if
    the store can read several together. The total size of the manifests in flight is bounded too. The caller owns the
    pool, and may also use it for other work.
    """

    def run(batch: _Batch) -> list[_Result]:
        return list(map(job, batch.segments, load_batch(store, batch.segments, rules)))

    results = in_parallel(
        pool,
        run,
        _batches(listed, store.small_batch),
        at_once=at_once if store.small_batch == 1 else max(1, at_once // _AHEAD),
        weigh=lambda batch: batch.weight,
        max_weight=MAX_MANIFESTS_IN_FLIGHT,
    )
    with contextlib.closing(results):
        for batch in results:
            yield from batch


@dataclass(slots=True)
class _Batch:
    """Segments whose manifests, of ``weight`` bytes in total, are read together."""

    segments: list[SegmentObjects] = field(default_factory=list[SegmentObjects])
    weight: int = 0


def _batches(listed: Iterable[SegmentObjects], most: int) -> Iterator[_Batch]:
    """Yield batches of up to ``most`` segments. The first batches are smaller, so that each reader soon gets a
    batch."""
    batch, size, begun = _Batch(), min(most, _FIRST_BATCH), 0
    for objects in listed:
        weight = manifest_size(objects)
        if batch.segments and (len(batch.segments) >= size or batch.weight + weight > _MAX_BATCH):
            yield batch
            batch, begun = _Batch(), begun + 1
            size = min(most, _FIRST_BATCH << begun // READERS)
        batch.segments.append(objects)
        batch.weight += weight
    if batch.segments:
        yield batch


def load_segments(
    store: ObjectStore,
    listed: Iterable[SegmentObjects],
    pool: Executor,
    *,
    rules: ManifestRules = DEFAULT_RULES,
) -> Iterator[StoredSegment | SegmentNotFoundError | CorruptDataError]:
    """Read many manifests in parallel; yield them in the order listed. An error takes the place of a segment that
    cannot be loaded."""
    return load_each(store, listed, rules, pool, _report, at_once=64)


def _report(
    _: SegmentObjects, loaded: StoredSegment | TieredStoreError
) -> StoredSegment | SegmentNotFoundError | CorruptDataError:
    if not isinstance(loaded, StoredSegment | SegmentNotFoundError | CorruptDataError):
        raise loaded
    return loaded


def known_segment(objects: SegmentObjects) -> KnownSegment:
    """Return the facts that a listing has about a segment, for a check of the segment's manifest."""
    log = objects.find(Suffix.LOG)
    return KnownSegment(objects.segment_id, objects.start_offset, None if log is None else log.size)


def look_again(store: ObjectStore, prefix: str, objects: SegmentObjects) -> SegmentObjects:
    """Return a committed segment with the objects that the listing lacks, if they exist. Each takes one request.

    A listing takes many requests, and a segment may be committed between two of them. Then the listing has the
    manifest, but lacks the objects that come before it in key order.
    """
    found = dict(objects.objects) | look_up(store, prefix, objects.main_path, objects.missing)
    return replace(objects, objects=tuple(found.items()))


def look_up(
    store: ObjectStore, prefix: str, main_path: str, suffixes: Iterable[Suffix] = Suffix
) -> dict[Suffix, ObjectInfo]:
    """Return a segment's objects that exist. Each takes one request."""
    found: dict[Suffix, ObjectInfo] = {}
    for suffix in suffixes:
        # A store in a folder raises InvalidKeyError for a special file, which no reader opens.
        with contextlib.suppress(ObjectNotFoundError, InvalidKeyError):
            found[suffix] = store.head(object_key(prefix, main_path, suffix))
    return found


def manifest_size(objects: SegmentObjects) -> int:
    """Return the listed size of the manifest; 0 if there is none. This size bounds the cost of reading the manifest."""
    info = objects.find(Suffix.MANIFEST)
    return 0 if info is None else info.size


def manifest_info(objects: SegmentObjects) -> ObjectInfo:
    """Return the manifest's entry in the listing. Raise SegmentNotFoundError if there is no such entry."""
    info = objects.find(Suffix.MANIFEST)
    if info is None:
        raise SegmentNotFoundError(f"segment {objects.segment_id.id} at offset {objects.start_offset} has no manifest")
    return info
