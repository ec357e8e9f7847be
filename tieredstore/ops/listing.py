"""Lists the segments of a store with the content of their manifests, and sums them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.stored import StoredSegment, load_each
from tieredstore.errors import CorruptDataError, ObjectArchivedError, SegmentNotFoundError, TieredStoreError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import DEFAULT_RULES, ManifestRules
from tieredstore.model import AtTime, RemoteLogSegmentMetadata, TopicIdPartition, check_offset
from tieredstore.process.parallel import READERS
from tieredstore.process.thread_pool import ThreadPool

Unreadable: TypeAlias = CorruptDataError | ObjectArchivedError
"""The error of a manifest that is damaged, or in an archive storage class."""

Loaded: TypeAlias = StoredSegment | Unreadable | None
"""A segment; or the error that reading its manifest raised; or None if the segment has no manifest."""


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment of a listing, and the content of its manifest, if any."""

    objects: SegmentObjects
    loaded: Loaded

    @property
    def partition(self) -> TopicIdPartition:
        """The segment's topic id, topic and partition."""
        return self.objects.segment_id.topic_id_partition

    @property
    def stored(self) -> StoredSegment | None:
        """The segment with its manifest; None if the manifest is missing or unreadable."""
        return self.loaded if isinstance(self.loaded, StoredSegment) else None

    @property
    def damage(self) -> Unreadable | None:
        """The error that reading the manifest raised; None for a readable or missing manifest."""
        return None if isinstance(self.loaded, StoredSegment) else self.loaded

    @property
    def whole(self) -> StoredSegment | None:
        """The segment with its manifest; None if any of its objects is missing, or if the manifest is unreadable."""
        return None if self.objects.missing else self.stored

    @property
    def max_timestamp_ms(self) -> int | None:
        """The greatest timestamp of the segment's records, if known."""
        time_ms = -1 if self.stored is None else self.stored.metadata.max_timestamp_ms
        return None if time_ms < 0 else time_ms


QUARANTINE: Final = "!tieredstore/quarantine/"
"""Folder below the key prefix for damaged segments, which the uploader stores there in the usual format."""


def list_encrypted(store: ObjectStore, prefix: str, scope: Scope) -> Iterator[SegmentObjects]:
    """Yield everything that may be encrypted: the segments in scope, and the segments in quarantine."""
    yield from list_segments(store, prefix, scope)
    for objects in list_segments(store, f"{prefix}{QUARANTINE}", scope):
        yield replace(objects, main_path=f"{QUARANTINE}{objects.main_path}")


def load_listing(
    store: ObjectStore,
    listed: Iterable[SegmentObjects],
    rules: ManifestRules = DEFAULT_RULES,
    parallel: int = READERS,
) -> Iterator[ListedSegment]:
    """Yield the segments with their manifests, ordered by (topic, topic id, partition, base offset, segment id).

    Memory holds the listing, but no manifests. A segment deleted since the listing is left out.
    """
    return load_stream(store, sorted(listed, key=_order), rules=rules, parallel=parallel)


def load_stream(
    store: ObjectStore,
    listed: Iterable[SegmentObjects],
    *,
    rules: ManifestRules = DEFAULT_RULES,
    parallel: int = READERS,
) -> Iterator[ListedSegment]:
    """Yield the segments with their manifests, in the order of the listing. Memory holds neither the listing nor the
    manifests.

    A segment deleted since the listing is left out.
    """
    with ThreadPool(parallel, "tieredstore-ls") as pool:
        for segment in load_each(store, listed, rules, pool, _make_listed, at_once=4 * parallel):
            if segment is not None:
                yield segment


def within(
    listed: Iterable[ListedSegment],
    start: int | AtTime | None,
    stop: int | AtTime | None,
    *,
    check_start: bool = True,
) -> Iterator[ListedSegment]:
    """Yield the listed segments that may have records from ``start`` up to ``stop``, in offset order.

    As in Kafka, a time stands for the first record at or after it. This record is in the first segment with a greatest
    timestamp at or after the time. Segments with unknown ends are included if they may have records in the window.

    At the end, raise ConfigError if ``start`` is an offset beyond the ends of all partitions, and all ends are known.
    With ``check_start`` False, do not check this.
    """
    ends: dict[str, int] = {}
    unknown = set[TopicIdPartition]()
    for where, of_partition in itertools.groupby(listed, key=lambda one: one.partition):
        is_begun = start is None
        for one in of_partition:
            if one.stored is not None and one.stored.last_offset is not None:
                ends[f"{where.topic}-{where.partition}"] = one.stored.last_offset + 1
                unknown.discard(where)
            elif one.objects.find(Suffix.MANIFEST) is not None:
                unknown.add(where)
            if isinstance(stop, int) and one.objects.start_offset >= stop:
                break
            reached = reaches(one, start)
            # A segment of unknown times may have the first record of the window. All later segments are then in it too.
            may_begin = reached is None and isinstance(start, AtTime) and one.stored is not None
            is_begun = is_begun or reached is True or may_begin
            if is_begun or reached is None:
                yield one
            if isinstance(stop, AtTime) and reaches(one, stop):
                break
    if isinstance(start, int) and check_start:
        check_offset(start, {} if unknown else ends)


def reaches(one: ListedSegment, place: int | AtTime | None) -> bool | None:
    """Return True if the segment ends at or after the place (an offset or a time). Return None if the end is
    unknown.
    """
    if isinstance(place, AtTime):
        return None if one.max_timestamp_ms is None else one.max_timestamp_ms >= place.timestamp_ms
    last = None if one.stored is None else one.stored.last_offset
    return None if last is None else last >= (place or 0)


def _make_listed(objects: SegmentObjects, loaded: StoredSegment | TieredStoreError) -> ListedSegment | None:
    if objects.find(Suffix.MANIFEST) is None:
        return ListedSegment(objects, None)
    if isinstance(loaded, StoredSegment | CorruptDataError | ObjectArchivedError):
        return ListedSegment(objects, loaded)
    if isinstance(loaded, SegmentNotFoundError):
        return None
    raise loaded


class SegmentTotals:
    """Sums over complete segments. Their times are within ``oldest_ms`` and ``newest_ms`` (None if none is known)."""

    def __init__(self) -> None:
        self.segments = self.size = self.stored_size = 0
        self.oldest_ms: int | None = None
        self.newest_ms: int | None = None

    def add(self, segment: StoredSegment) -> None:
        """Count a segment."""
        metadata = segment.metadata
        self.segments += 1
        self.size += metadata.segment_size_in_bytes
        self.stored_size += segment.objects.stored_size
        if (time_ms := metadata.max_timestamp_ms) >= 0:
            self.oldest_ms = time_ms if self.oldest_ms is None else min(self.oldest_ms, time_ms)
            self.newest_ms = time_ms if self.newest_ms is None else max(self.newest_ms, time_ms)


class HeldOffsets:
    """The offsets of one partition in complete segments. ``spans`` are pairs (first, last), both inclusive."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self._is_end_known = True

    def add(self, segment: RemoteLogSegmentMetadata) -> tuple[int, int] | None:
        """Add the next segment, in the order of base offsets. Return the gap before it, if any.

        If a manifest does not give the end offset, the segment is assumed to end where the next one begins.
        """
        start, end = segment.start_offset, segment.end_offset
        last = self.spans[-1][1] if self.spans else start - 1
        hole = (last + 1, start - 1) if self._is_end_known and start > last + 1 else None
        first = self.spans.pop()[0] if self.spans and hole is None else start
        self.spans.append((first, max(last, start, end)))
        self._is_end_known = end >= 0
        return hole


def _order(objects: SegmentObjects) -> tuple[str, str, int, int, str]:
    partition = objects.segment_id.topic_id_partition
    return (
        partition.topic,
        str(partition.topic_id),
        partition.partition,
        objects.start_offset,
        str(objects.segment_id.id),
    )
