"""Segments with their manifests, read one by one or many at once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tieredstore.backends.base import ObjectInfo, ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.errors import CorruptData, ManifestCorrupt, ObjectNotFound, SegmentNotFound, TieredStoreError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE, SegmentManifest
from tieredstore.format.manifest_rules import DEFAULT_RULES, KnownSegment, ManifestRules
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.process.parallel import in_parallel
from tieredstore.remote.manifest_object import manifest_text, parse_manifest

MAX_MANIFESTS_IN_FLIGHT: Final = MAX_MANIFEST_SIZE
"""Bytes of manifests that are read at once: as many as one may have, and a real one has a few KB."""

_MAX_BATCH: Final = 1 << 20
"""Bytes of manifests that are read together."""

_AHEAD: Final = 4
"""Of so many requests at once one is with a reader, and the others are done or wait: batches need not wait."""

_Result = TypeVar("_Result")


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
    (loaded,) = load_batch(store, [objects], rules)
    if isinstance(loaded, TieredStoreError):
        raise loaded
    return loaded


def load_batch(
    store: ObjectStore, batch: Iterable[SegmentObjects], rules: ManifestRules = DEFAULT_RULES
) -> list[StoredSegment | TieredStoreError]:
    """:func:`load_segment` of each, read together; an error takes the place of its segment."""
    read = [(objects, objects.find(Suffix.MANIFEST)) for objects in batch]
    # The listing has the size: what cannot be a manifest costs no request.
    keys = [info.key for _, info in read if info is not None and info.size <= MAX_MANIFEST_SIZE]
    # Bounded again: what was listed may have been replaced since.
    answers = dict(zip(keys, store.get_small_batch(keys, MAX_MANIFEST_SIZE), strict=True))
    return [_loaded(objects, info, answers, rules) for objects, info in read]


def _loaded(
    objects: SegmentObjects,
    info: ObjectInfo | None,
    answers: Mapping[str, bytes | TieredStoreError | None],
    rules: ManifestRules,
) -> StoredSegment | TieredStoreError:
    if info is None:
        return SegmentNotFound(f"segment {objects.segment_id.id} at offset {objects.start_offset} has no manifest")
    # The path without the prefix, which may have to stay out of messages.
    name = f"{objects.main_path}.{Suffix.MANIFEST.value}"
    if info.key not in answers:
        return ManifestCorrupt(f"{name} is damaged: it has {info.size} bytes, more than any manifest")
    answer = answers[info.key]
    if isinstance(answer, ObjectNotFound):
        return SegmentNotFound(f"{name} was deleted while it was listed")
    if isinstance(answer, TieredStoreError):
        return answer
    try:
        manifest = parse_manifest(manifest_text(answer, name), name, known_segment(objects), rules)
    except CorruptData as error:
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
    """The results of ``job``, which is given each segment and what was loaded of it, in the order listed.

    ``at_once`` requests, or batches where the store reads several objects together, are with the pool; the listing goes
    on meanwhile. What is in flight is bounded by bytes too.
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
    """Segments whose manifests, of ``weight`` bytes, are read together."""

    segments: list[SegmentObjects] = field(default_factory=list[SegmentObjects])
    weight: int = 0


def _batches(listed: Iterable[SegmentObjects], most: int) -> Iterator[_Batch]:
    batch = _Batch()
    for objects in listed:
        size = manifest_size(objects)
        if batch.segments and (len(batch.segments) == most or batch.weight + size > _MAX_BATCH):
            yield batch
            batch = _Batch()
        batch.segments.append(objects)
        batch.weight += size
    if batch.segments:
        yield batch


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
    return load_each(store, listed, rules, pool, _reported, at_once=at_once)


def _reported(
    _: SegmentObjects, loaded: StoredSegment | TieredStoreError
) -> StoredSegment | SegmentNotFound | CorruptData:
    if not isinstance(loaded, StoredSegment | SegmentNotFound | CorruptData):
        raise loaded
    return loaded


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
