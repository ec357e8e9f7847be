"""Checks between segments: gaps, overlaps, leader epochs, repeated copies, re-created topics.

The checks take segments in key order. Memory holds only the topics' names, and the latest leader epochs and a few
numbers of one partition.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tieredstore.format.keys import Suffix
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import TopicIdPartition, Uuid
from tieredstore.ops.verification.findings import Finding, FindingKind
from tieredstore.ops.verification.selection import ClaimedOffsets, Subject

_EPOCHS_KEPT: Final = 1000
"""The maximum number of leader epochs to remember for a partition. A segment overlaps only with segments of the last
one or two epochs."""


class Neighbours:
    """Compares each segment with the segments before it. Takes segments in key order. Not thread-safe."""

    def __init__(self) -> None:
        self._topic_ids: dict[str, Uuid] = {}
        self._partition: TopicIdPartition | None = None
        self._log = _LogSoFar()

    def take(self, subject: Subject, claimed: ClaimedOffsets | None) -> Iterator[Finding]:
        """Compare a segment with the segments before it. Do not compare the offsets of a segment without a manifest.

        ``claimed`` is None if the manifest is damaged or was not read.
        """
        where = subject.objects.segment_id.topic_id_partition
        start = subject.objects.start_offset
        # Keys with non-ASCII digits come last in the listing. So after the largest offset of a partition, a smaller
        # one can follow.
        if where != self._partition or start < self._log.start:
            yield from self.finish()
            self._log = _LogSoFar()
        if where != self._partition:
            self._partition = where
            yield from find_recreated_topic(self._topic_ids, where)
        yield from self._log.take(subject, claimed)

    def finish(self) -> Iterator[Finding]:
        """Yield the findings that are certain only at the end of the listing."""
        return self._log.release(MAX_OFFSET + 1)


def find_recreated_topic(topic_ids: dict[str, Uuid], where: TopicIdPartition) -> Iterator[Finding]:
    """Yield a finding if the topic's name has segments under another topic id in ``topic_ids``. Report each id once."""
    known = topic_ids.setdefault(where.topic, where.topic_id)
    if known != where.topic_id:
        topic_ids[where.topic] = where.topic_id
        detail = f"topic {where.topic} has segments under the ids {known} and {where.topic_id}"
        yield Finding(FindingKind.RECREATED_TOPIC, where, detail)


@dataclass(slots=True)
class _LeftBehind:
    """A segment of an abandoned leader epoch. ``missing`` are the offsets for which no other segment was found yet."""

    subject: Subject
    claimed: ClaimedOffsets
    newest: int
    missing: list[tuple[int, int]]

    def cover(self, start: int, end: int) -> None:
        """Record that another segment has the offsets ``start`` to ``end``."""
        pieces = [
            piece
            for first, last in self.missing
            for piece in ((first, min(last, start - 1)), (max(first, end + 1), last))
        ]
        self.missing = [(first, last) for first, last in pieces if first <= last]

    def findings(self) -> Iterator[Finding]:
        epoch, end = self.claimed.epochs[-1][0], self.claimed.end
        for first, last in self.missing:
            detail = (
                f"offsets {first} to {last} are of leader epoch {epoch}, but the log continued in epoch {self.newest}"
            )
            yield self.subject.finding(FindingKind.LEFT_BEHIND, detail, offsets=(first, last))
        if not self.missing:
            detail = f"it ends in leader epoch {epoch}, but the log continued in epoch {self.newest}"
            start = self.subject.objects.start_offset
            yield self.subject.finding(FindingKind.LEFT_BEHIND_COVERED, detail, offsets=(start, end))


class _LogSoFar:
    """Facts about the segments of one partition that come before the present segment."""

    def __init__(self) -> None:
        self.start = -1
        self._reach: int | None = None
        """The last readable offset found so far; None if unknown."""
        self._left: list[_LeftBehind] = []
        """Segments of abandoned leader epochs. A segment is kept here until no later segment can have its offsets."""
        self._left_until = -1
        self._epochs: list[tuple[int, int]] = []
        self._previous: tuple[int, ClaimedOffsets] | None = None
        self._is_hidden = False
        self._leftovers = 0

    def take(self, subject: Subject, claimed: ClaimedOffsets | None) -> Iterator[Finding]:
        start = self.start = subject.objects.start_offset
        yield from self.release(start)
        if subject.objects.find(Suffix.MANIFEST) is None:
            self._leftovers += 1
        elif claimed is None:
            self._is_hidden = True
        else:
            yield from self._compare(subject, start, claimed)
            self._previous = (start, claimed)

    def release(self, start: int) -> Iterator[Finding]:
        """Yield the findings about abandoned epochs that are certain now: all later segments begin at ``start`` or
        after."""
        known = [left for left in self._left if left.claimed.end < start]
        self._left = [left for left in self._left if left.claimed.end >= start]
        return (finding for left in known for finding in left.findings())

    def _compare(self, subject: Subject, start: int, claimed: ClaimedOffsets) -> Iterator[Finding]:
        if (start, claimed) == self._previous and claimed.end >= 0:
            detail = f"offsets {start} to {claimed.end} are also in the previous segment, with the same leader epochs"
            yield subject.finding(FindingKind.COPIED_TWICE, detail, offsets=(start, claimed.end))
            return
        newest = self._epochs[-1][0] if self._epochs else -1
        is_old = bool(claimed.epochs) and claimed.epochs[-1][0] < newest
        if is_old and claimed.end >= 0 and self._reach is not None:
            yield from self._old_epoch(subject, start, claimed, newest)
            return
        for left in self._left if claimed.end >= 0 else ():
            left.cover(start, claimed.end)
        yield from self._against_reach(subject, start, claimed)
        self._extend(start, claimed, newest)
        self._is_hidden, self._leftovers = False, 0

    def _old_epoch(self, subject: Subject, start: int, claimed: ClaimedOffsets, newest: int) -> Iterator[Finding]:
        """Check a segment whose last leader epoch is older than the epoch of an earlier segment."""
        epoch, reach = claimed.epochs[-1][0], self._reach
        assert reach is not None
        if claimed.end > reach:
            first = max(start, reach + 1)
            self._left_until = max(self._left_until, claimed.end)
            # Record the offsets after ``reach`` as missing for now. The next segment of the newer epoch may have these
            # offsets.
            self._left.append(_LeftBehind(subject, claimed, newest, [(first, claimed.end)]))
        elif self._epoch_at(claimed.end) != epoch:
            detail = (
                f"it ends in leader epoch {epoch}, but offset {claimed.end} is of epoch {self._epoch_at(claimed.end)}"
            )
            yield subject.finding(FindingKind.LEFT_BEHIND_COVERED, detail, offsets=(start, claimed.end))
        else:
            yield self._overlap(subject, start, min(claimed.end, reach))

    def _against_reach(self, subject: Subject, start: int, claimed: ClaimedOffsets) -> Iterator[Finding]:
        reach = self._reach
        if reach is None:
            return
        if start <= reach:
            yield self._overlap(subject, start, reach if claimed.end < 0 else min(claimed.end, reach))
            return
        first = max(reach, self._left_until) + 1
        # Report no gap after a segment with a damaged manifest, because that segment may fill the gap. Its damage is
        # reported already.
        if first < start and not self._is_hidden:
            leftovers = f"; objects without a manifest are there ({self._leftovers})" if self._leftovers else ""
            detail = f"offsets {first} to {start - 1} are in no segment"
            yield subject.finding(FindingKind.GAP, detail + leftovers, offsets=(first, start - 1))

    @staticmethod
    def _overlap(subject: Subject, first: int, last: int) -> Finding:
        detail = f"offsets {first} to {last} are also in another segment"
        return subject.finding(FindingKind.OVERLAP, detail, offsets=(first, last))

    def _extend(self, start: int, claimed: ClaimedOffsets, newest: int) -> None:
        if claimed.end < 0:
            self._reach = None
            return
        reach = claimed.end if self._reach is None else max(self._reach, claimed.end)
        for epoch, begins in claimed.epochs:
            if epoch > newest:
                # The previous leader epoch ended where this epoch began, even if segments of the previous epoch have
                # later offsets.
                reach = claimed.end if begins <= reach else reach
                self._epochs.append((epoch, max(begins, start)))
        del self._epochs[:-_EPOCHS_KEPT]
        self._reach = reach

    def _epoch_at(self, offset: int) -> int:
        begun = bisect_right(self._epochs, offset, key=lambda entry: entry[1])
        return self._epochs[max(begun - 1, 0)][0]
