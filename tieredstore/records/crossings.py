"""Transactions that are open where the segments of another broker begin.

A broker lists an abort in the transaction index by what it knows of the transaction. A replica whose log begins in the
middle of one, since retention had taken its first part, knows of no first part: its index has no entry for the abort
marker, or one that begins too late, and its producer snapshots lack what is open. The segments before it, of another
broker, have that first part, and their last producer snapshot has the transaction. So a marker is paired with what
the segments before it leave open; what an index says counts where its broker has seen all of the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tieredstore.catalog.lineage import Span
from tieredstore.catalog.log_sections import position_before
from tieredstore.catalog.transactions import end_markers, opened_at_end, read_aborted, steps_of
from tieredstore.errors import BatchCorrupt, IndexNotRecorded
from tieredstore.kafka.checkpoints import parse_leader_epochs
from tieredstore.kafka.end_markers import play_markers
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import IndexType, RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from tieredstore.remote.source import SegmentSource


class Crossings:
    """Goes through ``spans``, which follow each other without a gap, for a read that begins at offset ``start``.

    Where the segments of one broker in one leader epoch follow each other nothing is asked for. Where another's begin,
    the indexes of the first of these; those of the segment before it, unless its log reaches back to ``start``; and of
    transactions that were open there and that it does not know, the log up to the marker that ends the last of them.
    """

    def __init__(self, source: SegmentSource, spans: Sequence[Span], start: int) -> None:
        self._source = source
        self._spans = spans
        self._start = start
        self._next = 0
        self._ended: dict[int, list[AbortedTransaction]] = {}
        self._pending_from: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        """Producers whose transactions are open where the spans that were gone through end, and where each began, as
        far as the broker of the last one does not know of them."""

    def skip_to(self, number: int) -> None:
        """Transactions that were open before span ``number`` have no records that matter."""
        self._next = max(self._next, number + 1)

    def ended_in(self, number: int) -> Sequence[AbortedTransaction]:
        """The transactions that markers in span ``number`` abort, and that its index may not have as they were."""
        while self._next <= number:
            if ended := list(self._go_through(self._next)):
                self._ended[self._next] = ended
            if self.pending:
                self._pending_from[self._next] = min(self.pending.values())
            self._next += 1
        return self._ended.get(number, ())

    def pending_from(self, number: int) -> int:
        """Return where the first transaction began that was pending at the end of span ``number``."""
        return self._pending_from.get(number, MAX_OFFSET)

    def opened_at_end(self) -> Mapping[int, int]:
        """The producers whose transactions are open at the end of all spans, and where each began."""
        last = len(self._spans) - 1
        # Its broker has seen all that the read begins with.
        if self._knows_from(self._spans[last].segment) <= self._start:
            return self._opened_at(last)
        self.ended_in(last)
        return {**self._opened_at(last), **self.pending}

    def _go_through(self, number: int) -> Iterator[AbortedTransaction]:
        span = self._spans[number]
        is_crossing = number > 0 and not _is_of_one_broker(self._spans[number - 1], span)
        if is_crossing:
            known_from = self._knows_from(span.segment)
            if known_from <= self._start:
                self.pending = {}
                return
            opened = {**self._opened_at(number - 1), **self.pending}
            self.pending = {producer: first for producer, first in opened.items() if first < known_from}
        if self.pending:
            self._forget_known(span.segment)
        if self.pending:
            yield from self._markers_in(span)

    def _forget_known(self, segment: RemoteLogSegmentMetadata) -> None:
        """What the segment's indexes have as it began: its broker knows it, and so do those behind it."""
        known = opened_at_end(self._source, segment)
        known.update((entry.producer_id, entry.first_offset) for entry in read_aborted(self._source, segment))
        self.pending = {producer: first for producer, first in self.pending.items() if known.get(producer) != first}

    def _markers_in(self, span: Span) -> Iterator[AbortedTransaction]:
        """Take the pending transactions that end in the span, and give those that are aborted."""
        position = position_before(self._source, span.segment, span.start)
        for marker in end_markers(self._source, span.segment, span.start, self.pending, position):
            if marker.offset >= span.stop:
                return
            first = self.pending.pop(marker.producer_id)
            if marker.aborts:
                # Nothing is said of the others: the last stable offset is as low as can be.
                yield AbortedTransaction(marker.producer_id, first, marker.offset, first)
            if not self.pending:
                return

    def _opened_at(self, number: int) -> dict[int, int]:
        """What is open where a span ends, as the brokers of the segments before know."""
        first = number
        while first and _is_cut(self._spans[first]):
            first -= 1
        span = self._spans[first]
        # At its end another log goes on, of which its snapshot tells nothing: only its batches do.
        opened = {} if _is_cut(span) else opened_at_end(self._source, span.segment)
        for later in self._spans[first + (not _is_cut(span)) : number + 1]:
            least = later.start if later is not self._spans[0] else 0
            steps = steps_of(self._source, later.segment)
            opened = play_markers((step for step in steps if least <= step.offset < later.stop), opened)[1]
        return opened

    def _knows_from(self, segment: RemoteLogSegmentMetadata) -> int:
        """Where the log of the segment's broker began, or behind that: there a broker cuts its leader epochs."""
        try:
            with self._source.fetch_index(segment, IndexType.LEADER_EPOCH) as stream:
                raw = stream.read()
            epochs = parse_leader_epochs(raw) if raw else ()
        except (IndexNotRecorded, BatchCorrupt):
            return MAX_OFFSET
        return epochs[0][1] if epochs else MAX_OFFSET


def _is_of_one_broker(before: Span, span: Span) -> bool:
    """Whether one broker copied both segments as the leader of one epoch: what it knows at the end of the first one it
    knows in the second."""
    one, other = before.segment, span.segment
    return (
        one.broker_id == other.broker_id >= 0
        and one.segment_leader_epochs[-1:] != ()
        and other.segment_leader_epochs[-1:] != ()
        and one.segment_leader_epochs[-1][0] == other.segment_leader_epochs[-1][0]
        and not _is_cut(before)
    )


def _is_cut(span: Span) -> bool:
    """Whether the span ends before its segment does."""
    return span.stop <= span.segment.end_offset
