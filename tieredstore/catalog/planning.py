"""Creation of a catalog from a store."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tieredstore.backends.base import ObjectInfo
from tieredstore.catalog.catalog import Catalog
from tieredstore.catalog.completion import describe_segment
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.problems import UNREADABLE, Problem, ProblemKind
from tieredstore.catalog.stored import StoredSegment, load_batch, load_each, look_again, manifest_info
from tieredstore.catalog.tracing import KnownProofs, Traced, trace_partitions
from tieredstore.errors import CorruptDataError, ObjectArchivedError, SegmentNotFoundError, TieredStoreError
from tieredstore.format.keys import Suffix, main_path, object_key, parse_key
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.model import RemoteLogSegmentMetadata, Uuid
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.remote import RemoteStorageManager


@dataclass(frozen=True, slots=True)
class Stamp:
    """Version of a manifest: its etag, or its size and time if listings have no etags."""

    size: int
    etag: str | None
    modified_ms: int | None

    @classmethod
    def of(cls, info: ObjectInfo) -> Stamp:
        """Return the version that a listing shows."""
        return cls(info.size, info.etag, info.modified_ms)

    def matches(self, listed: Stamp) -> bool:
        """Return True if ``listed`` is certainly this version. If etag and time are both missing, return False."""
        if self.etag is not None and listed.etag is not None:
            return self.etag == listed.etag and self.size == listed.size
        return self.modified_ms is not None and (self.modified_ms, self.size) == (listed.modified_ms, listed.size)


@dataclass(frozen=True, slots=True)
class ValidSegment:
    """One valid segment.

    ``path`` is the main path of the segment's objects, as listed. ``history`` is the segment's leader-epoch index, read
    only for the ruling segment of a partition (see ``lineage``). ``is_proven`` is True if end offset and leader epochs
    were compared with the segment's contents.
    """

    path: str
    stamp: Stamp
    metadata: RemoteLogSegmentMetadata
    history: LeaderEpochs | None = None
    is_proven: bool = False


_AT_ONCE: Final = 4 * READERS  # a few finished results may wait for each reader


def load_catalog(
    source: RemoteStorageManager,
    *,
    topic: str | None = None,
    topic_id: Uuid | None = None,
    partition: int | None = None,
    topics: Collection[str] | None = None,
    known: dict[str, ValidSegment] | None = None,
) -> Catalog:
    """Make the catalog of a store, or of a part of it, from one listing.

    ``topics`` lists several topics together, in place of ``topic``, ``topic_id`` and ``partition``. Each manifest takes
    one request, and ``READERS`` requests run in parallel.

    ``known`` has the segments that earlier calls for this store found, by path. The call reads only the manifests that
    ``known`` lacks, or of which the listing shows another version. It then updates ``known``.

    Some segments take further requests. A manifest without segment metadata takes a few, and an overlapping segment
    takes three. A segment with a manifest takes one for each object that the listing lacks. A partition takes two more
    if it has older leader epochs than its newest segment. Only these further requests need private keys. Segments that
    cannot be used are in the catalog's ``problems``.

    Raise StoreError if the store fails.
    """
    scope = Scope(topic, topic_id, partition, None if topics is None else frozenset(topics))
    with ThreadPool(READERS, "tieredstore-catalog") as pool:
        survey = _survey(source, scope, known or {}, pool)
        traced = _trace(source, survey, pool)
    if known is not None:
        # Remove only segments in scope, because the listing does not cover other partitions.
        for path in [path for path in known if path not in survey.segments and _in_scope(path, scope)]:
            del known[path]
        known |= survey.segments
    partitions = {partition.ruler.topic_id_partition: partition.segments for partition in traced.partitions}
    return Catalog.of(dict(sorted(partitions.items())), (*survey.problems, *traced.problems))


@dataclass(slots=True)
class _Survey:
    """Results of a listing: valid segments by path, and problems. ``incomplete`` are segments of which the listing
    lacks objects."""

    segments: dict[str, ValidSegment] = field(default_factory=dict[str, ValidSegment])
    incomplete: list[SegmentObjects] = field(default_factory=list[SegmentObjects])
    problems: list[Problem] = field(default_factory=list[Problem])

    def keep(self, segment: ValidSegment) -> None:
        """Add a valid segment, or replace it by one of which more is known."""
        self.segments[segment.path] = segment

    def find(self, metadata: RemoteLogSegmentMetadata) -> ValidSegment:
        """Return a valid segment."""
        own = metadata.remote_log_segment_id
        # Try the usual path first. The path differs if a JVM wrote the offset in the digits of its own locale.
        usual = self.segments.get(main_path(own, metadata.start_offset))
        if usual is not None and usual.metadata.remote_log_segment_id == own:
            return usual
        return next(each for each in self.segments.values() if each.metadata.remote_log_segment_id == own)


def _survey(source: RemoteStorageManager, scope: Scope, known: Mapping[str, ValidSegment], pool: Executor) -> _Survey:
    survey = _Survey()
    unknown = _find_unknown(source, scope, known, survey)
    # Read manifests on threads, while the listing continues.
    reads = load_each(source.store, unknown, source.manifest_rules, pool, partial(_read, source), at_once=_AT_ONCE)
    found_again = in_parallel(pool, partial(read_listed, source), survey.incomplete, at_once=_AT_ONCE)
    for read in itertools.chain(reads, found_again):
        if isinstance(read, ValidSegment):
            survey.keep(read)
        elif read is not None:
            survey.problems.append(read)
    return survey


def _find_unknown(
    source: RemoteStorageManager, scope: Scope, known: Mapping[str, ValidSegment], survey: _Survey
) -> Iterator[SegmentObjects]:
    """Yield the complete segments whose manifests must be read. Add the other segments to ``survey``: incomplete
    segments, and known segments."""
    for objects in list_segments(source.store, source.layout.prefix, scope):
        manifest = objects.find(Suffix.MANIFEST)
        if manifest is None or objects.missing:
            survey.incomplete.append(objects)
            continue
        segment = known.get(objects.main_path)
        if segment is not None and segment.stamp.matches(Stamp.of(manifest)):
            survey.keep(segment)
        else:
            yield objects


def _read(
    source: RemoteStorageManager, objects: SegmentObjects, loaded: StoredSegment | TieredStoreError
) -> ValidSegment | Problem | None:
    """Read a segment's manifest. Return the segment, or its problem. Return None if the segment was deleted
    meanwhile.
    """
    try:
        if isinstance(loaded, TieredStoreError):
            raise loaded
        return ValidSegment(objects.main_path, Stamp.of(manifest_info(objects)), describe_segment(source, loaded))
    # An absent manifest is no damage, because retention may delete a segment between the listing and the read of its
    # manifest.
    except SegmentNotFoundError:
        return None
    except UNREADABLE as error:
        kind = ProblemKind.DAMAGED if isinstance(error, CorruptDataError) else ProblemKind.UNREADABLE
        if isinstance(error, ObjectArchivedError):
            kind = ProblemKind.ARCHIVED
        return Problem(kind, objects.segment_id, objects.start_offset, str(error))


def read_listed(source: RemoteStorageManager, objects: SegmentObjects) -> ValidSegment | Problem | None:
    """Look up the objects of a segment that the listing lacks, then read the segment's manifest. Return the
    segment, or its problem. Return None if the segment was deleted meanwhile.

    A segment without a manifest was not committed, so return a problem without any request.
    """
    if objects.find(Suffix.MANIFEST) is not None:
        objects = look_again(source.store, source.layout.prefix, objects)
    if objects.missing:
        missing = ", no ".join(f".{suffix.value}" for suffix in objects.missing)
        has_manifest = objects.find(Suffix.MANIFEST) is not None
        return Problem(
            ProblemKind.INCOMPLETE, objects.segment_id, objects.start_offset, f"it has no {missing}",
            has_manifest=has_manifest,
        )  # fmt: skip
    (loaded,) = load_batch(source.store, [objects], source.manifest_rules)
    return _read(source, objects, loaded)


def _trace(source: RemoteStorageManager, survey: _Survey, pool: Executor) -> Traced:
    """Trace the lineages (the valid segments of each log) of the survey. Add the facts that were read from segments to
    the survey's segments.
    """
    segments = survey.segments.values()
    known = KnownProofs(
        {each.metadata.remote_log_segment_id: each.history for each in segments if each.history is not None},
        {each.metadata.remote_log_segment_id for each in segments if each.is_proven},
    )
    traced = trace_partitions(source, (each.metadata for each in segments), known, pool, at_once=_AT_ONCE)
    for partition in traced.partitions:
        for metadata in partition.proven:
            survey.keep(dataclasses.replace(survey.find(metadata), metadata=metadata, is_proven=True))
        if partition.history is not None and partition.ruler.remote_log_segment_id not in known.histories:
            survey.keep(dataclasses.replace(survey.find(partition.ruler), history=partition.history))
    return traced


def _in_scope(path: str, scope: Scope) -> bool:
    if not path.startswith(scope.listing_prefix("")):
        return False
    key = parse_key("", object_key("", path, Suffix.MANIFEST))
    return key is None or scope.holds(key.segment_id, key.start_offset)
