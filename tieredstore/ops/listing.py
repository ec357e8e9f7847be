"""The segments of a store with what their manifests say, whole or not, and their sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects
from tieredstore.catalog.stored import MAX_MANIFESTS_IN_FLIGHT, StoredSegment, load_segment, manifest_size
from tieredstore.errors import CorruptData, SegmentNotFound
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules
from tieredstore.model import TopicIdPartition
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool

Loaded: TypeAlias = StoredSegment | CorruptData | None
"""A segment, what is wrong with its manifest, or None where there is no manifest."""


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """One segment of a listing, with what its manifest says, if it has one."""

    objects: SegmentObjects
    loaded: Loaded

    @property
    def partition(self) -> TopicIdPartition:
        """The partition it is of."""
        return self.objects.segment_id.topic_id_partition

    @property
    def whole(self) -> StoredSegment | None:
        """The segment if nothing of it is missing or damaged."""
        return self.loaded if isinstance(self.loaded, StoredSegment) and not self.objects.missing else None

    @property
    def max_timestamp_ms(self) -> int | None:
        """The greatest timestamp of its batches, where it is known."""
        if not isinstance(self.loaded, StoredSegment) or self.loaded.metadata.max_timestamp_ms < 0:
            return None
        return self.loaded.metadata.max_timestamp_ms


def load_listing(
    store: ObjectStore, listed: Iterable[SegmentObjects], rules: ManifestRules = DEFAULT_RULES
) -> Iterator[ListedSegment]:
    """The segments in the order of (topic, topic id, partition, base offset, segment id), their manifests read.

    The listing is held, manifests are not. A segment that is deleted meanwhile is left out.
    """
    return load_stream(store, sorted(listed, key=_order), rules=rules)


def load_stream(
    store: ObjectStore,
    listed: Iterable[SegmentObjects],
    *,
    rules: ManifestRules = DEFAULT_RULES,
    parallel: int = READERS,
) -> Iterator[ListedSegment]:
    """The segments as they are listed, their manifests read: neither those nor the listing are held.

    A segment that is deleted meanwhile is left out.
    """

    def load(objects: SegmentObjects) -> ListedSegment | None:
        if objects.find(Suffix.MANIFEST) is None:
            return ListedSegment(objects, None)
        try:
            return ListedSegment(objects, load_segment(store, objects, rules))
        except CorruptData as damage:
            return ListedSegment(objects, damage)
        except SegmentNotFound:
            return None

    with ThreadPool(parallel, "tieredstore-ls") as pool:
        loaded = in_parallel(
            pool, load, listed, at_once=4 * parallel, weigh=manifest_size, max_weight=MAX_MANIFESTS_IN_FLIGHT
        )
        for segment in loaded:
            if segment is not None:
                yield segment


class SegmentTotals:
    """Sums over whole segments; ``offsets`` and ``timestamps`` are (least, greatest), None where none is known."""

    def __init__(self) -> None:
        self.segments = self.size = self.stored_size = 0
        self.offsets: tuple[int, int] | None = None
        self.timestamps: tuple[int, int] | None = None

    def add(self, segment: StoredSegment) -> None:
        """Count one more."""
        metadata = segment.metadata
        self.segments += 1
        self.size += metadata.segment_size_in_bytes
        self.stored_size += segment.objects.stored_size
        # The end is -1 where the manifest does not tell it.
        self.offsets = _widened(self.offsets, metadata.start_offset)
        self.offsets = _widened(self.offsets, max(metadata.start_offset, metadata.end_offset))
        if metadata.max_timestamp_ms >= 0:
            self.timestamps = _widened(self.timestamps, metadata.max_timestamp_ms)


def _widened(span: tuple[int, int] | None, value: int) -> tuple[int, int]:
    return (value, value) if span is None else (min(span[0], value), max(span[1], value))


def _order(objects: SegmentObjects) -> tuple[str, str, int, int, str]:
    partition = objects.segment_id.topic_id_partition
    return (
        partition.topic,
        str(partition.topic_id),
        partition.partition,
        objects.start_offset,
        str(objects.segment_id.id),
    )
