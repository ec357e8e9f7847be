"""Transactions for read_committed: the aborted ones, and those without an outcome.

As in Kafka, an aborted transaction has an entry in the ``.txnindex`` of the segment with its abort marker, with the
last stable offset of that moment: all transactions that began before that offset are decided by then. A committed one
has no entry, so only the producer snapshot at the end shows which transactions are open there.

A broker writes both from its own view of a transaction. Suppose a replica's log begins in the middle of one, because
retention had deleted its first part. Its index then has no entry for the abort marker, or one that begins too late, and
its producer snapshots lack the open transaction. The earlier segments, of another broker, have that first part, and
their last producer snapshot has the transaction. So each marker is paired with the transactions that the earlier
segments leave open; an index counts only where its broker has seen all of the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tieredstore.catalog.lineage import Span
from tieredstore.catalog.log_sections import position_before
from tieredstore.catalog.transactions import end_markers, opened_at_end, read_aborted, steps_of
from tieredstore.errors import BatchCorruptError, IndexNotRecordedError
from tieredstore.kafka.checkpoints import parse_leader_epochs
from tieredstore.kafka.end_markers import play_markers
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.limits import MAX_OFFSET
from tieredstore.model import IndexType, RemoteLogSegmentMetadata
from tieredstore.process.parallel import in_parallel
from tieredstore.records.report import Undecided

if TYPE_CHECKING:
    from tieredstore.process.thread_pool import ThreadPool
    from tieredstore.remote.source import SegmentSource


class Transactions:
    """The transactions of contiguous ``spans``, for a read that begins at ``start``."""

    def __init__(self, source: SegmentSource, spans: Sequence[Span], start: int) -> None:
        self._source = source
        self._spans = spans
        self._start = start
        self._known: Mapping[Span, Sequence[AbortedTransaction]] = {}
        self._looked_into = 0
        self._stable = -1
        self._aborted: list[AbortedTransaction] = []
        # Indexes made from the logs, in order, already include what the earlier ones know.
        self._pending = PendingTransactions(source, spans, start) if source.layout.tells_transactions else None

    def know(self, entries: Mapping[Span, Sequence[AbortedTransaction]]) -> None:
        """Reuse the results of :func:`aborted_in` for some of the spans."""
        self._known = entries

    def skip_to(self, number: int) -> None:
        """Skip to span ``number``: no earlier transaction has a record in the read's offsets."""
        if self._pending is not None:
            self._pending.skip_to(number)
            self._looked_into = max(self._looked_into, number)

    def aborted(self, number: int, start: int, stop: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions that touch the offsets ``start`` up to ``stop`` (half-open) of span
        ``number``.

        Calls must ascend in ``number`` and ``start``. Two requests for each segment with a transaction index, from
        the span's on until the last stable offset passes ``stop``; none for the others, except for pending
        transactions.
        """
        while self._looked_into < len(self._spans) and (self._looked_into <= number or self._stable < stop):
            self._look_into(self._looked_into)
            self._looked_into += 1
        # Calls only go forward, so transactions that ended before are not needed again.
        self._aborted = [entry for entry in self._aborted if entry.last_offset >= start]
        return [entry for entry in self._aborted if entry.first_offset < stop]

    def reach_over(self, start: int) -> bool:
        """Return True if a transaction that began before ``start``, an offset of the first span, is open at that span's
        end.

        It may have no record after ``start`` and still be undecided. Also True if the span ends before its segment,
        whose snapshot then describes another log's end. Two requests for the producer snapshot, none if the offset
        index was read before.
        """
        first = self._spans[0]
        is_cut = first.stop <= first.segment.end_offset
        return is_cut or any(offset < start for offset in opened_at_end(self._source, first.segment).values())

    def first_undecided(self, stop: int) -> Undecided | None:
        """Return the first transaction open at the end of the spans, if it begins before ``stop``.

        Two requests for the indexes of the last segment, besides those for pending transactions; none if an index has
        already shown that all of them are decided.
        """
        if self._pending is None:
            # Snapshots are then made from the logs, and know earlier open transactions as far as those logs were read.
            while self._looked_into < len(self._spans):
                self._look_into(self._looked_into)
                self._looked_into += 1
        # The last stable offset is beyond the read: all of its transactions were decided by then.
        if self._stable >= stop:
            return None
        last = self._spans[-1]
        pending = self._pending
        if pending is None and last.stop <= last.segment.end_offset:
            # At a cut another log continues. The segment's snapshot does not describe it, only its batches do.
            pending = PendingTransactions(self._source, self._spans, self._start)
        opened = opened_at_end(self._source, last.segment) if pending is None else pending.opened_at_end()
        offset, producer = min(((first, producer) for producer, first in opened.items()), default=(stop, -1))
        if offset >= stop:
            return None
        return Undecided(last.segment.topic_id_partition, producer, offset, last.stop)

    def _look_into(self, number: int) -> None:
        span = self._spans[number]
        entries = self._known[span] if span in self._known else aborted_in(self._source, span)
        ended: Sequence[AbortedTransaction] = ()
        # Outcomes are trusted up to the span's end, and only as far as all open transactions are known there.
        limit = span.stop
        if self._pending is not None:
            ended = self._pending.ended_in(number)
            # Later spans may have been visited already: the current pending transactions do not describe this one.
            limit = min(limit, self._pending.pending_from(number))
        told = {(entry.producer_id, entry.last_offset) for entry in ended}
        self._aborted += [entry for entry in entries if (entry.producer_id, entry.last_offset) not in told]
        self._aborted += ended
        self._stable = max([self._stable, *(min(entry.last_stable_offset, limit) for entry in entries)])


class PendingTransactions:
    """Transactions that are open where the segments of another broker begin.

    Visits contiguous ``spans`` for a read that begins at offset ``start``.

    Segments of one broker in one leader epoch need no request. Where another broker's begin, read the indexes of its
    first segment; those of the segment before, unless its log reaches back to ``start``; and for transactions that were
    open there and that it does not know, the log up to the marker that ends the last of them.
    """

    def __init__(self, source: SegmentSource, spans: Sequence[Span], start: int) -> None:
        self._source = source
        self._spans = spans
        self._start = start
        self._next = 0
        self._ended: dict[int, list[AbortedTransaction]] = {}
        self._pending_from: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        """Producers whose transactions are open at the end of the visited spans, with their first offsets, as far as
        the last span's broker does not know them.
        """

    def skip_to(self, number: int) -> None:
        """Skip to span ``number``: transactions open before it have no relevant records."""
        self._next = max(self._next, number + 1)

    def ended_in(self, number: int) -> Sequence[AbortedTransaction]:
        """Return the transactions that markers in span ``number`` abort, and that its index may lack or begin too
        late.
        """
        while self._next <= number:
            if ended := list(self._go_through(self._next)):
                self._ended[self._next] = ended
            if self.pending:
                self._pending_from[self._next] = min(self.pending.values())
            self._next += 1
        return self._ended.get(number, ())

    def pending_from(self, number: int) -> int:
        """Return the start of the first transaction that was pending at the end of span ``number``."""
        return self._pending_from.get(number, MAX_OFFSET)

    def opened_at_end(self) -> Mapping[int, int]:
        """Return the producers whose transactions are open at the end of all spans, with their first offsets."""
        last = len(self._spans) - 1
        # Its broker's log reaches back to the start of the read, so its snapshot is complete.
        if self._knows_from(self._spans[last].segment) <= self._start:
            return self._opened_at(last)
        self.ended_in(last)
        return {**self._opened_at(last), **self.pending}

    def _go_through(self, number: int) -> Iterator[AbortedTransaction]:
        span = self._spans[number]
        is_other_broker = number > 0 and not _is_of_one_broker(self._spans[number - 1], span)
        if is_other_broker:
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
        """Drop the transactions that the segment's indexes have at its start: its broker and later ones know them."""
        known = opened_at_end(self._source, segment)
        known.update((entry.producer_id, entry.first_offset) for entry in read_aborted(self._source, segment))
        self.pending = {producer: first for producer, first in self.pending.items() if known.get(producer) != first}

    def _markers_in(self, span: Span) -> Iterator[AbortedTransaction]:
        """Remove the pending transactions that end in the span, and yield the aborted ones."""
        position = position_before(self._source, span.segment, span.start)
        for marker in end_markers(self._source, span.segment, span.start, self.pending, position):
            if marker.offset >= span.stop:
                return
            first = self.pending.pop(marker.producer_id)
            if marker.aborts:
                # The others are unknown, so the last stable offset is the lowest possible.
                yield AbortedTransaction(marker.producer_id, first, marker.offset, first)
            if not self.pending:
                return

    def _opened_at(self, number: int) -> dict[int, int]:
        """Return the transactions open at a span's end, by the brokers of the earlier segments."""
        first = number
        while first and _is_cut(self._spans[first]):
            first -= 1
        span = self._spans[first]
        # At its end another log continues. Its snapshot does not describe that log, only its batches do.
        opened = {} if _is_cut(span) else opened_at_end(self._source, span.segment)
        for later in self._spans[first + (not _is_cut(span)) : number + 1]:
            least = later.start if later is not self._spans[0] else 0
            steps = steps_of(self._source, later.segment)
            opened = play_markers((step for step in steps if least <= step.offset < later.stop), opened)[1]
        return opened

    def _knows_from(self, segment: RemoteLogSegmentMetadata) -> int:
        """Return where the log of the segment's broker begins, or a later offset; MAX_OFFSET if that is unknown.

        It is the start of the first leader epoch: a broker truncates these at its log's start.
        """
        try:
            with self._source.fetch_index(segment, IndexType.LEADER_EPOCH) as stream:
                raw = stream.read()
            epochs = parse_leader_epochs(raw) if raw else ()
        except (IndexNotRecordedError, BatchCorruptError):
            return MAX_OFFSET
        return epochs[0][1] if epochs else MAX_OFFSET


def aborted_in_each(
    source: SegmentSource, spans: Sequence[Span], pool: ThreadPool, *, at_once: int
) -> dict[Span, Sequence[AbortedTransaction]]:
    """Return the result of :func:`aborted_in` for each span, many requested in parallel.

    Indexes made from the logs are read in order: each then knows the transactions open at the end of the one before.
    """
    look = partial(aborted_in, source)
    if source.layout.tells_transactions:
        return dict(zip(spans, in_parallel(pool, look, spans, at_once=at_once), strict=True))
    return {span: look(span) for span in spans}


def aborted_in(source: SegmentSource, span: Span) -> Sequence[AbortedTransaction]:
    """Return the aborted transactions whose markers are in the span, in their order: see :func:`read_aborted`."""
    # A marker outside the span belongs to an abandoned leader epoch, or to another span.
    return [entry for entry in read_aborted(source, span.segment) if span.start <= entry.last_offset < span.stop]


def _is_of_one_broker(before: Span, span: Span) -> bool:
    """Return True if one broker copied both segments as leader of one epoch: it knows in the second what it knew in
    the first.
    """
    one, other = before.segment, span.segment
    return (
        one.broker_id == other.broker_id >= 0
        and one.segment_leader_epochs[-1:] != ()
        and other.segment_leader_epochs[-1:] != ()
        and one.segment_leader_epochs[-1][0] == other.segment_leader_epochs[-1][0]
        and not _is_cut(before)
    )


def _is_cut(span: Span) -> bool:
    """Return True if the span ends before its segment."""
    return span.stop <= span.segment.end_offset
