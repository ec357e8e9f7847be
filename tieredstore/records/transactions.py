"""What read_committed must know: which transactions were aborted, and which have no outcome.

As in Kafka an aborted transaction has an entry in the ``.txnindex`` of the segment that holds its abort marker, with
the last stable offset of that moment: all transactions that began before that offset are decided by then. A committed
one has no entry, so that nothing but the producer snapshot at the end tells which are open there. What a broker does
not know of a transaction its index and its snapshot lack: ``crossings`` adds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tieredstore.catalog.lineage import Span
from tieredstore.catalog.transactions import opened_at_end, read_aborted
from tieredstore.kafka.indexes import AbortedTransaction
from tieredstore.process.parallel import in_parallel
from tieredstore.records.crossings import Crossings
from tieredstore.records.report import Undecided

if TYPE_CHECKING:
    from tieredstore.process.thread_pool import ThreadPool
    from tieredstore.remote.source import SegmentSource


class Transactions:
    """The transactions of ``spans``, which follow each other without a gap, for a read that begins at ``start``."""

    def __init__(self, source: SegmentSource, spans: Sequence[Span], start: int) -> None:
        self._source = source
        self._spans = spans
        self._start = start
        self._known: Mapping[Span, Sequence[AbortedTransaction]] = {}
        self._looked_into = 0
        self._stable = -1
        self._aborted: list[AbortedTransaction] = []
        # Where indexes are made of the logs, one after the other, none knows less than those before it.
        self._crossings = Crossings(source, spans, start) if source.layout.tells_transactions else None

    def know(self, entries: Mapping[Span, Sequence[AbortedTransaction]]) -> None:
        """Do not ask again for what :func:`aborted_in` gave of some of the spans."""
        self._known = entries

    def skip_to(self, number: int) -> None:
        """No transaction has a record in the read's offsets before span ``number``."""
        if self._crossings is not None:
            self._crossings.skip_to(number)
            self._looked_into = max(self._looked_into, number)

    def aborted(self, number: int, start: int, stop: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions that touch the offsets ``start`` up to ``stop`` (half-open) of span ``number``.

        Calls go up in ``number`` and ``start``. Two requests for each segment that has a transaction index, from the
        span's on until the last stable offset passes ``stop``; none for the others, but for :class:`Crossings`.
        """
        while self._looked_into < len(self._spans) and (self._looked_into <= number or self._stable < stop):
            self._look_into(self._looked_into)
            self._looked_into += 1
        # Calls only go forward, so that what ended before is of no use to a later one.
        self._aborted = [entry for entry in self._aborted if entry.last_offset >= start]
        return [entry for entry in self._aborted if entry.first_offset < stop]

    def reach_over(self, start: int) -> bool:
        """Whether a transaction that began before ``start``, an offset of the first span, is open at that span's end.

        None of its records need come behind ``start``, and yet it may be undecided. True also where the span ends
        before its segment, whose snapshot tells of another log's end then. Two requests for the producer snapshot,
        none where the offset index was read before.
        """
        first = self._spans[0]
        is_cut = first.stop <= first.segment.end_offset
        return is_cut or any(offset < start for offset in opened_at_end(self._source, first.segment).values())

    def first_undecided(self, stop: int) -> Undecided | None:
        """The first transaction open at the end of the spans, if it begins before ``stop``.

        Two requests, for the indexes of the last segment, besides those of :class:`Crossings`; none if an index has
        told already that all of them are decided.
        """
        if self._crossings is None:
            # Snapshots are made of the logs then, and know of what was open before as far as those logs were read.
            while self._looked_into < len(self._spans):
                self._look_into(self._looked_into)
                self._looked_into += 1
        # The last stable offset lies behind the read: all of its transactions were decided by then.
        if self._stable >= stop:
            return None
        last = self._spans[-1]
        crossings = self._crossings
        if crossings is None and last.stop <= last.segment.end_offset:
            # At a cut another log goes on, of which the segment's snapshot tells nothing: only its batches do.
            crossings = Crossings(self._source, self._spans, self._start)
        opened = opened_at_end(self._source, last.segment) if crossings is None else crossings.opened_at_end()
        offset, producer = min(((first, producer) for producer, first in opened.items()), default=(stop, -1))
        if offset >= stop:
            return None
        return Undecided(last.segment.topic_id_partition, producer, offset, last.stop)

    def _look_into(self, number: int) -> None:
        span = self._spans[number]
        entries = self._known[span] if span in self._known else aborted_in(self._source, span)
        ended: Sequence[AbortedTransaction] = ()
        # What is said of outcomes is believed as far as the span goes, and as all is known that is open there.
        limit = span.stop
        if self._crossings is not None:
            ended = self._crossings.ended_in(number)
            # The spans behind it may have been gone through already: what is pending now says nothing of this one.
            limit = min(limit, self._crossings.pending_from(number))
        told = {(entry.producer_id, entry.last_offset) for entry in ended}
        self._aborted += [entry for entry in entries if (entry.producer_id, entry.last_offset) not in told]
        self._aborted += ended
        self._stable = max([self._stable, *(min(entry.last_stable_offset, limit) for entry in entries)])


def aborted_in_each(
    source: SegmentSource, spans: Sequence[Span], pool: ThreadPool, *, at_once: int
) -> dict[Span, Sequence[AbortedTransaction]]:
    """What :func:`aborted_in` gives of each span, many asked for side by side.

    One after the other where it is made of the logs: what is open at the end of one is known to the next one then.
    """
    look = partial(aborted_in, source)
    if source.layout.tells_transactions:
        return dict(zip(spans, in_parallel(pool, look, spans, at_once=at_once), strict=True))
    return {span: look(span) for span in spans}


def aborted_in(source: SegmentSource, span: Span) -> Sequence[AbortedTransaction]:
    """The aborted transactions whose markers lie in the span, in their order: see :func:`read_aborted`."""
    # A marker that lies outside of the span is of a leader epoch that was left behind, or another span's.
    return [entry for entry in read_aborted(source, span.segment) if span.start <= entry.last_offset < span.stop]
