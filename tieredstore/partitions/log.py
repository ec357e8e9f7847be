"""One partition's log, as the bucket and the broker hold it together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from tieredstore.catalog.lineage import Lineage
from tieredstore.model import TopicId, TopicIdPartition, TopicPartition, Uuid
from tieredstore.partitions.history import Cut, History
from tieredstore.partitions.position import Position

_ASSUMED_RECORD_BYTES: Final = 1024
"""For a partition that the bucket holds nothing of, so that nothing tells the size of its records."""

OffsetWindow: TypeAlias = tuple[int, int]
"""The offsets of a partition from the first up to the second, which is out."""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's offsets from ``earliest`` up to ``end`` (half-open), all of whose records are decided.

    The bucket is read below ``seam``, the broker from it on. ``live_start`` is the first offset that the broker has,
    None if it is not asked or does not have the partition. ``topic_id`` is the broker's, or else the bucket's;
    ``derived_id`` stands for it in a bucket that stores no topic ids. ``live_epoch`` is that of the broker's leader,
    ``history`` what was found out about the bucket's epochs: ``lineage`` ends where its cut is.
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
        """The same in one life of the topic."""
        return TopicIdPartition(self.topic_id, self.topic, self.partition)

    @property
    def stored_partition(self) -> TopicIdPartition:
        """The same as the bucket has it."""
        return TopicIdPartition(self.derived_id or self.topic_id, self.topic, self.partition)

    def is_of(self, topic_id: Uuid) -> bool:
        """Whether this may be the log of a topic that was read under this id."""
        read, own = TopicId.of(topic_id, self.derived_id), TopicId.of(self.topic_id, self.derived_id)
        return not read.contradicts(own)

    @property
    def cut(self) -> Cut | None:
        """Where the log left what the bucket holds, if it did."""
        return None if self.history is None else self.history.cut

    def epoch_before(self, offset: int) -> int | None:
        """The leader epoch of the record before ``offset``; in the broker's part its leader's, which may be later."""
        if self.lineage is not None and offset <= self.seam:
            return self.lineage.epoch_at(offset - 1)
        return self.live_epoch

    def position(self, offset: int) -> Position:
        """A place in the log as it is now: only what happens after this can cut it off."""
        return Position(offset, self.live_epoch if (epoch := self.epoch_before(offset)) is None else epoch)

    @property
    def on_broker(self) -> bool:
        """Whether the broker has the partition."""
        return self.live_start is not None

    def end_from(self, start: int) -> int:
        """The end of what can be read from ``start`` on, which is ``start`` where that is nothing yet.

        It is the seam where a transaction is undecided at the bucket's end and the broker has deleted its records:
        these are in the bucket, and wait for the segment that decides it.
        """
        # The broker begins behind the seam and not behind what the bucket holds: nothing is lost, some is undecided.
        waits = self.lineage is not None and self.seam < (self.live_start or 0) <= self.lineage.end_offset
        return max(start, self.seam) if waits and start < (self.live_start or 0) else self.end

    def bytes_between(self, start: int, stop: int) -> int:
        """How many bytes of the log the offsets ``start`` up to ``stop`` (half-open) take, about."""
        stored = 0.0
        for span in () if self.lineage is None else self.lineage.spans_between(start, min(stop, self.seam)):
            # As if spread evenly over a segment's offsets: an estimate is not worth a request for its index.
            offsets = span.segment.end_offset - span.segment.start_offset + 1
            stored += span.segment.segment_size_in_bytes * (span.stop - span.start) / offsets
        return int(stored + self._bytes_per_offset() * max(0, stop - max(start, self.seam)))

    def _bytes_per_offset(self) -> float:
        """What a record of the broker has, if it is like the latest of the bucket."""
        if self.lineage is None:
            return _ASSUMED_RECORD_BYTES
        last = self.lineage.spans[-1].segment
        return last.segment_size_in_bytes / (last.end_offset - last.start_offset + 1)
