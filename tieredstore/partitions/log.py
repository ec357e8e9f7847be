"""One partition's log across bucket and broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from tieredstore.catalog.lineage import Lineage
from tieredstore.model import TopicId, TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.history import Cut, History
from tieredstore.partitions.position import Position

_ASSUMED_RECORD_BYTES: Final = 1024
"""For a partition without segments in the bucket, whose record size is unknown."""

OffsetWindow: TypeAlias = tuple[int, int]
"""The offsets of a partition from the first up to the second (exclusive)."""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's offsets from ``earliest`` up to ``end`` (half-open), all of whose records are decided.

    The bucket is read below ``seam``, the broker from it on. ``live_start`` is the broker's first offset, None if it
    was not asked or lacks the partition. ``topic_id`` is the broker's, or else the bucket's; ``derived_id`` replaces it
    in a bucket without topic ids. ``live_epoch`` is that of the broker's leader, ``history`` the known history of the
    bucket's epochs: ``lineage`` ends at its cut.
    """

    topic: str
    partition: int
    topic_id: Uuid
    lineage: Lineage | None
    seam: int
    earliest: int
    end: int
    live_start: int | None = None
    derived_id: Uuid | None = None
    live_epoch: int | None = None
    history: History | None = None

    @property
    def where(self) -> TopicPartition:
        """The topic and the partition."""
        return self.topic, self.partition

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition of one incarnation of the topic."""
        return TopicIdPartition(self.topic_id, self.topic, self.partition)

    @property
    def stored_partition(self) -> TopicIdPartition:
        """The partition under the bucket's topic id."""
        return TopicIdPartition(self.derived_id or self.topic_id, self.topic, self.partition)

    def is_of(self, topic_id: Uuid) -> bool:
        """Return True if this may be the log of a topic that was read under this id."""
        read, own = TopicId.of(topic_id, self.derived_id), TopicId.of(self.topic_id, self.derived_id)
        return not read.contradicts(own)

    @property
    def cut(self) -> Cut | None:
        """The offset at which the log left the bucket's, if it did."""
        return None if self.history is None else self.history.cut

    def epoch_before(self, offset: int) -> int | None:
        """Return the leader epoch of the record before ``offset``; in the broker's part its leader's, which may be
        later.
        """
        if self.lineage is not None and offset <= self.seam:
            return self.lineage.epoch_at(offset - 1)
        return self.live_epoch

    def position(self, offset: int) -> Position:
        """Return a place in the present log: only later changes can cut it off."""
        return Position(offset, self.live_epoch if (epoch := self.epoch_before(offset)) is None else epoch)

    @property
    def on_broker(self) -> bool:
        """True if the broker has the partition."""
        return self.live_start is not None

    def end_from(self, start: int) -> int:
        """Return the end of the readable records from ``start`` on; ``start`` if there are none yet.

        It is the seam if a transaction is undecided at the bucket's end and the broker has deleted its records: these
        are in the bucket, and wait for the segment that decides them.
        """
        # The broker begins after the seam but not after the bucket's end: nothing is lost, some records are undecided.
        waits = self.lineage is not None and self.seam < (self.live_start or 0) <= self.lineage.end_offset
        return max(start, self.seam) if waits and start < (self.live_start or 0) else self.end

    def bytes_between(self, start: int, stop: int) -> int:
        """Estimate the bytes of the log from ``start`` up to ``stop`` (half-open)."""
        stored = 0.0
        for span in () if self.lineage is None else self.lineage.spans_between(start, min(stop, self.seam)):
            # As if spread evenly over a segment's offsets: an estimate is not worth a request for its index.
            offsets = span.segment.end_offset - span.segment.start_offset + 1
            stored += span.segment.segment_size_in_bytes * (span.stop - span.start) / offsets
        return int(stored + self._bytes_per_offset() * max(0, stop - max(start, self.seam)))

    def _bytes_per_offset(self) -> float:
        """Estimate the size of the broker's records by the bucket's latest."""
        if self.lineage is None:
            return _ASSUMED_RECORD_BYTES
        last = self.lineage.spans[-1].segment
        return last.segment_size_in_bytes / (last.end_offset - last.start_offset + 1)
