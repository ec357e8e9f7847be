"""Which segments of a broker's disk a store holds already."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.catalog import SegmentObjects, StoredSegment, list_segments, load_segment
from tieredstore.cli.opened import OpenedStore
from tieredstore.errors import ManifestCorrupt, SegmentNotFound
from tieredstore.format.keys import Suffix
from tieredstore.kafka.checkpoints import (
    LeaderEpochs,
    parse_leader_epochs,
    parse_partition_metadata,
    segment_leader_epochs,
)
from tieredstore.kafka.logdir import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, FoundSegment, LogSegment
from tieredstore.model import TopicIdPartition, Uuid

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """What a segment on disk and its copy have in common, and no other segment has. ``end_offset`` is inclusive."""

    where: TopicIdPartition
    base_offset: int
    end_offset: int
    leader_epochs: LeaderEpochs

    @classmethod
    def of(cls, segment: LogSegment) -> SegmentIdentity:
        """The identity of a segment whose log was read."""
        return cls(segment.topic_id_partition, segment.base_offset, segment.end_offset, segment.segment_leader_epochs)

    @classmethod
    def without_log(cls, found: FoundSegment, topic_id: Uuid | None) -> SegmentIdentity | None:
        """The identity of a segment that another one follows; None where only the log itself tells.

        A second run over a terabyte that was copied must not read it again. ``topic_id`` is read from disk if None.
        """
        if found.next_base_offset is None:
            return None
        end_offset = found.next_base_offset - 1
        try:
            known = topic_id or parse_partition_metadata((found.directory / PARTITION_METADATA).read_bytes())
            epochs = parse_leader_epochs((found.directory / LEADER_EPOCH_CHECKPOINT).read_bytes())
        except OSError:
            return None  # the full description of the segment says what is wrong with its files
        where = TopicIdPartition(known, found.topic, found.partition)
        own = segment_leader_epochs(epochs, found.base_offset, end_offset)
        return cls(where, found.base_offset, end_offset, own)


class CommittedSegments:
    """Finds the committed copy of a segment: one listing a partition, one request for each that may be it.

    The listing is that of the last partition asked for, so ask for one partition after the other.
    """

    def __init__(self, place: OpenedStore) -> None:
        self._place = place
        self._partition: TopicIdPartition | None = None
        self._by_offset: Mapping[int, list[SegmentObjects]] = {}

    def find(self, wanted: SegmentIdentity) -> StoredSegment | None:
        """The whole copy with this identity, if there is one.

        A copy that lost an object or whose manifest is damaged does not count: the segment is still here to be copied.
        """
        if self._partition != wanted.where:
            self._list(wanted.where)
        for stored in self._loaded(wanted.base_offset):
            metadata = stored.metadata
            if (metadata.end_offset, metadata.segment_leader_epochs) == (wanted.end_offset, wanted.leader_epochs):
                return stored
        return None

    def _list(self, where: TopicIdPartition) -> None:
        found: defaultdict[int, list[SegmentObjects]] = defaultdict(list)
        listed = list_segments(
            self._place.store,
            self._place.layout.prefix,
            topic=where.topic,
            topic_id=where.topic_id,
            partition=where.partition,
        )
        for objects in listed:
            if objects.find(Suffix.MANIFEST) is not None:
                found[objects.start_offset].append(objects)
        self._partition, self._by_offset = where, found

    def _loaded(self, base_offset: int) -> Iterator[StoredSegment]:
        for objects in self._by_offset.get(base_offset, ()):
            if objects.missing:
                lost = ", ".join(f".{suffix.value}" for suffix in objects.missing)
                logger.warning("stored segment %s lost its %s and counts as not copied", objects.segment_id.id, lost)
                continue
            try:
                yield load_segment(self._place.store, objects)
            except SegmentNotFound:
                continue  # deleted since it was listed
            except ManifestCorrupt as error:
                logger.warning("stored segment %s counts as not copied: %s", objects.segment_id.id, error)
