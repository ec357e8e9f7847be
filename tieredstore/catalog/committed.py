"""Search for the segments of a broker's disk that are already in the store."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.listing import Scope, SegmentObjects, list_segments
from tieredstore.catalog.stored import load_segment
from tieredstore.errors import CorruptDataError, SegmentNotFoundError
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import DEFAULT_RULES, ManifestRules
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    parse_leader_epochs,
    parse_partition_metadata,
    segment_leader_epochs,
)
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, FoundSegment, LogSegment
from tieredstore.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from tieredstore.process.log_once import LogOnce

_logger: Final = logging.getLogger(__name__)

MAX_AGE_S: Final = 10.0
"""Default maximum age in seconds of a listing that decides if a segment is committed."""

_MAX_SEGMENTS: Final = 20_000  # about 1 KB each


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """The properties that a segment on disk and its copy have in common. ``end_offset`` is inclusive."""

    partition: TopicIdPartition
    base_offset: int
    end_offset: int
    leader_epochs: LeaderEpochs

    @classmethod
    def of(cls, segment: LogSegment) -> SegmentIdentity:
        """Return the identity of a segment on disk whose log was read."""
        return cls(segment.topic_id_partition, segment.base_offset, segment.end_offset, segment.segment_leader_epochs)

    @classmethod
    def of_stored(cls, metadata: RemoteLogSegmentMetadata) -> SegmentIdentity:
        """Return the identity of a copy."""
        where = metadata.topic_id_partition
        return cls(where, metadata.start_offset, metadata.end_offset, metadata.segment_leader_epochs)

    @classmethod
    def without_log(cls, segment: FoundSegment, topic_id: Uuid | None) -> SegmentIdentity | None:
        """Return the identity without reading the log, because the segment ends where the next segment begins. Return
        None if there is no next segment, or if a file is missing.

        The caller can thus recognize segments that an earlier run has copied. If ``topic_id`` is None, read the id from
        disk.
        """
        if segment.next_base_offset is None:
            return None
        end_offset = segment.next_base_offset - 1
        try:
            topic_id = topic_id or parse_partition_metadata((segment.directory / PARTITION_METADATA).read_bytes())
            epochs = parse_leader_epochs((segment.directory / LEADER_EPOCH_CHECKPOINT).read_bytes())
        except OSError:
            return None  # reading the log later will report the fault in the files
        partition = TopicIdPartition(topic_id, segment.topic, segment.partition)
        own_epochs = segment_leader_epochs(epochs, segment.base_offset, end_offset)
        return cls(partition, segment.base_offset, end_offset, own_epochs)


class CommittedSegments:
    """Search for committed copies of segments, while other processes commit and delete. Safe from several threads.

    The object keeps a listing of each partition, from the first requested offset on. Earlier copies do not matter,
    because a broker's disk has only the latest segments. A listing older than ``max_age_s`` is replaced on the next
    request. So a commit or deletion by another process may be noticed up to ``max_age_s`` later.

    A partition costs at most one listing per ``max_age_s``, for any number of segments. An unused partition costs none.
    The manifest of each possible copy is read once.

    ``max_segments`` limits memory: the least recently used partitions are dropped.
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
        """Search in ``store``, which the caller closes; ``prefix`` is ``key.prefix``."""
        self._store, self._prefix, self._rules = store, prefix, rules
        self._max_age_s, self._max_segments, self._clock = max_age_s, max_segments, clock
        self._lock = threading.Lock()
        self._partitions: OrderedDict[TopicIdPartition, _Partition] = OrderedDict()
        self._size = 0

    def find(self, identity: SegmentIdentity) -> SegmentObjects | None:
        """Return the whole copy with this identity, or None.

        Ignore a copy that lost an object or has a damaged manifest. The caller then copies the segment again.
        """
        known = self._get_partition(identity.partition)
        with known.lock:
            if not known.answers_for(identity.base_offset, self._clock() - self._max_age_s):
                self._list(identity.partition, identity.base_offset, known)
            return known.find(identity, self._store, self._rules)

    def list_anew(self, partition: TopicIdPartition) -> list[SegmentObjects]:
        """List all stored objects of a partition, including unfinished copies. ``find`` then uses this listing."""
        known = self._get_partition(partition)
        with known.lock:
            return self._list(partition, 0, known)

    def recheck(self, identity: SegmentIdentity) -> None:
        """Make the next ``find`` of this segment ask the store, whatever the listing's age.

        Call this after each attempt to copy the segment, even after a failed attempt. A failed attempt has committed
        the segment if only the store's answer was lost.
        """
        with self._lock:
            known = self._partitions.get(identity.partition)
        if known is not None:
            with known.lock:
                known.changed_offsets.add(identity.base_offset)

    def _get_partition(self, partition: TopicIdPartition) -> _Partition:
        with self._lock:
            known = self._partitions.get(partition)
            if known is None:
                known = self._partitions[partition] = _Partition()
                self._size += known.counted
            else:
                self._partitions.move_to_end(partition)  # most recently used
            return known

    def _list(self, partition: TopicIdPartition, first_offset: int, known: _Partition) -> list[SegmentObjects]:
        began = self._clock()
        listed = list(list_segments(self._store, self._prefix, Scope.of(partition, first_offset)))
        known.take(first_offset, began, listed)
        self._make_room(partition, known)
        return listed

    def _make_room(self, partition: TopicIdPartition, known: _Partition) -> None:
        """Drop the least recently used partitions, but never the latest one, however large it is."""
        with self._lock:
            # Add only the difference to the sum. Adding up thousands of partitions each time would take too long.
            if self._partitions.get(partition) is known:
                self._size += known.size - known.counted
                known.counted = known.size
            while self._size > self._max_segments and len(self._partitions) > 1:
                _, forgotten = self._partitions.popitem(last=False)
                self._size -= forgotten.counted


class _Partition:
    """The results of one listing of a partition, and of reading its manifests. The caller holds ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.size = 1  # count the partition itself too, because many partitions have no segment, but take memory
        self.counted = 1
        """The value of ``size`` when it was last added to the total of all partitions. The total's lock guards it."""
        self.changed_offsets: set[int] = set()
        self._listed_at: float | None = None
        self._first_offset = 0
        self._by_offset: dict[int, list[SegmentObjects]] = {}
        self._identities: dict[Uuid, SegmentIdentity | None] = {}  # None for a copy that is incomplete or damaged
        # Log each problem once, because a segment is listed again every few seconds, for months.
        self._log = LogOnce(_logger)

    def answers_for(self, base_offset: int, not_before: float) -> bool:
        """Return True if the listing is new enough, includes this offset, and the segment has not changed since the
        listing."""
        fresh = self._listed_at is not None and self._listed_at > not_before
        return fresh and base_offset >= self._first_offset and base_offset not in self.changed_offsets

    def take(self, first_offset: int, listed_at: float, listed: list[SegmentObjects]) -> None:
        """Replace the listing by ``listed``, a listing that began at ``listed_at``."""
        by_offset: defaultdict[int, list[SegmentObjects]] = defaultdict(list)
        for objects in listed:
            if (
                objects.find(Suffix.MANIFEST) is not None
            ):  # a segment without a manifest was never committed, or is being deleted
                by_offset[objects.start_offset].append(objects)
        committed = {objects.segment_id.id: objects for group in by_offset.values() for objects in group}
        # Keep the identities that were read from manifests. A manifest never changes, because each attempt has its own
        # id. Read a manifest again only if it was unreadable, or if its segment has lost or regained an object.
        self._identities = {
            segment_id: identity
            for segment_id, identity in self._identities.items()
            if identity is not None and segment_id in committed and not committed[segment_id].missing
        }
        self._first_offset, self._listed_at, self._by_offset = first_offset, listed_at, dict(by_offset)
        self.size = 1 + len(committed)
        self.changed_offsets.clear()

    def find(self, identity: SegmentIdentity, store: ObjectStore, rules: ManifestRules) -> SegmentObjects | None:
        """Return the whole copy with this identity, or None."""
        for objects in self._by_offset.get(identity.base_offset, ()):
            segment_id = objects.segment_id.id
            if segment_id not in self._identities:
                self._identities[segment_id] = self._read(objects, store, rules)
            if self._identities[segment_id] == identity:
                return objects
        return None

    def _read(self, objects: SegmentObjects, store: ObjectStore, rules: ManifestRules) -> SegmentIdentity | None:
        """Read the identity of a copy, with one request; None if the copy is incomplete or damaged."""
        if objects.missing:
            lost = ", ".join(f".{suffix.value}" for suffix in objects.missing)
            self._log.warn(f"stored segment {objects.segment_id.id} lost its {lost} and is treated as not copied")
            return None
        try:
            return SegmentIdentity.of_stored(load_segment(store, objects, rules).metadata)
        except SegmentNotFoundError:
            return None  # deleted since it was listed
        except CorruptDataError as error:
            self._log.warn(f"stored segment {objects.segment_id.id} is treated as not copied: {error}")
            return None
