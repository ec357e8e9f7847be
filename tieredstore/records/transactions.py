"""What read_committed must know: which transactions were aborted, and which have no outcome.

As in Kafka an aborted transaction has an entry in the ``.txnindex`` of the segment that holds its abort marker, with
the last stable offset of that moment: all transactions that began before that offset are decided by then. A committed
one has no entry, so that nothing but the producer snapshot at the end tells which are open there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tieredstore.catalog.lineage import Span
from tieredstore.errors import BatchCorrupt, IndexesCorrupt, IndexNotRecorded
from tieredstore.kafka.checkpoints import parse_producer_snapshot
from tieredstore.kafka.indexes import AbortedTransaction, read_txn_index
from tieredstore.model import IndexType
from tieredstore.process.parallel import in_parallel
from tieredstore.records.report import Undecided

if TYPE_CHECKING:
    from tieredstore.process.thread_pool import ThreadPool
    from tieredstore.remote.source import SegmentSource


class Transactions:
    """The transactions of ``spans``, which follow each other without a gap and are read in their order."""

    def __init__(
        self,
        source: SegmentSource,
        spans: Sequence[Span],
        known: Mapping[Span, Sequence[AbortedTransaction]] | None = None,
    ) -> None:
        """``known`` has what :func:`aborted_in` gave of some of the spans, which are not asked for again."""
        self._source = source
        self._spans = spans
        self._known = known or {}
        self._looked_into = 0
        self._stable = -1
        self._aborted: list[AbortedTransaction] = []

    def aborted(self, number: int, start: int, stop: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions that touch the offsets ``start`` up to ``stop`` (half-open) of span ``number``.

        Calls go up in ``number`` and ``start``. Two requests for each segment that has a transaction index, from the
        span's on until the last stable offset passes ``stop``; none for the others.
        """
        while self._looked_into < len(self._spans) and (self._looked_into <= number or self._stable < stop):
            self._look_into(self._spans[self._looked_into])
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
        return is_cut or any(offset < start for offset, _ in self._opened_at_end(first))

    def first_undecided(self, stop: int) -> Undecided | None:
        """The first transaction open at the end of the spans, if it begins before ``stop``.

        Two requests, for the producer snapshot of the last segment; none if an index has told already that all of
        them are decided.
        """
        if not self._source.layout.tells_transactions:
            # Snapshots are made of the logs then, and know of what was open before as far as those logs were read.
            while self._looked_into < len(self._spans):
                self._look_into(self._spans[self._looked_into])
                self._looked_into += 1
        # The last stable offset lies behind the read: all of its transactions were decided by then.
        if self._stable >= stop:
            return None
        last = self._spans[-1]
        offset, producer = min(self._opened_at_end(last), default=(stop, -1))
        if offset >= stop:
            return None
        return Undecided(last.segment.topic_id_partition, producer, offset, last.stop)

    def _opened_at_end(self, span: Span) -> list[tuple[int, int]]:
        """First offset and producer of each transaction that is open where the span's segment ends."""
        try:
            with self._source.fetch_index(span.segment, IndexType.PRODUCER_SNAPSHOT) as stream:
                producers = parse_producer_snapshot(stream.read())
        except BatchCorrupt as error:
            raise IndexesCorrupt(f"{span.segment}: {error}") from error
        opened = ((state.current_txn_first_offset, state.producer_id) for state in producers)
        return [(first, producer) for first, producer in opened if first >= 0]

    def _look_into(self, span: Span) -> None:
        entries = self._known[span] if span in self._known else aborted_in(self._source, span)
        self._aborted += entries
        self._stable = max([self._stable, *(entry.last_stable_offset for entry in entries)])


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
    """The aborted transactions whose markers lie in the span, in their order.

    Two requests; none for a segment that is known to have no transaction index. IndexesCorrupt for a damaged one.
    """
    # None means that nobody said so; then the index is asked for.
    if span.segment.txn_idx_empty:
        return ()
    try:
        with source.fetch_index(span.segment, IndexType.TRANSACTION) as stream:
            entries = read_txn_index(stream.read(), span.segment.start_offset)
    except IndexNotRecorded:
        return ()
    except BatchCorrupt as error:
        raise IndexesCorrupt(f"{span.segment}: {error}") from error
    # A marker that lies outside of the span is of a leader epoch that was left behind, or another span's.
    return [entry for entry in entries if span.start <= entry.last_offset < span.stop]
