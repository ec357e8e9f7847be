"""Assignment of a partition's offsets to segments. Leader epochs resolve overlaps. The functions take and return
values, and make no requests.

Leaders copy segments independently, so copies of one partition may overlap. After an unclean election, copies may also
contradict each other.

As in Kafka, leader epoch and offset identify a record. The ruling segment is the one with the highest ``(last epoch,
end offset)``. Other segments are valid where their epochs are those in the ruling segment's leader-epoch index.
``docs/design/reading.md`` states the rules with examples.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from tieredstore.catalog.problems import Problem, unreadable_between
from tieredstore.errors import CorruptDataError, IndexesCorruptError, SegmentNotFoundError
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import OffsetSpan, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition

NO_EPOCH: Final = -1
"""The epoch of a segment without leader epochs. It counts as older than all others."""

_NO_EPOCHS: Final = ((NO_EPOCH, 0),)

_END: Final = MAX_OFFSET + 1


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets ``start`` to ``stop`` (half-open) of a partition, which are read from ``segment``."""

    segment: RemoteLogSegmentMetadata
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """Offsets ``start`` to ``stop`` (half-open) of ``segment`` whose leader epochs are not part of the log."""

    segment: RemoteLogSegmentMetadata
    start: int
    stop: int

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.stop - 1} of {self.segment} are of a superseded leader epoch"


@dataclass(frozen=True, slots=True)
class Gap:
    """The offsets ``start`` to ``stop`` (half-open) of ``partition`` that are in no segment, although later offsets
    are.

    In a lineage, gaps lie between two spans. In a read, a gap may also lie before the log's first offset.
    """

    partition: TopicIdPartition
    start: int
    stop: int

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.stop - 1} of {self.partition} are in no segment"


@dataclass(frozen=True, slots=True)
class Lineage:
    """The log of one partition, as spans of its segments.

    ``spans`` are in the order of offsets and do not overlap, but may have gaps between them. ``superseded`` are parts
    of segments that do not belong to the log. ``covered`` are segments that are not needed, because the log takes all
    their offsets from other segments.

    ``epochs`` are the leader epochs of the log, as far back as needed. The first epoch may have begun earlier.
    ``problems`` are segments that cannot be used.
    """

    partition: TopicIdPartition
    epochs: LeaderEpochs
    spans: tuple[Span, ...]
    superseded: tuple[Superseded, ...] = ()
    covered: tuple[RemoteLogSegmentMetadata, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def earliest_offset(self) -> int:
        """First offset of the log."""
        return self.spans[0].start

    @property
    def end_offset(self) -> int:
        """The offset after the last one."""
        return self.spans[-1].stop

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps between the earliest offset and the end."""
        return self.gaps_between(self.earliest_offset, self.end_offset)

    def until(self, offset: int) -> Lineage | None:
        """Return the log before ``offset``; None if nothing remains."""
        spans = self.spans_between(self.earliest_offset, offset)
        epochs = tuple(entry for entry in self.epochs if entry[1] < offset)
        return replace(self, spans=spans, epochs=epochs) if spans else None

    def epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch of the record at ``offset``; None if no segment has it."""
        ruling = [epoch for epoch, start in self.epochs if start <= offset]
        is_within = self.earliest_offset <= offset < self.end_offset
        return ruling[-1] if is_within and ruling and ruling[-1] != NO_EPOCH else None

    def span_at(self, offset: int) -> Span:
        """Return the span that holds ``offset``. Raise SegmentNotFoundError in a gap or outside the log."""
        begun = self._upto(offset)
        if begun and offset < self.spans[begun - 1].stop:
            return self.spans[begun - 1]
        raise SegmentNotFoundError(
            f"offset {offset} of {self.partition} is in no segment; there are {self.earliest_offset} to "
            f"{self.end_offset - 1}{' with gaps' if self.gaps else ''}"
        )

    def spans_between(self, start: int, stop: int) -> tuple[Span, ...]:
        """Return the spans between ``start`` and ``stop`` (half-open), cut to these offsets."""
        return tuple(
            Span(span.segment, max(span.start, start), min(span.stop, stop))
            for span in self._find_touching(start, stop)
            if max(span.start, start) < min(span.stop, stop)
        )

    def gaps_between(self, start: int, stop: int) -> tuple[Gap, ...]:
        """Return the gaps between ``start`` and ``stop`` (half-open). Offsets outside the log are no gap."""
        low, high = max(start, self.earliest_offset), min(stop, self.end_offset)
        around = self._find_touching(low, high, margin=1) if low < high else ()
        extents = ((max(a.stop, low), min(b.start, high)) for a, b in itertools.pairwise(around))
        return tuple(Gap(self.partition, first, last) for first, last in extents if first < last)

    def missing_from(self, offset: int) -> int:
        """Return the first offset from ``offset`` on that no segment has."""
        if offset < self.earliest_offset:
            return offset
        gaps = self.gaps_between(offset, self.end_offset)
        return gaps[0].start if gaps else max(offset, self.end_offset)

    def start_after_gap(self, offset: int) -> int | None:
        """Return the end of the first gap at or after ``offset``; None if there is none. Offsets before the log are a
        gap."""
        if offset < self.earliest_offset:
            return self.earliest_offset
        gaps = self.gaps_between(offset, self.end_offset)
        return gaps[0].stop if gaps else None

    def unreadable_between(
        self, start: int, stop: int, *, starts_there: bool, stops_there: bool
    ) -> tuple[Problem, ...]:
        """Return the unusable segments that may have records of these offsets (see ``problems.unreadable_between``)."""
        if not self.problems:
            return ()
        extents = [(span.start, span.stop) for span in self.spans]
        return tuple(
            unreadable_between(self.problems, extents, start, stop, starts_there=starts_there, stops_there=stops_there)
        )

    def is_followed(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return True if a span begins where ``segment`` claims to end. Such a span supports the claim."""
        begun = self._upto(segment.end_offset + 1)
        return begun > 0 and self.spans[begun - 1].start == segment.end_offset + 1

    def _upto(self, offset: int) -> int:
        """Return the number of spans that begin at ``offset`` or before."""
        return bisect_right(self.spans, offset, key=lambda span: span.start)

    def _find_touching(self, start: int, stop: int, margin: int = 0) -> tuple[Span, ...]:
        return self.spans[max(self._upto(start) - 1, 0) : self._upto(stop) + margin]


def check_segment(segment: RemoteLogSegmentMetadata) -> None:
    """Raise CorruptDataError for metadata that contradict themselves."""
    if not 0 <= segment.start_offset <= segment.end_offset:
        raise CorruptDataError(f"{segment} has the end offset {segment.end_offset}, which is before its start")
    # Refuse the largest offset, because the offset after the end must also fit into Java's long.
    if segment.end_offset == MAX_OFFSET:
        raise CorruptDataError(
            f"{segment} has the end offset {segment.end_offset}, the greatest possible offset, so that no record "
            "could follow"
        )
    if (fault := _fault_of_epochs(segment)) is not None:
        raise CorruptDataError(f"{segment} {fault}")


def epochs_fit(segment: RemoteLogSegmentMetadata) -> bool:
    """Return True if the segment has leader epochs that contradict neither each other nor the segment's offsets."""
    return bool(segment.segment_leader_epochs) and _fault_of_epochs(segment) is None


def _fault_of_epochs(segment: RemoteLogSegmentMetadata) -> str | None:
    epochs = segment.segment_leader_epochs
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(epochs):
        if next_epoch <= epoch or next_start < start:
            return f"lists leader epoch {next_epoch} at offset {next_start} after epoch {epoch} at offset {start}"
    if epochs and (epochs[0][1] > segment.start_offset or epochs[-1][1] > segment.end_offset):
        return f"ends at offset {segment.end_offset}, but lists the leader epochs {epochs[:5]}"
    return None


def ruling_segment(segments: Iterable[RemoteLogSegmentMetadata]) -> RemoteLogSegmentMetadata:
    """Return the segment with the highest last epoch. Of several such segments, return the one with the highest end
    offset, then the latest copy.

    ``segments`` must not be empty. All must have passed :func:`check_segment`, and belong to one
    partition.
    """
    return max(segments, key=_ruling_rank)


def _ruling_rank(segment: RemoteLogSegmentMetadata) -> tuple[int, int, int, bytes]:
    epochs = segment.segment_leader_epochs
    # Rank segments by their last epoch, because a segment always has a record of its last epoch, but perhaps none of
    # its first epoch.
    return epochs[-1][0] if epochs else NO_EPOCH, *_rank(segment.end_offset, segment)


def needs_history(ruler: RemoteLogSegmentMetadata, segments: Iterable[RemoteLogSegmentMetadata]) -> bool:
    """Return True if a segment begins in an earlier epoch than ``ruler``, the ruling segment.

    If so, the caller must read the leader-epoch index of the ruling segment. The segment's metadata are not enough,
    because they list only the leader epochs from the segment's start on.
    """
    first = _epochs_of(ruler)[0][0]
    # Compare only epochs with records, because a segment may have no record of its first listed epoch.
    older = (segment for segment in segments if (segment.segment_leader_epochs or _NO_EPOCHS)[0][0] < first)
    return any(_epochs_of(segment)[0][0] < first for segment in older)


def earliest_of_first_epoch(
    segments: Iterable[RemoteLogSegmentMetadata], history: LeaderEpochs, asked: Container[RemoteLogSegmentId]
) -> RemoteLogSegmentMetadata | None:
    """Return the segment whose leader-epoch index may have the epochs before ``history``; None if none are needed.

    A broker without tiered storage truncates its epoch checkpoint where retention truncates the log. So a later copy of
    the checkpoint lacks the earliest epochs.

    Each epoch has one leader. So a segment with a record of the first epoch in ``history`` belongs to the same log. The
    earliest such segment has the oldest checkpoint. ``asked`` are segments whose indexes were already read.
    """
    epoch, start = history[0]
    named = [(segment, _epochs_of(segment)) for segment in segments]
    # No epochs are missing if the history begins at offset 0, or if no segment has an earlier epoch.
    if not start or all(epochs[0][0] >= epoch for _, epochs in named):
        return None
    bridging = [
        segment
        for segment, epochs in named
        if segment.remote_log_segment_id not in asked and any(own == epoch for own, _ in epochs)
    ]
    return min(bridging, key=lambda segment: (segment.start_offset, segment.event_timestamp_ms), default=None)


def with_earliest_start(segments: Iterable[RemoteLogSegmentMetadata], history: LeaderEpochs) -> LeaderEpochs:
    """Move the start of the first epoch of ``history`` back to the epoch's first record in ``segments``. Return the
    result."""
    (epoch, start), *later = history
    starts = (own_start for segment in segments for own, own_start in _epochs_of(segment) if own == epoch)
    return ((epoch, min([start, *starts])), *later)


def last_before(
    segments: Iterable[RemoteLogSegmentMetadata], history: LeaderEpochs
) -> tuple[RemoteLogSegmentMetadata, LeaderEpochs] | None:
    """Return the last segment that begins before ``history``, and the segment's epochs before ``history``. Return None
    if there is no such segment.

    The caller needs this segment if no segment has records on both sides of the beginning of ``history``. There are two
    possible reasons: a segment began exactly with the new leader, or retention deleted records before ``history`` that
    were never copied.

    Later leaders keep all committed records, so the returned segment's records are still part of the log. An unclean
    election can break this rule, but copied segments do not show such elections.
    """
    epoch, start = history[0]
    named = [
        (segment, tuple(entry for entry in _epochs_of(segment) if entry[0] < epoch and entry[1] < start))
        for segment in segments
        if start and segment.start_offset < start
    ]
    older = [(segment, epochs) for segment, epochs in named if epochs]
    return max(older, key=lambda entry: (entry[1][-1][0], *_rank(entry[0].end_offset, entry[0])), default=None)


def trace_lineage(
    segments: Sequence[RemoteLogSegmentMetadata], ruler: RemoteLogSegmentMetadata, history: LeaderEpochs | None
) -> Lineage:
    """Assemble the log that the ruling segment (``ruler``) describes, from the checked ``segments`` of its partition.

    ``history`` is the ruling segment's leader-epoch index. Its truncated beginning was restored from other segments as
    far as possible. ``history`` may be None if ``needs_history`` is False.

    Raise IndexesCorruptError if the index contradicts the ruling segment.
    """
    epochs = _epochs_of(ruler) if history is None else history
    reigns = _reigns(epochs)
    spans = _side_by_side(segments, reigns)
    if spans is not None:
        return Lineage(ruler.topic_id_partition, epochs, spans)
    kept = {segment: _keep(segment, reigns) for segment in segments}
    # The index belongs to the ruling segment. It is damaged if it does not cover all offsets of that segment.
    if kept.get(ruler) != [(ruler.start_offset, ruler.end_offset + 1)]:
        raise IndexesCorruptError(f"the leader-epoch index of {ruler} lacks the epochs in its metadata")
    spans = tuple(_cover(kept))
    used = {span.segment for span in spans}
    return Lineage(
        partition=ruler.topic_id_partition,
        epochs=epochs,
        spans=spans,
        superseded=tuple(part for segment, pieces in kept.items() for part in _find_superseded(segment, pieces)),
        covered=tuple(segment for segment, pieces in kept.items() if pieces and segment not in used),
    )


def _side_by_side(
    segments: Iterable[RemoteLogSegmentMetadata], reigns: Mapping[int, OffsetSpan]
) -> tuple[Span, ...] | None:
    """Return the spans in the usual case: no segments overlap, and all lie wholly in the log's epochs. Otherwise return
    None.
    """
    spans: list[Span] = []
    position = 0
    for segment in sorted(segments, key=attrgetter("start_offset")):
        start, stop, named = segment.start_offset, segment.end_offset + 1, segment.segment_leader_epochs
        if start < position:
            return None
        reign = reigns.get(named[0][0]) if len(named) == 1 else None
        is_whole = reign is not None and named[0][1] <= start and reign[0] <= start and stop <= reign[1]
        if not is_whole and _keep(segment, reigns) != [(start, stop)]:
            return None
        spans.append(Span(segment, start, stop))
        position = stop
    return tuple(spans)


def _epochs_of(segment: RemoteLogSegmentMetadata) -> LeaderEpochs:
    """Return the leader epochs that have records in the segment. The first one begins with the segment."""
    # A segment from before Kafka's leader epochs gets an epoch that is older than all others.
    named = segment.segment_leader_epochs or ((NO_EPOCH, segment.start_offset),)
    if len(named) == 1:  # the usual case: one leader
        return ((named[0][0], max(named[0][1], segment.start_offset)),)
    clamped = tuple((epoch, max(start, segment.start_offset)) for epoch, start in named)
    following = (*(start for _, start in clamped[1:]), _END)
    return tuple(entry for entry, stop in zip(clamped, following, strict=True) if entry[1] < stop)


def _reigns(epochs: LeaderEpochs) -> dict[int, OffsetSpan]:
    """Return the offsets of each epoch.

    The first epoch counts from offset 0. Its real start is unknown, because Kafka raises the recorded start when
    retention deletes records.
    """
    starts = [0, *(start for _, start in epochs[1:])][: len(epochs)]
    return {epoch: extent for (epoch, _), extent in zip(epochs, itertools.pairwise([*starts, _END]), strict=True)}


def _keep(segment: RemoteLogSegmentMetadata, reigns: Mapping[int, OffsetSpan]) -> list[OffsetSpan]:
    """Return the ranges of offsets at which log and segment have the same leader epoch. Adjacent ranges are joined."""
    own = _epochs_of(segment)
    if len(own) == 1:  # the usual case
        start, stop = reigns.get(own[0][0], (0, 0))
        start, stop = max(own[0][1], start), min(segment.end_offset + 1, stop)
        return [(start, stop)] if start < stop else []
    pieces: list[OffsetSpan] = []
    borders = itertools.pairwise([*(start for _, start in own), segment.end_offset + 1])
    for (epoch, _), (low, high) in zip(own, borders, strict=True):
        reign = reigns.get(epoch, (0, 0))
        start, stop = max(low, reign[0]), min(high, reign[1])
        if start >= stop:
            continue
        if pieces and pieces[-1][1] == start:
            start = pieces.pop()[0]
        pieces.append((start, stop))
    return pieces


def _find_superseded(segment: RemoteLogSegmentMetadata, pieces: Sequence[OffsetSpan]) -> Iterator[Superseded]:
    position = segment.start_offset
    for start, stop in (*pieces, (segment.end_offset + 1, 0)):
        if position < start:
            yield Superseded(segment, position, start)
        position = stop


def _cover(kept: Mapping[RemoteLogSegmentMetadata, Sequence[OffsetSpan]]) -> Iterator[Span]:
    """Yield spans that do not overlap. If several segments have the next offset, take the segment that ends last."""
    pieces = [(start, stop, segment) for segment, extents in kept.items() for start, stop in extents]
    # Sort in reverse, because removing the last item of a list takes constant time.
    pieces.sort(key=lambda piece: piece[0], reverse=True)
    position = 0
    while pieces:
        position = max(position, pieces[-1][0])
        covering: list[tuple[int, RemoteLogSegmentMetadata]] = []
        while pieces and pieces[-1][0] <= position:
            _, stop, segment = pieces.pop()
            covering.append((stop, segment))
        stop, segment = max(covering, key=lambda piece: _rank(*piece))
        # Of all pieces that cover this position, yield the one that ends last.
        if stop > position:
            yield Span(segment, position, stop)
            position = stop


def _rank(stop: int, segment: RemoteLogSegmentMetadata) -> tuple[int, int, bytes]:
    """Return a sort key for copies: end offset, then time of the copy, then id."""
    return stop, segment.event_timestamp_ms, segment.remote_log_segment_id.id.bytes
