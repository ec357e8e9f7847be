"""Which segments of a broker's disk a store holds already."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import SegmentObjects, list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.errors import CorruptDataError, SegmentNotFoundError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest_rules import DEFAULT_RULES, ManifestRules
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    parse_leader_epochs,
    parse_partition_metadata,
    segment_leader_epochs,
)
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, FoundSegment, LogSegment
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid

_logger: Final = logging.getLogger(__name__)

MAX_AGE_S: Final = 10.0
"""How old a listing may be that says whether a segment is committed, unless told otherwise."""

_MAX_SEGMENTS: Final = 20_000  # about 1 KB each


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """What a segment on disk and its copy have in common, and no other segment has. ``end_offset`` is inclusive."""

    partition: TopicIdPartition
    base_offset: int
    end_offset: int
    leader_epochs: LeaderEpochs

    @classmethod
    def of(cls, segment: LogSegment) -> SegmentIdentity:
        """The identity of a segment whose log was read."""
        return cls(segment.topic_id_partition, segment.base_offset, segment.end_offset, segment.segment_leader_epochs)

    @classmethod
    def of_stored(cls, metadata: RemoteLogSegmentMetadata) -> SegmentIdentity:
        """The identity of a copy."""
        where = metadata.topic_id_partition
        return cls(where, metadata.start_offset, metadata.end_offset, metadata.segment_leader_epochs)

    @classmethod
    def without_log(cls, segment: FoundSegment, topic_id: Uuid | None) -> SegmentIdentity | None:
        """The identity of a segment that another one follows; None where only the log itself tells.

        A second run over a terabyte that was copied must not read it again. ``topic_id`` is read from disk if None.
        """
        if segment.next_base_offset is None:
            return None
        end_offset = segment.next_base_offset - 1
        try:
            topic_id = topic_id or parse_partition_metadata((segment.directory / PARTITION_METADATA).read_bytes())
            epochs = parse_leader_epochs((segment.directory / LEADER_EPOCH_CHECKPOINT).read_bytes())
        except OSError:
            return None  # the full description of the segment says what is wrong with its files
        partition = TopicIdPartition(topic_id, segment.topic, segment.partition)
        own_epochs = segment_leader_epochs(epochs, segment.base_offset, end_offset)
        return cls(partition, segment.base_offset, end_offset, own_epochs)


class CommittedSegments:
    """Finds the committed copy of a segment, while other processes commit and delete. Safe from several threads.

    Of each partition one listing is kept, from the first offset asked for on: a broker's disk holds the latest
    segments, and what a store holds before them is nobody's question. It answers for ``max_age_s``; then the next
    question lists anew. So a segment that somebody else commits or deletes is noticed that much later at most, a
    partition costs one listing each ``max_age_s`` at most however many segments are asked for, and one that is not
    asked for costs nothing. Each possible copy's manifest is read once.

    Memory is bounded by ``max_segments``: the partitions that were not asked for the longest are forgotten.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str = "",
        *,
        max_age_s: float = MAX_AGE_S,
        max_segments: int = _MAX_SEGMENTS,
        rules: ManifestRules = DEFAULT_RULES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``prefix`` is ``key.prefix``; the store stays the caller's to close. Keywords are bounds, and for tests."""
        self._store, self._prefix, self._rules = store, prefix, rules
        self._max_age_s, self._max_segments, self._clock = max_age_s, max_segments, clock
        self._lock = threading.Lock()
        self._partitions: OrderedDict[TopicIdPartition, _Partition] = OrderedDict()
        self._size = 0

    def find(self, identity: SegmentIdentity) -> SegmentObjects | None:
        """The whole copy with this identity, if there is one.

        A copy that lost an object or whose manifest is damaged does not count: the segment is still here to be copied.
        """
        known = self._known(identity.partition)
        with known.lock:
            if not known.answers_for(identity.base_offset, self._clock() - self._max_age_s):
                self._list(identity.partition, identity.base_offset, known)
            return known.find(identity, self._store, self._rules)

    def list_anew(self, partition: TopicIdPartition) -> list[SegmentObjects]:
        """All that is stored of a partition, of which much may be unfinished; it answers what is asked next."""
        known = self._known(partition)
        with known.lock:
            return self._list(partition, 0, known)

    def changed(self, identity: SegmentIdentity) -> None:
        """Something was done about this segment: the next question for it asks the store, whatever the listing's age.

        To be told after each attempt to copy it. One that failed may have committed all the same, its answer lost.
        """
        with self._lock:
            known = self._partitions.get(identity.partition)
        if known is not None:
            with known.lock:
                known.changed_offsets.add(identity.base_offset)

    def _known(self, partition: TopicIdPartition) -> _Partition:
        with self._lock:
            known = self._partitions.get(partition)
            if known is None:
                known = self._partitions[partition] = _Partition()
                self._size += known.counted
            else:
                self._partitions.move_to_end(partition)  # and so it is the last to be forgotten
            return known

    def _list(self, partition: TopicIdPartition, first_offset: int, known: _Partition) -> list[SegmentObjects]:
        began = self._clock()
        listed = list(
            list_segments(
                self._store,
                self._prefix,
                topic=partition.topic,
                topic_id=partition.topic_id,
                partition=partition.partition,
                first_offset=first_offset,
            )
        )
        known.take(first_offset, began, listed)
        self._make_room(partition, known)
        return listed

    def _make_room(self, partition: TopicIdPartition, known: _Partition) -> None:
        """Forget what was not asked for the longest; the partition asked for last stays, however large it is."""
        with self._lock:
            # Counted as it grows: a sum over thousands of partitions for each of them is what shipping them would cost.
            if self._partitions.get(partition) is known:
                self._size += known.size - known.counted
                known.counted = known.size
            while self._size > self._max_segments and len(self._partitions) > 1:
                _, forgotten = self._partitions.popitem(last=False)
                self._size -= forgotten.counted


class _Partition:
    """What one listing told of a partition, and what manifests told of its segments since. Hold ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.size = 1  # one for itself: there are many partitions without a segment
        self.counted = 1
        """What of the size is in the sum of all; under their lock."""
        self.changed_offsets: set[int] = set()
        self._listed_at: float | None = None
        self._first_offset = 0
        self._by_offset: dict[int, list[SegmentObjects]] = {}
        self._identities: dict[Uuid, SegmentIdentity | None] = {}  # None for a copy that does not count
        self._warned_of: set[Uuid] = set()

    def answers_for(self, base_offset: int, not_before: float) -> bool:
        """Whether the listing reaches down to this offset and is new enough."""
        fresh = self._listed_at is not None and self._listed_at > not_before
        return fresh and base_offset >= self._first_offset and base_offset not in self.changed_offsets

    def take(self, first_offset: int, listed_at: float, listed: list[SegmentObjects]) -> None:
        """Let a listing that began at ``listed_at`` replace the one before."""
        by_offset: defaultdict[int, list[SegmentObjects]] = defaultdict(list)
        for objects in listed:
            if objects.find(Suffix.MANIFEST) is not None:  # else it was never committed, or is being deleted
                by_offset[objects.start_offset].append(objects)
        committed = {objects.segment_id.id: objects for group in by_offset.values() for objects in group}
        # An id is that of one attempt, so what its manifest told of it stays true; one that could not be read is read
        # again, and so is one that lost an object or has it again.
        self._identities = {
            segment_id: identity
            for segment_id, identity in self._identities.items()
            if identity is not None and segment_id in committed and not committed[segment_id].missing
        }
        self._warned_of &= committed.keys()
        self._first_offset, self._listed_at, self._by_offset = first_offset, listed_at, dict(by_offset)
        self.size = 1 + len(committed)
        self.changed_offsets.clear()

    def find(self, identity: SegmentIdentity, store: ObjectStore, rules: ManifestRules) -> SegmentObjects | None:
        """The whole copy with this identity."""
        for objects in self._by_offset.get(identity.base_offset, ()):
            segment_id = objects.segment_id.id
            if segment_id not in self._identities:
                self._identities[segment_id] = self._read(objects, store, rules)
            if self._identities[segment_id] == identity:
                return objects
        return None

    def _read(self, objects: SegmentObjects, store: ObjectStore, rules: ManifestRules) -> SegmentIdentity | None:
        """The identity of a copy, by one request; None if it does not count as one."""
        if objects.missing:
            lost = ", ".join(f".{suffix.value}" for suffix in objects.missing)
            self._warn(objects, f"lost its {lost} and counts as not copied")
            return None
        try:
            return SegmentIdentity.of_stored(load_segment(store, objects, rules).metadata)
        except SegmentNotFoundError:
            return None  # deleted since it was listed
        except CorruptDataError as error:
            self._warn(objects, f"counts as not copied: {error}")
            return None

    def _warn(self, objects: SegmentObjects, trouble: str) -> None:
        """Say it once, and not again with each listing: that may be every few seconds for months."""
        segment_id = objects.segment_id.id
        if segment_id not in self._warned_of:
            self._warned_of.add(segment_id)
            _logger.warning("stored segment %s %s", segment_id, trouble)
