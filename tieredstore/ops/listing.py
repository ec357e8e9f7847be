"""The segments of a store with their manifests' content, whole or not, and their sums."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import Scope, SegmentObjects, list_in_scope
from tieredstore.catalog.stored import StoredSegment, load_each
from tieredstore.errors import CorruptDataError, SegmentNotFoundError, TieredStoreError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules
from tieredstore.model import AtTime, RemoteLogSegmentMetadata, TopicIdPartition, check_offset
from tieredstore.process.parallel import READERS
from tieredstore.process.thread_pool import ThreadPool

Loaded: TypeAlias = StoredSegment | CorruptDataError | None
"""A segment, its manifest's error, or None without a manifest."""


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """One segment of a listing, with its manifest's content, if it has one."""

    objects: SegmentObjects
    loaded: Loaded

    @property
    def partition(self) -> TopicIdPartition:
        """The segment's partition."""
        return self.objects.segment_id.topic_id_partition

    @property
    def stored(self) -> StoredSegment | None:
        """The segment if its manifest is readable."""
        return self.loaded if isinstance(self.loaded, StoredSegment) else None

    @property
    def whole(self) -> StoredSegment | None:
        """The segment if nothing of it is missing or damaged."""
        return None if self.objects.missing else self.stored

    @property
    def max_timestamp_ms(self) -> int | None:
        """The greatest timestamp of its batches, if known."""
        time_ms = -1 if self.stored is None else self.stored.metadata.max_timestamp_ms
        return None if time_ms < 0 else time_ms


QUARANTINE: Final = "!tieredstore/quarantine/"
"""Follows the prefix in the keys of damaged segments, which the uploader keeps in the usual format."""


def list_encrypted(store: ObjectStore, prefix: str, scope: Scope) -> Iterator[SegmentObjects]:
    """Yield everything that may need a key pair: the segments in scope, and those in quarantine."""
    yield from list_in_scope(store, prefix, scope)
    for objects in list_in_scope(store, f"{prefix}{QUARANTINE}", scope):
        yield replace(objects, main_path=f"{QUARANTINE}{objects.main_path}")


def load_listing(
    store: ObjectStore,
    listed: Iterable[SegmentObjects],
    rules: ManifestRules = DEFAULT_RULES,
    parallel: int = READERS,
) -> Iterator[ListedSegment]:
    """Yield the segments with their manifests, ordered by (topic, topic id, partition, base offset, segment id).

    Holds the listing, not manifests. A segment deleted in between is left out.
    """
    return load_stream(store, sorted(listed, key=_order), rules=rules, parallel=parallel)


def load_stream(
    store: ObjectStore,
    listed: Iterable[SegmentObjects],
    *,
    rules: ManifestRules = DEFAULT_RULES,
    parallel: int = READERS,
) -> Iterator[ListedSegment]:
    """Yield the segments as they are listed, with their manifests; holds neither those nor the listing.

    A segment deleted in between is left out.
    """

    with ThreadPool(parallel, "tieredstore-ls") as pool:
        for segment in load_each(store, listed, rules, pool, _listed, at_once=4 * parallel):
            if segment is not None:
                yield segment


def within(
    listed: Iterable[ListedSegment], start: int | AtTime | None, stop: int | AtTime | None
) -> Iterator[ListedSegment]:
    """Yield the segments of a listing, in offset order, that may hold records from ``start`` up to ``stop``.

    As in Kafka, a time means the first record of that time or later: it is in the first segment whose greatest
    timestamp is that late. Segments with unknown ends are included where the window may be. Raise ConfigError at the
    end if ``start`` is an offset beyond the ends of all partitions.
    """
    ends: dict[str, int] = {}
    for where, of_partition in itertools.groupby(listed, key=lambda one: one.partition):
        is_begun = start is None
        for one in of_partition:
            if one.stored is not None and one.stored.last_offset is not None:
                ends[f"{where.topic}-{where.partition}"] = one.stored.last_offset + 1
            if isinstance(stop, int) and one.objects.start_offset >= stop:
                break
            reached = _reaches(one, start)
            is_begun = is_begun or reached is True
            if is_begun or reached is None:
                yield one
            if isinstance(stop, AtTime) and _reaches(one, stop):
                break
    if isinstance(start, int):
        check_offset(start, ends)


def _reaches(one: ListedSegment, place: int | AtTime | None) -> bool | None:
    """Return True if the place is in the segment or before; None if the manifest cannot tell."""
    if isinstance(place, AtTime):
        return None if one.max_timestamp_ms is None else one.max_timestamp_ms >= place.timestamp_ms
    last = None if one.stored is None else one.stored.last_offset
    return None if last is None else last >= (place or 0)


def _listed(objects: SegmentObjects, loaded: StoredSegment | TieredStoreError) -> ListedSegment | None:
    if objects.find(Suffix.MANIFEST) is None:
        return ListedSegment(objects, None)
    if isinstance(loaded, StoredSegment | CorruptDataError):
        return ListedSegment(objects, loaded)
    if isinstance(loaded, SegmentNotFoundError):
        return None
    raise loaded


class SegmentTotals:
    """Sums over whole segments; ``oldest_ms`` and ``newest_ms`` bound their times, None if none is known."""

    def __init__(self) -> None:
        self.segments = self.size = self.stored_size = 0
        self.oldest_ms: int | None = None
        self.newest_ms: int | None = None

    def add(self, segment: StoredSegment) -> None:
        """Count one more."""
        metadata = segment.metadata
        self.segments += 1
        self.size += metadata.segment_size_in_bytes
        self.stored_size += segment.objects.stored_size
        if (time_ms := metadata.max_timestamp_ms) >= 0:
            self.oldest_ms = time_ms if self.oldest_ms is None else min(self.oldest_ms, time_ms)
            self.newest_ms = time_ms if self.newest_ms is None else max(self.newest_ms, time_ms)


class HeldOffsets:
    """The offsets of one partition in whole segments: ``spans`` of (first, last), with holes between them."""

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self._is_end_known = True

    def add(self, segment: RemoteLogSegmentMetadata) -> tuple[int, int] | None:
        """Add the next segment, by base offset; return the hole before it, if any.

        If a manifest lacks a segment's end, it is assumed to end where the next one begins.
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
