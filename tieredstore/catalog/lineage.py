"""Which segment holds which offset of a partition: leader epochs settle what overlaps. Pure: values in, values out.

Leaders copy segments on their own, so that copies of one partition may overlap, and after an unclean election they may
contradict each other. As in Kafka a record is told by its leader epoch and its offset: a log is right where its
epochs are those of the ruling segment's leader-epoch index, the one with the highest ``(last epoch, end offset)``.
``docs/design/reading.md`` states the rules with examples.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, TypeAlias

from tieredstore.catalog.problems import Problem, unreadable_between
from tieredstore.errors import CorruptDataError, IndexesCorruptError, SegmentNotFoundError
from tieredstore.kafka.checkpoints import LeaderEpochs
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition

NO_EPOCH: Final = -1
"""The epoch of a segment that names none: older than all others."""

_NO_EPOCHS: Final = ((NO_EPOCH, 0),)

_END: Final = MAX_OFFSET + 1

OffsetSpan: TypeAlias = tuple[int, int]
"""Offsets, half-open, of no segment in particular."""


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets ``start`` up to ``stop`` (half-open) of a partition are to be read from ``segment``."""

    segment: RemoteLogSegmentMetadata
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """The offsets ``start`` up to ``stop`` (half-open) of ``segment`` are of leader epochs that the log left behind."""

    segment: RemoteLogSegmentMetadata
    start: int
    stop: int

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.stop - 1} of {self.segment} are of a leader epoch that was left behind"


@dataclass(frozen=True, slots=True)
class Gap:
    """The offsets ``start`` up to ``stop`` (half-open) of ``partition`` are in no segment, and later ones are.

    Within a lineage it lies between two spans; for a read it may be what lay before the log's beginning.
    """

    partition: TopicIdPartition
    start: int
    stop: int

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.stop - 1} of {self.partition} are in no segment"


@dataclass(frozen=True, slots=True)
class Lineage:
    """One partition's log, as its segments hold it.

    ``spans`` are in the order of offsets, without overlap; between two of them there may be a gap. ``superseded`` is
    what of segments is not of this log; ``covered`` are the segments that hold nothing that others do not. ``epochs``
    are the leader epochs that ruled, as far back as was needed: the first may have begun earlier. ``problems`` are
    segments of the partition that were found and do not count.
    """

    partition: TopicIdPartition
    epochs: LeaderEpochs
    spans: tuple[Span, ...]
    superseded: tuple[Superseded, ...] = ()
    covered: tuple[RemoteLogSegmentMetadata, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def earliest_offset(self) -> int:
        """The first offset that there is."""
        return self.spans[0].start

    @property
    def end_offset(self) -> int:
        """One more than the last offset that there is."""
        return self.spans[-1].stop

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What is missing between the earliest offset and the end."""
        return self.gaps_between(self.earliest_offset, self.end_offset)

    def until(self, offset: int) -> Lineage | None:
        """The log up to ``offset``, which is out; None if nothing is left of it."""
        spans = self.spans_between(self.earliest_offset, offset)
        epochs = tuple(entry for entry in self.epochs if entry[1] < offset)
        return replace(self, spans=spans, epochs=epochs) if spans else None

    def epoch_at(self, offset: int) -> int | None:
        """The leader epoch of the record at ``offset``; None where no segment tells it."""
        ruling = [epoch for epoch, start in self.epochs if start <= offset]
        is_within = self.earliest_offset <= offset < self.end_offset
        return ruling[-1] if is_within and ruling and ruling[-1] != NO_EPOCH else None

    def span_at(self, offset: int) -> Span:
        """The span that holds ``offset``; SegmentNotFoundError in a gap and outside of the log."""
        begun = self._upto(offset)
        if begun and offset < self.spans[begun - 1].stop:
            return self.spans[begun - 1]
        raise SegmentNotFoundError(
            f"offset {offset} of {self.partition} is in no segment; there are {self.earliest_offset} to "
            f"{self.end_offset - 1}{' with gaps' if self.gaps else ''}"
        )

    def spans_between(self, start: int, stop: int) -> tuple[Span, ...]:
        """What the segments hold of the offsets ``start`` up to ``stop`` (half-open), spans cut to these."""
        return tuple(
            Span(span.segment, max(span.start, start), min(span.stop, stop))
            for span in self._touching(start, stop)
            if max(span.start, start) < min(span.stop, stop)
        )

    def gaps_between(self, start: int, stop: int) -> tuple[Gap, ...]:
        """The gaps inside ``start`` up to ``stop`` (half-open); what lies before or after the log is none."""
        low, high = max(start, self.earliest_offset), min(stop, self.end_offset)
        around = self._touching(low, high, margin=1) if low < high else ()
        extents = ((max(a.stop, low), min(b.start, high)) for a, b in itertools.pairwise(around))
        return tuple(Gap(self.partition, first, last) for first, last in extents if first < last)

    def unreadable_between(
        self, start: int, stop: int, *, starts_there: bool, stops_there: bool
    ) -> tuple[Problem, ...]:
        """The segments that may hide records of these offsets: see ``problems.unreadable_between``."""
        if not self.problems:
            return ()
        extents = [(span.start, span.stop) for span in self.spans]
        return tuple(
            unreadable_between(self.problems, extents, start, stop, starts_there=starts_there, stops_there=stops_there)
        )

    def is_followed(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether a span begins where the segment is said to end, which speaks for that end."""
        begun = self._upto(segment.end_offset + 1)
        return begun > 0 and self.spans[begun - 1].start == segment.end_offset + 1

    def spans_since(self, timestamp_ms: int) -> Iterator[Span]:
        """The spans that may hold a record of ``timestamp_ms`` or later, by their segments' greatest timestamps."""
        return (span for span in self.spans if not 0 <= span.segment.max_timestamp_ms < timestamp_ms)

    def _upto(self, offset: int) -> int:
        """How many spans begin at ``offset`` or before."""
        return bisect_right(self.spans, offset, key=lambda span: span.start)

    def _touching(self, start: int, stop: int, margin: int = 0) -> tuple[Span, ...]:
        return self.spans[max(self._upto(start) - 1, 0) : self._upto(stop) + margin]


def check_segment(segment: RemoteLogSegmentMetadata) -> None:
    """CorruptDataError for metadata that contradicts itself, so that no lineage can be told from it."""
    if not 0 <= segment.start_offset <= segment.end_offset:
        raise CorruptDataError(f"{segment} is said to end at offset {segment.end_offset}, before it begins")
    # What is held ends one behind it, which has to be a number of Java's too.
    if segment.end_offset == MAX_OFFSET:
        raise CorruptDataError(f"{segment} is said to end at offset {segment.end_offset}, behind which none can come")
    if (fault := _fault_of_epochs(segment)) is not None:
        raise CorruptDataError(f"{segment} {fault}")


def epochs_fit(segment: RemoteLogSegmentMetadata) -> bool:
    """Whether the segment names leader epochs, and they can be its own."""
    return bool(segment.segment_leader_epochs) and _fault_of_epochs(segment) is None


def _fault_of_epochs(segment: RemoteLogSegmentMetadata) -> str | None:
    epochs = segment.segment_leader_epochs
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(epochs):
        if next_epoch <= epoch or next_start < start:
            return f"names epoch {next_epoch} at {next_start} after epoch {epoch} at {start}"
    if epochs and (epochs[0][1] > segment.start_offset or epochs[-1][1] > segment.end_offset):
        return f"ends at {segment.end_offset} and names the leader epochs {epochs[:5]}"
    return None


def ruling_segment(segments: Iterable[RemoteLogSegmentMetadata]) -> RemoteLogSegmentMetadata:
    """The segment with the highest last epoch; of these the highest end offset; of these the last copied.

    At least one segment must be given, all of one partition, each checked.
    """
    return max(segments, key=_standing)


def _standing(segment: RemoteLogSegmentMetadata) -> tuple[int, int, int, bytes]:
    epochs = segment.segment_leader_epochs
    # The last epoch that is named is never one without a record.
    return epochs[-1][0] if epochs else NO_EPOCH, *_rank(segment.end_offset, segment)


def needs_history(ruler: RemoteLogSegmentMetadata, segments: Iterable[RemoteLogSegmentMetadata]) -> bool:
    """Whether the ruler's leader-epoch index has to be read: its metadata tells only of the epochs from its start on.

    True if any segment begins in an epoch before these.
    """
    first = _epochs_of(ruler)[0][0]
    # The first that is named may have no record in the segment: then its own first epoch is a later one.
    older = (segment for segment in segments if (segment.segment_leader_epochs or _NO_EPOCHS)[0][0] < first)
    return any(_epochs_of(segment)[0][0] < first for segment in older)


def earliest_of_first_epoch(
    segments: Iterable[RemoteLogSegmentMetadata], history: LeaderEpochs, asked: Container[RemoteLogSegmentId]
) -> RemoteLogSegmentMetadata | None:
    """The segment whose leader-epoch index may tell what came before ``history``; None if that is not needed.

    A broker that tiers nothing itself cuts its checkpoint where retention cuts the log, and a later copy of it does not
    name earlier leaders. But an epoch has one leader, and so one history: whoever holds a record of the first epoch
    that ``history`` names has the log that ruled before it. The earliest such segment was copied when the checkpoint
    reached furthest back. ``asked`` are those whose indexes are known already.
    """
    epoch, start = history[0]
    named = [(segment, _epochs_of(segment)) for segment in segments]
    # What begins at the first offset of all has nothing before it.
    if not start or all(epochs[0][0] >= epoch for _, epochs in named):
        return None
    bridging = [
        segment
        for segment, epochs in named
        if segment.remote_log_segment_id not in asked and any(own == epoch for own, _ in epochs)
    ]
    return min(bridging, key=lambda segment: (segment.start_offset, segment.event_timestamp_ms), default=None)


def with_earliest_start(segments: Iterable[RemoteLogSegmentMetadata], history: LeaderEpochs) -> LeaderEpochs:
    """``history``, whose first epoch begins where the first of its records that was copied lies, if that is before."""
    (epoch, start), *later = history
    starts = (own_start for segment in segments for own, own_start in _epochs_of(segment) if own == epoch)
    return ((epoch, min([start, *starts])), *later)


def last_before(
    segments: Iterable[RemoteLogSegmentMetadata], history: LeaderEpochs
) -> tuple[RemoteLogSegmentMetadata, LeaderEpochs] | None:
    """The segment that ruled before ``history`` begins, with its own epochs there; None if there is none.

    For where no copy reaches over that beginning: a leader began just where a segment does, or what lay there was
    deleted before anybody copied it. What is committed no later leader takes back, so the last of those before counts;
    after an unclean election of which no copy tells, too.
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
    """The log that the ``ruler`` tells of, put together from the checked ``segments`` of its partition.

    ``history`` is the ruler's leader-epoch index, with what was cut from its front as far as others tell; None will do
    where ``needs_history`` says so. IndexesCorruptError if it contradicts the ruler itself.
    """
    epochs = _epochs_of(ruler) if history is None else history
    reigns = _reigns(epochs)
    spans = _side_by_side(segments, reigns)
    if spans is not None:
        return Lineage(ruler.topic_id_partition, epochs, spans)
    kept = {segment: _keep(segment, reigns) for segment in segments}
    # All of the ruler is of its own epochs; an index that says otherwise cannot be its own.
    if kept.get(ruler) != [(ruler.start_offset, ruler.end_offset + 1)]:
        raise IndexesCorruptError(f"the leader-epoch index of {ruler} does not hold the epochs that its metadata names")
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
    """The spans of segments of which none reaches into another, and all are whole of the epochs that ruled, as nearly
    always; None for others."""
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
    """The segment's epochs without those that have no record in it; the first one begins with the segment."""
    # Segments from before Kafka had leader epochs name none: they count as older than all that do.
    named = segment.segment_leader_epochs or ((NO_EPOCH, segment.start_offset),)
    if len(named) == 1:  # nearly all are of one leader
        return ((named[0][0], max(named[0][1], segment.start_offset)),)
    clamped = tuple((epoch, max(start, segment.start_offset)) for epoch, start in named)
    following = (*(start for _, start in clamped[1:]), _END)
    return tuple(entry for entry, stop in zip(clamped, following, strict=True) if entry[1] < stop)


def _reigns(epochs: LeaderEpochs) -> dict[int, OffsetSpan]:
    """The offsets of each epoch.

    The first is open to the left: Kafka moves its start up when retention deletes what was before it.
    """
    starts = [0, *(start for _, start in epochs[1:])][: len(epochs)]
    return {epoch: extent for (epoch, _), extent in zip(epochs, itertools.pairwise([*starts, _END]), strict=True)}


def _keep(segment: RemoteLogSegmentMetadata, reigns: Mapping[int, OffsetSpan]) -> list[OffsetSpan]:
    """The offsets of the segment whose epoch is the one that ruled there, neighbours joined."""
    own = _epochs_of(segment)
    if len(own) == 1:  # as nearly all
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
    """One segment for each offset: go on in the one that covers the next offset and reaches furthest."""
    pieces = [(start, stop, segment) for segment, extents in kept.items() for start, stop in extents]
    # From the end, so that the next piece is popped off the list in constant time.
    pieces.sort(key=lambda piece: piece[0], reverse=True)
    position = 0
    while pieces:
        position = max(position, pieces[-1][0])
        covering: list[tuple[int, RemoteLogSegmentMetadata]] = []
        while pieces and pieces[-1][0] <= position:
            _, stop, segment = pieces.pop()
            covering.append((stop, segment))
        stop, segment = max(covering, key=lambda piece: _rank(*piece))
        # None of the others reaches further, so that they are done with as well.
        if stop > position:
            yield Span(segment, position, stop)
            position = stop


def _rank(stop: int, segment: RemoteLogSegmentMetadata) -> tuple[int, int, bytes]:
    """Which of two copies goes first: the one that reaches further, then the later copied, then the greater id."""
    return stop, segment.event_timestamp_ms, segment.remote_log_segment_id.id.bytes
