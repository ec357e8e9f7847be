"""The log of one partition, across bucket and broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from tieredstore.catalog.lineage import Lineage
from tieredstore.model import TopicId, TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.history import Cut, History
from tieredstore.partitions.position import Position

_ASSUMED_RECORD_BYTES: Final = 1024
"""Assumed size of a record if the bucket has no segment of the partition."""

OffsetWindow: TypeAlias = tuple[int, int]
"""Offsets of a partition: the first, and the end (exclusive)."""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's offsets from ``earliest`` up to ``end`` (exclusive). All its transactions have an outcome.

    The bucket is read below the offset ``seam``, and the broker from there on. ``live_start`` is the broker's first
    offset, or None if the broker was not asked or lacks the partition. ``live_epoch`` is the broker's leader epoch.

    ``topic_id`` is the broker's topic id or, without a broker, the bucket's. ``derived_id`` replaces the topic id in a
    bucket that stores no topic ids.

    ``history`` is the comparison of both logs. ``lineage``, the bucket's log, ends where they diverge.
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
        """Topic name and partition number."""
        return self.topic, self.partition

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        """The partition with the topic's id."""
        return TopicIdPartition(self.topic_id, self.topic, self.partition)

    @property
    def stored_partition(self) -> TopicIdPartition:
        """The partition with the topic id that the bucket uses."""
        return TopicIdPartition(self.derived_id or self.topic_id, self.topic, self.partition)

    def is_of(self, topic_id: Uuid) -> bool:
        """Return False if ``topic_id``, with which records were read, certainly belongs to another incarnation of the
        topic."""
        read, own = TopicId.of(topic_id, self.derived_id), TopicId.of(self.topic_id, self.derived_id)
        return not read.contradicts(own)

    @property
    def cut(self) -> Cut | None:
        """The offset at which the broker's log diverges from the bucket's; None if it does not diverge."""
        return None if self.history is None else self.history.cut

    def epoch_before(self, offset: int) -> int | None:
        """Return the leader epoch of the record before ``offset``; None if unknown. For an offset after the bucket's
        log, return the present leader's epoch, which may be later.
        """
        if self.lineage is not None and offset <= max(self.seam, self.lineage.end_offset):
            return self.lineage.epoch_at(offset - 1)
        return self.live_epoch

    def position(self, offset: int) -> Position:
        """Return the position of ``offset`` with its leader epoch. With this epoch, a reader can later notice that the
        log was truncated below the offset."""
        return Position(offset, self.live_epoch if (epoch := self.epoch_before(offset)) is None else epoch)

    @property
    def on_broker(self) -> bool:
        """True if the broker has the partition."""
        return self.live_start is not None

    def end_from(self, start: int) -> int:
        """Return the end of the readable records from ``start`` on; ``start`` if no record is readable yet.

        The bucket's last records may belong to a transaction whose outcome is in a later segment. If the broker has
        already deleted these records, they are readable only after the bucket has that segment. Until then, the end is
        the seam (where the broker's part begins).
        """
        # If the broker's log begins after the seam but not after the bucket's end, the records in between are in the
        # bucket. They only wait for the outcome of their transaction.
        waits = self.lineage is not None and self.seam < (self.live_start or 0) <= self.lineage.end_offset
        return max(start, self.seam) if waits and start < (self.live_start or 0) else self.end

    def bytes_between(self, start: int, stop: int) -> int:
        """Estimate the bytes of the log from ``start`` up to ``stop`` (exclusive)."""
        stored = 0.0
        for span in () if self.lineage is None else self.lineage.spans_between(start, min(stop, self.seam)):
            # Assume that a segment's bytes are spread evenly over its offsets. The index would give exact positions,
            # but reading the index takes a request.
            offsets = span.segment.end_offset - span.segment.start_offset + 1
            stored += span.segment.segment_size_in_bytes * (span.stop - span.start) / offsets
        return int(stored + self._bytes_per_offset() * max(0, stop - max(start, self.seam)))

    def _bytes_per_offset(self) -> float:
        """Estimate the bytes per offset at the broker from the bucket's latest segment."""
        if self.lineage is None:
            return _ASSUMED_RECORD_BYTES
        last = self.lineage.spans[-1].segment
        return last.segment_size_in_bytes / (last.end_offset - last.start_offset + 1)
